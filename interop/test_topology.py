"""The laboratory itself: it is rebuilt whatever an earlier run left behind, and nothing gets past the relay host."""

import signal

import pytest

from harness import process, topology, waiting


def what_a_crashed_run_left_is_removed_and_the_hosts_are_built_again():
    prefix = "tb-i-crash-"
    crashed = topology.Topology(prefix)
    crashed.up()
    left_running = process.Process(crashed.relay, "sleep", "600")
    waiting.await_condition(lambda: topology.processes_in(crashed.relay), "the start of a process in the relay's namespace")
    with topology.Topology(prefix) as again:
        # A process leaves its namespace a moment before it has ended.
        assert left_running.wait() == -signal.SIGKILL
        assert topology.processes_in(again.relay) == []
    assert not any(namespace.path.exists() for namespace in again.namespaces)


@pytest.mark.parametrize(
    ("client_address", "relay_address", "peer_address"),
    [
        (topology.CLIENT_IPV4, topology.RELAY_IPV4, topology.PEER_IPV4),
        (topology.CLIENT_IPV6, topology.RELAY_IPV6, topology.PEER_IPV6),
    ],
    ids=["IPv4", "IPv6"],
)
def the_client_cannot_reach_the_peer_but_through_a_relay(hosts, client_address, relay_address, peer_address):
    with hosts.peer.udp(peer_address) as peer:
        peer.settimeout(waiting.PATIENCE)
        destination = peer.getsockname()[:2]
        with hosts.client.udp(client_address) as client, hosts.relay.udp(relay_address) as relay:
            client.sendto(b"from the client", destination)
            relay.sendto(b"from the relay", destination)
        assert peer.recv(2048) == b"from the relay"
