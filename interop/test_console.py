"""coturn's console: by expect and telnet, by a client that ends no line, from a page in Chromium, and beside Debian's coturn, whose words it has."""

import contextlib
import http.server
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import threading
import time

import playwright.sync_api
import pytest

from harness import dialogue, waiting
from harness.dialogue import Dialogue
from harness.waiting import PATIENCE

#: Of these tests alone.
SERVER, PORT, CONSOLE = "127.77.13.1", 34913, 34914
PASSWORD = "open sesame"
REALM = "example.org"
ORIGIN = 0x802F
TRANSPORT = (dialogue.REQUESTED_TRANSPORT, bytes((dialogue.UDP, 0, 0, 0)))

OPTIONS = (
    f"--listening-ip={SERVER}",
    f"--listening-port={PORT}",
    f"--relay-ip={SERVER}",
    f"--realm={REALM}",
    "--user=alice:secret",
    "--lt-cred-mech",
    "--allow-loopback-peers",
    "--no-tls",
    "--no-dtls",
    f"--cli-ip={SERVER}",
    f"--cli-port={CONSOLE}",
    "--pidfile=relay.pid",
)

#: What `turnadmin -P -p "open sesame"` of Debian's coturn says is another salt each time.
HASHED = subprocess.run(["turnadmin", "-P", "-p", PASSWORD], capture_output=True, text=True).stdout.strip() if shutil.which("turnadmin") else ""


@contextlib.contextmanager
def _running(folder, *command: str, password: str = PASSWORD):
    """A server whose console takes connections."""
    with open(folder / "out", "wb") as out:
        process = subprocess.Popen([*command, *OPTIONS, f"--cli-password={password}"], stdout=out, stderr=subprocess.STDOUT, cwd=folder)
        try:
            deadline = time.monotonic() + PATIENCE
            while True:
                with contextlib.suppress(OSError), socket.create_connection((SERVER, CONSOLE)):
                    break
                assert time.monotonic() < deadline and process.poll() is None, (folder / "out").read_text()
                time.sleep(0.05)
            yield process
        finally:
            process.kill()
            process.wait()


def _ours(binary):
    return str(binary), "serve", "--cli"


COTURN = ("/usr/bin/turnserver", "-n", "--log-file=stdout")


@contextlib.contextmanager
def _session(origin: str = ""):
    """A client with an allocation, and a permission. It names an origin, if there is one."""
    named = [(ORIGIN, origin.encode())] if origin else []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((SERVER, PORT))
        spoken = Dialogue(client)
        challenge = None
        # coturn's console is there before its listeners are.
        while challenge is None:
            challenge = spoken.ask(dialogue.ALLOCATE, TRANSPORT, *named)
        spoken.use("alice", "secret", challenge)
        assert spoken.ask(dialogue.ALLOCATE, TRANSPORT, *named).code == 0
        assert spoken.ask(dialogue.CREATE_PERMISSION, (dialogue.XOR_PEER_ADDRESS, ("127.77.13.9", 0))).code == 0
        yield client


class Console:
    """A client that sends a command as it is, without an end of line, and reads up to the prompt."""

    def __init__(self):
        self._stream = socket.create_connection((SERVER, CONSOLE), timeout=PATIENCE)
        self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.greeting = self._until(b"Enter password: \r\n")
        self._stream.sendall(PASSWORD.encode())
        self._until(b"> ")

    def says(self, command: str) -> str:
        self._stream.sendall(command.encode())
        return self._until(b"> ").decode().removesuffix("> ")

    def close(self) -> None:
        self._stream.close()

    def _until(self, end: bytes) -> bytes:
        text = b""
        while not text.endswith(end):
            byte = self._stream.recv(1)
            assert byte, text
            text += byte
        return text


#: What both are asked.
ASKED = ("ps", "ps alice", "ps bob", "psp lic", "psp bob", "pu", "pu udp", "sr nowhere", "ps", "ur", "so http://x", "pu", "uo", "ps *alice", "cc nosuch 5", "cc total-quota 7", "cc user-quota 8", "cc max-bps 64000", "cc cli-max-output-sessions 0", "ps", "lr", "xyzzy", "cs 1")


def _without_figures(text: str) -> str:
    """What a console says but for what is another one each time."""
    text = re.sub(r"id=\d{18}", "id=N", text)
    text = re.sub(r"(started|expiring in) \d+ secs", r"\1 N secs", text)
    text = re.sub(r"(\d+\.\d+\.\d+\.\d+):\d+", r"\1:N", text)
    # coturn counts requests too, and measures a rate in another way.
    return re.sub(r"\b(rp|rb|sp|sb|r|s|total)=\d+", r"\1=N", text)


def _asked(folder, asked: tuple[str, ...], origin: str, *command: str) -> list[tuple[str, str]]:
    with _running(folder, *command), _session(origin):
        console = Console()
        try:
            return [(command, _without_figures(console.says(command))) for command in asked]
        finally:
            console.close()


#: The same of a session that names `http://Other.example`.
ASKED_OF_ORIGINS = ("ps", "so http://other.example:80", "ps", "pu", "sr example.org", "ps", "ur", "so http://other.example", "ps", "so HTTP://OTHER.EXAMPLE:80", "pu", "uo", "pu")


