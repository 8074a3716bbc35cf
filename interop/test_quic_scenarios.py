"""The scenarios of quic-interop-runner, by other QUIC stacks as clients of `turnbuckle quic-server`: aioquic, quic-go, quinn and s2n-quic, each scenario by at
least three of them, and quiche where `interop/setup quiche` has built it (`scripts/test-quiche`). Where the network is what is tried, all do it at the same time."""

import asyncio
import concurrent.futures
import json
import subprocess
from pathlib import Path

import pytest
from aioquic.tls import CipherSuite

from harness import quic, topology
from harness.topology import CLIENT_IPV4, CLIENT_IPV6, LISTENER_IPV4, LISTENER_IPV6
from harness.waiting import PATIENCE

BUILD = Path(__file__).parent / ".build"
MIB = 1 << 20


def _aioquic(hosts, address, directions, runs=1, *options):
    """A transfer each way, or twice the same; returns which runs resumed a session."""
    local = CLIENT_IPV6 if ":" in address else CLIENT_IPV4
    changes = {"--change-path": quic.another_path, "--change-key": quic.another_key}
    meanwhile = next((changes[option] for option in options if option in changes), None)
    settings = {"cipher_suites": [CipherSuite.CHACHA20_POLY1305_SHA256]} if "--chacha20" in options else {}
    resumed = []
    for direction in directions:
        for _ in range(runs):
            # What is in Python takes a tenth of the bytes: some hundred packets all the same.
            bytes_moved = {direction: MIB // 4}
            work = quic.move(address, quic.PORT, local, **({"up": 0, "down": 0} | bytes_moved), meanwhile=meanwhile, **settings)
            moved = hosts.client.call(lambda work=work: asyncio.run(asyncio.wait_for(work, PATIENCE)))
            assert moved.up_is_whole and moved.down_is_whole and moved.retried, moved
            resumed.append(moved.resumed)
            if "--resume" in options:
                settings["session_ticket"] = moved.tickets[0]
    return [{"resumed": one} for one in resumed]


def _program(name, first, spelled):
    """A client that is a program; `spelled` says what it calls what is to be tried."""

    def client(hosts, address, directions, runs=1, *options):
        words = [str(BUILD / name), *first, topology.with_port(address, quic.PORT), "--runs", str(runs)]
        words += [word for direction in directions for word in (f"--{direction}", "1")]
        words += [word for option in options for word in spelled[option]]
        done = subprocess.run(hosts.client.argv(*words), capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, (name, done.stdout + done.stderr)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(found) == len(directions) * runs, (name, done.stdout)
        return found

    client.__name__ = name.removesuffix("-peer")
    return client


_aioquic.__name__ = "aioquic"
_quic_go = _program(
    "quic-go-peer",
    ["client", "--warm-up", "0", "--server"],
    {"--resume": ["--resume"], "--change-path": ["--change-path"], "--change-key": ["--count-key-updates"], "--changed-bits": []},
)
_quinn = _program(
    "quinn-peer",
    ["client", "--warm-up", "0"],
    {
        "--resume": ["--resume"],
        "--change-path": ["--change", "path"],
        "--change-key": ["--change", "key"],
        "--chacha20": ["--suite", "chacha20"],
        # After a Retry with a wrong bit quinn takes no other.
        "--changed-bits": ["--again-after", "10"],
    },
)
_s2n_quic = _program("s2n-quic-peer", [], {"--chacha20": ["--suite", "chacha20"], "--changed-bits": []})
_quiche = _program("quiche-peer", [], {"--resume": ["--resume"], "--change-path": ["--change-path"], "--changed-bits": []})
QUICHE = (_quiche,) if (BUILD / "quiche-peer").exists() else ()
ALL = (_aioquic, _quic_go, _quinn, _s2n_quic, *QUICHE)


def _by(*clients):
    return pytest.mark.parametrize("client", clients, ids=lambda client: client.__name__)


def _all_at_once(hosts, directions, *options):
    """Every client at the same time."""
    with concurrent.futures.ThreadPoolExecutor(len(ALL)) as pool:
        for done in [pool.submit(client, hosts, LISTENER_IPV4, directions, 1, *options) for client in ALL]:
            done.result()


@_by(*ALL)
@pytest.mark.parametrize("address", [LISTENER_IPV4, LISTENER_IPV6], ids=["IPv4", "IPv6"])
def a_client_shows_its_address_and_moves_bytes_both_ways(hosts, client, address):
    with quic.serving(hosts, address) as server:
        client(hosts, address, ["up", "down"])
        server.terminate()
        result = quic.await_event(server, "result")
    # Each is answered with a Retry, before anything is kept of it.
    assert result["connections"] == 2 and result["answered_datagrams"] >= 2


@pytest.mark.parametrize(
    ("rules", "directions", "what"),
    [
        (["--delay", "375"], ["down"], None),
        (["--silent-after", "1500", "--silent-for", "2000"], ["up", "down"], "silenced_datagrams"),
        (["--delay", "5", "--loss", "2"], ["up", "down"], "lost_datagrams"),
        (["--delay", "5", "--corrupt", "2"], ["up", "down"], "corrupt_datagrams"),
        (["--delay", "2", "--rebind-after", "150"], ["up"], "rebound_clients"),
        (["--delay", "2", "--rebind-after", "20"], ["down"], "rebound_clients"),
        (["--delay", "2", "--rebind-after", "150", "--rebind-to", "127.0.0.2"], ["up"], "rebound_clients"),
        (["--delay", "2", "--rebind-after", "20", "--rebind-to", "127.0.0.2"], ["down"], "rebound_clients"),
    ],
    ids=["a long way", "a black hole", "loss", "corruption", "another port up", "another port down", "another address up", "another address down"],
)
def every_client_moves_its_bytes_over_a_path_with(hosts, rules, directions, what):
    with quic.serving(hosts, "127.0.0.1"), quic.path(hosts, *rules) as link:
        _all_at_once(hosts, directions, *(["--changed-bits"] if what == "corrupt_datagrams" else []))
        link.terminate()
        result = quic.await_event(link, "result")
    assert what is None or result[what] > 0, result
    assert result["dropped_datagrams"]["crowded"] == 0


@_by(_aioquic, _quinn, _s2n_quic)
def a_client_that_offers_chacha20_alone_gets_it(hosts, client):
    """quic-go's suites are those of Go's TLS, quiche's those of BoringSSL: neither can be chosen."""
    with quic.serving(hosts):
        client(hosts, LISTENER_IPV4, ["up", "down"], 1, "--chacha20")


@_by(_aioquic, _quic_go, _quinn, *QUICHE)
def a_session_is_resumed(hosts, client):
    """s2n-quic with rustls takes no tickets."""
    with quic.serving(hosts):
        runs = client(hosts, LISTENER_IPV4, ["down"], 2, "--resume")
    assert [run["resumed"] for run in runs] == [False, True]


@_by(_aioquic, _quic_go, _quinn)
def a_client_updates_the_keys_in_mid_transfer(hosts, client):
    """s2n-quic does so after millions of packets only, quiche never by itself."""
    with quic.serving(hosts):
        runs = client(hosts, LISTENER_IPV4, ["up", "down"], 1, "--change-key")
    assert client is not _quic_go or all(run["key_updates"] > 0 for run in runs), runs


@_by(_aioquic, _quic_go, _quinn, *QUICHE)
def a_client_moves_to_another_path_in_mid_transfer(hosts, client):
    """s2n-quic's client stays where it is."""
    with quic.serving(hosts):
        client(hosts, LISTENER_IPV4, ["up", "down"], 1, "--change-path")


@_by(_quic_go, _quinn, _s2n_quic)
def a_client_that_marks_its_packets_moves_bytes_though_marks_are_not_reported(hosts, client):
    """aioquic marks none."""
    with quic.serving(hosts), quic.marked(hosts.relay) as count:
        client(hosts, LISTENER_IPV4, ["up", "down"])
        assert count() > 0


@_by(*ALL)
def a_client_gets_a_chain_of_certificates_that_is_longer_than_what_it_may_be_sent_unproven(hosts, client, tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    names = ",".join(f"DNS:{number:03}.{'long' * 10}.example" for number in range(150))
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*words, "-addext", f"subjectAltName={names}", "-keyout", key, "-out", certificate], check=True, capture_output=True)
    assert len(certificate.read_bytes()) * 3 // 4 > 3 * 1200
    with quic.serving(hosts, LISTENER_IPV4, "auto", "--cert", str(certificate), "--key", str(key)):
        client(hosts, LISTENER_IPV4, ["down"])
