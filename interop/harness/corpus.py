"""One configuration beside Debian's coturn: who starts, what is listened on, and what clients are answered.

A file of `interop/corpus` is a configuration. Its lines that begin with `#: ` say how it is run and looked at:

    #: about      what it is an example of
    #: arguments  further words of the command line
    #: login      NAME:PASSWORD, or secret:SECRET for a time-limited name; several lines are several users
    #: database   an SQL statement that is carried out on DIR/turndb before the start
    #: differs    the name of a difference that the page of compatibility tells of (see `interop/test_corpus.py`)

`DIR` in the configuration and in these lines stands for a directory with `cert.pem` and `key.pem`.
"""

import base64
import dataclasses
import hashlib
import hmac
import ipaddress
import itertools
import shlex
import socket
import sqlite3
import subprocess
import time
from pathlib import Path

from harness import dialogue
from harness.dialogue import Answer, Dialogue
from harness.process import Process
from harness.topology import Namespace, _ip, _kill_all_in
from harness.waiting import PATIENCE

#: The machine of every configuration: a private, a public and an IPv6 address, and those of loopback.
PRIVATE, PUBLIC, IPV6 = "10.1.2.3", "198.51.100.5", "2001:db8::5"
ADDRESSES = ("127.0.0.1", PRIVATE, PUBLIC, "::1", IPV6)
#: Ports that a configuration may listen on; what a system's own services have is none of its.
PORTS = range(1, 49152)

#: Whether a client may send there: ordinary, private and special ones, and the machine's own.
PEERS = (
    *("8.8.8.8", "192.0.2.1", "10.9.9.9", "172.16.0.1", "192.168.1.1", PRIVATE, PUBLIC),
    *("127.0.0.1", "0.0.0.0", "100.64.0.1", "169.254.169.254", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
)
PEERS_IPV6 = (
    *("2001:4860:4860::8888", IPV6, "2001:db8::9", "::1", "::", "fc00::1", "fe80::1", "ff02::1"),
    *("::ffff:8.8.8.8", "::ffff:10.9.9.9", "64:ff9b::808:808", "64:ff9b::a09:909", "2002:a09:909::1"),
)


@dataclasses.dataclass(frozen=True)
class Configuration:
    name: str
    text: str
    about: str
    arguments: str
    logins: tuple[str, ...]
    database: tuple[str, ...]
    differs: tuple[str, ...]

    @classmethod
    def read(cls, file: Path) -> "Configuration":
        text = file.read_text()
        words = [line[3:].split(None, 1) for line in text.splitlines() if line.startswith("#: ")]
        known = ("about", "arguments", "login", "database", "differs")
        assert all(len(line) == 2 and line[0] in known for line in words), f"{file}: {words}"
        of = {key: tuple(value for name, value in words if name == key) for key in known}
        return cls(
            file.stem, text, " ".join(of["about"]), " ".join(of["arguments"]), of["login"], of["database"], of["differs"]
        )


class Host:
    """A namespace with the addresses of every configuration."""

    def __init__(self, name: str):
        self.namespace = Namespace(name)

    def __enter__(self) -> "Host":
        self.down()
        name = self.namespace.name
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "add", "net", "type", "veth", "peer", "name", "other")
        for interface in ("net", "other"):
            _ip("-n", name, "link", "set", interface, "up")
        for address in (f"{PRIVATE}/24", f"{PUBLIC}/24", f"{IPV6}/64"):
            _ip("-n", name, "address", "add", address, "dev", "net", *(["nodad"] if ":" in address else []))
        return self

    def __exit__(self, *_) -> None:
        self.down()

    def down(self) -> None:
        if self.namespace.path.exists():
            _kill_all_in(self.namespace)
            _ip("netns", "delete", self.namespace.name)

    def listeners(self) -> set[tuple[str, str, int]]:
        """What is listened on: transport, address and port. One socket for all addresses counts as one of each."""
        rows = self.namespace.call(lambda: _output("ss", "-Hlntu"))
        found = set()
        for row in rows.splitlines():
            transport, _, _, _, local = row.split()[:5]
            host, _, port = local.rpartition(":")
            host = host.partition("%")[0].strip("[]")
            every = {"*": ADDRESSES, "0.0.0.0": _of_family(4), "::": _of_family(6)}
            if int(port) in PORTS:
                found |= {(transport, address, int(port)) for address in every.get(host, (host,))}
        return found


