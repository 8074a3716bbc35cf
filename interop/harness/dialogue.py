"""What a server answers to one TURN client, attribute by attribute, whatever it answers.

The clients under test and `harness.turn` expect a server that works. Here a realm may be empty and an error is an answer like any other,
so messages are written and read here. Nothing is shared with a server or another client.
"""

import contextlib
import hashlib
import hmac
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable

from harness.waiting import PATIENCE

BINDING, ALLOCATE, REFRESH, CREATE_PERMISSION, CHANNEL_BIND = 0x001, 0x003, 0x004, 0x008, 0x009
USERNAME, MESSAGE_INTEGRITY, ERROR_CODE, CHANNEL_NUMBER, LIFETIME = 0x0006, 0x0008, 0x0009, 0x000C, 0x000D
XOR_PEER_ADDRESS, REALM, NONCE, XOR_RELAYED_ADDRESS = 0x0012, 0x0014, 0x0015, 0x0016
REQUESTED_ADDRESS_FAMILY, REQUESTED_TRANSPORT, SOFTWARE, ALTERNATE_SERVER = 0x0017, 0x0019, 0x8022, 0x8023
UDP, TCP = 17, 6

_COOKIE = 0x2112A442
#: Seconds until a request is sent again, and how often it is sent.
_AGAIN_AFTER, _TIMES = 0.5, 6


class Answer:
    """A response: its error code, or 0 for success, and its attributes."""

    def __init__(self, message: bytes):
        self._transaction = message[4:20]
        self.attributes: dict[int, bytes] = {}
        at = 20
        while at + 4 <= len(message):
            kind, length = struct.unpack_from("!HH", message, at)
            self.attributes.setdefault(kind, message[at + 4 : at + 4 + length])
            at += 4 + (length + 3 & ~3)
        error = self.attributes.get(ERROR_CODE)
        self.code = error[2] % 8 * 100 + error[3] if error else 0

    def text(self, kind: int) -> str | None:
        value = self.attributes.get(kind)
        return None if value is None else value.decode(errors="replace")

    def number(self, kind: int) -> int | None:
        value = self.attributes.get(kind)
        return None if value is None else int.from_bytes(value, "big")

    def address(self, kind: int, is_plain: bool = False) -> tuple[str, int] | None:
        value = self.attributes.get(kind)
        if value is None:
            return None
        port, host = int.from_bytes(value[2:4], "big"), value[4:]
        if not is_plain:
            port ^= _COOKIE >> 16
            host = bytes(one ^ other for one, other in zip(host, self._transaction))
        return str(ipaddress.ip_address(host)), port


class Dialogue:
    """One 5-tuple. `client` is a socket that is connected to the server, by UDP or TCP.

    An answer counts as missing only when it does not come in time and the server has nothing left to do: `cpu_s` gives the
    processor time that it has had, where that is to be looked at.
    """

    def __init__(self, client: socket.socket, cpu_s: Callable[[], float] = lambda: 0):
        self._socket = client
        self._cpu_s = cpu_s
        self._is_stream = client.type == socket.SOCK_STREAM
        self._credentials: list[tuple[int, bytes]] = []
        self._key: bytes | None = None

    def use(self, user: str, password: str, challenge: Answer) -> None:
        """Signs from here on, as the answer that asks for it says."""
        realm = challenge.attributes.get(REALM, b"")
        self._key = hashlib.md5(b":".join((user.encode(), realm, password.encode()))).digest()
        self._credentials = [
            (USERNAME, user.encode()),
            (REALM, realm),
            (NONCE, challenge.attributes.get(NONCE, b"")),
        ]

    def ask(self, method: int, *attributes: tuple[int, bytes | str | tuple[str, int]]) -> Answer | None:
        """The answer, or None where there is none. A value that is text is an IP address, which is written as that of a peer, at a port if there is one."""
        transaction = os.urandom(12)
        values = [(kind, value if isinstance(value, bytes) else _peer(value, transaction)) for kind, value in attributes]
        body = b"".join(map(_attribute, (*values, *self._credentials)))
        if self._key is not None:
            signed = struct.pack("!HHI", method, len(body) + 24, _COOKIE) + transaction + body
            body += _attribute((MESSAGE_INTEGRITY, hmac.digest(self._key, signed, "sha1")))
        message = struct.pack("!HHI", method, len(body), _COOKIE) + transaction + body
        times = 1 if self._is_stream else _TIMES
        for _ in range(times):
            try:
                self._socket.sendall(message)
                if answer := self._answer(message[4:20], _AGAIN_AFTER * _TIMES / times):
                    return answer
            except ConnectionError:
                time.sleep(0.05)
        return self._late_answer(message[4:20])

    def _late_answer(self, expected: bytes) -> Answer | None:
        """The answer of a server that is still at work."""
        deadline, had = time.monotonic() + PATIENCE, self._cpu_s()
        while had and time.monotonic() < deadline:
            with contextlib.suppress(ConnectionError):
                if answer := self._answer(expected, _AGAIN_AFTER):
                    return answer
            has = self._cpu_s()
            if has == had:
                return None
            had = has
        return None

    def _answer(self, expected: bytes, patience: float) -> Answer | None:
        deadline = time.monotonic() + patience
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                message = self._read()
            except TimeoutError:
                return None
            if message[4:20] == expected:
                return Answer(message)
        return None

    def _read(self) -> bytes:
        if not self._is_stream:
            return self._socket.recv(65536)
        head = self._exactly(20)
        return head + self._exactly(int.from_bytes(head[2:4], "big"))

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            piece = self._socket.recv(count - len(found))
            if not piece:
                raise ConnectionError("closed by the server")
            found += piece
        return found


def _peer(address: str | tuple[str, int], transaction: bytes) -> bytes:
    text, port = (address, 9) if isinstance(address, str) else address
    host = ipaddress.ip_address(text)
    mask = struct.pack("!I", _COOKIE) + transaction
    masked = bytes(one ^ other for one, other in zip(host.packed, mask))
    return struct.pack("!BBH", 0, 1 if host.version == 4 else 2, port ^ _COOKIE >> 16) + masked


def _attribute(attribute: tuple[int, bytes]) -> bytes:
    kind, value = attribute
    return struct.pack("!HH", kind, len(value)) + value + bytes(-len(value) % 4)
