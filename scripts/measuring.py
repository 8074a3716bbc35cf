"""What scripts that measure a relay have in common: requests over a connection, a certificate, CPU time, what is known of the machine."""

import hashlib
import hmac
import json
import os
import platform
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
#: Where `cargo build --release` puts it.
PROGRAM = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release", "turnbuckle")


def certificate():
    """Certificate and key in one file, ECDSA with P-256."""
    path = os.path.join(tempfile.gettempdir(), "tb-c-certificate.pem")
    if not os.path.exists(path):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=relay"]
        subprocess.run([*command, "-keyout", f"{path}.key", "-out", f"{path}.crt"], check=True, stderr=subprocess.DEVNULL)
        with open(path, "w") as file:
            for part in ("key", "crt"):
                with open(f"{path}.{part}") as made:
                    file.write(made.read())
    return path


def attribute(kind, value):
    return struct.pack("!HH", kind, len(value)) + value + bytes(-len(value) % 4)


def request(method, attributes, key=None):
    """The bytes of a request, with MESSAGE-INTEGRITY under a key (RFC 8489 §5, §14.5)."""
    transaction = os.urandom(12)

    def header(length):
        return struct.pack("!HHI", method, length, 0x2112A442) + transaction

    if key:
        signed = header(len(attributes) + 24) + attributes
        attributes += attribute(0x0008, hmac.new(key, signed, hashlib.sha1).digest())
    return header(len(attributes)) + attributes


def transact(connection, method, attributes, key=None):
    """Sends a request; the type and the attributes of the answer."""
    connection.sendall(request(method, attributes, key))
    header = receive(connection, 20)
    return parse(header + receive(connection, struct.unpack("!H", header[2:4])[0]))


def parse(answer):
    """The type and the attributes of a message."""
    body, found = answer[20:], {}
    while body:
        name, size = struct.unpack("!HH", body[:4])
        found[name] = body[4 : 4 + size]
        body = body[4 + size + -size % 4 :]
    return struct.unpack("!H", answer[:2])[0], found


def receive(connection, length):
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            sys.exit("the server closed the connection")
        data += more
    return data


def exchange(udp, method, attributes, key=None):
    """Sends a request by UDP, again after half a second as long as there is no answer; the type and the attributes of the answer."""
    message = request(method, attributes, key)
    udp.settimeout(0.5)
    for _ in range(10):
        udp.send(message)
        try:
            while (answer := udp.recv(2048))[8:20] != message[8:20]:
                pass
        except TimeoutError:
            continue
        return parse(answer)
    sys.exit("the server does not answer")


def user_database(path, realm, users):
    """Makes an SQLite database with coturn's table of users, of whom each is a name and a key."""
    rows = ((realm, name, key.hex()) for name, key in users)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE turnusers_lt (realm varchar(127) default '', name varchar(512), hmackey char(128), PRIMARY KEY (realm,name))")
        database.executemany("INSERT INTO turnusers_lt VALUES (?, ?, ?)", rows)


def users_thread(pid):
    """The number of the thread that follows the user database."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/comm") as file:
            if file.read().strip() == "users":
                return thread
    sys.exit("no thread of the users")


def cpu_of_thread_s(pid, thread):
    """CPU time of one thread."""
    with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def cpu_ns(pid):
    """CPU time of all threads of a process."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total


def environment(program):
    with open("/proc/cpuinfo") as file:
        model = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip()
    return {
        "kernel": platform.release(),
        "cpu": f"{model}, {os.cpu_count()} CPUs",
        "commit": commit,
        "program": subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True).stdout.strip(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        # Where files outside the tree lie tells nobody anything.
        "command": " ".join(os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv),
        "load_average": os.getloadavg(),
    }


class Bars:
    """What is to be held, with what was measured: each is printed as soon as it is known, and all of them as a table at the end."""

    #: What a line begins with by which `take` knows the bar that another program has printed.
    _MARK = "bar: "
    #: Whether another program reads what this one prints.
    _is_passed_on = "TURNBUCKLE_BARS" in os.environ

    def __init__(self):
        self._rows = []

    def hold(self, subject, what, most, measured, is_met):
        """Takes note of one: in words what is allowed and what was measured."""
        self.take(self._MARK + json.dumps([subject, what, most, measured, "met" if is_met else "MISSED"]))

    def at_most(self, subject, what, most, measured, unit, more=""):
        """Takes note of a number; `more` says what else is known of it."""
        self.hold(subject, what, f"{most:g} {unit}".rstrip(), self._shown(measured, unit, more), measured <= most)

    def at_least(self, subject, what, least, measured, unit, more=""):
        """Takes note of a number that is the better the larger it is."""
        self.hold(subject, what, f"at least {least:,g} {unit}".rstrip(), self._shown(measured, unit, more), measured >= least)

    @staticmethod
    def _shown(measured, unit, more):
        shown = f"{measured:,.0f}" if measured >= 100 or measured == int(measured) else f"{measured:.2f}"
        return "; ".join(filter(None, (f"{shown} {unit}".rstrip(), more)))

    def take(self, line):
        """Takes note of a line that another program has printed, and prints it."""
        if not line.startswith(self._MARK):
            print(line, flush=True)
            return
        row = json.loads(line.removeprefix(self._MARK))
        self._rows.append(row)
        print(line if self._is_passed_on else f"{self._MARK}{' | '.join(row)}", flush=True)

    def run(self, *command):
        """Runs a program that prints bars."""
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TURNBUCKLE_BARS": "1"}) as process:
            for line in process.stdout:
                self.take(line.rstrip("\n"))
        if process.returncode != 0:
            sys.exit(f"{os.path.basename(command[0])} ended with {process.returncode}")

    def show(self):
        """Prints all of them, unless another program does."""
        if not self._is_passed_on:
            print("\n".join(["", *self.table()]))

    def table(self):
        """The lines of a table of all, for a page."""
        rows = [f"| {' | '.join(row)} |" for row in self._rows]
        met = sum(row[-1] == "met" for row in self._rows)
        return ["| | what | bar | measured | |", "|---|---|---|---|---|", *rows, "", f"{met} of {len(self._rows)} bars are met"]