@dataclasses.dataclass(frozen=True)
class Server:
    """A program that takes coturn's words, the line by which it says that it serves, and how long it may take until then."""

    command: str
    ready: str
    patience_s: float


#: The name of what a server printed, which is not compared.
OUTPUT = "output"


def observe(server: Server, configuration: Configuration, host: Host, folder: Path) -> dict:
    """What one server was seen to do, by name."""
    _prepare(configuration, folder)
    file = folder / "turnserver.conf"
    file.write_text(configuration.text.replace("DIR", str(folder)))
    words = shlex.split(configuration.arguments.replace("DIR", str(folder)))
    fixed = ["-c", str(file), "--log-file=stdout", f"--pidfile={folder}/pid"]
    command = ["env", "--chdir", str(folder), *shlex.split(server.command), *fixed, *words]
    with Process(host.namespace, *command) as process:
        seen = {"starts": _starts(process, server, host)}
        if seen["starts"]:
            seen |= host.namespace.call(lambda: _answers(configuration, host, process.cpu_s))
    return _flat(seen) | {OUTPUT: process.output}


def _flat(seen: dict, prefix: str = "") -> dict:
    flat = {}
    for name, value in seen.items():
        flat |= _flat(value, f"{prefix}{name} / ") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _prepare(configuration: Configuration, folder: Path) -> None:
    for statement in configuration.database:
        with sqlite3.connect(folder / "turndb") as database:
            database.execute(statement)
        database.close()


def _starts(process: Process, server: Server, host: Host) -> bool:
    """Whether it says that it serves and listens somewhere before its time is over."""
    deadline = time.monotonic() + server.patience_s
    while process.running and time.monotonic() < deadline:
        if server.ready in process.output and host.listeners():
            return True
        time.sleep(0.02)
    return False


def _answers(configuration: Configuration, host: Host, cpu_s) -> dict:
    listeners = host.listeners()
    seen = {"listeners": listeners}
    datagram = _first(listeners, "udp")
    stream = _first(listeners, "tcp")
    if datagram:
        with _connected(socket.SOCK_DGRAM, datagram) as client:
            answer = Dialogue(client, cpu_s).ask(dialogue.BINDING)
            seen["binding"] = answer and (answer.code, sorted(answer.attributes))
    seen |= _challenge(datagram, stream, cpu_s)
    for login in configuration.logins or ("nobody:nothing",):
        user, password = credentials(login)
        seen[f"login {login}"] = _session(user, password, datagram, stream, cpu_s)
    return seen


def credentials(login: str) -> tuple[str, str]:
    name, _, password = login.partition(":")
    if name != "secret":
        return name, password
    # A name of tomorrow: coturn does not take one of the next century.
    user = f"{int(time.time()) + 86400}:someone"
    return user, base64.b64encode(hmac.digest(password.encode(), user.encode(), hashlib.sha1)).decode()


def _challenge(datagram, stream, cpu_s) -> dict:
    where = (socket.SOCK_DGRAM, datagram) if datagram else (socket.SOCK_STREAM, stream)
    if where[1] is None:
        return {}
    with _connected(*where) as client:
        answer = Dialogue(client, cpu_s).ask(dialogue.ALLOCATE, _transport(dialogue.UDP))
        if answer is None:
            return {"realm": None}
        return {"realm": (answer.code, answer.text(dialogue.REALM))}


