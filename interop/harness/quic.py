"""The exchange of `turnbuckle quic-server` (crates/load/src/quic/exchange.rs), spoken by aioquic."""

import asyncio
import contextlib
import dataclasses
import ipaddress
import json
import socket
import ssl
import subprocess
import zlib

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from harness.waiting import PATIENCE, await_condition

ALPN = "turnbuckle-perf"
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


@dataclasses.dataclass(frozen=True)
class Moved:
    """What became of a transfer: whether what arrived at either side is what was sent, and how the connection was."""

    up_is_whole: bool
    down_is_whole: bool
    version: int
    retried: bool


async def move(server: str, port: int, local: str, up: int, down: int, meanwhile=None, **configured) -> Moved:
    """Connects from the address `local`, sends `up` bytes and wants `down`. When the first bytes of the answer have come, or half of what is sent has
    been handed over, `meanwhile(protocol)` is awaited."""
    configuration = QuicConfiguration(
        is_client=True, alpn_protocols=[ALPN], verify_mode=ssl.CERT_NONE, server_name="localhost", **configured
    )
    connection = QuicConnection(configuration=configuration)
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ipaddress.ip_address(server).version == 6 else socket.AF_INET
    udp = socket.socket(family, socket.SOCK_DGRAM)
    udp.bind((local, 0))
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
        return Moved(head == expected, received == payload(down), connection._version, bool(connection._peer_token))
    finally:
        protocol.close()
        await protocol.wait_closed()
        protocol.current_transport.close()


async def another_port(protocol: QuicConnectionProtocol) -> None:
    """Has the client send from another socket from here on, as after a NAT has forgotten it."""
    old = protocol.current_transport
    address = old.get_extra_info("sockname")
    udp = socket.socket(old.get_extra_info("socket").family, socket.SOCK_DGRAM)
    udp.bind((address[0], 0))
    loop = asyncio.get_running_loop()
    protocol.current_transport, _ = await loop.create_datagram_endpoint(lambda: protocol, sock=udp)
    old.close()


async def another_key(protocol: QuicConnectionProtocol) -> None:
    """Updates the keys of the connection (RFC 9001 §6)."""
    protocol.request_key_update()


async def another_id(protocol: QuicConnectionProtocol) -> None:
    """Uses another connection id of the server (RFC 9000 §5.1)."""
    protocol.change_connection_id()


@contextlib.contextmanager
def losing(namespace, one_of: int):
    """Has every `one_of`th of what arrives by UDP in a namespace lost, a train in one buffer being one. Yields a function that says how many were."""
    rules = f"""
        table inet loss {{
            chain arriving {{
                type filter hook input priority 0;
                meta l4proto udp numgen inc mod {one_of} 0 counter drop
            }}
        }}
    """
    _nft(namespace, "-f", "-", given=rules)
    try:
        yield lambda: _dropped(namespace)
    finally:
        _nft(namespace, "delete", "table", "inet", "loss")


def _dropped(namespace) -> int:
    listed = json.loads(_nft(namespace, "--json", "list", "table", "inet", "loss"))["nftables"]
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
