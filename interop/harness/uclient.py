"""coturn's `turnutils_uclient`: started, awaited, its closing totals read."""

import contextlib
import dataclasses
import re
import time

from harness import process, waiting
from harness.topology import PEER_IPV4, PEER_IPV6, Topology, with_port

#: Where the first `turnutils_peer` echoes. Each takes the next port too.
PEER_PORT = 3480

#: How the client reaches the server, and whether it does by the server's TLS port.
TRANSPORTS = {
    "UDP": ((), False),
    "TCP": (("-t",), False),
    "TLS": (("-t", "-S"), True),
    "DTLS": (("-S",), True),
    "DTLS on the plain port": (("-S",), False),
}


#: The keys of authorization servers that it has built in, for `-J`: name, key, cipher.
OAUTH_KEYS = (
    ("north", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEK", "A256GCM"),
    ("union", "MTIzNDU2Nzg5MDEyMzQ1Ngo=", "A128GCM"),
    ("oldempire", "MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIK", "A256GCM"),
)

#: The option of ours without which the client draws three numbers of four from outside the range: it takes RFC 5766's, 0x4000 to 0x7FFF.
WIDE_CHANNEL_NUMBERS = "--rfc5766-channel-numbers"

#: How often a client is started at most, until it is not unlucky.
ATTEMPTS = 60


@dataclasses.dataclass(frozen=True)
class Totals:
    """The client's own closing totals."""

    sent: int
    received: int
    lost: int
    send_dropped: int


def without_loss(messages: int) -> Totals:
    return Totals(sent=messages, received=messages, lost=0, send_dropped=0)


@dataclasses.dataclass(frozen=True)
class Load:
    """How many sessions send how many messages each, and how many milliseconds lie between two messages of one."""

    sessions: int
    messages: int
    interval_ms: int
    payload: int = 160

    @property
    def total(self) -> int:
        return self.sessions * self.messages

    def flags(self) -> tuple[str, ...]:
        values = {"-m": self.sessions, "-n": self.messages, "-z": self.interval_ms, "-l": self.payload}
        return tuple(word for flag, value in values.items() for word in (flag, str(value)))


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a client ended: its exit status, or None where it had to be killed, and what it had printed."""

    status: int | None
    output: str

    def totals(self) -> Totals:
        """The closing totals; AssertionError where there are none."""
        counts = re.findall(r"start_mclient: tot_send_msgs=(\d+), tot_recv_msgs=(\d+)\s*$", self.output, re.MULTILINE)
        losses = re.findall(r"Total lost packets (\d+) \([^)]*\), total send dropped (\d+)", self.output)
        assert counts and losses, f"status {self.status}, no closing totals in:\n{self.output[-4000:]}"
        totals = Totals(*map(int, counts[-1]), *map(int, losses[-1]))
        print(totals)
        return totals

    def succeeded(self) -> Totals:
        """The closing totals of a client that ended well."""
        assert self.status == 0, f"status {self.status}:\n{self.output[-4000:]}"
        return self.totals()

    @property
    def drew_one_number_twice(self) -> bool:
        """Whether a channel was refused. That this is bad luck is believed once of a client."""
        return self.status == 255 and "channel bind: error 400" in self.output

    @property
    def had_bad_luck(self) -> bool:
        """Whether the client drew numbers with which it cannot succeed, whatever the server.

        One time in 16,384 it draws one channel number for two peers, which a server must refuse (RFC 8656 §12.2). With `-M` over TLS
        and DTLS it frees its old session twice in a quarter of the cases, and the second time hits the new one, or nothing that it owns.
        And where the kernel gives it a port that another client has just left, together with an allocation, a session that moves there
        is refused (RFC 8656 §6.2, 437); one that only allocates tries again by itself. With `-c` it asks for an even port half of the
        time, for each of its two allocations, and a server that shares its relay sockets has none.
        """
        has_hit_itself = self.status == 1 and self.output.endswith("send: Success\n")
        is_port_taken = self.status == 255 and re.search(r"error 437 \([^)]*\)\s*$", self.output) is not None
        has_asked_for_even = self.status == 255 and "error 508 (EVEN-PORT is not supported" in self.output
        return self.drew_one_number_twice or has_hit_itself or is_port_taken or has_asked_for_even


@contextlib.contextmanager
def echoing(hosts: Topology, program, peers: int = 1):
    """That many `turnutils_peer` on both addresses of the peer's host; gives the port of each.

    One serves all that comes to it from one socket, which must not run over, so clients that send much have one each.
    """
    addresses = (PEER_IPV4, PEER_IPV6)
    listening = [word for address in addresses for word in ("-L", address)]
    ports = [PEER_PORT + 2 * number for number in range(peers)]
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(process.Process(hosts.peer, program("turnutils_peer"), "-p", str(port), *listening))
        for port in ports:
            for address in addresses:
                waiting.await_condition(
                    lambda address=address, port=port: _echoes(hosts, address, port),
                    f"an echo of turnutils_peer from {with_port(address, port)}",
                )
        yield ports


def _echoes(hosts: Topology, address: str, port: int) -> bool:
    with hosts.peer.udp(address) as udp:
        udp.settimeout(1)
        udp.sendto(b"echo", (address, port))
        try:
            return udp.recv(2048) == b"echo"
        except OSError:  # the time is over, or an ICMP error came
            return False


@dataclasses.dataclass(frozen=True)
class Client:
    """How to start a client: where the server listens, how it is reached, how much is sent, and further flags.

    One that `may_hang` is killed once those started with it have ended; one that `is_to_fail` is not tried again.
    """

    listener: str
    transport: str
    load: Load
    flags: tuple[str, ...] = ()
    may_hang: bool = False
    is_to_fail: bool = False

    def start(self, hosts: Topology, server, program) -> process.Process:
        how, secure = TRANSPORTS[self.transport]
        return process.Process(
            hosts.client,
            program("turnutils_uclient"),
            *("-u", server.user, "-w", server.password, "-p", str(server.tls_port if secure else server.port)),
            *self.load.flags(),
            *how,
            *self.flags,
            self.listener,
        )

    def was_unlucky(self, ended: Ended) -> bool:
        """Whether it has to be started again: see `Ended.had_bad_luck`."""
        frees_twice = "-M" in self.flags and TRANSPORTS[self.transport][1]
        has_crashed = frees_twice and ended.status is not None and ended.status < 0
        return not self.is_to_fail and (ended.had_bad_luck or has_crashed)


def _ended(running: process.Process, timeout: float) -> Ended:
    with running:
        try:
            status = running.wait(timeout)
        except TimeoutError:
            status = None
        return Ended(status, running.output)


def run_all(hosts: Topology, server, program, clients: dict, timeout: float) -> dict:
    """How each client ended, all started at once; those that were unlucky with their random numbers run again.

    One that has not ended `timeout` seconds after all were started is killed.
    """

    def together(clients: dict) -> dict:
        running = {key: client.start(hosts, server, program) for key, client in clients.items()}
        deadline = time.monotonic() + timeout
        patience = {key: 0 if client.may_hang else timeout for key, client in clients.items()}
        return {
            key: _ended(running[key], min(patience[key], max(deadline - time.monotonic(), 0)))
            for key in sorted(running, key=patience.get, reverse=True)
        }

    outcomes = together(clients)
    refused = set()
    for _ in range(ATTEMPTS - 1):
        unlucky = {key: clients[key] for key, outcome in outcomes.items() if clients[key].was_unlucky(outcome) and key not in refused}
        refused |= {key for key in unlucky if outcomes[key].drew_one_number_twice}
        outcomes |= together(unlucky)
    return outcomes


def once(function):
    """The function with a memory: for an argument that it was called with before it returns, or raises, the same again."""
    known = {}

    def remembering(argument):
        if argument not in known:
            try:
                known[argument] = function(argument), None
            except Exception as error:
                known[argument] = None, error
        value, error = known[argument]
        if error is not None:
            raise error
        return value

    return remembering


def run(hosts: Topology, server, program, client: Client, timeout: float = 200) -> Ended:
    """As `run_all`, for one."""
    return run_all(hosts, server, program, {"": client}, timeout)[""]
