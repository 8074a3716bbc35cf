"""A blocking TURN client for tests that decide themselves how datagrams leave: one by one, or as a train.

Messages are written and read by aioice's codec, so nothing here shares code with the server under test.
"""

import dataclasses
import socket
import struct
import time

from aioice import stun, turn

from harness.topology import CLIENT_IPV4
from harness.waiting import PATIENCE

_UDP_SEGMENT = 103
_REQUESTED_UDP = 17 << 24
_RETRANSMIT_AFTER = 0.5


class Refused(Exception):
    """An error response; `code` is its error code."""

    def __init__(self, response: stun.Message):
        super().__init__(str(response))
        self.code = response.error_code


@dataclasses.dataclass(frozen=True)
class Login:
    """What a client has to know of a server and a user."""

    port: int
    user: str
    password: str


class Client:
    """One 5-tuple; `udp` is bound in the client's namespace."""

    def __init__(self, udp: socket.socket, address: str, server, password: str | None = None):
        self.udp = udp
        self.server = (address, server.port)
        self._user, self._password = server.user, password or server.password
        self._credentials: dict = {}
        self._key: bytes | None = None
        #: Requests sent, repetitions counted.
        self.requests_sent = 0
        #: Transactions whose request was sent more than once, so that a further response may come at any time.
        self._repeated: set[bytes] = set()

    def request(self, method: stun.Method, attributes: dict) -> stun.Message:
        """The success response to a request; authenticates when asked to."""
        response = self._transact(method, attributes)
        if response.error_code == 401 and self._key is None:
            realm, nonce = response.attributes["REALM"], response.attributes["NONCE"]
            self._credentials = {"USERNAME": self._user, "REALM": realm, "NONCE": nonce}
            self._key = turn.make_integrity_key(self._user, realm, self._password)
            response = self._transact(method, attributes)
        if response.message_class != stun.Class.RESPONSE:
            raise Refused(response)
        assert self._key is None or response.check_message_integrity(self._key), response
        return response

    def allocate(self) -> tuple[str, int]:
        """The relayed transport address."""
        return self.request(stun.Method.ALLOCATE, {"REQUESTED-TRANSPORT": _REQUESTED_UDP}).attributes[
            "XOR-RELAYED-ADDRESS"
        ]

    def permit(self, peer: tuple[str, int]) -> None:
        self.request(stun.Method.CREATE_PERMISSION, {"XOR-PEER-ADDRESS": peer})

    def bind(self, channel: int, peer: tuple[str, int]) -> None:
        self.request(stun.Method.CHANNEL_BIND, {"CHANNEL-NUMBER": channel, "XOR-PEER-ADDRESS": peer})

    def release(self) -> None:
        self.request(stun.Method.REFRESH, {"LIFETIME": 0})

    def receive(self) -> tuple[int | tuple[str, int], bytes]:
        """The next payload relayed to this client, with its channel number or, in a Data indication, its peer."""
        while True:
            message = self._receive()
            if message[0] >> 6 == 1:
                channel, length = struct.unpack("!HH", message[:4])
                assert len(message) == 4 + length, "ChannelData over UDP with octets after the payload"
                return channel, message[4:]
            indication = stun.parse_message(message)
            if indication.transaction_id not in self._repeated:
                break
        assert (indication.message_method, indication.message_class) == (stun.Method.DATA, stun.Class.INDICATION)
        return indication.attributes["XOR-PEER-ADDRESS"], indication.attributes["DATA"]

    def _transact(self, method: stun.Method, attributes: dict) -> stun.Message:
        request = stun.Message(method, stun.Class.REQUEST, attributes=attributes | self._credentials)
        if self._key is not None:
            request.add_message_integrity(self._key)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                self.udp.sendto(bytes(request), self.server)
                self.requests_sent += 1
                response = self._response(request.transaction_id)
            except ConnectionError:  # an ICMP error, seen by a connected socket
                time.sleep(0.001)
                continue
            if response is not None:
                return response
            self._repeated.add(request.transaction_id)
        raise TimeoutError(f"no response to {request}")

    def _response(self, transaction_id: bytes) -> stun.Message | None:
        """The response to a request, or None when it is time to send the request again."""
        deadline = time.monotonic() + _RETRANSMIT_AFTER
        while (left := deadline - time.monotonic()) > 0:
            self.udp.settimeout(left)
            try:
                response = stun.parse_message(self.udp.recv(65536))
            except TimeoutError:
                return None
            if response.transaction_id == transaction_id:  # others answer requests that were sent twice
                return response
        return None

    def _receive(self) -> bytes:
        self.udp.settimeout(PATIENCE)
        return self.udp.recv(65536)


def error_of_allocation(namespace, address: str, port: int, user: str, password: str) -> int | None:
    """The error code of an Allocate request, or of the Refresh request that ends the allocation, or none."""
    with namespace.udp(CLIENT_IPV4) as udp:
        client = Client(udp, address, Login(port, user, password))
        try:
            client.allocate()
            # The server may notice a change of its users between the two requests.
            client.release()
        except Refused as refused:
            return refused.code
        return None


def realm_of_origin(namespace, address: str, port: int, origin: str) -> str | None:
    """The realm of the challenge to an Allocate request that bears this ORIGIN; none where the answer is no challenge."""
    attributes = {"REQUESTED-TRANSPORT": _REQUESTED_UDP}
    value = origin.encode()
    # ORIGIN is unknown to the codec.
    of_origin = struct.pack("!HH", 0x802F, len(value)) + value + bytes(-len(value) % 4)
    with namespace.udp(CLIENT_IPV4) as udp:
        client = Client(udp, address, Login(port, "nobody", "nothing"))
        request = stun.Message(stun.Method.ALLOCATE, stun.Class.REQUEST, attributes=attributes)
        message = bytes(request) + of_origin
        message = message[:2] + struct.pack("!H", len(message) - 20) + message[4:]
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            udp.sendto(message, (address, port))
            response = client._response(request.transaction_id)
            if response is not None:
                return response.attributes.get("REALM")
    raise TimeoutError("no response to a request with an ORIGIN")


def channel_data(channel: int, payload: bytes) -> bytes:
    return struct.pack("!HH", channel, len(payload)) + payload


def send_indication(peer: tuple[str, int], payload: bytes) -> bytes:
    attributes = {"XOR-PEER-ADDRESS": peer, "DATA": payload}
    return bytes(stun.Message(stun.Method.SEND, stun.Class.INDICATION, attributes=attributes))


def send_train(udp: socket.socket, datagrams: list[bytes], to: tuple[str, int]) -> None:
    """One system call, one GSO buffer: the kernel cuts it into the datagrams. All but the last have one size."""
    size = len(datagrams[0])
    assert all(len(datagram) == size for datagram in datagrams[:-1]) and len(datagrams[-1]) <= size
    udp.sendmsg([b"".join(datagrams)], [(socket.IPPROTO_UDP, _UDP_SEGMENT, struct.pack("=H", size))], 0, to)
