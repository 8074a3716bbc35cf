"""curl as a client of tunnels of UDP in HTTP: libcurl speaks CONNECT-UDP by HTTP/1.1 Upgrade and by HTTP/3, as curl_cffi from PyPI builds it, and does HTTP/3
through it."""

import asyncio
import base64
import contextlib
import threading

import pytest
from aioquic import asyncio as quic
from aioquic.asyncio import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from curl_cffi import Curl, CurlInfo, CurlOpt
from curl_cffi.const import CurlProxyType

from harness.waiting import PATIENCE
from test_masque import HOST, PEER_HOST, PORT, TLS_PORT, certificate, starting  # fixtures

assert certificate and starting
#: CURL_HTTP_VERSION_3ONLY.
HTTP_3_ONLY = 31
#: More than one window of packets.
BODY = bytes(range(256)) * 256


class _Site(QuicConnectionProtocol):
    """Answers each request with the same body."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._http = H3Connection(self._quic)

    def quic_event_received(self, event):
        for found in self._http.handle_event(event):
            if isinstance(found, HeadersReceived):
                self._http.send_headers(found.stream_id, [(b":status", b"200"), (b"content-length", b"%d" % len(BODY))])
                self._http.send_data(found.stream_id, BODY, end_stream=True)
                self.transmit()


@pytest.fixture
def site(certificate):
    """The port of a server of HTTP/3."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start():
        configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
        configuration.load_cert_chain(*certificate)
        return await quic.serve(PEER_HOST, 0, configuration=configuration, create_protocol=_Site)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE)
    yield server._transport.get_extra_info("sockname")[1]
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE)


def _get(proxy: str, port: int, user: str = "alice:wonderland", kind: CurlProxyType | None = None) -> tuple[int, bytes, str]:
    """The status and the body of a request by HTTP/3 through `proxy`, and what curl says of it."""
    body, said = bytearray(), []
    curl = Curl()
    with contextlib.closing(curl):
        options = {
            CurlOpt.URL: f"https://{PEER_HOST}:{port}/".encode(),
            CurlOpt.PROXY: proxy.encode(),
            CurlOpt.HTTPPROXYTUNNEL: 1,
            CurlOpt.HTTP_VERSION: HTTP_3_ONLY,
            CurlOpt.TIMEOUT_MS: int(PATIENCE * 1000),
            CurlOpt.VERBOSE: 1,
            CurlOpt.DEBUGFUNCTION: lambda kind, text: said.append(bytes(text).decode("latin1")) if kind == 0 else None,
            CurlOpt.WRITEFUNCTION: body.extend,
        }
        # Who they are is not what is tried.
        unchecked = ("SSL_VERIFYPEER", "SSL_VERIFYHOST", "PROXY_SSL_VERIFYPEER", "PROXY_SSL_VERIFYHOST")
        if kind is None:
            options[CurlOpt.PROXYUSERPWD] = user.encode()
        else:
            # Given in the other way they stand before `:protocol`, which is malformed (RFC 9114 §4.3).
            credentials = base64.b64encode(user.encode()).decode()
            options |= {CurlOpt.PROXYTYPE: kind, CurlOpt.HEADEROPT: 1, CurlOpt.PROXYHEADER: [f"Proxy-Authorization: Basic {credentials}".encode()]}
        for option, value in [*options.items(), *((getattr(CurlOpt, name), 0) for name in unchecked)]:
            curl.setopt(option, value)
        with contextlib.suppress(Exception):
            curl.perform()
        return curl.getinfo(CurlInfo.RESPONSE_CODE), bytes(body), "".join(said)


#: Where the relay is asked, how, and what it answers.
BY_TCP, BY_TLS, BY_QUIC = (f"http://{HOST}:{PORT}", None, 101), (f"https://{HOST}:{TLS_PORT}", None, 101), (f"https://{HOST}:{PORT}", CurlProxyType.HTTPS3, 200)


@pytest.mark.parametrize(("proxy", "kind", "response"), [BY_TCP, BY_TLS, BY_QUIC], ids=["TCP", "TLS", "QUIC"])
def curl_reaches_a_server_of_http_3_through_the_relay(starting, site, proxy, kind, response):
    relay = starting("masque=plain", "quic", "allow-loopback-peers")
    status, body, said = _get(proxy, site, kind=kind)
    assert f"CONNECT-UDP tunnel established, response {response}" in said, said
    assert (status, body) == (200, BODY), said
    accounts = relay.stop()
    assert accounts["drops"]["malformed_capsule"] == 0, accounts


@pytest.mark.parametrize(("proxy", "kind", "_"), [BY_TCP, BY_QUIC], ids=["TCP", "QUIC"])
def curl_is_told_when_its_password_is_wrong(starting, site, proxy, kind, _):
    relay = starting("masque=plain", "quic", "allow-loopback-peers")
    status, body, said = _get(proxy, site, "alice:looking-glass", kind)
    assert (status, body) == (0, b"") and "407" in said, said
    relay.stop()
