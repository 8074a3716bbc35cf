"""Relaying by the kernel (`xdp`): what the XDP program relays is what the relay would have, and ends when that would have ended."""

import contextlib
import json
import os
import random
import re
import shlex
import signal
import subprocess
import time

import pytest

from harness import binding, topology, turn, waiting
from harness.process import Process
from harness.server import READY

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


def _processes(server) -> tuple[int, int]:
    """The keeper and the relay, as the last line says that names them."""
    keeper, relay = re.findall(r"process (\d+) is the keeper of process (\d+)", server.output)[-1]
    return int(keeper), int(relay)


def _exchange_until(call, is_over, least: int = 50) -> None:
    """Sends one datagram after the other, each way, until something is over; each has to arrive before the next one is sent."""
    server, client, relayed, peer = call
    number = 0
    while number < least or not is_over():
        payload = number.to_bytes(4)
        assert _to_peer(client, peer, payload) == (payload, relayed)
        assert _to_client(client, peer, relayed, payload) == (CHANNEL, payload)
        number += 1


def _end_of(hosts, call) -> None:
    """Ends a call, and the server. What it was told meanwhile was relayed by the kernel alone, and ends with the answer that says so."""
    server, client, relayed, peer = call
    requests = client.requests_sent
    client.release()
    requests = client.requests_sent - requests
    before = topology.udp_counters(hosts.relay)
    for number in range(50):
        client.udp.sendto(turn.channel_data(CHANNEL, bytes([number])), client.server)
    waiting.await_condition(lambda: topology.udp_counters(hosts.relay).received - before.received >= 50, "50 datagrams at the relay")
    accounting = server.stop()
    assert accounting.difference() == 0
    assert accounting.drops["no_allocation"] == 50
    to_peers, to_clients = re.findall(r"relayed by the kernel: to peers (\d+), to clients (\d+)", server.output)[-1]
    # A neighbour may be asked for anew meanwhile, and what came then was the relay's.
    assert 0 <= accounting.received - int(to_peers) - int(to_clients) - requests - 50 <= 5
    peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        peer.recvfrom(65536)


@pytest.mark.parametrize("family", ADDRESSES)
def the_kernel_goes_on_while_the_relay_is_killed_and_the_next_one_takes_its_calls_over(cables, hosts, serving, family):
    with _calling(hosts, serving, family, "--survive", "on") as call:
        server = call[0]
        for round in range(3):
            keeper, relay = _processes(server)
            served = server.output.count(READY)
            if round == 0:
                # The keeper sees nothing of it yet, so there is no relay at all.
                os.kill(keeper, signal.SIGSTOP)
                os.kill(relay, signal.SIGKILL)
                _exchange_until(call, lambda: True)
                os.kill(keeper, signal.SIGCONT)
            else:
                os.kill(relay, signal.SIGKILL)
            _exchange_until(call, lambda: server.output.count(READY) > served)
        _exchange_until(call, lambda: True)
        _end_of(hosts, call)


