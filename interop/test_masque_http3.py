"""Tunnels of UDP in HTTP/3 (RFC 9298, RFC 9220), by masque-go and by aioquic, pages by HTTP/3 through them, and our load generator by masque-go's proxy.

`DATAGRAMS=100000` carries as many as that through one tunnel of each client, in place of 5,000. `IDLE=125` leaves a tunnel alone for as many seconds, in
place of 2.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import ErrorCode, H3Connection, Setting
from aioquic.h3.events import DataReceived, DatagramReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StopSendingReceived, StreamReset

from harness import dialogue
from harness.dialogue import Dialogue
from harness.quic import TURNBUCKLE
from harness.waiting import PATIENCE
from test_masque import ALICE, HOST, IDLE, PATH, PEER_HOST, PORT, REALM, TLS_PORT, Peer, Relay

# Reasons for which a relay that keeps up drops nothing.
LOSSES = ("quic_queue", "quic_backlog", "no_tunnel", "datagram_too_large")
MASQUE_GO = Path(__file__).parent / ".build/masque-go-peer"
COUNT = int(os.environ.get("DATAGRAMS", "5000"))
CONTEXT = b"\0"


class _Http(H3Connection):
    """Says what the client under test is to say of itself."""

    def __init__(self, quic: QuicConnection, takes_datagrams: bool):
        self._takes_datagrams = takes_datagrams
        super().__init__(quic)

    def _get_local_settings(self):
        return super()._get_local_settings() | {Setting.H3_DATAGRAM: int(self._takes_datagrams)}


class Client(QuicConnectionProtocol):
    """A connection that asks for tunnels. What is HTTP/3 is checked by aioquic, which closes over a mistake."""

    takes_datagrams = True

    def __init__(self, quic: QuicConnection):
        super().__init__(quic)
        self.http = None
        self.ready = asyncio.get_running_loop().create_future()
        self.closed = asyncio.get_running_loop().create_future()
        self._streams: dict[int, asyncio.Queue] = {}

    def quic_event_received(self, event):
        if isinstance(event, HandshakeCompleted):
            self.http = _Http(self._quic, self.takes_datagrams)
            self.ready.set_result(None)
        elif isinstance(event, ConnectionTerminated) and not self.closed.done():
            self.closed.set_result(event.error_code)
        elif isinstance(event, StreamReset):
            self._queue(event.stream_id).put_nowait(ErrorCode(event.error_code))
        elif isinstance(event, StopSendingReceived):
            return
        if self.http is None:
            return
        for seen in self.http.handle_event(event):
            if isinstance(seen, (DataReceived, HeadersReceived, DatagramReceived)):
                self._queue(seen.stream_id).put_nowait(seen)

    def _queue(self, stream: int) -> asyncio.Queue:
        return self._streams.setdefault(stream, asyncio.Queue())

    def ask(self, host: str, port, user=ALICE, **fields: str | None) -> int:
        """Sends a request, with some of its fields replaced, added or left out, and returns its stream."""
        headers = {
            ":method": "CONNECT",
            ":protocol": "connect-udp",
            ":scheme": "https",
            ":path": PATH.format(host, port),
            ":authority": f"{HOST}:{PORT}",
            "capsule-protocol": "?1",
        }
        if user:
            headers["proxy-authorization"] = "Basic " + base64.b64encode(":".join(user).encode()).decode()
        headers |= {name.replace("pseudo_", ":").replace("_", "-"): value for name, value in fields.items()}
        stream = self._quic.get_next_available_stream_id()
        pairs = [(name.encode(), value.encode()) for name, value in headers.items() if value is not None]
        self.http.send_headers(stream, pairs)
        self.transmit()
        return stream

    async def next(self, stream: int):
        return await asyncio.wait_for(self._queue(stream).get(), PATIENCE)

    async def answer(self, stream: int) -> tuple[int, dict[str, str]]:
        event = await self.next(stream)
        assert isinstance(event, HeadersReceived), event
        fields = {name.decode(): value.decode() for name, value in event.headers}
        return int(fields[":status"]), fields

    async def open(self, host: str, port: int, **fields) -> int:
        stream = self.ask(host, port, **fields)
        status, _ = await self.answer(stream)
        assert status == 200
        return stream

    def send(self, stream: int, *payloads: bytes) -> None:
        for payload in payloads:
            self.http.send_datagram(stream, CONTEXT + payload)
        self.transmit()

    def write(self, stream: int, data: bytes, end: bool = False) -> None:
        self.http.send_data(stream, data, end)
        self.transmit()

    async def payload(self, stream: int) -> bytes:
        event = await self.next(stream)
        assert isinstance(event, DatagramReceived) and event.data.startswith(CONTEXT), event
        return event.data[1:]


@contextlib.asynccontextmanager
async def _connected(port: int = PORT, takes_datagrams: bool = True):
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=["h3"],
        verify_mode=ssl.CERT_NONE,
        server_name="relay.test",
        max_datagram_frame_size=65536,
        max_datagram_size=1350,  # so that the packets of another connection fit in
        idle_timeout=600,  # the relay's is what counts
    )
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_datagram_endpoint(lambda: Client(QuicConnection(configuration=configuration)), local_addr=(HOST, 0))
    client.takes_datagrams = takes_datagrams
    try:
        client.connect((HOST, port))
        await asyncio.wait_for(client.ready, PATIENCE)
        yield client
    finally:
        client.close()
        transport.close()


def _capsule(kind: int, value: bytes) -> bytes:
    assert kind < 64 and len(value) < 16384
    return bytes([kind]) + (0x4000 | len(value)).to_bytes(2, "big") + value


def _masque_go(command: str, target: str, *options: str, user=ALICE, port: int = PORT) -> dict:
    asked = [MASQUE_GO, command, "--proxy", f"{HOST}:{port}", "--user", ":".join(user), "--target", target, *options]
    done = subprocess.run(list(map(str, asked)), capture_output=True, text=True, timeout=PATIENCE * 10)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masque-http3")
    files = [f"{folder}/cert.pem", f"{folder}/key.pem"]
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=relay.test".split()
    subprocess.run([*command, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


@pytest.fixture
def starting(tmp_path, certificate):
    with contextlib.ExitStack() as stack:
        yield lambda *options: stack.enter_context(Relay(tmp_path, certificate, "quic", "masque=tls", *options))


@pytest.fixture
def peer():
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture
def page():
    """A server of HTTP/3, quic-go's, with what it serves."""
    server = subprocess.Popen([MASQUE_GO, "serve", "--listen", f"{PEER_HOST}:0"], stdout=subprocess.PIPE, text=True)
    yield json.loads(server.stdout.readline())
    server.kill()
    server.wait()


