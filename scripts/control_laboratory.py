"""Where `measure-control` measures: a namespace with a relay on the first CPU, sessions made by hand, and calls of `turnbuckle load` beside what is asked."""

import base64
import contextlib
import hashlib
import hmac
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from measuring import attribute, cpu_ns, exchange, transact

NAMESPACE = "tb-control"
RELAY, CLIENTS, CALLS, PEER = "10.98.0.1", "10.98.2.{}", "10.98.3.1", "10.98.4.1"
PORT, METRICS, REDIS, PEER_PORT = 3478, 9641, 6390, 3480
RELAYS_CPU = 0
REALM, PASSWORD = "example.org", "secret"
IDLE, ENDED, CALLER = "idle", "ended", "caller"
SECRET = "what-time-limited-names-are-signed-with"
#: Ports of a relay address, and how many of them are to be taken at most.
PORTS_PER_ADDRESS, SPARE = 16_384, 1_000
SESSIONS_PER_ADDRESS = 50_000


def inside(command, **settings):
    return subprocess.run(["ip", "netns", "exec", NAMESPACE, *command], check=True, **settings)


def run(end, command, **settings):
    settings = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **settings}
    process = subprocess.Popen(["ip", "netns", "exec", NAMESPACE, *map(str, command)], **settings)
    end.callback(kill, process)
    return process


def kill(process):
    if process.poll() is None:
        process.kill()
    process.wait()


