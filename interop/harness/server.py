"""The server under test: a command line, started in the relay namespace with turnserver's options appended."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from harness import binding
from harness.process import Process
from harness.topology import (
    CLIENT_IPV4,
    CLIENT_IPV6,
    LISTENER_IPV4,
    LISTENER_IPV6,
    PEER_RANGES,
    RELAY_IPV4,
    RELAY_IPV6,
    Topology,
    UdpCounters,
    udp_counters,
)
from harness.waiting import PATIENCE, await_condition

#: A name that the server's certificate has, for clients that take no IPv6 address.
NAME = "relay.test"
PORT = 3478
TLS_PORT = 5349
USER = "interop"
PASSWORD = "not-a-secret"
REALM = "example.org"

#: What turnbuckle prints when all its threads listen. One that does not yet drops what the kernel gives to it.
READY = "\nready\n"

#: Binding requests answered before the server counts as ready: one on each listening address.
READINESS_REQUESTS = 2

#: In the command line of a server that can write its final accounting, this stands for the file to write it to.
STATISTICS_PLACEHOLDER = "{statistics}"


def is_turnbuckle(command: str) -> bool:
    return Path(shlex.split(command)[0]).name == "turnbuckle"


@dataclass(frozen=True)
class Accounting:
    """What the server says it did with every datagram it received, from start to end."""

    received: int
    sent: int
    drops: dict[str, int]

    def difference(self) -> int:
        """Datagrams unaccounted for: in - out - drops. Anything but 0 is a bug in the server."""
        return self.received - self.sent - sum(self.drops.values())

    def lost(self) -> int:
        """Datagrams dropped for want of anything but a permission, which peers may come too early for, or a purpose, which keep-alives lack."""
        return sum(count for reason, count in self.drops.items() if reason not in ("no_permission", "keep_alive"))


class Server:
    ipv4 = LISTENER_IPV4
    ipv6 = LISTENER_IPV6
    port = PORT
    tls_port = TLS_PORT
    user = USER
    password = PASSWORD
    realm = REALM

    def __init__(self, command: str, hosts: Topology, folder: Path, extra: tuple[str, ...] = ()):
        self.folder = folder
        self.statistics = folder / "statistics.json"
        self.is_turnbuckle = is_turnbuckle(command)
        self.writes_statistics = STATISTICS_PLACEHOLDER in command
        self._tcp_ports = (PORT, TLS_PORT) if "--cert" in extra else (PORT,)
        arguments = shlex.split(command.replace(STATISTICS_PLACEHOLDER, str(self.statistics)))
        self._kernel_when_ready = udp_counters(hosts.relay)
        self._process = Process(hosts.relay, *arguments, *_options(), *extra)
        self._hosts = hosts
        self._stopped = False
        self._accounting: Accounting | None = None

    def await_ready(self) -> None:
        """Until turnbuckle says that it is ready, and a Binding request is answered on both listening addresses.

        Another server is asked again and again, and has to take TCP connections too.
        """
        if self.is_turnbuckle:
            # First, because a thread that does not listen yet would lose the request.
            self.await_all_threads()
        patience_with_one = PATIENCE if self.is_turnbuckle else 1
        for local, listener in ((CLIENT_IPV4, self.ipv4), (CLIENT_IPV6, self.ipv6)):
            self._await(
                lambda local=local, listener=listener: binding.answers(
                    self._hosts.client, local, listener, self.port, patience_with_one
                ),
                f"an answer from {listener} to a Binding request",
            )
            for port in () if self.is_turnbuckle else self._tcp_ports:
                self._await(
                    lambda listener=listener, port=port: self._hosts.client.reaches(listener, port),
                    f"a TCP connection to port {port} of {listener}",
                )
        self._kernel_when_ready = udp_counters(self._hosts.relay)

    def await_all_threads(self) -> None:
        """Until turnbuckle says that it is ready: an answer comes from one thread, the next client may meet another."""
        self._await(lambda: READY in self.output, f"turnbuckle's line {READY.strip()!r}")

    def _await(self, condition, what: str) -> None:
        def happens():
            if not self._process.running:
                raise RuntimeError(f"the server ended at once:\n{self.output}")
            return condition()

        try:
            await_condition(happens, what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the server said:\n{self.output}") from None

    @property
    def output(self) -> str:
        return self._process.output

    def stop(self) -> Accounting | None:
        """SIGTERM; the accounting, where the server writes one. An end other than a clean one is an error.

        A second call gives the first one's answer.
        """
        if self._stopped:
            return self._accounting
        self._accounting = self._stop()
        self._stopped = True
        return self._accounting

    def _stop(self) -> Accounting | None:
        if not self._process.running:
            raise RuntimeError(f"the server ended before it was told to:\n{self.output[-4000:]}")
        status = self._process.terminate()
        if not self.writes_statistics:
            return None
        if status != 0:
            raise RuntimeError(f"the server ended with status {status} after SIGTERM:\n{self.output[-4000:]}")
        document = json.loads(self.statistics.read_text())
        return Accounting(document["in"], document["out"], document["drops"])

    def kernel_counters(self) -> UdpCounters:
        """The relay host's own counters since the server was ready.

        What it sent itself to try out the kernel's features is not in them, nor are the `READINESS_REQUESTS`.
        """
        return udp_counters(self._hosts.relay) - self._kernel_when_ready

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        if self._process.running:
            self._process.kill()


def _options() -> list[str]:
    options = []
    for address in (LISTENER_IPV4, LISTENER_IPV6):
        options += ["--listening-ip", address]
    options += ["--listening-port", str(PORT)]
    for address in (RELAY_IPV4, RELAY_IPV6):
        options += ["--relay-ip", address]
    options += ["--user", f"{USER}:{PASSWORD}", "--realm", REALM]
    for peers in PEER_RANGES:
        options += ["--allowed-peer-ip", peers]
    return options