@pytest.mark.parametrize(("asked", "origin"), [(ASKED, ""), (ASKED_OF_ORIGINS, "http://Other.example")], ids=["all", "origins"])
def it_says_what_debians_coturn_says(binary, tmp_path, asked, origin):
    (tmp_path / "coturn").mkdir()
    (tmp_path / "ours").mkdir()
    expected = _asked(tmp_path / "coturn", asked, origin, *COTURN)
    found = _asked(tmp_path / "ours", asked, origin, *_ours(binary))
    for (command, coturn), (_, here) in zip(expected, found, strict=True):
        assert here == coturn, command


def telnet_and_expect_use_it(binary, tmp_path):
    if not shutil.which("expect") or not shutil.which("telnet"):
        pytest.skip("not run: expect and telnet are needed")
    script = tmp_path / "console.exp"
    script.write_text(
        f"""
set timeout 30
spawn telnet {SERVER} {CONSOLE}
proc wanted {{text}} {{ expect -ex $text {{}} default {{ puts "never: $text"; exit 1 }} }}
wanted "Enter password:"
send "wrong\\r"
wanted "Enter password:"
send "{PASSWORD}\\r"
wanted "> "
send "ps alice\\r"
expect -re {{id=(\\d+), user <alice>:}} {{}} default {{ exit 2 }}
set session $expect_out(1,string)
wanted "Total sessions: 1"
wanted "> "
send "cs $session\\r"
wanted "> "
send "pu\\r"
wanted "Total sessions: 0"
wanted "> "
send "?\\r"
wanted "cs <session-id>"
wanted "> "
send "bye\\r"
wanted "Bye !"
expect eof
"""
    )
    with _running(tmp_path, *_ours(binary), password=HASHED or PASSWORD), _session():
        done = subprocess.run(["expect", str(script)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout
        said = (tmp_path / "out").read_text()
    assert re.search(r"console: [\d.:]+: end session \d{18}", said), said
    assert PASSWORD not in said


#: medea's client, as it is published: it sends commands without an end of line. `interop/setup` builds it.
MEDEA = pathlib.Path(__file__).parent / ".build" / "medea-console"


@pytest.mark.parametrize("server", ["ours", "coturn"])
def the_published_client_that_ends_no_line_finds_and_ends_its_sessions(binary, tmp_path, server):
    command = _ours(binary) if server == "ours" else COTURN
    with _running(tmp_path, *command), _session():
        done = subprocess.run([MEDEA, f"{SERVER}:{CONSOLE}", PASSWORD, "alice"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        found, left = done.stdout.splitlines()
        # coturn has answered before it ends a session.
        assert re.fullmatch(r"\d{18}", found) and left in ("", found if server == "coturn" else ""), done.stdout
        waiting.await_condition(lambda: "Total sessions: 0" in Console().says("ps alice"), "the end of the session")


def what_it_does_is_done_by_commands_that_no_end_of_line_follows(binary, tmp_path):
    """`ps` and `cs` without an end of line, sessions found by their line."""
    with _running(tmp_path, *_ours(binary)), _session() as client:
        console = Console()
        found = re.findall(r"^ +\d+\) id=(\d+), user <alice>:", console.says("ps alice"), re.MULTILINE)
        assert len(found) == 1
        assert console.says(f"cs {found[0]}") == ""
        assert re.findall(r"id=(\d+)", console.says("ps alice")) == []
        console.close()
        client.send(struct.pack("!HH", 0x4000, 0))


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    """A site of somebody else on the same machine: it has a page, and keeps what it is sent."""

    heard: list[bytes] = []

    def do_GET(self):
        self._answer(b"<!doctype html><title>elsewhere</title>")

    def do_POST(self):
        self.heard.append(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def a_page_in_chromium_that_knows_the_password_gives_no_command(binary, tmp_path, program):
    """Any page can have a browser send what it likes to an address of the machine that it runs on, if only behind the head of a request."""
    with contextlib.ExitStack() as end:
        relay = end.enter_context(_running(tmp_path, *_ours(binary)))
        end.enter_context(_session())
        elsewhere = end.enter_context(http.server.ThreadingHTTPServer((SERVER, 0), _Elsewhere))
        threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
        end.callback(elsewhere.shutdown)
        driver = end.enter_context(playwright.sync_api.sync_playwright())
        flags = ["--disable-gpu", "--disable-background-networking", "--no-sandbox"]
        browser = driver.chromium.launch(executable_path=program("chromium"), args=flags, timeout=PATIENCE * 1000)
        end.enter_context(contextlib.closing(browser))
        page = browser.new_page()
        page.goto(f"http://{SERVER}:{elsewhere.server_port}/")
        command = f"{PASSWORD}\r\nstop\r\n"
        # So it reaches others.
        assert _fetched(page, f"http://{SERVER}:{elsewhere.server_port}/", command) == "answered"
        assert _Elsewhere.heard == [command.encode()]
        for body in (command, None):
            assert _fetched(page, f"http://{SERVER}:{CONSOLE}/", body) == "TypeError"
        assert relay.poll() is None
        # The address is not locked out either: it is that of every other client here.
        assert "Total sessions: 1" in Console().says("ps")


def _fetched(page, url: str, body: str | None) -> str:
    """What comes of a request that the page needs nobody's leave for: `answered`, or the name of an error."""
    return page.evaluate(
        """([url, body]) => fetch(url, {mode: "no-cors", method: body ? "POST" : "GET", body})
            .then(() => "answered", (error) => error.name)""",
        [url, body],
    )