def the_kernel_goes_on_while_the_relay_is_upgraded_and_while_an_upgrade_fails(cables, hosts, serving, binary, tmp_path):
    socket = tmp_path / "control.sock"
    # It takes all over, the program of the kernel too, and ends before it serves.
    broken = tmp_path / "broken"
    broken.write_text(f'#!/bin/sh\n[ "$1" = adopts ] && exec {binary} "$@"\nexec {binary} "$@" --proc-user=no-such-user\n')
    broken.chmod(0o755)
    with _calling(hosts, serving, "IPv4", "--survive", "on", "--control-socket", str(socket)) as call:
        for program, code in ((binary, 0), (broken, 1), (binary, 0)):
            upgrade = [binary, "ctl", "--socket", socket, "upgrade", "--program", program]
            with subprocess.Popen(upgrade, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as asked:
                _exchange_until(call, lambda: asked.poll() is not None)
                assert asked.returncode == code, asked.stdout.read()
        _exchange_until(call, lambda: True)
        _end_of(hosts, call)


def what_the_next_relay_does_not_allow_is_relayed_by_the_kernel_no_longer(cables, hosts, serving, tmp_path):
    configuration = tmp_path / "turnserver.conf"
    configuration.write_text("")
    with _calling(hosts, serving, "IPv4", "--survive", "on", "-c", str(configuration)) as call:
        server, client, relayed, peer = call
        configuration.write_text(f"denied-peer-ip={topology.PEER_IPV4}\n")
        served = server.output.count(READY)
        os.kill(_processes(server)[1], signal.SIGKILL)
        waiting.await_condition(lambda: server.output.count(READY) > served, "the next relay")
        client.udp.sendto(turn.channel_data(CHANNEL, b"not any more"), client.server)
        client.release()
        accounting = server.stop()
        assert accounting.difference() == 0
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recvfrom(65536)


#: Datagrams that begin as nothing does that is served: first bytes of RTP, of QUIC, of ZRTP and of nobody, and none at all.
NOBODYS = [bytes([first]) * 40 for first in (4, 15, 16, 19, 128, 191, 192, 255)] + [b"", b"\xff"]
#: STUN without its magic cookie, too short for a header, or of another length than it says.
MALFORMED = [bytes([0, 1, 0, 0]) + bytes(16), bytes([3]) * 60, b"\x00", binding.binding_request(bytes(12))[:19], binding.binding_request(bytes(13))]


@pytest.mark.parametrize(("client_address", "listener", "_"), ADDRESSES.values(), ids=ADDRESSES)
def the_kernel_drops_at_a_listener_what_the_relay_would_for_the_same_reasons(cables, hosts, serving, client_address, listener, _):
    with serving(*XDP) as server, hosts.client.udp(client_address) as udp:
        server.await_ready()
        before = topology.udp_counters(hosts.relay)
        for datagram in (NOBODYS + MALFORMED) * 3:
            udp.sendto(datagram, (listener, server.port))
        # These reach the relay, in their order: a request is answered, data of no channel and DTLS that is not spoken are dropped there.
        for datagram in (turn.channel_data(CHANNEL, b"x"), bytes([22]) * 20):
            udp.sendto(datagram, (listener, server.port))
        assert binding.answers(hosts.client, client_address, listener, server.port, waiting.PATIENCE)
        assert topology.udp_counters(hosts.relay).received - before.received == 3
        accounting = server.stop()
    assert accounting.drops["protocol_unknown"] == 3 * len(NOBODYS)
    assert accounting.drops["malformed_stun"] == 3 * len(MALFORMED)
    assert (accounting.drops["no_allocation"], accounting.drops["service_disabled"]) == (1, 1)
    assert accounting.difference() == 0
    assert f"dropped by it: {3 * len(NOBODYS + MALFORMED)}" in server.output


def requests_of_rfc_3489_are_answered_where_the_configuration_says_so(cables, hosts, serving):
    with serving(*XDP, "--rfc3489-compatibility") as server, hosts.client.udp(topology.CLIENT_IPV4) as udp:
        server.await_ready()
        udp.settimeout(waiting.PATIENCE)
        udp.sendto(bytes([0, 1, 0, 0]) + bytes(16), (topology.LISTENER_IPV4, server.port))
        assert udp.recv(2048)[:2] == b"\x01\x01"
        udp.sendto(b"\xff" * 20, (topology.LISTENER_IPV4, server.port))
        assert binding.answers(hosts.client, topology.CLIENT_IPV4, topology.LISTENER_IPV4, server.port, waiting.PATIENCE)
        assert server.stop().drops["protocol_unknown"] == 1


def channels_for_which_there_is_no_room_in_the_kernel_are_relayed_by_the_relay(cables, hosts, serving):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(*XDP, "--xdp-channels", "1"))
        udp = stack.enter_context(hosts.client.udp(topology.CLIENT_IPV4))
        client = turn.Client(udp, topology.LISTENER_IPV4, server)
        relayed = client.allocate()
        before = topology.udp_counters(hosts.relay)
        for channel in range(CHANNEL, CHANNEL + 5):
            peer = stack.enter_context(hosts.peer.udp(topology.PEER_IPV4))
            peer.settimeout(waiting.PATIENCE)
            client.bind(channel, peer.getsockname())
            udp.sendto(turn.channel_data(channel, b"there"), client.server)
            assert peer.recvfrom(65536)[0] == b"there"
            peer.sendto(b"back", relayed)
            assert client.receive() == (channel, b"back")
        assert topology.udp_counters(hosts.relay).received - before.received > 5
        client.release()
        assert server.stop().difference() == 0
    # How often: each change of the allocation tries again.
    assert json.loads(server.statistics.read_text())["table_full"] >= 3