class Relay:
    """A relay, and the socket at which it takes commands."""

    def __init__(self, options, program, folder, relays, redis, is_shared, end, more=()):
        self.folder, self.control = folder, os.path.join(folder, "control.sock")
        self.statistics = os.path.join(folder, "statistics.json")
        self.file = os.path.join(folder, "relay.conf")
        self.base = [
            f"listening-ip={RELAY}",
            f"listening-port={PORT}",
            *(f"relay-ip={address}" for address in relays),
            f"realm={REALM}",
            *(f"user={name}:{PASSWORD}" for name in (IDLE, ENDED, CALLER)),
            "relay-threads=1",
            *(["multiplex-peer"] if is_shared else []),
            "pin-threads=false",
            "verbose",
            # All clients come from a few addresses.
            "unverified-excess-bytes-per-second=1000000000",
            "unverified-bytes-per-second=1000000000",
            f"max-allocations={options.sessions + 10_000}",
            f"allowed-peer-ip={PEER}",
            "max-allocate-lifetime=3600",
            f"prometheus-address={RELAY}",
            "prometheus",
            *([f"redis-statsdb=ip=127.0.0.1 port={REDIS}"] if redis else []),
            *more,
        ]
        self.write([])
        words = [program, "serve", "-c", self.file, f"--control-socket={self.control}", f"--statistics-file={self.statistics}"]
        self.process = run(end, ["taskset", "--cpu-list", RELAYS_CPU, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._may_read = threading.Event()
        self._may_read.set()
        ready = threading.Event()
        threading.Thread(target=self._read, args=(ready,), daemon=True).start()
        if not ready.wait(120):
            sys.exit("the relay does not start")

    def write(self, lines):
        new = f"{self.file}.new"
        with open(new, "w") as file:
            file.write("\n".join([*self.base, *lines]) + "\n")
        os.rename(new, self.file)

    def _read(self, ready):
        for line in self.process.stdout:
            self._may_read.wait()
            if line.strip().endswith(b"ready"):
                ready.set()

    @contextlib.contextmanager
    def unread(self):
        """Nobody reads the log in here."""
        self._may_read.clear()
        try:
            yield
        finally:
            self._may_read.set()

    def ask(self, method, path, accept="application/json", take=None):
        """The answer to a request; `take` gets its pieces instead."""
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(120)
            stream.connect(self.control)
            stream.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n".encode())
            answer = b""
            while piece := stream.recv(1 << 16):
                if take:
                    take(piece)
                else:
                    answer += piece
        if take:
            return None
        head, body = answer.split(b"\r\n\r\n", 1)
        if head.split()[1] != b"200":
            sys.exit(f"{path}: {answer[:300]}")
        return json.loads(body)

    def info(self):
        return self.ask("GET", "/v1/info")

    def memory_kb(self):
        with open(f"/proc/{self.pid()}/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

    def pid(self):
        return self.info()["pid"]

    def stop(self):
        os.kill(self.pid(), signal.SIGTERM)
        self.process.wait(120)


def calls(options, program, seconds, step, relay):
    """Loss and delay of calls while a step is under way, at least so long, and how much of its CPU the relay takes meanwhile."""
    words = [program, "load", "mix", "--server", RELAY, "--peer", f"{PEER}:{PEER_PORT}", "--user", f"{CALLER}:{PASSWORD}", "--local", CALLS]
    words += ["--peer-ports", options.calls, "--clients", options.calls, "--rate", options.rate, "--duration", 3600, "--json"]
    with contextlib.ExitStack() as end:
        load = run(end, words, stdout=subprocess.PIPE, text=True)
        time.sleep(2)
        pid = relay.pid()
        begun, had = time.monotonic(), cpu_ns(pid)
        step()
        time.sleep(max(0, seconds - (time.monotonic() - begun)))
        share = (cpu_ns(pid) - had) / (time.monotonic() - begun) / 1e7
        load.send_signal(signal.SIGINT)
        out, _ = load.communicate(timeout=60)
    report = last(out)
    delay = report.get("latency_us", {})
    figures = {name: report.get(name) for name in ("sent_datagrams", "received_datagrams", "lost")}
    return {**figures, "round trip p50, us": delay.get("p50"), "round trip p99, us": delay.get("p99"), "CPU of the relay, %": share}


def last(out):
    """The last event that the load generator has told."""
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return lines[-1] if lines else sys.exit("the load generator says nothing")


def allocate_all(sources, sessions, ended):
    """Makes so many sessions, the first of them for the user whose sessions are ended."""
    with multiprocessing.get_context("fork").Pool(len(sources)) as pool:
        shares = []
        for index in range(len(sources)):
            first = index * SESSIONS_PER_ADDRESS
            shares.append((sources[index], first, min(first + SESSIONS_PER_ADDRESS, sessions), ended))
        pool.map(allocate, shares)


def allocate(share):
    """Makes sessions from one address: the first of them for the user whose sessions are ended."""
    source, first, last, end = share
    enter()
    keys = {name: hashlib.md5(f"{name}:{REALM}:{PASSWORD}".encode()).digest() for name in (IDLE, ENDED)}
    wanted = attribute(0x0019, bytes((17, 0, 0, 0))) + attribute(0x000D, (3600).to_bytes(4, "big"))
    for number in range(first, last):
        user = ENDED if number < end else IDLE
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(20)
            client.bind((source, 1024 + number - first))
            client.connect((RELAY, PORT))
            stream = Datagrams(client)
            _, challenge = transact(stream, 0x0003, wanted)
            proof = attribute(0x0006, user.encode()) + attribute(0x0014, REALM.encode()) + attribute(0x0015, challenge[0x0015])
            kind, answer = transact(stream, 0x0003, wanted + proof, keys[user])
            if kind != 0x0103:
                sys.exit(f"allocation {number}: {answer}")


def in_namespace(function, *arguments):
    """What a function returns in the namespace."""
    with multiprocessing.get_context("fork").Pool(1, initializer=enter) as pool:
        return pool.apply(function, arguments)


def refusal(source):
    """The error code that an Allocate request of the user whose sessions are ended gets, or 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.bind((source, 0))
        client.connect((RELAY, PORT))
        wanted = attribute(0x0019, bytes((17, 0, 0, 0)))
        _, challenge = exchange(client, 0x0003, wanted)
        proof = attribute(0x0006, ENDED.encode()) + attribute(0x0014, REALM.encode()) + attribute(0x0015, challenge[0x0015])
        _, answer = exchange(client, 0x0003, wanted + proof, hashlib.md5(f"{ENDED}:{REALM}:{PASSWORD}".encode()).digest())
        error = answer.get(0x0009)
        return error[2] * 100 + error[3] if error else 0


def use_names(count, used):
    """Has that many users, each with another time-limited name, begin a session and end it, one after the other from one address. `used` is how many have."""
    expires = int(time.time()) + 86_400
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.bind((CALLS, 0))
        client.connect((RELAY, PORT))
        wanted, gone = attribute(0x0019, bytes((17, 0, 0, 0))), attribute(0x000D, bytes(4))
        _, challenge = exchange(client, 0x0003, wanted)
        for number in range(count):
            name = f"{expires}:user-{number}"
            password = base64.b64encode(hmac.digest(SECRET.encode(), name.encode(), "sha1")).decode()
            key = hashlib.md5(f"{name}:{REALM}:{password}".encode()).digest()
            for method, what in ((0x0003, wanted), (0x0004, gone)):
                while True:
                    proof = attribute(0x0006, name.encode()) + attribute(0x0014, REALM.encode()) + attribute(0x0015, challenge[0x0015])
                    kind, answer = exchange(client, method, what + proof, key)
                    # A nonce is stale after some minutes, and the answer has the next one.
                    if kind != method | 0x0110 or answer[0x0009][2:4] != bytes((4, 38)):
                        break
                    challenge = answer
                if kind != method | 0x0100:
                    sys.exit(f"{name}: {answer}")
            used.value = number + 1


def metrics():
    """All metrics, as text."""
    with socket.create_connection((RELAY, METRICS), timeout=20) as stream:
        stream.sendall(f"GET /metrics HTTP/1.1\r\nHost: {RELAY}\r\n\r\n".encode())
        return b"".join(iter(lambda: stream.recv(1 << 16), b"")).split(b"\r\n\r\n", 1)[1].decode()


def slope(samples):
    """What a value gains in a second, of pairs of time and value (least squares)."""
    count = len(samples)
    times, values = zip(*samples)
    middle, mean = sum(times) / count, sum(values) / count
    spread = sum((at - middle) ** 2 for at in times)
    return sum((at - middle) * (value - mean) for at, value in samples) / spread if spread else 0.0


class Datagrams:
    """A socket for datagrams that is read as a stream, message after message."""

    def __init__(self, client):
        self._client, self._rest = client, b""

    def sendall(self, message):
        self._rest = b""
        self._client.send(message)

    def recv(self, length):
        if not self._rest:
            self._rest = self._client.recv(2048)
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken


def enter():
    """Moves this process into the namespace."""
    with open(f"/run/netns/{NAMESPACE}") as file:
        os.setns(file.fileno(), 0x40000000) if hasattr(os, "setns") else libc_setns(file.fileno())


def libc_setns(descriptor):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, 0x40000000) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def start_redis(folder, end):
    if not shutil.which("redis-server") or not shutil.which("redis-cli"):
        return None
    words = ["redis-server", "--port", REDIS, "--bind", "127.0.0.1", "--save", "", "--dir", folder]
    # Not `ip netns exec` for the signals: it becomes the program.
    return run(end, words)