def _session(user: str, password: str, datagram, stream, cpu_s) -> dict:
    """What a user gets."""
    seen = {}
    kind, where = (socket.SOCK_DGRAM, datagram) if datagram else (socket.SOCK_STREAM, stream)
    if where is None:
        return seen
    long = (dialogue.LIFETIME, (7200).to_bytes(4, "big"))
    with _connected(kind, where) as client:
        talk = Dialogue(client, cpu_s)
        answer = _allocate(talk, user, password, long)
        seen["allocate"] = _outcome(answer)
        if answer and answer.code == 0:
            seen["lifetime"] = answer.number(dialogue.LIFETIME)
            for peer in PEERS:
                permitted = talk.ask(dialogue.CREATE_PERMISSION, (dialogue.XOR_PEER_ADDRESS, peer))
                seen[f"peer {peer}"] = permitted and permitted.code
            # The quota counts, of which more is asked than most have.
            with _connected(kind, where) as second, _connected(kind, where) as third:
                seen["second"] = _outcome(_allocate(Dialogue(second, cpu_s), user, password))
                seen["third"] = _outcome(_allocate(Dialogue(third, cpu_s), user, password))
    if seen["allocate"] and seen["allocate"][0] == 0:
        if stream:
            with _connected(socket.SOCK_STREAM, stream) as client:
                seen["tcp relay"] = _outcome(_allocate(Dialogue(client, cpu_s), user, password, transport=dialogue.TCP))
        # Last: where coturn cannot bind its IPv6 address, one of its threads tries 65,535 times, and who shares it waits.
        with _connected(kind, where) as client:
            talk = Dialogue(client, cpu_s)
            answer = _allocate(talk, user, password, (dialogue.REQUESTED_ADDRESS_FAMILY, b"\2\0\0\0"))
            seen["ipv6"] = _outcome(answer)
            if answer and answer.code == 0:
                for peer in PEERS_IPV6:
                    permitted = talk.ask(dialogue.CREATE_PERMISSION, (dialogue.XOR_PEER_ADDRESS, peer))
                    seen[f"peer {peer}"] = permitted and permitted.code
    return seen


def _allocate(talk: Dialogue, user, password, *attributes, transport=dialogue.UDP) -> Answer | None:
    asked = (dialogue.ALLOCATE, _transport(transport), *attributes)
    answer = talk.ask(*asked)
    if answer and answer.code == 401:
        talk.use(user, password, answer)
        answer = talk.ask(*asked)
    return answer


def _outcome(answer: Answer | None) -> tuple | None:
    """The code, and for a success the relayed address and in which part of the ports its port is."""
    if answer is None:
        return None
    relayed = answer.address(dialogue.XOR_RELAYED_ADDRESS)
    elsewhere = answer.address(dialogue.ALTERNATE_SERVER, is_plain=True)
    return answer.code, relayed and (relayed[0], "low" if relayed[1] < 49152 else "high"), elsewhere


def _transport(protocol: int) -> tuple[int, bytes]:
    return dialogue.REQUESTED_TRANSPORT, bytes((protocol, 0, 0, 0))


#: Ports of clients, each used once: an allocation stays for a while when its client has gone, and with it the 5-tuple.
_ports = itertools.count(10_000)


def _connected(kind: int, to: tuple[str, int]) -> socket.socket:
    client = socket.socket(socket.AF_INET6 if ":" in to[0] else socket.AF_INET, kind)
    client.settimeout(PATIENCE)
    client.bind((to[0], next(_ports)))
    client.connect(to)
    return client


def _first(listeners, transport: str) -> tuple[str, int] | None:
    """Where clients go: an address that is not loopback before one that is, IPv4 before IPv6, the lowest port."""
    found = [(address, port) for kind, address, port in listeners if kind == transport and not address.startswith("fe80")]
    key = lambda one: (ipaddress.ip_address(one[0]).is_loopback, ":" in one[0], one[1], one[0] != PRIVATE, one[0])
    return min(found, key=key, default=None)


def _of_family(version: int) -> tuple[str, ...]:
    return tuple(address for address in ADDRESSES if ipaddress.ip_address(address).version == version)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