def our_load_generator_loses_nothing_through_tunnels_of_masque_gos_proxy(certificate):
    """Our client with a proxy that is not ours."""
    user = ":".join(ALICE)
    proxy = subprocess.Popen([MASQUE_GO, "proxy", "--listen", f"{HOST}:{PORT}", "--user", user, "--certificate", certificate[0], "--key", certificate[1]])
    reflector = subprocess.Popen([TURNBUCKLE, "peer", "--listen", f"{PEER_HOST}:0", "--json"], stdout=subprocess.PIPE, text=True)
    try:
        target = json.loads(reflector.stdout.readline())["listen"][0]
        load = [TURNBUCKLE, "load", "rate", "--transport", "masque", "--server", f"{HOST}:{PORT}", "--peer", target, "--json", "--rate", "500"]
        options = ["--clients", "6", "--tunnels", "3", "--duration", "2", "--max-loss", "0"]
        done = subprocess.run([*load, *options, "--user", user], capture_output=True, text=True, timeout=PATIENCE * 10)
        assert done.returncode == 0, done.stdout + done.stderr
        seen = json.loads(done.stdout.splitlines()[-1])
        assert seen["sent_datagrams"] == seen["received_datagrams"] > 0 and seen["allocations"]["succeeded"] == 6, seen
        done = subprocess.run([*load, "--user", "alice:looking-glass"], capture_output=True, text=True, timeout=PATIENCE * 10)
        assert "none of 1 clients got a tunnel: 407 (1 time)" in done.stderr, done.stderr
    finally:
        for process in (proxy, reflector):
            process.kill()
            process.wait()


