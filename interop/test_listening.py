"""Addresses that come after the server, and servers that come after another one."""

import contextlib
import os
import re
import signal
import socket

import pytest

from conftest import TARGET
from harness import dialogue, waiting
from harness.corpus import PRIVATE, PUBLIC, Host
from harness.dialogue import Dialogue
from harness.process import Process
from harness.topology import PREFIX, _ip

LATE = "10.7.7.7"
READY = " ready\n"
ALLOCATE = (dialogue.ALLOCATE, (dialogue.REQUESTED_TRANSPORT, bytes((dialogue.UDP, 0, 0, 0))))


@pytest.fixture
def host():
    with Host(f"{PREFIX}late") as host:
        yield host


@contextlib.contextmanager
def _turnserver(host, folder, *options):
    link = folder / "turnserver"
    if not link.exists():
        link.symlink_to(TARGET / "release/turnbuckle")
    fixed = ("-n", "--log-file=stdout", f"--pidfile={folder}/pid", "--user=alice:wonderland", "--realm=example.org")
    with Process(host.namespace, str(link), *fixed, *options) as process:
        waiting.await_condition(lambda: READY in process.output or not process.running, "the start")
        yield process


def _answers(host, address) -> bool:
    def asked():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
            udp.connect((address, 3478))
            by_udp = Dialogue(udp).ask(dialogue.BINDING)
            try:
                tcp.connect((address, 3478))
            except OSError:
                return False
            return bool(by_udp) and bool(Dialogue(tcp).ask(dialogue.BINDING))

    return host.namespace.call(asked)


def _relayed(host, address) -> str:
    def allocated():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.connect((address, 3478))
            talk = Dialogue(udp)
            talk.use("alice", "wonderland", talk.ask(*ALLOCATE))
            return talk.ask(*ALLOCATE).address(dialogue.XOR_RELAYED_ADDRESS)[0]

    return host.namespace.call(allocated)


def _client() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _add(host, address) -> None:
    _ip("-n", host.namespace.name, "address", "add", f"{address}/24", "dev", "net")


def _await_listening(process, address) -> None:
    waiting.await_condition(lambda: f"listening on TCP {address}:3478 from now on" in process.output, f"a listener on {address}")


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
def a_wildcard_stands_for_an_address_that_the_machine_gets_later(host, tmp_path, wildcard):
    with _turnserver(host, tmp_path, f"--listening-ip={wildcard}") as process:
        _add(host, LATE)
        _await_listening(process, LATE)
        assert _answers(host, LATE) and _answers(host, PRIVATE)


def a_machine_that_has_no_network_yet_is_relayed_from_when_it_has(host, tmp_path):
    _ip("-n", host.namespace.name, "address", "flush", "dev", "net")
    external = "--external-ip=192.0.2.77"
    with _turnserver(host, tmp_path, "--listening-ip=0.0.0.0", external) as process:
        assert "relaying from 127.0.0.1, " in process.output
        _add(host, LATE)
        _await_listening(process, LATE)
        assert f"relaying from {LATE} from now on" in process.output
        assert {_relayed(host, LATE) for _ in range(8)} == {"192.0.2.77"}, "127.0.0.1 is no relay address any more"


@pytest.mark.parametrize(("options", "later"), [((), PUBLIC), (("--listening-ip=0.0.0.0",), PUBLIC), (("--multiplex-peer",), PRIVATE)])
def calls_at_a_private_address_outlive_the_relay_when_a_public_one_has_come(host, tmp_path, options, later):
    _ip("-n", host.namespace.name, "address", "del", f"{PUBLIC}/24", "dev", "net")
    with _turnserver(host, tmp_path, "--survive=on", *options) as process, host.namespace.call(_client) as udp:
        udp.connect((PRIVATE, 3478))
        talk = Dialogue(udp)
        talk.use("alice", "wonderland", talk.ask(*ALLOCATE))
        assert talk.ask(*ALLOCATE).address(dialogue.XOR_RELAYED_ADDRESS)[0] == PRIVATE
        _add(host, PUBLIC)
        for deaths in range(1, 3):
            relays = re.findall(r"survive: process \d+ is the keeper of process (\d+)", process.output)
            os.kill(int(relays[-1]), signal.SIGKILL)
            waiting.await_condition(lambda: process.output.count(READY) > deaths or not process.running, "the next relay")
            assert process.output.count(" 1 of 1 allocations from the process before") == deaths, process.output
            assert talk.ask(dialogue.REFRESH).code == 0
        assert {_relayed(host, PRIVATE) for _ in range(8)} == {later}
        assert process.terminate() == 0


def an_address_that_is_not_there_yet_is_waited_for(host, tmp_path):
    with _turnserver(host, tmp_path, f"--listening-ip={LATE}") as process:
        assert process.running, process.output
        assert process.output.count("tried again every second") == 2, "once by UDP and once by TCP"
        _add(host, LATE)
        _await_listening(process, LATE)
        assert _answers(host, LATE)
        assert process.output.count("tried again every second") == 2


def one_address_that_is_not_there_does_not_keep_the_others_waiting(host, tmp_path):
    with _turnserver(host, tmp_path, f"--listening-ip={LATE}", f"--listening-ip={PRIVATE}") as process:
        assert process.running, process.output
        assert _answers(host, PRIVATE)
        assert "WARNING cannot listen on UDP 10.7.7.7:3478" in process.output


def an_address_that_was_not_meant_is_not_served(host, tmp_path):
    with _turnserver(host, tmp_path, f"--listening-ip={PRIVATE}", f"--listening-ip={LATE}") as process:
        _add(host, "10.7.8.8")
        _add(host, LATE)
        _await_listening(process, LATE)
        assert not [one for one in host.listeners() if one[1] == "10.7.8.8"]


def a_second_server_says_that_it_shares_its_port(host, tmp_path):
    with _turnserver(host, tmp_path, f"--listening-ip={PRIVATE}") as first:
        assert "another process listens" not in first.output
        with _turnserver(host, tmp_path, f"--listening-ip={PRIVATE}") as second:
            assert f"WARNING another process listens on UDP {PRIVATE}:3478 too" in second.output


def by_our_own_name_a_second_server_does_not_start(host, tmp_path):
    serve = (str(TARGET / "release/turnbuckle"), "serve", "--user=alice:wonderland", f"--listening-ip={PRIVATE}")
    with Process(host.namespace, *serve) as first:
        waiting.await_condition(lambda: "ready\n" in first.output, "the start")
        with Process(host.namespace, *serve) as second:
            assert second.wait() == 1
            assert "another process listens there" in second.output


def a_port_that_somebody_has_alone_is_waited_for_while_the_rest_serves(host, tmp_path):
    taken = host.namespace.udp(PRIVATE, 3478)
    with _turnserver(host, tmp_path, f"--listening-ip={PRIVATE}", "--listening-ip=127.0.0.1") as process:
        assert process.running, process.output
        assert f"WARNING cannot listen on UDP {PRIVATE}:3478" in process.output
        taken.close()
        waiting.await_condition(lambda: f"listening on UDP {PRIVATE}:3478 from now on" in process.output, "the port")
        assert _answers(host, PRIVATE)


def a_database_that_cannot_be_opened_keeps_nobody_else_out(host, tmp_path):
    database = tmp_path / "later/turndb"
    with _turnserver(host, tmp_path, f"--userdb={database}", f"--listening-ip={PRIVATE}") as process:
        assert process.running, process.output
        assert "SQLite DB connection success" not in process.output
        assert _answers(host, PRIVATE)
        database.parent.mkdir()
        waiting.await_condition(lambda: "user database: read again" in process.output, "the database")
