"""pion/turn's client, written in Go: allocate, permission, indications, then a channel, contents checked both ways."""

import ipaddress
import json
import pathlib

import pytest

from harness import peer, process, topology

CLIENT = pathlib.Path(__file__).parent / ".build" / "pion"
OVER_CHANNEL = 2_000


def _run(hosts, server, listener: str, peer_address: str, transport: str = "UDP") -> dict:
    assert CLIENT.exists(), "interop/setup compiles pion's client"
    version = ipaddress.ip_address(peer_address).version
    with peer.TransformingPeer(hosts.peer, peer_address) as other:
        client = process.Process(
            hosts.client,
            str(CLIENT),
            *("-server", topology.with_port(listener, server.tls_port if transport in ("TLS", "DTLS") else server.port)),
            *("-transport", transport.lower()),
            *("-user", server.user, "-password", server.password, "-realm", server.realm),
            *("-peer", topology.with_port(peer_address, other.port), "-relay-family", str(version)),
            *("-over-channel", str(OVER_CHANNEL)),
        )
        with client:
            assert client.wait(150) == 0, client.output
        report = json.loads(client.output)
        print(report)
        assert {topology.with_port(*source) for source in other.sources} == {report["relayed"]}
        return report


@pytest.mark.secure
@pytest.mark.client("pion/turn, {relay} relay")
@pytest.mark.parametrize("listener", ["IPv4", "IPv6"])
@pytest.mark.parametrize("relay", ["IPv4", "IPv6"])
@pytest.mark.parametrize("transport", ["UDP", "TCP", "TLS", "DTLS"])
def pion_relays_by_indications_and_by_channel_with_contents_intact(hosts, server, transport, relay, listener):
    address = {"IPv4": server.ipv4, "IPv6": server.ipv6}[listener]
    peer_address = {"IPv4": topology.PEER_IPV4, "IPv6": topology.PEER_IPV6}[relay]
    report = _run(hosts, server, address, peer_address, transport)
    expected_relay = {"IPv4": topology.RELAY_IPV4, "IPv6": topology.RELAY_IPV6}[relay]
    expected_client = {"IPv4": topology.CLIENT_IPV4, "IPv6": topology.CLIENT_IPV6}[listener]
    assert topology.host_of(report["relayed"]) == expected_relay
    assert topology.host_of(report["mapped"]) == expected_client
    assert report["received"] == report["sent"] > OVER_CHANNEL
    assert report["answers_that_differ"] == 0
    assert report["answers_from_elsewhere"] == 0
    assert report["send_indications_sent"] >= 1
    assert report["channel_data_sent"] >= OVER_CHANNEL
    assert report["channel_data_received"] >= OVER_CHANNEL
    assert report["send_indications_sent"] + report["channel_data_sent"] == report["sent"]
    assert report["data_indications_received"] + report["channel_data_received"] == report["received"]