#= UDPX-01
#= UDPX-12
#= UDPX-13
#= H3-02
#= H3-20
@pytest.mark.parametrize("port", [PORT, TLS_PORT])
def masque_go_loses_nothing_through_a_tunnel(starting, peer, port):
    relay = starting("allow-loopback-peers")
    seen = _masque_go("echo", f"{PEER_HOST}:{peer.port}", "--count", COUNT, "--timeout", "300s", port=port)
    assert seen == {"status": 200, "capsule_protocol": "?1", "proxy_status": f'relay; next-hop="{PEER_HOST}"', "sent": COUNT, "came": COUNT}
    seen = _masque_go("echo", f"{PEER_HOST}:{peer.port}", user=("alice", "looking-glass"), port=port)
    assert seen == {"status": 407, "proxy_status": ""}
    accounts = relay.stop()
    assert accounts["carried"] == accounts["peer_in"] == accounts["peer_out"] == COUNT
    assert not set(accounts["drops"][reason] for reason in LOSSES) - {0}, accounts


def aioquic_loses_nothing_through_a_tunnel(starting, peer):
    """A few are under way at a time, as many as the client can handle: what it loses itself is nobody's."""

    async def talk():
        async with _connected() as client:
            stream = await client.open(PEER_HOST, peer.port)
            sent, under_way = 0, set()
            while sent < COUNT or under_way:
                while sent < COUNT and len(under_way) < 40:
                    payload = b"%07d" % sent + b"x" * (sent % 1000)
                    under_way.add(payload)
                    client.send(stream, payload)
                    sent += 1
                under_way.remove((await client.payload(stream))[::-1])

    relay = starting("allow-loopback-peers")
    asyncio.run(talk())
    accounts = relay.stop()
    assert accounts["carried"] == accounts["peer_in"] == accounts["peer_out"] == COUNT
    assert not set(accounts["drops"][reason] for reason in LOSSES) - {0}, accounts


def masque_go_gets_a_page_by_http3_through_a_tunnel(starting, page):
    relay = starting("allow-loopback-peers")
    seen = _masque_go("get", page["address"])
    assert seen == {"status": 200, "len": page["len"], "sha256": page["sha256"]}
    relay.stop()


def aioquic_gets_a_page_by_http3_through_a_tunnel(starting, page):
    host, port = page["address"].rsplit(":", 1)

    async def talk() -> bytes:
        async with _connected() as client:
            stream = await client.open(host, port)
            return await asyncio.wait_for(_page(client, stream, (host, int(port))), PATIENCE * 10)

    relay = starting("allow-loopback-peers")
    body = asyncio.run(talk())
    assert (len(body), hashlib.sha256(body).hexdigest()) == (page["len"], page["sha256"])
    relay.stop()


async def _page(client: Client, stream: int, address: tuple[str, int]) -> bytes:
    """What a server of HTTP/3 serves, by a connection of QUIC inside the tunnel of a stream."""
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], verify_mode=ssl.CERT_NONE, server_name="target.test")
    inner, http, body, time = QuicConnection(configuration=configuration), None, b"", asyncio.get_running_loop().time
    inner.connect(address, now=time())
    while True:
        for packet, _ in inner.datagrams_to_send(now=time()):
            client.http.send_datagram(stream, CONTEXT + packet)
        client.transmit()
        timer = inner.get_timer()
        try:
            payload = await asyncio.wait_for(client.payload(stream), timer and max(timer - time(), 0))
            inner.receive_datagram(payload, address, now=time())
        except TimeoutError:
            inner.handle_timer(now=time())
        while (event := inner.next_event()) is not None:
            if isinstance(event, HandshakeCompleted):
                http = H3Connection(inner)
                fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"target.test"), (b":path", b"/page")]
                http.send_headers(inner.get_next_available_stream_id(), fields, end_stream=True)
            for seen in http.handle_event(event) if http else []:
                if isinstance(seen, DataReceived):
                    body += seen.data
                    if seen.stream_ended:
                        return body


