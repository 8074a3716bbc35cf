"""A configuration that is read again while calls go on: what changes holds, what is wrong changes nothing, and nothing is lost.

`RELOADS=10000` has as many reloads under load as that, in place of 50.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import signal
import socket
import sqlite3
import ssl
import struct
import subprocess
import threading
import time

import pytest

from harness import dialogue
from harness.dialogue import Dialogue
from harness.waiting import PATIENCE

#: Of these tests alone.
SERVER = ("127.77.11.1", 34911)
REALM = "example.org"
CHANNEL = 0x4000
MOBILITY_TICKET = 0x8030
TLS_PORT = 34912
TRANSPORT = (dialogue.REQUESTED_TRANSPORT, bytes((dialogue.UDP, 0, 0, 0)))

BASE = f"""
listening-ip={SERVER[0]}
listening-port={SERVER[1]}
relay-ip={SERVER[0]}
realm={REALM}
relay-threads=2
pin-threads=false
allow-loopback-peers
mobility
"""


class Client:
    """A TURN client by UDP that says what it was answered: the code of an error, 200 for success. It asks for a nonce once and keeps it."""

    def __init__(self, user: str, password: str = "secret"):
        self.user, self.password = user, password
        self.ticket = b""
        self._begin()

    def _begin(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(SERVER)
        self._dialogue = Dialogue(self.socket)
        self._is_challenged = False

    def allocate(self) -> int:
        return self._ask(dialogue.ALLOCATE, TRANSPORT)

    def allocate_with_ticket(self) -> int:
        return self._exchange_ticket(dialogue.ALLOCATE, TRANSPORT)

    def move(self) -> int:
        """Goes on from another port by the ticket that it was given last."""
        self.socket.close()
        self._begin()
        return self._exchange_ticket(dialogue.REFRESH)

    def permit(self, peer: tuple[str, int]) -> int:
        return self._ask(dialogue.CREATE_PERMISSION, (dialogue.XOR_PEER_ADDRESS, peer))

    def bind(self, peer: tuple[str, int]) -> int:
        channel = (dialogue.CHANNEL_NUMBER, struct.pack("!HH", CHANNEL, 0))
        return self._ask(dialogue.CHANNEL_BIND, channel, (dialogue.XOR_PEER_ADDRESS, peer))

    def refresh(self) -> int:
        return self._ask(dialogue.REFRESH)

    def release(self) -> int:
        return self._ask(dialogue.REFRESH, (dialogue.LIFETIME, bytes(4)))

    def _exchange_ticket(self, method: int, *attributes) -> int:
        answer = self._answer(method, *attributes, (MOBILITY_TICKET, self.ticket))
        self.ticket = answer.attributes.get(MOBILITY_TICKET, b"")
        return answer.code or 200

    def _ask(self, method: int, *attributes) -> int:
        return self._answer(method, *attributes).code or 200

    def _answer(self, method: int, *attributes) -> dialogue.Answer:
        if not self._is_challenged:
            self._dialogue.use(self.user, self.password, self._dialogue.ask(dialogue.ALLOCATE, TRANSPORT))
            self._is_challenged = True
        return self._dialogue.ask(method, *attributes)


class Relay:
    """A relay with a file that can be written anew, and the socket for commands."""

    def __init__(self, binary, folder, program="serve", more=(), content="user=alice:secret\n", log=None):
        self.binary, self.folder = binary, folder
        self.file, self.control = folder / "relay.conf", folder / "control.sock"
        self.write(content)
        words = [binary, program] if program == "serve" else [program]
        options = ["-c", str(self.file), f"--control-socket={self.control}", f"--statistics-file={folder}/statistics.json", *more]
        self.out = open(folder / "out", "wb")
        self.process = subprocess.Popen([*words, *options], stdout=self.out if log is None else log, stderr=subprocess.STDOUT, cwd=folder)
        if log is None:
            self.until("ready")
        else:
            self.await_socket()

    def until(self, text: str, count: int = 1) -> None:
        deadline = time.monotonic() + 60
        while self.said().count(text) < count:
            assert time.monotonic() < deadline and self.process.poll() is None, self.said()
            time.sleep(0.01)

    def await_socket(self) -> None:
        """Until commands are taken: what is logged is another's to read."""
        deadline = time.monotonic() + 60
        while self.ctl("health").returncode != 0:
            assert time.monotonic() < deadline and self.process.poll() is None
            time.sleep(0.05)

    def said(self) -> str:
        return (self.folder / "out").read_text()

    def write(self, content: str) -> None:
        new = self.folder / "new.conf"
        new.write_text(BASE + content)
        new.rename(self.file)

    def ctl(self, *words: str) -> subprocess.CompletedProcess:
        command = [self.binary, "ctl", f"--socket={self.control}", "--json", "--timeout=60", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=90)

    def reload(self, content: str) -> dict:
        """Writes the file and has it read again."""
        self.write(content)
        done = self.ctl("reload")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def put(self, path: str) -> int:
        return self._request("PUT", path)[0]

    def post(self, path: str) -> tuple[int, dict]:
        return self._request("POST", path)

    def _request(self, method: str, path: str) -> tuple[int, dict]:
        """A request without a process for each."""
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(60)
            stream.connect(str(self.control))
            stream.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answer = b"".join(iter(lambda: stream.recv(65536), b""))
        head, body = answer.split(b"\r\n\r\n", 1)
        return int(head.split()[1]), json.loads(body)

    def end(self) -> None:
        """Ends what a test that failed has left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.out.close()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0
        counted = json.loads((self.folder / "statistics.json").read_text())
        assert counted["in"] == counted["out"] + counted["dropped"]


@pytest.fixture
def relay(binary, tmp_path):
    running = Relay(binary, tmp_path)
    yield running
    running.end()


def users_peers_and_quotas_change_at_once_and_what_needs_a_restart_is_named(relay):
    alice, carol = Client("alice"), Client("carol")
    assert alice.allocate() == 200
    assert carol.allocate() == 401
    peer = ("127.77.11.9", 4000)
    assert alice.permit(peer) == 200
    assert relay.reload("user=alice:secret\nuser=carol:secret\n")["changed"] == ["user"]
    assert carol.allocate() == 200
    assert relay.reload("user=carol:secret\n")["changed"] == ["user"]
    assert alice.refresh() == 401
    report = relay.reload("user=carol:secret\nuser=alice:secret\ndenied-peer-ip=127.77.11.9\n")
    assert report["changed"] == ["user", "denied-peer-ip"]
    assert alice.permit(peer) == 403
    assert relay.reload("user=alice:secret\nuser-quota=1\nmin-port=50000\nmax-allocations=70\n")["restart_pending"] == ["min-port", "max-allocations"]
    assert alice.permit(peer) == 200
    assert Client("alice").allocate() == 486
    shown = json.loads(relay.ctl("config").stdout)["effective"]
    values = {one["key"]: one["values"] for one in shown}
    assert values["user-quota"] == ["1"] and values["min-port"] == ["49152"]
    assert "secret" not in json.dumps(list(values.values()))
    report = relay.reload("user=alice:secret\nalternate-server=203.0.113.8:3478\n")
    assert Client("alice").allocate() == 300
    assert report["restart_pending"] == []
    relay.stop()


def a_session_is_logged_from_the_reload_on_that_wants_it(relay):
    assert Client("alice").allocate() == 200
    assert ": new, realm=" not in relay.said()
    assert relay.reload("user=alice:secret\nverbose\n")["changed"] == ["verbose"]
    assert Client("alice").allocate() == 200
    relay.until(": new, realm=")
    said = len(relay.said())
    assert relay.reload("user=alice:secret\n")["changed"] == ["verbose"]
    assert Client("alice").allocate() == 200
    relay.until("configuration read again", 2)
    assert ": new, realm=" not in relay.said()[said:]
    relay.stop()


def the_log_goes_where_the_last_reload_says_and_a_file_that_cannot_be_opened_changes_nothing(relay, tmp_path):
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    base = "user=alice:secret\nverbose\nsimple-log\n"
    assert relay.reload(f"{base}log-file={first}\nlog-format=json\nno-stdout-log\n")["restart_pending"] == []
    assert Client("alice").allocate() == 200
    _await(lambda: ": new, realm=" in first.read_text())
    assert all(json.loads(line)["message"] for line in first.read_text().splitlines())
    assert ": new, realm=" not in relay.said()
    relay.write(f"{base}log-file={tmp_path}/none/third.log\n")
    refused = relay.ctl("reload")
    assert refused.returncode == 1 and "log-file " in refused.stderr, refused.stderr
    alice = Client("alice")
    assert alice.allocate() == 200
    _await(lambda: first.read_text().count(": new, realm=") == 2)
    assert sorted(relay.reload(f"{base}log-file={second}\n")["changed"]) == ["log-file", "log-format", "no-stdout-log"]
    before = first.read_text()
    assert alice.release() == 200
    _await(lambda: "released by the client" in second.read_text())
    relay.until("released by the client")
    assert first.read_text() == before
    relay.stop()


def metrics_and_the_page_begin_move_and_end_with_a_reload_and_their_sums_stay(relay, tmp_path):
    base, at = "user=alice:secret\n", f"prometheus\nprometheus-address={SERVER[0]}\n"
    seen = 'turn_traffic_rcvp{realm="example.org"'
    alice = Client("alice")
    assert alice.allocate() == 200
    assert _get(34912, "/metrics") is None
    report = relay.reload(f"{base}{at}prometheus-port=34912\n")
    assert report["restart_pending"] == [] and "prometheus" in report["changed"]
    # It began before there were metrics.
    assert alice.refresh() == 200 and alice.release() == 200
    _await(lambda: seen in _get(34912, "/metrics"))
    assert _get(34912, "/status") == "not found"
    sums = _sums(_get(34912, "/metrics"), seen)
    relay.reload(f"{base}{at}prometheus-port=34913\nprometheus-path=/m\nstatus-page\n")
    _await(lambda: not _is_served(34912))
    assert _sums(_get(34913, "/m"), seen) == sums
    assert json.loads(_get(34913, "/status.json"))["sessions"]["count"] == 0
    with socket.create_server((SERVER[0], 34914)):
        relay.write(f"{base}{at}prometheus-port=34914\nuser-quota=1\n")
        refused = relay.ctl("reload")
        assert refused.returncode == 1 and "34914" in refused.stderr
    assert _sums(_get(34913, "/m"), seen) == sums
    report = relay.reload(base)
    assert report["restart_pending"] == [] and "user-quota" not in report["changed"]
    _await(lambda: not _is_served(34913))
    relay.stop()


def the_page_shows_the_certificates_that_the_last_reload_names(relay, tmp_path):
    names = ("one.example.org", "another.example.org")
    for name in names:
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}"]
        subprocess.run([*command, "-keyout", tmp_path / f"{name}.key", "-out", tmp_path / f"{name}.pem"], check=True, capture_output=True)
    base = f"user=alice:secret\nprometheus\nprometheus-address={SERVER[0]}\nprometheus-port=34912\nstatus-page\ntls-listening-port=34915\n"
    with_cert = lambda name: f"{base}cert={tmp_path}/{name}.pem\npkey={tmp_path}/{name}.key\n"
    # Whether there is TLS is settled at the start.
    relay.write(with_cert(names[0]))
    running = Relay(relay.binary, _folder(tmp_path / "with-tls"), content=with_cert(names[0]), more=["--listening-port=34916"])
    try:
        for name in names:
            if name != names[0]:
                assert running.reload(with_cert(name))["restart_pending"] == []
            # What is served changes after the answer to the reload.
            _await(lambda: json.loads(_get(34912, "/status.json"))["certificates"][0]["subject"] == name)
        running.stop()
    finally:
        running.end()


def the_console_begins_and_ends_with_a_reload_and_its_visitors_stay(relay):
    base, port = "user=alice:secret\n", 34912
    on = f"{base}cli\ncli-ip={SERVER[0]}\ncli-port={port}\n"
    assert relay.reload(f"{on}cli-password=first\n")["restart_pending"] == []
    with _console(port, "first") as visitor:
        relay.reload(f"{on}cli-password=second\n")
        _say(visitor, "ps", "Total sessions: ")
        _await(lambda: _opens(port, "second"))
        relay.reload(base)
        _say(visitor, "ps", "Total sessions: ")
    _await(lambda: not _is_served(port))
    relay.stop()


def redis_is_told_of_sessions_from_the_reload_on_that_names_it_and_of_those_that_were_there(relay, tmp_path):
    port = 34917
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)]
    redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        keys = lambda: subprocess.run(["redis-cli", "-p", str(port), "keys", "turn/*/status"], capture_output=True, text=True).stdout.split()
        alice, carol = Client("alice"), Client("alice")
        assert alice.allocate() == 200
        on = f"user=alice:secret\nredis-statsdb=ip=127.0.0.1 port={port}\n"
        assert relay.reload(on)["changed"] == ["redis-statsdb"]
        _await(lambda: len(keys()) == 1)
        assert carol.allocate() == 200
        _await(lambda: len(keys()) == 2)
        assert alice.release() == 200
        _await(lambda: len(keys()) == 1)
        # As at a stop, nothing is left of sessions that go on.
        assert relay.reload("user=alice:secret\n")["changed"] == ["redis-statsdb"]
        _await(lambda: keys() == [])
        relay.stop()
    finally:
        redis.kill()
        redis.wait()


def _await(is_so) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _folder(path):
    path.mkdir()
    return path


def _is_served(port: int) -> bool:
    """Whether connections are taken there. A listener ends after the answer to the reload that ends it."""
    try:
        socket.create_connection((SERVER[0], port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    return True


def _get(port: int, path: str) -> str | None:
    """What is served there; `None` if nobody listens."""
    try:
        stream = socket.create_connection((SERVER[0], port), timeout=60)
    except ConnectionRefusedError:
        return None
    with stream:
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: {SERVER[0]}\r\n\r\n".encode())
        return b"".join(iter(lambda: stream.recv(65536), b"")).split(b"\r\n\r\n", 1)[1].decode()


def _sums(metrics: str, name: str) -> list[str]:
    return [line for line in metrics.splitlines() if line.startswith(name)]


def _opens(port: int, password: str) -> bool:
    """Whether a visitor of the console with this password is let in."""
    try:
        with _console(port, password):
            return True
    except (AssertionError, OSError):
        return False


@contextlib.contextmanager
def _console(port: int, password: str):
    """A visitor of the console who has given the password."""
    with socket.create_connection((SERVER[0], port), timeout=60) as stream:
        _until(stream, b"password")
        _say(stream, password, "> ")
        yield stream


def _say(stream: socket.socket, line: str, answer: str) -> None:
    stream.sendall(f"{line}\r\n".encode())
    _until(stream, answer.encode())


def _until(stream: socket.socket, text: bytes) -> None:
    said = b""
    while text not in said:
        more = stream.recv(4096)
        assert more, said
        said += more


def connections_of_strangers_are_as_many_as_the_reload_allows(relay):
    def stays(count: int) -> int:
        """How many of so many connections are open after a while."""
        streams = []
        for _ in range(count):
            streams.append(socket.create_connection(SERVER, timeout=PATIENCE))
            time.sleep(0.01)
        time.sleep(0.3)
        for stream in streams:
            stream.setblocking(False)
        alive = sum(_is_open(stream) for stream in streams)
        for stream in streams:
            stream.close()
        return alive

    assert stays(12) == 12
    key = "max-connections-without-allocation-per-address"
    assert relay.reload(f"user=alice:secret\n{key}=4\n")["changed"] == [key]
    # Two for each of two shards.
    assert 2 <= stays(12) <= 4
    assert relay.reload("user=alice:secret\n")["changed"] == [key]
    assert stays(12) == 12
    relay.stop()


def _is_open(stream: socket.socket) -> bool:
    try:
        return stream.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def with_a_user_database_all_changes_as_without_and_another_one_is_followed_from_then_on(relay):
    def made(name: str, *users: str) -> str:
        path = relay.folder / name
        with contextlib.closing(sqlite3.connect(path)) as file, file:
            file.execute("create table if not exists turnusers_lt(realm varchar(127), name varchar(512), hmackey char(128))")
            for user in users:
                key = hashlib.md5(f"{user}:{REALM}:secret".encode()).hexdigest()
                file.execute("insert into turnusers_lt values(?, ?, ?)", (REALM, user, key))
        return f"userdb={path}\n"

    first, second = made("first", "bob"), made("second", "dora")
    # A database that was not there at the start, or is not to be there any more, waits for a restart.
    report = relay.reload(f"user=alice:secret\n{first}")
    assert (report["changed"], report["restart_pending"]) == ([], ["userdb"])
    relay.stop()
    relay.end()
    relay.__init__(relay.binary, relay.folder, content=first + "user=alice:secret\n")
    assert [Client(user).allocate() for user in ("alice", "bob", "carol", "dora")] == [200, 200, 401, 401]
    report = relay.reload(first + "user=carol:secret\nalternate-server=203.0.113.8:3478\n")
    assert (report["changed"], report["restart_pending"]) == (["user", "alternate-server"], [])
    assert [Client(user).allocate() for user in ("alice", "bob", "carol")] == [401, 300, 300]
    assert relay.reload(first + "user=carol:secret\nuser-quota=1\n")["changed"] == ["user-quota", "alternate-server"]
    bob = Client("bob")
    made("first", "erin")
    deadline = time.monotonic() + PATIENCE
    while Client("erin").allocate() == 401:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert Client("erin").allocate() == 486, "the quota holds for who comes later too"
    assert relay.reload(second + "user=carol:secret\n")["changed"] == ["user-quota", "userdb"]
    while bob.allocate() != 401 or Client("dora").allocate() != 200:
        assert time.monotonic() < deadline + PATIENCE
        time.sleep(0.05)
    # Secrets in place of users, and back.
    relay.reload(second + "use-auth-secret\nstatic-auth-secret=a-long-secret\nusers-beside-secrets=false\n")
    while Client("dora").allocate() != 401:
        assert time.monotonic() < deadline + PATIENCE
        time.sleep(0.05)
    relay.reload(second)
    while Client("dora").allocate() != 200:
        assert time.monotonic() < deadline + PATIENCE
        time.sleep(0.05)
    report = relay.reload("user=alice:secret\n")
    assert report["restart_pending"] == ["userdb"]
    relay.stop()


def secrets_change_at_once_and_nonces_have_the_lifetime_of_the_moment(relay):
    def client(secret: str) -> Client:
        user = f"{int(time.time()) + 3600}:dora"
        password = hmac.new(secret.encode(), user.encode(), hashlib.sha1).digest()
        return Client(user, base64.b64encode(password).decode())

    relay.reload("static-auth-secret=the-first-one\n")
    first = client("the-first-one")
    assert first.allocate() == 200
    relay.reload("static-auth-secret=the-second-one\nstale-nonce=1\n")
    assert first.refresh() in (401, 438)
    second = client("the-second-one")
    assert second.allocate() == 200
    time.sleep(2.2)
    assert second.refresh() == 438
    relay.stop()


def a_rate_holds_for_sessions_that_begin_after_it_and_a_dry_run_changes_nothing(relay):
    assert Client("alice").allocate() == 200
    relay.write("user=alice:secret\nmax-bps=12345\n")
    report = json.loads(relay.ctl("reload", "--dry-run").stdout)
    assert (report["changed"], report["dry_run"]) == (["max-bps"], True)
    assert json.loads(relay.ctl("config").stdout)["effective"]
    assert Client("alice").allocate() == 200
    relay.ctl("reload")
    assert Client("alice").allocate() == 200
    rates = [json.loads(line)["max_bps"] for line in relay.ctl("sessions").stdout.splitlines()]
    assert sorted(rates, key=str) == [12345, None, None]
    relay.stop()


def certificates_of_other_files_are_used_for_new_connections(binary, tmp_path, program):
    openssl = program("openssl")

    first, second = ("user=alice:secret\n" + _certificate(openssl, tmp_path, name) for name in ("first", "second"))
    relay = Relay(binary, tmp_path, content=first)

    def subject() -> str:
        command = [openssl, "s_client", "-connect", f"{SERVER[0]}:34912", "-brief"]
        return subprocess.run(command, input="", capture_output=True, text=True, timeout=60).stderr

    try:
        assert "first" in subject()
        assert relay.reload(second)["changed"] == ["cert", "pkey"]
        assert "second" in subject()
        # What does not belong together changes nothing.
        relay.write(second.replace("second.key", "first.key"))
        assert relay.ctl("reload").returncode == 1
        assert "second" in subject()
        # Whether TLS is spoken at all is a matter of the start.
        report = relay.reload("user=alice:secret\ntls-listening-port=34912\n")
        assert report["restart_pending"] == ["cert", "pkey"]
        assert "second" in subject()
        relay.stop()
    finally:
        relay.end()


def certificates_change_and_reloads_hold_while_nobody_reads_the_log(binary, tmp_path, program):
    openssl = program("openssl")
    chain, key = (f"{tmp_path}/{name}" for name in ("chain.pem", "key.pem"))

    def write(name: str) -> None:
        command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        new = [f"{tmp_path}/new.pem", f"{tmp_path}/new.key"]
        subprocess.run([*command, "-subj", f"/CN={name}", "-out", new[0], "-keyout", new[1]], check=True, capture_output=True)
        os.rename(new[1], key)
        os.rename(new[0], chain)

    def subject() -> str:
        command = [openssl, "s_client", "-connect", f"{SERVER[0]}:34912", "-brief"]
        return subprocess.run(command, input="", capture_output=True, text=True, timeout=60).stderr

    write("first")
    content = f"user=alice:secret\ncert={chain}\npkey={key}\ntls-listening-port=34912\n"
    reader, writer = os.pipe()
    relay = Relay(binary, tmp_path, content=content, log=writer)
    try:
        os.close(writer)
        client = Client("alice")
        assert client.allocate() == 200
        # More lines than the pipe and the queue have room for.
        for _ in range(5000):
            assert relay.put("/v1/log?level=info") == 200
        assert "first" in subject()
        write("second")
        deadline = time.monotonic() + PATIENCE
        while "second" not in subject():
            assert time.monotonic() < deadline
        assert relay.reload(content + "user=carol:secret\n")["changed"] == ["user"]
        assert Client("carol").allocate() == 200
        assert client.refresh() == 200
        relay.process.send_signal(signal.SIGTERM)
        with os.fdopen(reader, "rb") as lines:
            lines.read()
        assert relay.process.wait(60) == 0
        counted = json.loads((tmp_path / "statistics.json").read_text())
        assert counted["in"] == counted["out"] + counted["dropped"] and counted["log_lost"] > 1000
    finally:
        relay.end()


class Handshakes(threading.Thread):
    """Handshakes over TLS, one after the other: how many were made, and what was wrong with the one that was not."""

    def __init__(self):
        super().__init__(daemon=True)
        self.made, self.wrong = 0, None
        self._is_over = threading.Event()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    def run(self) -> None:
        try:
            while not self._is_over.is_set():
                with socket.create_connection((SERVER[0], TLS_PORT), timeout=PATIENCE) as stream, self._context.wrap_socket(stream) as tls:
                    answer = Dialogue(tls).ask(dialogue.BINDING)
                    assert answer is not None and answer.code == 0
                self.made += 1
        except (AssertionError, OSError) as error:
            self.wrong = repr(error)

    def end(self) -> None:
        self._is_over.set()
        self.join()


def _certificate(openssl: str, folder, name: str) -> str:
    """The lines of a configuration for a certificate of its own."""
    files = [f"{folder}/{name}.pem", f"{folder}/{name}.key"]
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    subprocess.run([*command, "-subj", f"/CN={name}", "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return f"cert={files[0]}\npkey={files[1]}\ntls-listening-port={TLS_PORT}\n"


def many_reloads_under_load_lose_nothing(binary, tmp_path, program):
    certificates = [_certificate(program("openssl"), tmp_path, name) for name in ("first", "second")]
    contents = [f"user=alice:secret\nuser=guest{n}:secret\ndenied-peer-ip=192.0.2.{n}\nuser-quota={n + 5}\nmax-bps={n + 1}000\n{certificates[n % 2]}" for n in range(4)]
    relay = Relay(binary, tmp_path, content=contents[0])
    try:
        _reload_under_load(relay, contents)
    finally:
        relay.end()


def _reload_under_load(relay, contents: list[str]) -> None:
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.bind(("127.77.11.9", 0))
    peer.settimeout(20)
    client, mobile, handshakes = Client("alice"), Client("alice"), Handshakes()
    assert client.allocate() == 200
    assert client.bind(peer.getsockname()) == 200
    client.socket.settimeout(PATIENCE)
    assert mobile.allocate_with_ticket() == 200
    handshakes.start()
    sent = 0
    count = int(os.environ.get("RELOADS", "50"))
    for round_number in range(count):
        relay.write(contents[(round_number + 1) % len(contents)])
        for payload in (b"before", b"between"):
            data = payload + str(round_number).encode()
            data += bytes(-len(data) % 4)
            client.socket.send(struct.pack("!HH", CHANNEL, len(data)) + data)
            if payload == b"before":
                status, report = relay.post("/v1/reload")
                assert status == 200, report
            received, relayed = peer.recvfrom(2048)
            assert received == data
            peer.sendto(data, relayed)
            assert client.socket.recv(2048)[4:] == data
            sent += 1
        if round_number % 10 == 0:
            assert client.refresh() == 200  # by the nonce of the beginning
            assert mobile.move() == 200  # by the ticket of ten reloads ago
            assert mobile.refresh() == 200  # from where it is now
        assert handshakes.wrong is None, handshakes.wrong
    handshakes.end()
    print(f"{handshakes.made} handshakes beside {count} reloads")
    assert handshakes.wrong is None and handshakes.made > 0, handshakes.wrong
    assert sent == 2 * count
    relay.until("configuration read again", count)
    relay.stop()


def none_of_500_bad_configurations_is_applied(relay):
    client = Client("alice")
    assert client.allocate() == 200
    before = json.loads(relay.ctl("config").stdout)
    wrong = ["stale-nonce=0", "no-such-key", "user=nobody", "denied-peer-ip=here", "min-port=0", "user-quota=many", "listening-ip=\0", "max-bps=-1", "user=a:b\nuser=a:c", "alternate-server=nowhere:99999"]
    for number in range(500):
        relay.write(f"user=mallory:secret\nuser-quota={number + 1}\n{wrong[number % len(wrong)]}\n")
        status, answer = relay.post("/v1/reload")
        assert status == 422 and "relay.conf:" in answer["error"], (wrong[number % len(wrong)], answer)
    relay.file.unlink()
    assert relay.post("/v1/reload")[0] == 422
    assert json.loads(relay.ctl("config").stdout) == before
    assert client.refresh() == 200
    assert Client("mallory").allocate() == 401
    relay.stop()


def sighup_reads_the_configuration_again_and_as_turnserver_only_if_it_is_to(binary, tmp_path, coturns_name):
    (tmp_path / "serve").mkdir()
    relay = Relay(binary, tmp_path / "serve")
    relay.process.send_signal(signal.SIGHUP)
    relay.until("configuration read again")
    relay.stop()
    name = coturns_name("turnserver")
    for number, (more, text) in enumerate([((), "log file reopened"), (("--reload-on-hangup",), "configuration read again")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        relay = Relay(binary, folder, program=name, more=("--log-file=stdout", "--no-cli", f"--pidfile={folder}/pid", *more))
        relay.process.send_signal(signal.SIGHUP)
        relay.until(text)
        if not more:
            assert "configuration read again" not in relay.said()
        relay.stop()
