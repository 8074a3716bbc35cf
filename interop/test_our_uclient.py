"""Our `turnutils_uclient` at Debian's `turnserver`, with Debian's `turnutils_peer` behind it: every message must come back."""

import re

import pytest

from harness import process, topology, uclient
from harness.server import Server

#: Of one client no more than the receive buffer of coturn's relay socket holds, for which it takes 170 such messages: none is lost there even
#: when nobody reads.
CLIENTS = 20
MESSAGES = 100
INTERVAL_MS = 20


@pytest.fixture
def coturn(servers, hosts, tmp_path, certificate):
    """Debian's server, whichever is under test, with TLS, DTLS, TCP relays and mobility."""
    command = servers["coturn"].replace(" --no-tls", "").replace(" --no-dtls", "")
    options = ("--cert", str(certificate), "--pkey", str(certificate), "--mobility")
    # A program that connects to its own relay is a peer at its own address.
    options += ("--allowed-peer-ip", topology.CLIENT_IPV4)
    with Server(command, hosts, tmp_path, options) as server:
        server.await_ready()
        yield server


@pytest.fixture
def echo(hosts, program):
    with uclient.echoing(hosts, program):
        yield


def _run(hosts, server, coturns_name, *flags: str) -> str:
    client = process.Process(
        hosts.client,
        coturns_name("turnutils_uclient"),
        *("-u", server.user, "-w", server.password),
        *("-m", str(CLIENTS), "-n", str(MESSAGES), "-z", str(INTERVAL_MS), "-l", "160"),
        *flags,
    )
    with client:
        assert client.wait(200) == 0, client.output[-4000:]
        print(client.output[-2000:])
        return client.output


def _assert_all_came_back(output: str, messages: int = CLIENTS * MESSAGES) -> None:
    counts = re.findall(r"start_mclient: tot_send_msgs=(\d+), tot_recv_msgs=(\d+)\s*$", output, re.MULTILINE)
    assert counts and counts[-1] == (str(messages), str(messages)), output[-4000:]
    assert "Total lost packets 0 (0.000000%), total send dropped 0 (0.000000%)" in output


PEERS = {
    "IPv4": ("-e", topology.PEER_IPV4, "-r", str(uclient.PEER_PORT), "-c"),
    "IPv6": ("-e", topology.PEER_IPV6, "-r", str(uclient.PEER_PORT), "-c"),
}


@pytest.mark.parametrize("way", [(), ("-s",), ("-y",)], ids=["channels", "indications", "between clients"])
@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
@pytest.mark.parametrize("transport", ["UDP", "TCP", "TLS", "DTLS"])
def messages_return_over_every_transport(hosts, coturn, echo, coturns_name, transport, family, way):
    flags, port = {
        "UDP": ((), coturn.port),
        "TCP": (("-t",), coturn.port),
        "TLS": (("-t", "-S"), coturn.tls_port),
        "DTLS": (("-S",), coturn.tls_port),
    }[transport]
    to = ("-y", "-c", "-x" if family == "IPv6" else "-X") if "-y" in way else (*way, *PEERS[family])
    listener = coturn.ipv6 if family == "IPv6" else coturn.ipv4
    _assert_all_came_back(_run(hosts, coturn, coturns_name, *flags, *to, "-p", str(port), listener))


@pytest.mark.parametrize(
    "flags",
    # Not -Z: coturn 4.6.1 gives one address to who asks for two as RFC 8656 §7.1 says.
    [("-M",), ("-M", "-s"), ("-D",), ("-G",), ("-o", "https://example.org"), ("-g",)],
    ids=["moved", "moved, indications", "padded", "extra requests", "origin", "do not fragment"],
)
def messages_return_whatever_is_asked_for_besides(hosts, coturn, echo, coturns_name, flags):
    output = _run(hosts, coturn, coturns_name, *flags, *PEERS["IPv4"], coturn.ipv4)
    _assert_all_came_back(output)
    if "-M" in flags:
        assert f"mobility: {CLIENTS} clients moved, 0 did not" in output


@pytest.mark.parametrize("secure", [False, True], ids=["TCP", "TLS"])
@pytest.mark.parametrize("flags", [("-T",), ("-P", "-L", topology.CLIENT_IPV4)], ids=["between clients", "passive"])
def bytes_go_through_tcp_relays(hosts, coturn, coturns_name, flags, secure):
    to = ("-S", "-p", str(coturn.tls_port)) if secure else ("-p", str(coturn.port))
    output = _run(hosts, coturn, coturns_name, *flags, *to, coturn.ipv4)
    _assert_all_came_back(output)
    assert f"{CLIENTS} connections are completed" in output


def negative_tests_name_what_coturn_answers_otherwise(hosts, coturn, echo, coturns_name):
    output = _run(hosts, coturn, coturns_name, "-N", "-R", *PEERS["IPv4"], coturn.ipv4)
    _assert_all_came_back(output)
    passed, failed = map(int, re.search(r"negative test: (\d+) passed, (\d+) failed, 0 not tried", output).groups())
    # coturn 4.6.1 passes 69 of 87; among what it does not is what it grants and RFC 8656 §7.2 forbids.
    assert passed >= 60 and failed >= 1
    assert "FAILED    ADDITIONAL-ADDRESS-FAMILY of IPv4" in output