#= DGR-03
#= UDPX-05
#= UDPX-15
#= UDPX-24
#= DGR-01
#= V-91
#= V-92
def aioquic_has_many_tunnels_on_a_connection_and_what_is_for_one_comes_through_no_other(starting, peer):
    async def talk():
        other_peer = Peer()
        async with _connected() as client, _connected(TLS_PORT) as other:
            streams = [await client.open(PEER_HOST, peer.port) for _ in range(20)]
            theirs = await other.open(PEER_HOST, other_peer.port)
            settings = client.http.received_settings
            assert (settings[Setting.ENABLE_CONNECT_PROTOCOL], settings[Setting.H3_DATAGRAM]) == (1, 1)
            for number, stream in enumerate(streams):
                client.send(stream, b"one of %d" % number, b"", os.urandom(1000))
            other.send(theirs, b"other")
            for number, stream in enumerate(streams):
                came = [await client.payload(stream) for _ in range(3)]
                assert {b"one of %d" % number, b""} < {payload[::-1] for payload in came}, (number, came)
            assert await other.payload(theirs) == b"rehto"
            # A stream that has none, one that is not there yet, and another context.
            other.send(theirs + 4 * 50, b"nobody's")
            other.http.send_datagram(theirs, b"\2context")
            other.send(theirs, b"still")
            assert await other.payload(theirs) == b"llits"
            # The end of one ends no other, and what is late for it reaches nobody.
            client.write(streams[0], b"", end=True)
            assert (await client.next(streams[0])).stream_ended
            client._quic.send_datagram_frame(bytes([streams[0] // 4]) + CONTEXT + b"late")
            client.send(streams[1], b"on")
            assert await client.payload(streams[1]) == b"no"
        assert len(other_peer.sources) == 1 and len(peer.sources) == 20
        other_peer.close()

    relay = starting("allow-loopback-peers")
    asyncio.run(talk())
    accounts = relay.stop()
    drops = accounts["drops"]
    assert (drops["no_tunnel"], drops["context_unknown"]) == (2, 1), drops
    assert accounts["carried"] == 20 * 3 + 3 and accounts["tunnels"] == 0


#= QPK-01
def a_request_is_read_whose_fields_are_in_the_static_table_and_in_huffmans_code(starting, peer):
    sections = []

    async def talk():
        async with _connected() as client:
            encode = client.http._encode_headers
            client.http._encode_headers = lambda *arguments: sections.append(encode(*arguments)) or sections[-1]
            client.send(await client.open(PEER_HOST, peer.port), b"on")

    relay = starting("allow-loopback-peers")
    asyncio.run(talk())
    relay.stop()
    # What aioquic's encoder has made of it: nothing of a dynamic table, an entry of the static one (":method: CONNECT"), and no text as it is.
    [section] = sections
    assert section[:3] == bytes([0, 0, 0xC0 | 15]), section
    assert not any(text in section for text in (b"connect-udp", PEER_HOST.encode(), b"Basic")), section


#= DGR-04
#= H3-01
#= UDPX-16
#= UDPX-25
#= UDPX-26
def who_does_not_take_datagrams_gets_capsules(starting, peer):
    async def talk():
        async with _connected(takes_datagrams=False) as client:
            stream = await client.open(PEER_HOST, peer.port)
            for size in (0, 1, 1200, 9000):
                payload = os.urandom(size)
                client.write(stream, _capsule(0, CONTEXT + payload))
                came = b""
                while len(came) < size + 2 or len(came) < len(_head(size)) + size:
                    came += (await client.next(stream)).data
                assert came == _head(size) + payload[::-1], size
            odd = _capsule(0x3F, b"x" * 3000) + _capsule(0, b"\2other") + _capsule(0, CONTEXT + b"known")
            for first in range(0, len(odd), 500):
                client.write(stream, odd[first : first + 500])
            assert (await client.next(stream)).data.endswith(b"nwonk")
            client.write(stream, _capsule(0, b""))
            assert await client.next(stream) == ErrorCode.H3_MESSAGE_ERROR

    def _head(size: int) -> bytes:
        length = size + 1
        return b"\0" + (bytes([length]) if length < 64 else (0x4000 | length).to_bytes(2, "big")) + CONTEXT

    relay = starting("allow-loopback-peers")
    asyncio.run(talk())
    drops = relay.stop()["drops"]
    assert (drops["capsule_unknown"], drops["context_unknown"], drops["malformed_capsule"]) == (1, 1, 1), drops


#= UDPX-18
def nothing_is_kept_of_a_capsule_that_is_passed_over_however_long_it_is(starting, peer):
    async def talk():
        async with _connected() as client:
            stream = await client.open(PEER_HOST, peer.port)
            piece = b"x" * 16384
            # The first one gives the buffers of a connection their size.
            for count in (4, 256):
                before = relay.memory_peak()
                # A type and a length of four bytes each.
                client.write(stream, (0x80001234).to_bytes(4, "big") + (0x80000000 | len(piece) * count).to_bytes(4, "big"))
                for _ in range(count):
                    client.write(stream, piece)
                    await asyncio.sleep(0)
                client.write(stream, _capsule(0, CONTEXT + b"behind"))
                assert await client.payload(stream) == b"dniheb"
            # Of 4 MiB.
            assert relay.memory_peak() - before < 1 << 20

    relay = starting("allow-loopback-peers")
    asyncio.run(talk())
    assert relay.stop()["drops"]["capsule_unknown"] == 2


def a_tunnel_that_carries_nothing_for_a_while_is_there(starting, peer):
    async def talk():
        async with _connected() as client:
            stream = await client.open(PEER_HOST, peer.port)
            await asyncio.sleep(IDLE)
            client.send(stream, b"still")
            assert await client.payload(stream) == b"llits"

    relay = starting("allow-loopback-peers")
    asyncio.run(talk())
    relay.stop()


#= UDPX-02
#= UDPX-03
#= UDPX-04
#= UDPX-23
#= H3-10
#= H3-11
#= H3-12
#= H3-13
#= H3-21
#= V-89
#= V-92
def each_request_that_is_not_granted_is_answered_why(starting, peer):
    async def talk(canary_port: int):
        async with _connected() as client:
            for fields, status in (
                ({"host": "a", "port": 0}, 400),
                ({"host": "::1", "port": 1}, 400),
                ({"host": "127.1", "port": 1}, 400),
                ({"host": "a", "port": 1, "pseudo_path": "/"}, 404),
                ({"host": "a", "port": 1, "pseudo_protocol": "connect-ip"}, 501),
                ({"host": "a", "port": 1, "pseudo_protocol": None, "pseudo_method": "GET"}, 404),
            ):
                answer = await client.answer(client.ask(**fields))
                assert answer[0] == status and "capsule-protocol" not in answer[1], (fields, answer)
            for fields in ({"Upper": "x"}, {"connection": "close"}, {"content_length": "0"}, {"pseudo_scheme": None}, {"pseudo_status": "200"}):
                assert await client.next(client.ask("192.0.2.1", 1, **fields)) == ErrorCode.H3_MESSAGE_ERROR, fields
        hosts = ["127.0.0.1", "localhost", "0.0.0.0", HOST, "10.0.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255"]
        hosts += ["::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "fe80::1", "fc00::1", "::"]
        async with _connected() as client:
            for host in hosts:
                stream = client.ask(host.replace(":", "%3A"), canary_port)
                client.send(stream, b"canary")
                status, fields = await client.answer(stream)
                assert status in (403, 502), (host, status)
                assert fields["proxy-status"] in (f"relay; error={error}" for error in ("destination_ip_prohibited", "dns_error")), host
            assert (await client.answer(client.ask(HOST, PORT)))[0] == 403
            status, fields = await client.answer(client.ask("no-such-name.invalid", 1))
            assert (status, fields["proxy-status"]) in ((502, "relay; error=dns_error"), (504, "relay; error=dns_timeout"))

    relay = starting()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as canary:
        canary.bind(("127.0.0.1", 0))
        canary.setblocking(False)
        asyncio.run(talk(canary.getsockname()[1]))
        with pytest.raises(BlockingIOError):
            canary.recv(100)
    relay.stop()


#= V-93
#= V-88
def a_user_has_three_attempts_on_a_connection_and_one_quota_for_its_tunnels(starting, peer):
    async def talk():
        async with _connected() as client:
            for user in (None, ("alice", "looking-glass")):
                status, fields = await client.answer(client.ask(PEER_HOST, peer.port, user))
                assert (status, fields["proxy-authenticate"]) == (407, f'Basic realm="{REALM}", charset="UTF-8"')
            client.ask(PEER_HOST, peer.port, ("mallory", "wonderland"))
            assert await asyncio.wait_for(client.closed, PATIENCE) == ErrorCode.H3_EXCESSIVE_LOAD
        async with _connected() as client, _connected() as other:
            await client.open(PEER_HOST, peer.port)
            await client.open(PEER_HOST, peer.port)
            status, fields = await other.answer(other.ask(PEER_HOST, peer.port))
            assert (status, fields["proxy-status"]) == (429, "relay; error=connection_limit_reached")
            client.close()
            while (await other.answer(other.ask(PEER_HOST, peer.port)))[0] != 200:
                await asyncio.sleep(0.05)

    relay = starting("allow-loopback-peers", "user-quota=1")
    asyncio.run(talk())
    assert relay.stop()["closes"]["requests_exceeded"] == 1


#= UDPX-06
#= UDPX-07
#= UDPX-17
def datagrams_may_come_before_the_answer_and_a_target_that_is_not_there_ends_its_tunnel(starting, peer):
    async def talk(nobody: int):
        async with _connected() as client:
            stream = client.ask(PEER_HOST, peer.port)
            client.send(stream, b"early")
            assert (await client.answer(stream))[0] == 200
            # The first may have overtaken its request, and is nobody's then.
            client.send(stream, b"late")
            assert await client.payload(stream) in (b"ylrae", b"etal")
            gone = await client.open(PEER_HOST, nobody)
            client.send(gone, b"nobody")
            assert (await client.next(gone)).stream_ended
            client.send(stream, b"on")
            while await client.payload(stream) != b"no":
                pass

    relay = starting("allow-loopback-peers")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind((PEER_HOST, 0))
        nobody = gone.getsockname()[1]
    asyncio.run(talk(nobody))
    assert relay.stop()["drops"]["icmp_ends_tunnel"] == 1


#= UDPX-21
def a_payload_too_large_for_a_packet_is_dropped_and_not_sent_in_a_capsule(starting, peer):
    async def talk():
        async with _connected() as client:
            stream = await client.open(PEER_HOST, peer.port)
            client.send(stream, b"first")
            assert await client.payload(stream) == b"tsrif"
            peer.socket.sendto(b"x" * 2000, next(iter(peer.sources)))
            client.send(stream, b"last")
            assert await client.payload(stream) == b"tsal"

    relay = starting("allow-loopback-peers")
    asyncio.run(talk())
    assert relay.stop()["drops"]["datagram_too_large"] == 1


#= H3-23
def while_the_relay_drains_clients_are_told_and_keep_their_tunnels(starting, peer):
    async def talk():
        async with _connected() as client:
            stream = await client.open(PEER_HOST, peer.port)
            relay.process.send_signal(signal.SIGUSR1)
            code = None
            while code is None:
                late = client.ask(PEER_HOST, peer.port)
                event = await client.next(late)
                if isinstance(event, HeadersReceived):
                    client.write(late, b"", end=True)
                    await asyncio.sleep(0.05)
                else:
                    code = event
            assert code == ErrorCode.H3_REQUEST_REJECTED
            client.send(stream, b"on")
            assert await client.payload(stream) == b"no"

    relay = starting("allow-loopback-peers")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect((HOST, PORT))
        turn = Dialogue(udp)
        asked = (dialogue.ALLOCATE, (dialogue.REQUESTED_TRANSPORT, bytes((dialogue.UDP, 0, 0, 0))))
        turn.use(*ALICE, turn.ask(*asked))
        assert turn.ask(*asked).code == 0, "which keeps the relay"
        asyncio.run(talk())
    relay.stop()
