"""Other QUIC stacks and ours: quic-go's and aioquic's clients with `turnbuckle quic-server`, and quic-go's server with `turnbuckle quic-client`."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import CipherSuite

from harness import quic, topology
from harness.process import Process
from harness.topology import CLIENT_IPV4, LISTENER_IPV4
from harness.waiting import PATIENCE

HERE = Path(__file__).parent
QUIC_GO = HERE / ".build/quic-go-peer"
QUINN = HERE / ".build/quinn-peer"
BACKENDS = ("single", "mmsg", "gso")
MIB = 1 << 20


def _moved(hosts, address: str = LISTENER_IPV4, local: str = CLIENT_IPV4, up: int = 0, down: int = 0, **settings) -> quic.Moved:
    """A transfer by aioquic, from the client's namespace."""
    transfer = lambda: asyncio.run(asyncio.wait_for(quic.move(address, quic.PORT, local, up, down, **settings), PATIENCE))
    moved = hosts.client.call(transfer)
    assert moved.up_is_whole and moved.down_is_whole, moved
    return moved


def _quic_go(hosts, address: str, *options: str) -> str:
    command = hosts.client.argv(str(QUIC_GO), "client", "--server", topology.with_port(address, quic.PORT), *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("backend", BACKENDS)
def quic_go_moves_bytes_both_ways_with_our_server_by_every_backend(hosts, backend):
    with quic.serving(hosts, backend=backend):
        out = _quic_go(hosts, LISTENER_IPV4, "--up", "5", "--down", "5", "--runs", "2", "--warm-up", "0")
    assert out.count('"event":"run"') == 4


@pytest.mark.parametrize("backend", BACKENDS)
def our_client_moves_bytes_both_ways_with_quic_gos_server_by_every_backend(hosts, backend):
    with Process(hosts.relay, str(QUIC_GO), "server", "--listen", topology.with_port(LISTENER_IPV4, quic.PORT)) as server:
        quic.await_event(server, "ready")
        options = ["--json", "--backend", backend, "--up", "5M", "--down", "5M", "--runs", "2", "--warm-up", "0"]
        command = hosts.client.argv(str(quic.TURNBUCKLE), "quic-client", topology.with_port(LISTENER_IPV4, quic.PORT), *options)
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"event":"run"') == 4


def quic_gos_server_closes_each_connection_that_breaks_a_rule(hosts):
    """The probe against a stack that is not ours."""
    with Process(hosts.relay, str(QUIC_GO), "server", "--listen", topology.with_port(LISTENER_IPV4, quic.PORT)) as server:
        quic.await_event(server, "ready")
        command = hosts.client.argv(str(quic.TURNBUCKLE), "probe", "quic", topology.with_port(LISTENER_IPV4, quic.PORT), "--json", "--alpn", "turnbuckle-perf")
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 50
    tried = [row for row in rows[:34] if row["verdict"] != "not tried"]
    # quic-go closes the connection for each of them, for some with another code than the one that RFC 9000 names.
    assert all(row["detail"].startswith("closed with 0x") for row in tried), tried
    held = [row for row in tried if row["verdict"] == "held"]
    assert len(tried) == 33 and len(held) >= 22, [row for row in tried if row not in held]


def a_client_that_offers_another_version_first_comes_with_version_1(hosts):
    both = [QuicProtocolVersion.VERSION_2, QuicProtocolVersion.VERSION_1]
    with quic.serving(hosts):
        moved = _moved(hosts, up=10_000, original_version=QuicProtocolVersion.VERSION_2, supported_versions=both)
    assert moved.version == QuicProtocolVersion.VERSION_1


def a_client_that_offers_aes_256_alone_gets_it(hosts):
    with quic.serving(hosts):
        _moved(hosts, up=100_000, down=100_000, cipher_suites=[CipherSuite.AES_256_GCM_SHA384])


@pytest.mark.parametrize("change", [quic.another_port, quic.another_key, quic.another_id], ids=lambda change: change.__name__)
@pytest.mark.parametrize("backend", BACKENDS)
def a_transfer_goes_on_when_its_client_has_another(hosts, change, backend):
    with quic.serving(hosts, backend=backend):
        _moved(hosts, down=3 * MIB, meanwhile=change)
        _moved(hosts, up=MIB, meanwhile=change)


# Where few are lost, more are moved.
@pytest.mark.parametrize(("one_of", "mib"), [(1000, 20), (100, 2), (20, 2)])
@pytest.mark.parametrize("backend", BACKENDS)
def what_the_network_loses_is_sent_again_by_every_backend(hosts, backend, one_of, mib):
    for namespace in (hosts.relay, hosts.client):
        with quic.losing(namespace, one_of) as dropped, quic.serving(hosts, backend=backend):
            _quic_go(hosts, LISTENER_IPV4, "--up", str(mib), "--down", str(mib), "--runs", "1", "--warm-up", "0")
            _moved(hosts, up=300_000, down=300_000)
            assert dropped() > 0


def _ended(hosts, **settings):
    """How the connection of a client of aioquic ends that makes a mistake; another one moves its bytes all the same."""
    with quic.serving(hosts):
        work = lambda: asyncio.run(asyncio.wait_for(quic.ended(LISTENER_IPV4, quic.PORT, CLIENT_IPV4, **settings), PATIENCE))
        ended = hosts.client.call(work)
        _moved(hosts, up=10_000)
    return ended


@pytest.mark.parametrize("mistake", quic.Mistake, ids=lambda mistake: mistake.name.lower())
def a_client_that_breaks_a_rule_is_closed_with_the_code_for_it(hosts, mistake):
    ended = _ended(hosts, mistake=mistake)
    assert ended.error_code == mistake.value, ended


def a_client_without_version_1_is_told_of_it_and_gives_up(hosts):
    """RFC 9000 §6: the answer is a packet of version negotiation, and no close."""
    ended = _ended(hosts, original_version=QuicProtocolVersion.VERSION_2, supported_versions=[QuicProtocolVersion.VERSION_2])
    assert ended.reason_phrase == "Could not find a common protocol version", ended


def datagrams_come_back_from_another_stack(hosts):
    """quinn's from our server, and ours from quinn's."""
    address = topology.with_port(LISTENER_IPV4, quic.PORT)
    ours, quinns = lambda: quic.serving(hosts), lambda: Process(hosts.relay, str(QUINN), "server", "--listen", address)
    for serving, client in ((ours, [str(QUINN), "client"]), (quinns, [str(quic.TURNBUCKLE), "quic-client", "--json"])):
        with serving() as server:
            quic.await_event(server, "ready")
            words = [address, "--datagrams", "160,1150", "--count", "2000", "--runs", "1", "--warm-up", "0"]
            done = subprocess.run(hosts.client.argv(*client, *words), capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 0, done.stdout + done.stderr
            rows = [row for row in map(json.loads, done.stdout.splitlines()) if row["event"] == "datagrams"]
            assert [(row["bytes"], row["sent"], row["lost"]) for row in rows] == [(160, 2000, 0), (1150, 2000, 0)]


@pytest.mark.parametrize(
    ("rules", "what"),
    [
        (["--delay", "10", "--loss", "2"], "lost_datagrams"),
        (["--delay", "5", "--late", "5", "--late-by", "4"], "late_datagrams"),
        (["--delay", "1", "--rebind-after", "300"], "rebound_clients"),
    ],
    ids=["loss", "reordering", "another port"],
)
@pytest.mark.parametrize("backend", BACKENDS)
def bytes_arrive_whole_over_a_path_with(hosts, rules, what, backend):
    with quic.serving(hosts, "127.0.0.1", backend), quic.path(hosts, *rules) as link:
        _quic_go(hosts, LISTENER_IPV4, "--up", "2", "--down", "2", "--runs", "1", "--warm-up", "0")
        options = ["--json", "--backend", backend, "--up", "2M", "--down", "2M", "--runs", "1", "--warm-up", "0"]
        command = hosts.client.argv(str(quic.TURNBUCKLE), "quic-client", topology.with_port(LISTENER_IPV4, quic.PORT), *options)
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        link.terminate()
        result = quic.await_event(link, "result")
    assert result[what] > 0, result
    assert result["dropped_datagrams"]["crowded"] == 0
