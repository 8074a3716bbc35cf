"""Relaying by the kernel (`xdp`): what the XDP program relays is what the relay would have, and ends when that would have ended."""

import contextlib
import os
import random
import subprocess
import time

import pytest

from harness import topology, turn, waiting

OBJECT = os.path.join(os.path.dirname(__file__), "..", "crates", "datapath", "bpf", "turn.bpf.o")
CHANNEL = 0x4000
#: Bytes per second of an allocation that has a rate.
RATE = 20_000
XDP = ("--xdp", "on", "--allocation-default-address-family", "keep")
#: Payloads of media, of none, and around what fits an Ethernet frame with and without a header of four bytes.
SIZES = [0, 1, 2, 3, 4, 5, 20, 61, 160, 172, 575, 999, 1200, 1201, 1399, 1400]
ADDRESSES = {
    "IPv4": (topology.CLIENT_IPV4, topology.LISTENER_IPV4, topology.PEER_IPV4),
    "IPv6": (topology.CLIENT_IPV6, topology.LISTENER_IPV6, topology.PEER_IPV6),
}


@pytest.fixture
def cables(hosts):
    """Cables over which the program can send: the far ends receive by NAPI, and leave no checksum to a device that does not exist."""
    for host, device in ((hosts.client, "relay"), (hosts.peer, "relay")):
        _ethtool(host, device, gro="on", tx="off")
    yield
    for host, device in ((hosts.client, "relay"), (hosts.peer, "relay")):
        _ethtool(host, device, gro="off", tx="on")


def _ethtool(host, device: str, **settings: str):
    words = [word for setting in settings.items() for word in setting]
    subprocess.run(["ip", "netns", "exec", host.name, "ethtool", "-K", device, *words], check=True, capture_output=True)


@pytest.fixture
def call(cables, hosts, serving, request):
    """A client with a channel to a peer that the kernel relays both ways."""
    with _calling(hosts, serving, request.param) as call:
        yield call


@pytest.fixture
def rated_call(cables, hosts, serving):
    """The same, of an allocation with a rate."""
    with _calling(hosts, serving, "IPv4", "--max-bps", str(RATE)) as call:
        yield call


@contextlib.contextmanager
def _calling(hosts, serving, family: str, *options: str):
    client_address, listener, peer_address = ADDRESSES[family]
    with serving(*XDP, *options) as server, hosts.client.udp(client_address) as udp, hosts.peer.udp(peer_address) as peer:
        peer.settimeout(waiting.PATIENCE)
        client = turn.Client(udp, listener, server)
        relayed = client.allocate()
        client.bind(CHANNEL, peer.getsockname())
        waiting.await_condition(lambda: _kernel_relays(hosts, client, peer, relayed), "a datagram that the kernel relays both ways")
        yield server, client, relayed, peer


def _kernel_relays(hosts, client, peer, relayed) -> bool:
    """Whether one datagram each way reaches no socket of the relay."""
    before = topology.udp_counters(hosts.relay)
    assert _to_peer(client, peer, b"there") == (b"there", relayed)
    assert _to_client(client, peer, relayed, b"back") == (CHANNEL, b"back")
    return topology.udp_counters(hosts.relay).received == before.received


def _to_peer(client, peer, payload: bytes):
    client.udp.sendto(turn.channel_data(CHANNEL, payload), client.server)
    data, source = peer.recvfrom(65536)
    return data, source[:2]


def _to_client(client, peer, relayed, payload: bytes):
    peer.sendto(payload, relayed)
    return client.receive()


@pytest.mark.parametrize("call", ["IPv4", "IPv6"], indirect=True)
def the_kernel_relays_every_size_both_ways_and_what_is_too_large_is_relayed_all_the_same(hosts, call):
    server, client, relayed, peer = call
    source = random.Random(13)
    before = topology.udp_counters(hosts.relay)
    for size in SIZES:
        payload = source.randbytes(size)
        assert _to_peer(client, peer, payload) == (payload, relayed)
        assert _to_client(client, peer, relayed, payload) == (CHANNEL, payload)
    assert topology.udp_counters(hosts.relay).received == before.received
    # Fragments, each way: the program leaves them to the relay.
    for size in (1469, 1472, 3000):
        payload = source.randbytes(size)
        assert _to_peer(client, peer, payload) == (payload, relayed)
        assert _to_client(client, peer, relayed, payload) == (CHANNEL, payload)
    assert topology.udp_counters(hosts.relay).received > before.received
    client.release()


