"""Trains: many datagrams that the kernel hands over as one buffer must arrive as they were, singly and in order."""

import contextlib
import random

import pytest

from harness import topology, turn, waiting

CHANNEL = 0x4000
#: Payload sizes around each alignment and around common media packets, with the length of the train.
TRAINS = [(1, 16), (2, 16), (3, 16), (4, 16), (100, 16), (161, 16), (172, 2), (999, 8), (1200, 8)]
BACKENDS = [
    pytest.param((), id="default"),
    pytest.param(("--udp-backend", "single"), id="single"),
    pytest.param(("--udp-backend", "mmsg"), id="mmsg"),
    pytest.param(("--udp-backend", "gso"), id="gso"),
]


@contextlib.contextmanager
def _client_and_peer(hosts, server, family: str):
    """An allocation with a permission for the peer, and the peer's socket."""
    client_address, listener, peer_address = {
        "IPv4": (topology.CLIENT_IPV4, server.ipv4, topology.PEER_IPV4),
        "IPv6": (topology.CLIENT_IPV6, server.ipv6, topology.PEER_IPV4),
    }[family]
    with hosts.client.udp(client_address) as udp, hosts.peer.udp(peer_address) as peer:
        peer.settimeout(waiting.PATIENCE)
        client = turn.Client(udp, listener, server)
        relayed = client.allocate()
        client.permit(peer.getsockname())
        yield client, relayed, peer
        client.release()


def _payloads():
    """Trains of random payloads; the last datagram of each is shorter than the others where it can be."""
    source = random.Random(9000)
    for size, count in TRAINS:
        yield [source.randbytes(size) for _ in range(count - 1)] + [source.randbytes(1 + size // 2)]


@pytest.mark.parametrize("starting_server", BACKENDS, indirect=True)
@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def trains_over_a_channel_arrive_whole_and_in_order_both_ways(hosts, server, family):
    with _client_and_peer(hosts, server, family) as (client, relayed, peer):
        client.bind(CHANNEL, peer.getsockname())
        for train in _payloads():
            turn.send_train(client.udp, [turn.channel_data(CHANNEL, payload) for payload in train], client.server)
            assert [peer.recvfrom(65536) for _ in train] == [(payload, relayed) for payload in train]
            turn.send_train(peer, train, relayed)
            assert [client.receive() for _ in train] == [(CHANNEL, payload) for payload in train]


@pytest.mark.parametrize("starting_server", BACKENDS, indirect=True)
@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def trains_as_indications_arrive_whole_and_in_order_both_ways(hosts, server, family):
    with _client_and_peer(hosts, server, family) as (client, relayed, peer):
        address = peer.getsockname()
        for train in _payloads():
            turn.send_train(client.udp, [turn.send_indication(address, payload) for payload in train], client.server)
            assert [peer.recvfrom(65536) for _ in train] == [(payload, relayed) for payload in train]
            turn.send_train(peer, train, relayed)
            assert [client.receive() for _ in train] == [(address, payload) for payload in train]


@pytest.mark.parametrize("starting_server", BACKENDS, indirect=True)
def two_clients_whose_trains_cross_each_get_their_own(hosts, server):
    with (
        _client_and_peer(hosts, server, "IPv4") as (one, one_relayed, one_peer),
        _client_and_peer(hosts, server, "IPv4") as (two, two_relayed, two_peer),
    ):
        one.bind(CHANNEL, one_peer.getsockname())
        two.bind(CHANNEL, two_peer.getsockname())
        for train in _payloads():
            mirrored = [payload[::-1] for payload in train]
            for client, payloads in ((one, train), (two, mirrored)):
                turn.send_train(client.udp, [turn.channel_data(CHANNEL, payload) for payload in payloads], client.server)
            assert [one_peer.recvfrom(65536) for _ in train] == [(payload, one_relayed) for payload in train]
            assert [two_peer.recvfrom(65536) for _ in train] == [(payload, two_relayed) for payload in mirrored]
            turn.send_train(one_peer, mirrored, one_relayed)
            turn.send_train(two_peer, train, two_relayed)
            assert [one.receive() for _ in train] == [(CHANNEL, payload) for payload in mirrored]
            assert [two.receive() for _ in train] == [(CHANNEL, payload) for payload in train]


@pytest.mark.parametrize("starting_server", BACKENDS, indirect=True)
def a_datagram_without_payload_is_relayed_both_ways(hosts, server):
    with _client_and_peer(hosts, server, "IPv4") as (client, relayed, peer):
        client.bind(CHANNEL, peer.getsockname())
        client.udp.sendto(turn.channel_data(CHANNEL, b""), client.server)
        assert peer.recvfrom(65536) == (b"", relayed)
        peer.sendto(b"", relayed)
        assert client.receive() == (CHANNEL, b"")
