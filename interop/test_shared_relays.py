"""Relay sockets that allocations share (coturn's multiplex-peer): coturn's client over every transport, all on one server at once.

A peer belongs to one client of a shard, so each client has a session and an echo peer of its own.
"""

import dataclasses

import pytest

from harness import topology, uclient
from harness.server import Accounting

pytestmark = pytest.mark.alone

SHARED = ("--multiplex-peer", "--multiplex-peer-port", "35000", uclient.WIDE_CHANNEL_NUMBERS)
LOAD = uclient.Load(sessions=1, messages=1_000, interval_ms=5)
MODES = {"channels": (), "indications": ("-s",)}
#: Drops that are none of a message between client and peer: handshakes and requests, which are sent again, and what a peer is too early for.
NO_MESSAGES = ("dtls_control", "dtls_crowded_address", "dtls_rejected", "no_permission", "request_in_progress")
TRANSPORTS = ("UDP", "TCP", "TLS", "DTLS")


@dataclasses.dataclass(frozen=True)
class Run:
    """How each client ended, and what was dropped meanwhile: by the server, by its host's kernel, and by the kernel at the clients and peers."""

    ended: dict
    accounting: Accounting
    at_server: topology.UdpCounters
    elsewhere: int


@pytest.fixture(scope="module")
def run(hosts, program, serving) -> Run:
    """Clients of all transports and modes at once."""
    with serving(ours=SHARED, secure=True) as server:
        if not server.is_turnbuckle:
            pytest.skip("not run: Debian's coturn has no shared relay sockets")
        server.await_ready()
        cells = [(transport, mode) for transport in TRANSPORTS for mode in MODES]
        others = (hosts.client, hosts.peer)
        before = [topology.udp_counters(host) for host in others]
        with uclient.echoing(hosts, program, len(cells)) as ports:
            clients = {
                (transport, mode): uclient.Client(
                    server.ipv4, transport, LOAD, ("-e", topology.PEER_IPV4, "-r", str(port), "-c", *MODES[mode])
                )
                for (transport, mode), port in zip(cells, ports)
            }
            ended = uclient.run_all(hosts, server, program, clients, timeout=100)
        accounting = server.stop()
        after = [topology.udp_counters(host) for host in others]
        elsewhere = sum((now - then).receive_buffer_full for now, then in zip(after, before))
        return Run(ended, accounting, server.kernel_counters(), elsewhere)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def every_message_returns_over_a_shared_relay_socket(run, transport, mode):
    totals = run.ended[transport, mode].succeeded()
    assert (totals.sent, totals.send_dropped) == (LOAD.total, 0)
    # On a busy machine the sockets of coturn's programs may run over.
    assert totals.lost <= run.elsewhere, run


def nothing_is_lost_between_clients_and_peers_of_a_shared_relay_socket(run):
    lost = {reason: count for reason, count in run.accounting.drops.items() if count and reason not in NO_MESSAGES}
    assert lost == {}
    assert run.at_server.receive_buffer_full == 0