#: What each of the capabilities is needed for; CAP_SYS_ADMIN stands for two of them.
DENIED = ["bpf", "net_admin", "perfmon"]


@contextlib.contextmanager
def _started(hosts, command: str, *options: str, without: str = ""):
    """The relay as a program that may lack a capability, over IPv4 alone."""
    words = ["setpriv", f"--bounding-set=-{without},-sys_admin", "--"] if without else []
    words += [*shlex.split(command), "--listening-ip", topology.LISTENER_IPV4, "--relay-ip", topology.RELAY_IPV4]
    words += ["--user", "interop:not-a-secret", "--realm", "example.org", *options]
    with Process(hosts.relay, *words) as process:
        yield process


@pytest.fixture
def command(request, binary):
    """The command line of the server under test, if it is ours."""
    given = request.config.getoption("--server")
    return given.replace("--statistics-file {statistics}", "") if given != "turnbuckle" else f"{binary} serve"


@pytest.mark.parametrize("denied", DENIED)
def without_a_capability_auto_relays_in_user_space_and_on_does_not_start(hosts, command, denied):
    with _started(hosts, command, "--xdp", "auto", without=denied) as relay:
        waiting.await_condition(lambda: READY in relay.output or not relay.running, "the line `ready`")
        assert binding.answers(hosts.client, topology.CLIENT_IPV4, topology.LISTENER_IPV4, 3478, waiting.PATIENCE)
        assert relay.terminate() == 0
        assert relay.output.count("xdp: off, because ") == 1
        assert relay.output.count("xdp: ") == 1
    with _started(hosts, command, "--xdp", "on", without=denied) as relay:
        assert relay.wait() == 1
        assert READY not in relay.output


@pytest.fixture
def bridge(hosts):
    """A device of the relay whose driver has no native XDP, with an address."""
    relay = hosts.relay.name
    subprocess.run(["ip", "-n", relay, "link", "add", "slow", "type", "bridge"], check=True, capture_output=True)
    subprocess.run(["ip", "-n", relay, "address", "add", "192.0.2.9/24", "dev", "slow"], check=True, capture_output=True)
    subprocess.run(["ip", "-n", relay, "link", "set", "slow", "up"], check=True, capture_output=True)
    yield "192.0.2.9"
    subprocess.run(["ip", "-n", relay, "link", "del", "slow"], check=True, capture_output=True)


def a_device_whose_driver_has_no_xdp_is_relayed_by_user_space_and_on_does_not_start(cables, hosts, command, bridge):
    with _started(hosts, command, "--xdp", "auto", "--listening-ip", bridge) as relay:
        waiting.await_condition(lambda: READY in relay.output or not relay.running, "the line `ready`")
        assert relay.terminate() == 0
        line = next(line for line in relay.output.splitlines() if "xdp: " in line)
        assert "native on " in line and "; not on slow: " in line
    with _started(hosts, command, "--xdp", "on", "--listening-ip", bridge) as relay:
        assert relay.wait() == 1
        assert "`xdp`: slow: " in relay.output


def the_doctor_names_what_is_in_the_way_and_says_so_with_its_exit_code(hosts, command, bridge):
    doctor = command.replace(" serve", " doctor")
    with _started(hosts, doctor, "--xdp", "on", "--json") as examined:
        assert examined.wait() == 0, examined.output
        report = json.loads(examined.output)
    assert report["good"]
    devices = {device["name"]: device for device in report["facts"]["devices"]}
    assert set(devices) == {"client", "peer"}
    assert devices["client"]["driver"] == "veth"
    assert devices["client"]["xdp"]["native"]
    with _started(hosts, doctor, "--xdp", "on", "--listening-ip", bridge, without="net_admin") as examined:
        assert examined.wait() == 1
    findings = [line for line in examined.output.splitlines() if line.startswith("wrong ")]
    assert any("capabilities" in line and "CAP_NET_ADMIN" in line for line in findings)
    assert any("XDP program" in line for line in findings)
    assert any("slow" in line and "no native XDP" in line for line in findings)
    with _started(hosts, doctor, "--xdp", "sometimes") as examined:
        assert examined.wait() == 2


def a_device_with_another_program_keeps_it_and_its_clients_are_relayed_by_the_relay(cables, hosts, serving, command):
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
        with _started(hosts, command, "--xdp", "on") as relay:
            assert relay.wait() == 1
            assert "`xdp`: client: " in relay.output
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
