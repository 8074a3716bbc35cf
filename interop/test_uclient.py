"""coturn's own client and echo peer, many sessions at once: every message must come back."""

import dataclasses
import re
import socket

import pytest

from harness import process, topology

# uclient draws its channel numbers from RFC 5766's range, 0x4000 to 0x7FFF; RFC 8656 reserves all from 0x5000.
_wide_channel_numbers = pytest.mark.for_turnbuckle("--rfc5766-channel-numbers")

#: 170 messages a second each: at such a rate a relay socket survives a quarter of a second in which its thread is not run.
SESSIONS = 40
MESSAGES = 100_000
INTERVAL_MS = 6
PAYLOAD = 160
PEER_PORT = 3480


@dataclasses.dataclass(frozen=True)
class Totals:
    """The client's own closing totals."""

    sent: int
    received: int
    lost: int
    send_dropped: int


def _totals(output: str) -> Totals:
    counts = re.findall(r"start_mclient: tot_send_msgs=(\d+), tot_recv_msgs=(\d+)\s*$", output, re.MULTILINE)
    losses = re.findall(r"Total lost packets (\d+) \([^)]*\), total send dropped (\d+)", output)
    assert counts and losses, f"no closing totals in:\n{output[-4000:]}"
    totals = Totals(*map(int, counts[-1]), *map(int, losses[-1]))
    print(totals)
    return totals


def _echoes(hosts, peer: str) -> bool:
    with hosts.peer.udp(peer) as udp:
        udp.settimeout(0.2)
        udp.sendto(b"echo", (peer, PEER_PORT))
        try:
            return udp.recv(2048) == b"echo"
        except (socket.timeout, ConnectionError):
            return False


