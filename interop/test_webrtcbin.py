"""GStreamer's webrtcbin, whose ICE is libnice: two of them that may only use relay candidates exchange video and messages."""

import json
import pathlib
import socket

import pytest

from harness import process, topology, waiting

CALL = pathlib.Path(__file__).parent / "gstreamer" / "call.py"
#: Debian's own Python: only that one has Debian's gi.
PYTHON = "/usr/bin/python3"
MESSAGES = 400
PACKETS = 200


def _url(server, address: str, transport: str) -> str:
    scheme, port, protocol = {
        "UDP": ("turn", server.port, "udp"),
        "TCP": ("turn", server.port, "tcp"),
        "TLS": ("turns", server.tls_port, "tcp"),
    }[transport]
    return f"{scheme}://{server.user}:{server.password}@{topology.with_port(address, port)}?transport={protocol}"


@pytest.mark.client("webrtcbin (libnice)")
@pytest.mark.parametrize("listener", ["IPv4", "IPv6"])
@pytest.mark.parametrize("transport", ["UDP", "TCP"])
def two_webrtcbins_with_relay_only_exchange_video_and_messages(hosts, server, transport, listener):
    url = _url(server, {"IPv4": server.ipv4, "IPv6": server.ipv6}[listener], transport)
    with process.Process(hosts.client, PYTHON, str(CALL), url, str(MESSAGES), str(PACKETS)) as call:
        status = call.wait(150)
        print(call.output)
        assert status == 0
        report = json.loads(call.output.splitlines()[-1])
    assert report["failure"] is None
    for side in report["sides"]:
        assert side["candidates"]
        for candidate in map(str.split, side["candidates"]):
            assert (candidate[4], candidate[7]) == (topology.RELAY_IPV4, "relay")
        assert (side["messages"], side["differing"]) == (MESSAGES, 0)
        assert side["rtp_sent"] >= PACKETS
        assert side["rtp_unknown"] == 0
    # A client on a busy machine may lose a packet between its encoder and its socket, or behind it; the relay may not.
    if any(side["rtp_lost"] for side in report["sides"]):
        accounting = server.stop()
        assert accounting is not None, "a server that writes no accounting cannot show that the loss was not its own"
        assert (accounting.difference(), accounting.lost()) == (0, 0), accounting
        assert server.kernel_counters().receive_buffer_full == 0


def libnice_speaks_no_tls_whatever_the_url_says(hosts):
    """The reason that the page of clients gives for TLS, watched: a client that had TLS would begin with a ClientHello."""

    def listening():
        listener = socket.create_server((topology.LISTENER_IPV4, 5349))
        listener.settimeout(waiting.PATIENCE)
        return listener

    with hosts.relay.call(listening) as listener:
        url = f"turns://user:password@{topology.with_port(topology.LISTENER_IPV4, 5349)}?transport=tcp"
        with process.Process(hosts.client, PYTHON, str(CALL), url, "1", "1"):
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(waiting.PATIENCE)
                first = connection.recv(20)
    # An Allocate request, not record type 22.
    assert first[:2] == b"\x00\x03"
