"""The server's final accounting: every datagram that came in was relayed, answered or counted as dropped."""

import pytest

from harness import binding, topology, turn, waiting
from harness.server import READINESS_REQUESTS

#: One of everything that is not a request: what the first octet can promise (RFC 7983), and broken STUN.
NOISE = {
    "nothing": b"",
    "one octet": b"\x00",
    "STUN cut off in its header": binding.binding_request(bytes(12))[:19],
    "STUN with a length beyond its end": b"\x00\x01\x00\x40" + binding.binding_request(bytes(12))[4:],
    "STUN with another magic cookie": b"\x00\x01\x00\x00" + b"\x00\x00\x00\x00" + bytes(12),
    "an unknown STUN indication": b"\x0f\xf1" + binding.binding_request(bytes(12))[2:],
    "a Binding indication": b"\x00\x11" + binding.binding_request(bytes(12))[2:],
    "ChannelData without an allocation": b"\x40\x00\x00\x04data",
    "ZRTP": b"\x10" + bytes(31),
    "DTLS": b"\x16\xfe\xfd" + bytes(29),
    "RTP": b"\x80" + bytes(31),
    "QUIC": b"\x45" + bytes(31),
    "a reserved first octet": b"\xff" + bytes(31),
}
REPEATS = 20


def noise_strangers_and_refusals_are_all_accounted_for_as_the_kernel_counted_them(hosts, server):
    if not server.writes_statistics:
        pytest.skip("not run: this server writes no final accounting")
    for local, listener in ((topology.CLIENT_IPV4, server.ipv4), (topology.CLIENT_IPV6, server.ipv6)):
        with hosts.client.udp(local) as udp:
            for message in NOISE.values():
                for _ in range(REPEATS):
                    udp.sendto(message, (listener, server.port))
    noise = 2 * len(NOISE) * REPEATS
    waiting.await_condition(lambda: server.kernel_counters().received == noise, "the arrival of the noise")
    with hosts.client.udp(topology.CLIENT_IPV6) as udp:
        stranger = turn.Client(udp, server.ipv6, server, password="wrong")
        with pytest.raises(turn.Refused):
            stranger.allocate()
    with hosts.client.udp(topology.CLIENT_IPV4) as udp, hosts.peer.udp(topology.PEER_IPV4) as peer:
        client = turn.Client(udp, server.ipv4, server)
        relayed = client.allocate()
        for _ in range(REPEATS):  # without a permission
            peer.sendto(b"from a stranger", relayed)
        arriving = noise + stranger.requests_sent + client.requests_sent + REPEATS
        waiting.await_condition(lambda: server.kernel_counters().received == arriving, "the arrival of what a stranger sent")
        client.release()
    accounting = server.stop()
    kernel = server.kernel_counters()
    print(accounting, kernel)
    assert accounting.difference() == 0
    assert accounting.received == kernel.received + READINESS_REQUESTS
    assert accounting.sent == kernel.sent + READINESS_REQUESTS
    assert kernel.receive_buffer_full == 0
    # What only looks like a Binding request of RFC 3489 may be answered; nothing else here may.
    assert sum(accounting.drops.values()) >= 2 * (len(NOISE) - 1) * REPEATS + REPEATS
