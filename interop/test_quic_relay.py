"""Other QUIC stacks as clients of the relay's own ports, while TURN is served there: quic-go's and aioquic's."""

import asyncio
import json
import ssl
import subprocess
from pathlib import Path

import pytest
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import ErrorCode, H3Connection
from aioquic.h3.events import H3Event
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import HandshakeCompleted, StreamReset

from harness import binding, topology
from harness.server import PORT, TLS_PORT
from harness.topology import CLIENT_IPV4, LISTENER_IPV4
from harness.waiting import PATIENCE

QUIC_GO = Path(__file__).parent / ".build/quic-go-peer"
REJECTED = ErrorCode.H3_REQUEST_REJECTED


class _Client(QuicConnectionProtocol):
    """Asks for a page, and keeps the code with which the request is rejected. What is HTTP/3 is checked by aioquic, which closes over a mistake."""

    def __init__(self, quic: QuicConnection):
        super().__init__(quic)
        self.http = None
        self.rejected = asyncio.get_running_loop().create_future()
        self.seen: list[H3Event] = []

    def quic_event_received(self, event):
        if isinstance(event, HandshakeCompleted):
            self.http = H3Connection(self._quic)
            self._ask()
        elif isinstance(event, StreamReset) and not self.rejected.done():
            self.rejected.set_result(event.error_code)
        if self.http is not None:
            self.seen += self.http.handle_event(event)

    def _ask(self):
        stream = self._quic.get_next_available_stream_id()
        headers = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"relay.test"), (b":path", b"/")]
        self.http.send_headers(stream, headers, end_stream=True)
        self.transmit()


async def _request(port: int) -> tuple[int, dict[int, int]]:
    """The code of the rejection, and the server's settings."""
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE, server_name="relay.test")
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_datagram_endpoint(
        lambda: _Client(QuicConnection(configuration=configuration)), local_addr=(CLIENT_IPV4, 0)
    )
    try:
        client.connect((LISTENER_IPV4, port))
        code = await client.rejected
        assert client._quic._peer_token, "the address was asked for by a Retry"
        return code, client.http.received_settings
    finally:
        client.close()
        transport.close()


@pytest.fixture(params=[(), ("--xdp", "on")], ids=["sockets", "XDP"])
def relay(serving, request):
    """The relay, with its program in the kernel too, which is to leave QUIC to it."""
    with serving("--quic", *request.param, secure=True) as server:
        server.await_ready()
        yield server


@pytest.mark.parametrize("port", [PORT, TLS_PORT])
def aioquic_gets_settings_and_its_request_is_rejected_while_turn_is_served(hosts, relay, port):
    code, settings = hosts.client.call(lambda: asyncio.run(asyncio.wait_for(_request(port), PATIENCE)))
    assert code == REJECTED
    assert settings == {0x06: 16384}
    assert binding.answers(hosts.client, CLIENT_IPV4, LISTENER_IPV4, PORT, PATIENCE)


@pytest.mark.parametrize("port", [PORT, TLS_PORT])
def quic_go_gets_settings_and_its_request_is_rejected_while_turn_is_served(hosts, relay, port):
    command = hosts.client.argv(str(QUIC_GO), "request", "--server", topology.with_port(LISTENER_IPV4, port))
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"event": "rejected", "control": "0004", "code": int(REJECTED)}
    assert binding.answers(hosts.client, CLIENT_IPV4, LISTENER_IPV4, PORT, PATIENCE)
