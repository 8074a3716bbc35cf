"""Three hosts in network namespaces: client -- relay -- peer.

The relay host has two interfaces and does not forward, so whatever crosses from client to peer went through the server
under test. The veth pairs are created inside the namespaces: nothing appears among the machine's own interfaces, and the
addresses are from the documentation ranges, so they collide with nothing the machine is connected to.
"""

import contextlib
import ctypes
import dataclasses
import fcntl
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from harness.waiting import PATIENCE, await_condition

CLIENT_IPV4 = "198.51.100.1"
CLIENT_IPV6 = "2001:db8:1::1"
LISTENER_IPV4 = "198.51.100.2"
LISTENER_IPV6 = "2001:db8:1::2"
RELAY_IPV4 = "203.0.113.2"
RELAY_IPV6 = "2001:db8:2::2"
PEER_IPV4 = "203.0.113.1"
PEER_IPV6 = "2001:db8:2::1"

#: Documentation ranges are denied to peers by default; these are the ones a test server must allow.
PEER_RANGES = (
    "203.0.113.0-203.0.113.255",
    "2001:db8:2::-2001:db8:2:ffff:ffff:ffff:ffff:ffff",
)

#: Begins the names of namespaces. Each worker of pytest-xdist has names of its own.
PREFIX = f"tb-i-{os.environ.get('PYTEST_XDIST_WORKER', '')}-".replace("--", "-")
LOCK = Path("/run/lock/turnbuckle-interop")
#: What the tests of one run share while they run, and what who wants it alone keeps from further ones.
_SHARED, _GATE = (LOCK.with_name(f"{LOCK.name}-{name}") for name in ("shared", "gate"))
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def with_port(address: str, port: int) -> str:
    """`address:port`, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def host_of(address_and_port: str) -> str:
    """The address of `with_port`."""
    return address_and_port.rpartition(":")[0].strip("[]")


class Namespace:
    """One host. Code, sockets and programs can be placed in it."""

    def __init__(self, name: str):
        self.name = name
        self.path = Path("/run/netns") / name

    def argv(self, *command: str) -> list[str]:
        """The command line that runs `command` in this namespace, and dies with the process that starts it."""
        return ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.name, *command]

    def call(self, function):
        """Runs `function` in a thread of this namespace and returns its result, or raises what it raised.

        Sockets that the function opens stay in the namespace after it returned.
        """
        outcome = []

        def body():
            try:
                with open(self.path, "rb") as handle:
                    if _libc.setns(handle.fileno(), _CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {self.name}")
                outcome.append((function(), None))
            except BaseException as error:  # handed to the caller, whatever it is
                outcome.append((None, error))

        thread = threading.Thread(target=body, name=f"in {self.name}", daemon=True)
        thread.start()
        thread.join()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    def udp(self, address: str, port: int = 0) -> socket.socket:
        """A UDP socket bound in this namespace."""
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET

        def opened():
            udp = socket.socket(family, socket.SOCK_DGRAM)
            udp.bind((address, port))
            return udp

        return self.call(opened)

    def reaches(self, address: str, port: int) -> bool:
        """Whether a TCP connection from this namespace is taken."""

        def connected() -> bool:
            try:
                socket.create_connection((address, port), PATIENCE).close()
            except OSError:
                return False
            return True

        return self.call(connected)


@dataclasses.dataclass(frozen=True)
class UdpCounters:
    """A namespace's own count of UDP datagrams over IPv4 and IPv6 together, as in /proc/net/snmp and snmp6.

    A train that the kernel takes or hands over as one buffer (GSO, GRO) counts once.
    """

    received: int
    sent: int
    receive_buffer_full: int

    def __sub__(self, earlier: "UdpCounters") -> "UdpCounters":
        return UdpCounters(
            self.received - earlier.received,
            self.sent - earlier.sent,
            self.receive_buffer_full - earlier.receive_buffer_full,
        )


def udp_counters(namespace: Namespace) -> UdpCounters:
    def read():
        folder = Path("/proc/thread-self/net")
        names, values = [row.split()[1:] for row in (folder / "snmp").read_text().splitlines() if row.startswith("Udp:")]
        return dict(zip(names, values)), dict(row.split() for row in (folder / "snmp6").read_text().splitlines())

    ipv4, ipv6 = namespace.call(read)
    return UdpCounters(
        *(int(ipv4[name]) + int(ipv6["Udp6" + name]) for name in ("InDatagrams", "OutDatagrams", "RcvbufErrors"))
    )


class Topology:
    """The three namespaces. `up` first removes what an earlier run, however it ended, left under the same prefix."""

    def __init__(self, prefix: str = PREFIX):
        self.client = Namespace(prefix + "client")
        self.relay = Namespace(prefix + "relay")
        self.peer = Namespace(prefix + "peer")

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        return (self.client, self.relay, self.peer)

    def up(self) -> None:
        self.down()
        client, relay, peer = (namespace.name for namespace in self.namespaces)
        for name in (client, relay, peer):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        self.relay.call(_stop_forwarding)
        _cable(client, "relay", relay, "client")
        _cable(relay, "peer", peer, "relay")
        _address(client, "relay", CLIENT_IPV4, CLIENT_IPV6)
        _address(relay, "client", LISTENER_IPV4, LISTENER_IPV6)
        _address(relay, "peer", RELAY_IPV4, RELAY_IPV6)
        _address(peer, "relay", PEER_IPV4, PEER_IPV6)
        # WebRTC looks at the interface that has the default route. Nothing is forwarded, so this leads nowhere else.
        for name, ipv4, ipv6 in ((client, LISTENER_IPV4, LISTENER_IPV6), (peer, RELAY_IPV4, RELAY_IPV6)):
            _ip("-n", name, "route", "add", "default", "via", ipv4)
            _ip("-n", name, "-6", "route", "add", "default", "via", ipv6)

    def down(self) -> None:
        """Ends every process in the namespaces, then the namespaces. Nothing to do is not an error."""
        for namespace in self.namespaces:
            if namespace.path.exists():
                _kill_all_in(namespace)
                _ip("netns", "delete", namespace.name)

    def __enter__(self) -> "Topology":
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.down()


class Turn:
    """Only one run at a time has the namespaces' names: the next one waits, for at most `patience` seconds."""

    def __init__(self, patience: float = 600):
        self.patience = patience

    def __enter__(self) -> None:
        LOCK.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(LOCK, "w")
        if self._taken():
            return
        print(f"another run has {LOCK}; waiting for it", file=sys.stderr, flush=True)
        deadline = time.monotonic() + self.patience
        while not self._taken():
            if time.monotonic() > deadline:
                raise TimeoutError(f"another run has held {LOCK} for {self.patience:.0f} s")
            time.sleep(0.5)

    def __exit__(self, *_) -> None:
        self._file.close()

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextlib.contextmanager
def processors(alone: bool):
    """The processors, shared with the tests of other workers, or alone."""
    with open(_SHARED, "w") as shared:
        with open(_GATE, "w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(shared, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def processes_in(namespace: Namespace) -> list[int]:
    """Identifiers of the processes in a namespace."""
    return [int(pid) for pid in _ip("netns", "pids", namespace.name).split()]


def why_unavailable() -> str | None:
    """What keeps this machine from making namespaces, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        return f"no network namespaces here: {probe.stderr.strip()}"
    return None


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _stop_forwarding() -> None:
    # A new namespace takes the machine's setting, and a machine that runs containers forwards.
    for setting in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        Path("/proc/sys/net", setting).write_text("0")


def _cable(left: str, left_end: str, right: str, right_end: str) -> None:
    _ip("-n", left, "link", "add", left_end, "type", "veth", "peer", "name", right_end, "netns", right)
    ends = ((left, left_end), (right, right_end))
    for name, interface in ends:
        _ip("-n", name, "link", "set", interface, "up")
    for name, interface in ends:
        # The kernel notices a moment after the second end is up that the cable leads somewhere; until then it drops what is sent.
        await_condition(
            lambda name=name, interface=interface: " state UP " in _ip("-n", name, "-oneline", "link", "show", interface),
            f"the start of {interface} in {name}",
        )


def _address(name: str, interface: str, ipv4: str, ipv6: str) -> None:
    _ip("-n", name, "address", "add", f"{ipv4}/24", "dev", interface)
    # nodad: without it the address cannot be bound for a second after it was added.
    _ip("-n", name, "address", "add", f"{ipv6}/64", "dev", interface, "nodad")


def _kill_all_in(namespace: Namespace) -> None:
    deadline = time.monotonic() + PATIENCE
    while pids := processes_in(namespace):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} in {namespace.name} do not end")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