def _relay(hosts, server, program, listener: str, peer: str, messages: int, *flags: str, port: int | None = None) -> Totals:
    with process.Process(hosts.peer, program("turnutils_peer"), "-p", str(PEER_PORT), "-L", peer):
        process.await_condition(lambda: _echoes(hosts, peer), 10, "an echo from turnutils_peer")
        client = process.Process(
            hosts.client,
            program("turnutils_uclient"),
            *("-u", server.user, "-w", server.password, "-p", str(port or server.port)),
            *("-e", peer, "-r", str(PEER_PORT), "-c"),
            *("-m", str(SESSIONS), "-n", str(messages // SESSIONS), "-z", str(INTERVAL_MS), "-l", str(PAYLOAD)),
            *flags,
            listener,
        )
        with client:
            assert client.wait(90) == 0, client.output[-4000:]
            return _totals(client.output)


@_wide_channel_numbers
@pytest.mark.parametrize(
    ("way", "flags"), [("channels", ()), ("indications", ("-s",))], ids=["channels", "indications"]
)
@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def a_hundred_thousand_messages_return_without_loss(hosts, server, program, way, flags, family):
    listener, peer = {"IPv4": (server.ipv4, topology.PEER_IPV4), "IPv6": (server.ipv6, topology.PEER_IPV6)}[family]
    totals = _relay(hosts, server, program, listener, peer, MESSAGES, *flags)
    assert totals == Totals(sent=MESSAGES, received=MESSAGES, lost=0, send_dropped=0)


@_wide_channel_numbers
@pytest.mark.secure
@pytest.mark.parametrize(
    ("way", "flags"), [("channels", ()), ("indications", ("-s",))], ids=["channels", "indications"]
)
@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
@pytest.mark.parametrize("transport", ["TCP", "TLS", "DTLS", "DTLS on the plain port"])
def a_hundred_thousand_messages_return_without_loss_over_connections(
    hosts, server, program, way, flags, family, transport
):
    listener, peer = {"IPv4": (server.ipv4, topology.PEER_IPV4), "IPv6": (server.ipv6, topology.PEER_IPV6)}[family]
    how, port = {
        "TCP": (("-t",), server.port),
        "TLS": (("-t", "-S"), server.tls_port),
        "DTLS": (("-S",), server.tls_port),
        "DTLS on the plain port": (("-S",), server.port),
    }[transport]
    totals = _relay(hosts, server, program, listener, peer, MESSAGES, *how, *flags, port=port)
    assert totals == Totals(sent=MESSAGES, received=MESSAGES, lost=0, send_dropped=0)


@_wide_channel_numbers
@pytest.mark.parametrize(
    "starting_server",
    [pytest.param(("--udp-backend", backend), id=backend) for backend in ("single", "mmsg", "gso")],
    indirect=True,
)
def ten_thousand_messages_return_without_loss_on_every_backend(hosts, server, program):
    totals = _relay(hosts, server, program, server.ipv4, topology.PEER_IPV4, 10_000)
    assert totals == Totals(sent=10_000, received=10_000, lost=0, send_dropped=0)


def _tcp_relays(hosts, server, program, listener: str, *flags: str, port: int | None = None) -> Totals:
    """Sessions whose messages go from one TCP relay to another, or straight back."""
    client = process.Process(
        hosts.client,
        program("turnutils_uclient"),
        *("-u", server.user, "-w", server.password, "-p", str(port or server.port)),
        *("-m", "8", "-n", "500", "-z", str(INTERVAL_MS), "-l", str(PAYLOAD)),
        *flags,
        listener,
    )
    with client:
        assert client.wait(90) == 0, client.output[-4000:]
        return _totals(client.output)


@pytest.mark.for_turnbuckle("--no-tcp-relay=false")
@pytest.mark.secure
@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
@pytest.mark.parametrize("transport", ["TCP", "TLS"])
def messages_between_tcp_relays_arrive_without_loss(hosts, server, program, family, transport):
    listener, flags = {"IPv4": (server.ipv4, ()), "IPv6": (server.ipv6, ("-x",))}[family]
    secure, port = {"TCP": ((), server.port), "TLS": (("-S",), server.tls_port)}[transport]
    totals = _tcp_relays(hosts, server, program, listener, "-T", "-y", *secure, *flags, port=port)
    assert totals == Totals(sent=4000, received=4000, lost=0, send_dropped=0)


@pytest.mark.for_turnbuckle("--no-tcp-relay=false", "--allowed-peer-ip", topology.CLIENT_IPV4)
def messages_of_peers_that_connect_to_a_tcp_relay_arrive(hosts, server, program):
    # Each session is its own peer, which connects to the relay and sends. The client counts what it sends on either end and
    # what it receives on one, so that half of it is "lost" whatever the server: with coturn it counts the same.
    totals = _tcp_relays(hosts, server, program, server.ipv4, "-P", "-L", topology.CLIENT_IPV4)
    assert (totals.received, totals.send_dropped) == (totals.sent / 2, 0)


@_wide_channel_numbers
@pytest.mark.for_turnbuckle("--mobility")
@pytest.mark.parametrize("flags", [(), ("-t",), ("-s",)], ids=["UDP", "TCP", "indications"])
def ten_thousand_messages_return_to_clients_that_have_moved(hosts, server, program, flags):
    totals = _relay(hosts, server, program, server.ipv4, topology.PEER_IPV4, 10_000, "-M", *flags)
    assert totals == Totals(sent=10_000, received=10_000, lost=0, send_dropped=0)


#: The keys that uclient has built in, as turnbuckle is told them.
OAUTH_KEYS = (
    "north:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEK:A256GCM",
    "union:MTIzNDU2Nzg5MDEyMzQ1Ngo=:A128GCM",
    "oldempire:MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIK:A256GCM",
)


@_wide_channel_numbers
@pytest.mark.parametrize(
    "starting_server",
    [("--oauth", *(option for key in OAUTH_KEYS for option in ("--oauth-key", key)))],
    ids=[""],
    indirect=True,
)
def ten_thousand_messages_return_to_clients_with_tokens(hosts, server, program):
    totals = _relay(hosts, server, program, server.ipv4, topology.PEER_IPV4, 10_000, "-J")
    assert totals == Totals(sent=10_000, received=10_000, lost=0, send_dropped=0)
