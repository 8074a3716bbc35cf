"""Tunnels of UDP in HTTP by HTTP/1.1 Upgrade (RFC 9298), over TLS and TCP, asked for by a client of this file's own.

`DATAGRAMS=100000` carries as many as that through one tunnel, in place of 5,000. `IDLE=125` leaves a tunnel alone for as many seconds, in place of 2.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import socket
import ssl
import subprocess
import threading
import time

import pytest

from conftest import TARGET
from harness import dialogue, waiting
from harness.dialogue import Dialogue
from harness.waiting import PATIENCE

#: Of these tests alone.
HOST, PORT, TLS_PORT = "127.77.23.1", 34923, 34924
PEER_HOST = "127.77.23.9"
REALM = "example.org"
ALICE = ("alice", "wonderland")
PATH = "/.well-known/masque/udp/{}/{}/"
#: How long a tunnel is left alone, in seconds.
IDLE = float(os.environ.get("IDLE", "2"))


def _varint(number: int, length: int = 0) -> bytes:
    for size, form in ((1, 0), (2, 1), (4, 2), (8, 3)):
        if size >= length and number < 1 << (8 * size - 2):
            return (number | form << (8 * size - 2)).to_bytes(size, "big")
    raise ValueError(number)


def _capsule(kind: int, value: bytes) -> bytes:
    return _varint(kind) + _varint(len(value)) + value


def _datagram(payload: bytes, context: int = 0) -> bytes:
    return _capsule(0, _varint(context) + payload)


class Client:
    """A connection that asks for a tunnel and speaks in capsules then."""

    def __init__(self, is_secure: bool = True):
        self.stream = socket.create_connection((HOST, TLS_PORT if is_secure else PORT), timeout=PATIENCE)
        if is_secure:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.set_alpn_protocols(["http/1.1"])
            self.stream = context.wrap_socket(self.stream)
            assert self.stream.selected_alpn_protocol() == "http/1.1"
        self._came = b""

    def ask(self, host: str, port, user=ALICE, fields=("Connection: Upgrade", "Upgrade: connect-udp"), more: bytes = b"") -> tuple[int, dict]:
        """The status of the answer and its fields; `more` is sent with the request."""
        lines = [f"GET {PATH.format(host, port)} HTTP/1.1", f"Host: {HOST}", "Capsule-Protocol: ?1", *fields]
        if user:
            lines.append("Proxy-Authorization: Basic " + base64.b64encode(":".join(user).encode()).decode())
        self.stream.sendall("\r\n".join([*lines, "", ""]).encode() + more)
        return self.answer()

    def answer(self) -> tuple[int, dict]:
        while b"\r\n\r\n" not in self._came:
            self._more()
        head, _, self._came = self._came.partition(b"\r\n\r\n")
        status, *fields = head.decode().split("\r\n")
        return int(status.split()[1]), dict(field.split(": ", 1) for field in fields)

    def send(self, *payloads: bytes) -> None:
        self.stream.sendall(b"".join(map(_datagram, payloads)))

    def payload(self) -> bytes:
        kind, value = self._number(), self._number()
        while len(self._came) < value:
            self._more()
        value, self._came = self._came[:value], self._came[value:]
        assert kind == 0 and value[0] == 0, (kind, value[:20])
        return value[1:]

    def is_closed(self) -> bool:
        """Whether the relay closes the connection; what it sends before that does not matter."""
        try:
            while self.stream.recv(65536):
                pass
        except (ConnectionError, ssl.SSLError):
            pass
        return True

    def close(self) -> None:
        self.stream.close()

    def _number(self) -> int:
        while not self._came or len(self._came) < 1 << (self._came[0] >> 6):
            self._more()
        size = 1 << (self._came[0] >> 6)
        number, self._came = self._came[:size], self._came[size:]
        return int.from_bytes(number, "big") & ((1 << (8 * size - 2)) - 1)

    def _more(self) -> None:
        came = self.stream.recv(65536)
        assert came, f"closed behind {self._came[:80]}"
        self._came += came


class Peer:
    """Sends back what it gets, upside down."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind((PEER_HOST, 0))
        self.port = self.socket.getsockname()[1]
        self.sources = set()
        threading.Thread(target=self._echo, daemon=True).start()

    def _echo(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                payload, source = self.socket.recvfrom(65536)
                self.sources.add(source)
                self.socket.sendto(payload[::-1], source)

    def close(self) -> None:
        self.socket.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masque")
    files = [f"{folder}/cert.pem", f"{folder}/key.pem"]
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=relay".split()
    subprocess.run([*command, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


class Relay:
    def __init__(self, folder, certificate, *options):
        self.statistics = folder / "statistics.json"
        binary = os.environ.get("TURNBUCKLE_BINARY", TARGET / "release/turnbuckle")
        lines = [
            *(f"listening-ip={HOST}", f"listening-port={PORT}", f"tls-listening-port={TLS_PORT}", f"relay-ip={HOST}"),
            *(f"realm={REALM}", "user=alice:wonderland", f"cert={certificate[0]}", f"pkey={certificate[1]}"),
            *("relay-threads=1", "pin-threads=false", f"statistics-file={self.statistics}", *options),
        ]
        file = folder / "turnserver.conf"
        file.write_text("\n".join([*lines, ""]))
        binary = os.environ.get("TURNBUCKLE_BINARY", TARGET / "release/turnbuckle")
        self._command = [str(binary), "serve", "-c", str(file)]

    def __enter__(self):
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        waiting.await_condition(self._answers, "the start")
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.process.stdout.read()
        with contextlib.suppress(OSError), socket.create_connection((HOST, PORT), timeout=1):
            return True
        return False

    def memory_peak(self) -> int:
        """The most memory that it has had, in bytes."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            [line] = [line for line in status if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    def stop(self) -> dict:
        """Ends it, and returns its accounts, which have to be exact."""
        self.process.terminate()
        self.process.wait(PATIENCE)
        accounts = json.loads(self.statistics.read_text())
        assert accounts["in"] == accounts["out"] + accounts["dropped"], accounts
        return accounts


@pytest.fixture
def starting(tmp_path, certificate):
    with contextlib.ExitStack() as stack:
        yield lambda *options: stack.enter_context(Relay(tmp_path, certificate, *options))


@pytest.fixture
def peer():
    peer = Peer()
    yield peer
    peer.close()


#= UDPX-01
#= UDPX-05
#= UDPX-11
@pytest.mark.parametrize("is_secure", [True, False])
def a_tunnel_carries_every_datagram_both_ways(starting, peer, is_secure):
    relay = starting("masque=plain", "allow-loopback-peers")
    client = Client(is_secure)
    status, fields = client.ask(PEER_HOST, peer.port)
    assert (status, fields["Upgrade"], fields["Capsule-Protocol"]) == (101, "connect-udp", "?1")
    assert "Connection" in fields and not {"Content-Length", "Content-Type", "Transfer-Encoding"} & set(fields)
    assert fields["Proxy-Status"] == f'relay; next-hop="{PEER_HOST}"'
    for size in (0, 1, 62, 63, 64, 1200, 16383, 16384, 40000):
        payload = os.urandom(size)
        client.send(payload)
        assert client.payload() == payload[::-1], size
    # Nobody else's datagrams come to the client.
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stranger.bind((PEER_HOST, 0))
    stranger.sendto(b"intruder", next(iter(peer.sources)))
    client.send(b"last")
    assert client.payload() == b"tsal"
    # What is not known is passed over.
    client.stream.sendall(_capsule(0x1234, b"x" * 3000) + _datagram(b"other", context=2) + _datagram(b"known"))
    assert client.payload() == b"nwonk"
    count = int(os.environ.get("DATAGRAMS", "5000"))
    sent = [number.to_bytes(4, "big") * 40 for number in range(count)]
    # As many at a time as the buffer of a relay socket holds, so that nothing may be lost.
    for first in range(0, count, 10):
        client.send(*sent[first : first + 10])
        assert [client.payload() for _ in range(10)] == [payload[::-1] for payload in sent[first : first + 10]], first
    client.close()
    drops = relay.stop()["drops"]
    assert (drops["tunnel_source"], drops["capsule_unknown"], drops["context_unknown"]) == (1, 1, 1), drops


#= UDPX-02
#= UDPX-10
def a_request_that_breaks_the_rules_is_answered_400_and_other_requests_as_before(starting):
    relay = starting("masque=tls", "respond-http-unsupported")
    for host, port in (("", 1), ("a", 0), ("a", 65536), ("a", ""), ("::1", 1), ("a%2", 1), ("127.1", 1), ("a/b", 1)):
        client = Client()
        status, fields = client.ask(host, port)
        assert (status, fields["Connection"]) == (400, "close"), (host, port)
        assert client.is_closed()
    for fields in ([], ["Connection: Upgrade"], ["Connection: Upgrade", "Upgrade: websocket"], ["Upgrade: connect-udp"]):
        assert Client().ask("192.0.2.1", 1, fields=fields)[0] == 400, fields
    upgrade = ["Connection: Upgrade", "Upgrade: connect-udp"]
    for more in ("Host: b", "Content-Length: 0", "Transfer-Encoding: chunked", "Upgrade: connect-udp"):
        assert Client().ask("192.0.2.1", 1, fields=[*upgrade, more])[0] == 400, more
    assert Client().ask("192.0.2.1", 1, fields=[*upgrade, "X: " + "y" * 9000])[0] == 431
    # Without TLS there are no tunnels here, and what is no request for one gets what it got.
    for client, request in ((Client(False), PATH.format("a", 1)), (Client(), "/")):
        client.stream.sendall(f"GET {request} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        status, fields = client.answer()
        assert (status, fields["Content-Type"]) == (400, "text/plain; charset=utf-8")
        assert client.is_closed()
    relay.stop()


#= UDPX-23
#= V-89
def whom_the_policy_forbids_no_tunnel_reaches(starting):
    relay = starting("masque=tls")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as canary:
        canary.bind(("127.0.0.1", 0))
        canary.setblocking(False)
        port = canary.getsockname()[1]
        hosts = ["127.0.0.1", "localhost", "0.0.0.0", HOST, "10.0.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255"]
        hosts += ["::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "fe80::1", "fc00::1", "::"]
        for host in hosts:
            client = Client()
            status, fields = client.ask(host.replace(":", "%3A"), port, more=_datagram(b"canary"))
            assert status in (403, 502), (host, status)
            assert fields["Proxy-Status"] in (f"relay; error={error}" for error in ("destination_ip_prohibited", "dns_error")), host
            assert client.is_closed()
        # The relay's own ports, by its own address.
        assert Client().ask(HOST, PORT)[0] == 403
        with pytest.raises(BlockingIOError):
            canary.recv(100)
    relay.stop()


#= UDPX-03
#= UDPX-04
def a_name_is_resolved_before_the_answer(starting, peer):
    relay = starting("masque=tls", "allow-loopback-peers")
    client = Client()
    status, fields = client.ask("localhost", peer.port)
    assert (status, fields["Proxy-Status"]) in [(101, f'relay; next-hop="{ip}"') for ip in ("127.0.0.1", "::1")] + [
        (502, "relay; error=destination_ip_unroutable")
    ]
    status, fields = Client().ask("no-such-name.invalid", 1)
    assert (status, fields["Proxy-Status"]) in ((502, "relay; error=dns_error"), (504, "relay; error=dns_timeout"))
    relay.stop()


#= V-93
def a_user_has_three_attempts_on_a_connection_and_one_quota_with_turn(starting, peer):
    secret, name = b"north", f"{int(time.time()) + 600}:carol"
    password = base64.b64encode(hmac.digest(secret, name.encode(), hashlib.sha1)).decode()
    relay = starting(
        *("masque=tls", "allow-loopback-peers", "user-quota=2"),
        *("use-auth-secret", f"static-auth-secret={secret.decode()}"),
    )
    client = Client()
    for attempt, user in enumerate([None, ("alice", "looking-glass"), ("mallory", "wonderland")]):
        status, fields = client.ask(PEER_HOST, peer.port, user)
        assert (status, fields["Proxy-Authenticate"]) == (407, f'Basic realm="{REALM}", charset="UTF-8"')
        assert ("Connection" in fields) == (attempt == 2)
    assert client.is_closed()
    client = Client()
    assert client.ask(PEER_HOST, peer.port, None)[0] == 407
    assert client.ask(PEER_HOST, peer.port, (name, password))[0] == 101
    second = Client()
    assert second.ask(PEER_HOST, peer.port, (name, password))[0] == 101
    third, fields = Client().ask(PEER_HOST, peer.port, (name, password))
    assert (third, fields["Proxy-Status"]) == (429, "relay; error=connection_limit_reached")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect((HOST, PORT))
        talk = Dialogue(udp)
        asked = (dialogue.ALLOCATE, (dialogue.REQUESTED_TRANSPORT, bytes((dialogue.UDP, 0, 0, 0))))
        talk.use(name, password, talk.ask(*asked))
        assert talk.ask(*asked).code == 486
        second.close()
        waiting.await_condition(lambda: talk.ask(*asked).code == 0, "the unit of a connection that is closed")
    relay.stop()


#= UDPX-06
#= UDPX-07
#= UDPX-16
#= UDPX-25
#= V-92
def what_is_malformed_ends_the_tunnel_and_so_does_a_peer_that_is_not_there(starting, peer):
    relay = starting("masque=tls", "allow-loopback-peers")
    for wrong in (_capsule(0, b""), _capsule(0, b"\x40"), _varint(0) + _varint(65529) + b"\0"):
        client = Client()
        assert client.ask(PEER_HOST, peer.port)[0] == 101
        client.send(b"before")
        assert client.payload() == b"erofeb"
        client.stream.sendall(wrong)
        assert client.is_closed(), wrong
    # Datagrams with the request wait for the answer.
    client = Client()
    assert client.ask(PEER_HOST, peer.port, more=_datagram(b"early") + _datagram(b"cut")[:4])[0] == 101
    client.stream.sendall(_datagram(b"cut")[4:] + _datagram(b"late"))
    assert [client.payload() for _ in range(3)] == [b"ylrae", b"tuc", b"etal"]
    peer.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind((PEER_HOST, 0))
        port = gone.getsockname()[1]
    client = Client()
    assert client.ask(PEER_HOST, port)[0] == 101
    client.send(b"nobody")
    assert client.is_closed()
    accounts = relay.stop()
    assert accounts["drops"]["malformed_capsule"] == 3
    assert accounts["drops"]["icmp_ends_tunnel"] == 1
    assert accounts["closes"]["tunnel_ended"] == 1


#= UDPX-18
#= UDPX-26
def nothing_is_kept_of_a_capsule_that_is_passed_over_however_long_it_is(starting, peer):
    relay = starting("masque=tls", "allow-loopback-peers")
    client = Client()
    assert client.ask(PEER_HOST, peer.port)[0] == 101
    piece = b"x" * 16384
    # The first one gives the buffers of a connection their size.
    for count in (4, 2048):
        before = relay.memory_peak()
        client.stream.sendall(_varint(0x1234) + _varint(len(piece) * count))
        for _ in range(count):
            client.stream.sendall(piece)
        client.send(b"behind")
        assert client.payload() == b"dniheb"
    # Of 32 MiB.
    assert relay.memory_peak() - before < 1 << 20
    assert relay.stop()["drops"]["capsule_unknown"] == 2


# What needs two minutes to be seen is UDPX-08 with `IDLE=125`.
def a_tunnel_that_carries_nothing_for_a_while_is_there(starting, peer):
    relay = starting("masque=tls", "allow-loopback-peers")
    client = Client()
    assert client.ask(PEER_HOST, peer.port)[0] == 101
    time.sleep(IDLE)
    client.send(b"still")
    assert client.payload() == b"llits"
    relay.stop()


def without_the_key_there_are_no_tunnels_and_no_alpn_of_http(starting):
    relay = starting()
    with socket.create_connection((HOST, TLS_PORT)) as stream:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["http/1.1"])
        with pytest.raises(ssl.SSLError):
            context.wrap_socket(stream)
    client = Client(False)
    client.stream.sendall(f"GET {PATH.format('a', 1)} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    assert client.is_closed()
    relay.stop()
