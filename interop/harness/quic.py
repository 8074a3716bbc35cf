"""The exchange of `turnbuckle quic-server` (crates/load/src/quic/exchange.rs), spoken by aioquic."""

import asyncio
import contextlib
import dataclasses
import ipaddress
import json
import os
import socket
import ssl
import subprocess
import zlib
from enum import Enum
from pathlib import Path

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted

from harness.process import Process
from harness.topology import LISTENER_IPV4, with_port
from harness.waiting import PATIENCE, await_condition

TURNBUCKLE = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).parents[2] / "target")) / "release/turnbuckle"
PORT = 4433

ALPN = "turnbuckle-perf"
#: socket(7); Python has no name for it.
_SO_RCVBUFFORCE = 33
_PERIOD = 65_521
_MASK = 2**64 - 1


def _block() -> bytes:
    state, found = 0x9E3779B97F4A7C15, bytearray()
    for _ in range(_PERIOD):
        state ^= state << 13 & _MASK
        state ^= state >> 7
        state ^= state << 17 & _MASK
        found.append(state >> 56)
    return bytes(found)


BLOCK = _block()


def payload(length: int) -> bytes:
    """What either side sends where so many bytes are moved."""
    return (BLOCK * (length // _PERIOD + 1))[:length]


@contextlib.contextmanager
def serving(hosts, address: str = LISTENER_IPV4, backend: str = "auto", *more: str):
    """`turnbuckle quic-server` where the relay would be. At the end every datagram that it received is accounted for."""
    options = ["quic-server", "--json", "--listen", with_port(address, PORT), "--backend", backend, *more]
    with Process(hosts.relay, str(TURNBUCKLE), *options) as server:
        await_event(server, "ready")
        yield server
        server.terminate()
        result = await_event(server, "result")
        dropped = sum(result["dropped_datagrams"].values())
        known = result["delivered_datagrams"] + result["connections"] + result["answered_datagrams"] + dropped
        assert result["received_datagrams"] == known, result
        assert result["panicked_connections"] == 0


@contextlib.contextmanager
def path(hosts, *rules: str):
    """`turnbuckle link` before the server, which listens on loopback of its host."""
    ends = ["--listen", with_port(LISTENER_IPV4, PORT), "--to", with_port("127.0.0.1", PORT)]
    with Process(hosts.relay, str(TURNBUCKLE), "link", "--json", *ends, *rules) as link:
        await_event(link, "ready")
        yield link


@dataclasses.dataclass(frozen=True)
class Moved:
    """What became of a transfer: whether what arrived at either side is what was sent, and how the connection was."""

    up_is_whole: bool
    down_is_whole: bool
    version: int
    retried: bool
    resumed: bool
    tickets: tuple


async def move(server: str, port: int, local: str, up: int, down: int, meanwhile=None, **configured) -> Moved:
    """Connects from the address `local`, sends `up` bytes and wants `down`. When the first bytes of the answer have come, or half of what is sent has
    been handed over, `meanwhile(protocol)` is awaited."""
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=[ALPN], verify_mode=ssl.CERT_NONE, server_name="localhost", **configured
    )
    tickets = []
    connection = QuicConnection(configuration=configuration, session_ticket_handler=tickets.append)
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ipaddress.ip_address(server).version == 6 else socket.AF_INET
    udp = _socket(family, local)
    transport, protocol = await loop.create_datagram_endpoint(lambda: QuicConnectionProtocol(connection), sock=udp)
    protocol.current_transport = transport
    try:
        protocol.connect((server, port, 0, 0) if family == socket.AF_INET6 else (server, port))
        await protocol.wait_connected()
        reader, writer = await protocol.create_stream()
        sent = payload(up)
        writer.write(down.to_bytes(8, "big") + sent[: up // 2])
        if meanwhile and not down:
            await meanwhile(protocol)
        writer.write(sent[up // 2 :])
        writer.write_eof()
        head = await reader.readexactly(12)
        if meanwhile and down:
            await meanwhile(protocol)
        received = await reader.read()
        expected = up.to_bytes(8, "big") + zlib.crc32(sent).to_bytes(4, "big")
        is_whole = (head == expected, received == payload(down))
        return Moved(*is_whole, connection._version, bool(connection._peer_token), connection.tls.session_resumed, tuple(tickets))
    finally:
        protocol.close()
        await protocol.wait_closed()
        protocol.current_transport.close()


def _socket(family: int, local: str) -> socket.socket:
    """With room for bursts, as `exchange::socket` of the peers in Rust has it."""
    udp = socket.socket(family, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 * 1024 * 1024)
    udp.bind((local, 0))
    return udp


async def another_port(protocol: QuicConnectionProtocol) -> None:
    """Has the client send from another socket from here on, as after a NAT has forgotten it."""
    old = protocol.current_transport
    address = old.get_extra_info("sockname")
    udp = _socket(old.get_extra_info("socket").family, address[0])
    loop = asyncio.get_running_loop()
    protocol.current_transport, _ = await loop.create_datagram_endpoint(lambda: protocol, sock=udp)
    old.close()


async def another_key(protocol: QuicConnectionProtocol) -> None:
    """Updates the keys of the connection (RFC 9001 §6)."""
    protocol.request_key_update()


async def another_id(protocol: QuicConnectionProtocol) -> None:
    """Uses another connection id of the server (RFC 9000 §5.1)."""
    protocol.change_connection_id()


async def another_path(protocol: QuicConnectionProtocol) -> None:
    """Has the client go on from another socket to another connection id (RFC 9000 §9.5)."""
    protocol.change_connection_id()
    await another_port(protocol)


class Mistake(Enum):
    """What a client does that no client may, and what is the server's answer: a code of RFC 9000 §20.1, with an alert of TLS in it in the first case."""

    #: It offers no protocol that the server has (RFC 9001 §8.1: no_application_protocol).
    ANOTHER_PROTOCOL = 0x100 + 120
    #: It says what only a server may say (RFC 9000 §19.20: PROTOCOL_VIOLATION).
    HANDSHAKE_DONE = 0x0A
    #: It opens a stream beyond those that the server allows (RFC 9000 §4.6: STREAM_LIMIT_ERROR).
    TOO_MANY_STREAMS = 0x04


class _Misbehaving(QuicConnectionProtocol):
    """Makes its mistake when the handshake is done, if it has not made it before, and keeps what the server closes the connection with."""

    def __init__(self, connection: QuicConnection, mistake: Mistake):
        super().__init__(connection)
        self._mistake = mistake
        self.ended: ConnectionTerminated | None = None

    def quic_event_received(self, event):
        if isinstance(event, HandshakeCompleted):
            self._make_it()
        elif isinstance(event, ConnectionTerminated):
            self.ended = event

    def _make_it(self):
        if self._mistake is Mistake.HANDSHAKE_DONE:
            self._quic._handshake_done_pending = True
        elif self._mistake is Mistake.TOO_MANY_STREAMS:
            # aioquic would wait until the server allows it.
            self._quic._remote_max_streams_bidi = 2**40
            self._quic.send_stream_data(4 * 2**30, b"x")


async def ended(server: str, port: int, local: str, mistake: Mistake | None = None, **configured) -> ConnectionTerminated:
    """How the connection of a client ends that makes a mistake."""
    protocol_name = "another" if mistake is Mistake.ANOTHER_PROTOCOL else ALPN
    configuration = QuicConfiguration(is_client=True, alpn_protocols=[protocol_name], verify_mode=ssl.CERT_NONE, server_name="localhost", **configured)
    loop = asyncio.get_running_loop()
    made = lambda: _Misbehaving(QuicConnection(configuration=configuration), mistake)
    transport, protocol = await loop.create_datagram_endpoint(made, local_addr=(local, 0))
    try:
        protocol.connect((server, port))
        await protocol.wait_closed()
        return protocol.ended
    finally:
        transport.close()


@contextlib.contextmanager
def losing(namespace, one_of: int):
    """Has every `one_of`th of what arrives by UDP in a namespace lost, a train in one buffer being one, and the first of them in mid-transfer. Yields a
    function that says how many were."""
    with _rule(namespace, f"meta l4proto udp numgen inc mod {one_of} {one_of // 2} counter drop") as count:
        yield count


@contextlib.contextmanager
def marked(namespace):
    """Yields a function that says how many packets have come by UDP in IPv4 that are marked as of a transport that knows of ECN (RFC 3168 §5)."""
    with _rule(namespace, "meta l4proto udp ip ecn != not-ect counter") as count:
        yield count


@contextlib.contextmanager
def _rule(namespace, rule: str):
    """Yields a function that says how many packets have come to a rule's counter."""
    rules = f"""
        table inet quic {{
            chain arriving {{
                type filter hook input priority 0;
                {rule}
            }}
        }}
    """
    _nft(namespace, "-f", "-", given=rules)
    try:
        yield lambda: _counted(namespace)
    finally:
        _nft(namespace, "delete", "table", "inet", "quic")


def _counted(namespace) -> int:
    listed = json.loads(_nft(namespace, "--json", "list", "table", "inet", "quic"))["nftables"]
    rule = next(item["rule"] for item in listed if "rule" in item)
    return next(part["counter"]["packets"] for part in rule["expr"] if "counter" in part)


def _nft(namespace, *words: str, given: str = "") -> str:
    return subprocess.run(namespace.argv("nft", *words), input=given, text=True, check=True, capture_output=True).stdout


def events(process, name: str) -> list[dict]:
    """The events of one name that a program has printed as lines of JSON."""
    rows = [json.loads(line) for line in process.output.splitlines() if line.startswith("{")]
    return [row for row in rows if row["event"] == name]


def await_event(process, name: str) -> dict:
    return await_condition(lambda: events(process, name), f"the event {name}", PATIENCE)[0]
