"""Relay sockets that allocations share (coturn's multiplex-peer): coturn's client over every transport, all on one server at once.

A peer belongs to one client of a shard, so each client has a session and an echo peer of its own.
"""

import pytest

from harness import topology, uclient

pytestmark = pytest.mark.alone

SHARED = ("--multiplex-peer", "--multiplex-peer-port", "35000", uclient.WIDE_CHANNEL_NUMBERS)
LOAD = uclient.Load(sessions=1, messages=1_000, interval_ms=5)
MODES = {"channels": (), "indications": ("-s",)}
TRANSPORTS = ("UDP", "TCP", "TLS", "DTLS")


@pytest.fixture(scope="module")
def ended(hosts, program, serving):
    """How clients of all transports and modes ended that ran at once, and what the server counted."""
    with serving(ours=SHARED, secure=True) as server:
        if not server.is_turnbuckle:
            pytest.skip("not run: Debian's coturn has no shared relay sockets")
        server.await_ready()
        cells = [(transport, mode) for transport in TRANSPORTS for mode in MODES]
        with uclient.echoing(hosts, program, len(cells)) as ports:
            clients = {
                (transport, mode): uclient.Client(
                    server.ipv4, transport, LOAD, ("-e", topology.PEER_IPV4, "-r", str(port), "-c", *MODES[mode])
                )
                for (transport, mode), port in zip(cells, ports)
            }
            return uclient.run_all(hosts, server, program, clients, timeout=100)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def every_message_returns_over_a_shared_relay_socket(ended, transport, mode):
    assert ended[transport, mode].succeeded() == uclient.without_loss(LOAD.total)