@pytest.mark.parametrize("call", ["IPv4", "IPv6"], indirect=True)
def nothing_is_relayed_after_the_answer_to_a_release(hosts, call):
    server, client, relayed, peer = call
    client.release()
    before = topology.udp_counters(hosts.relay)
    for number in range(50):
        client.udp.sendto(turn.channel_data(CHANNEL, bytes([number])), client.server)
    # All of them have reached the relay's socket, so none was relayed by the kernel; nor by the relay, which has no allocation.
    waiting.await_condition(lambda: topology.udp_counters(hosts.relay).received - before.received >= 50, "50 datagrams at the relay")
    accounting = server.stop()
    assert accounting.drops["no_allocation"] == 50
    peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.recvfrom(65536)


@pytest.mark.parametrize("call", ["IPv4"], indirect=True)
def what_the_kernel_relays_is_in_the_accounting(call):
    server, client, relayed, peer = call
    for number in range(100):
        assert _to_peer(client, peer, bytes([number])) == (bytes([number]), relayed)
        assert _to_client(client, peer, relayed, bytes([number])) == (CHANNEL, bytes([number]))
    client.release()
    accounting = server.stop()
    assert accounting.difference() == 0
    assert accounting.received >= 200
    assert "relayed by the kernel: to peers 10" in server.output


def what_is_beyond_the_rate_of_an_allocation_is_dropped_by_the_bucket_that_kernel_and_relay_share(hosts, rated_call):
    server, client, relayed, peer = rated_call
    payload = bytes(1000)
    began, before = time.monotonic(), topology.udp_counters(hosts.relay)
    for _ in range(60):
        client.udp.sendto(turn.channel_data(CHANNEL, payload), client.server)
        peer.sendto(payload, relayed)
    for _ in range(60):
        client.udp.sendto(turn.send_indication(peer.getsockname(), payload), client.server)
    # What the relay has read: the indications, and nothing of the channel.
    waiting.await_condition(lambda: topology.udp_counters(hosts.relay).received - before.received >= 60, "60 datagrams at the relay")
    assert topology.udp_counters(hosts.relay).received - before.received == 60
    accounting = server.stop()
    most = RATE * (1 + time.monotonic() - began) / len(payload)
    to_peer, to_client = _all_of(peer), _all_of(client.udp)
    assert 18 <= to_peer <= most
    assert 18 <= to_client <= most
    assert accounting.drops["bandwidth_exceeded"] == 180 - to_peer - to_client
    assert accounting.difference() == 0
    assert "dropped by it: " in server.output


def _all_of(udp) -> int:
    """How many datagrams wait at a socket."""
    udp.setblocking(False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while udp.recv(65536):
            count += 1
    return count


def channels_that_are_bound_after_privileges_were_given_up_are_relayed_by_the_kernel(cables, hosts, serving):
    # The fixture waits for a datagram that no socket of the relay has seen.
    with _calling(hosts, serving, "IPv4", "--proc-user", "nobody") as (server, client, relayed, peer):
        folder = server.statistics.parent
        folder.chmod(0o777)  # The server writes there when it ends.
        for parent in folder.parents[:2]:
            parent.chmod(0o711)
        assert _to_peer(client, peer, b"still") == (b"still", relayed)
        client.release()


def a_device_with_another_program_keeps_it_and_its_clients_are_relayed_by_the_relay(cables, hosts, serving):
    device = ["ip", "-n", hosts.relay.name, "link", "set", "dev", "client"]
    subprocess.run([*device, "xdpgeneric", "obj", OBJECT, "sec", "xdp"], check=True, capture_output=True)
    try:
        with serving("--xdp", "auto") as server, hosts.client.udp(topology.CLIENT_IPV4) as udp, hosts.peer.udp(topology.PEER_IPV4) as peer:
            peer.settimeout(waiting.PATIENCE)
            client = turn.Client(udp, topology.LISTENER_IPV4, server)
            relayed = client.allocate()
            client.bind(CHANNEL, peer.getsockname())
            assert _to_peer(client, peer, b"by the relay") == (b"by the relay", relayed)
            client.release()
            server.stop()
        assert "xdp: native on peer, " in server.output
        assert "; not on client: " in server.output
    finally:
        subprocess.run([*device, "xdpgeneric", "off"], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--xdp", "auto", "--relay-device", "peer"), "sockets are bound to a device"),
        (("--xdp", "off"), "as configured"),
    ],
)
def where_the_kernel_cannot_relay_one_line_says_why_and_the_relay_does(hosts, serving, options, why):
    with serving(*options) as server, hosts.client.udp(topology.CLIENT_IPV4) as udp:
        client = turn.Client(udp, topology.LISTENER_IPV4, server)
        client.allocate()
        client.release()
        server.stop()
    assert f"xdp: off, because {why}" in server.output or f"xdp: off, {why}" in server.output
