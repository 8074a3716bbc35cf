"""The server's final accounting: every datagram that came in went out, was answered or was counted as dropped."""

import asyncio
import os

import aioice.stun
import aioice.turn
import pytest

from harness import binding, process, topology

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


async def _allocate(server):
    loop = asyncio.get_running_loop()
    address = (server.ipv4, server.port)
    _, client = await loop.create_datagram_endpoint(
        lambda: aioice.turn.TurnClientUdpProtocol(address, server.user, server.password, 600, 500), remote_addr=address
    )
    return client, await client.connect()


async def _be_refused(server):
    """An allocation with a wrong password."""
    loop = asyncio.get_running_loop()
    address = (server.ipv6, server.port)
    _, client = await loop.create_datagram_endpoint(
        lambda: aioice.turn.TurnClientUdpProtocol(address, server.user, "wrong", 600, 500), remote_addr=address
    )
    with pytest.raises(aioice.stun.TransactionFailed):
        await client.connect()
    client.transport.close()


def noise_strangers_and_refusals_are_all_accounted_for_as_the_kernel_counted_them(hosts, server):
    if not server.writes_statistics:
        pytest.skip("not run: this server writes no final accounting")

    async def use(server):
        client, relayed = await _allocate(server)
        received = server.kernel_counters().received
        with hosts.peer.udp(topology.PEER_IPV4) as stranger:  # has no permission
            for _ in range(REPEATS):
                stranger.sendto(os.urandom(100), relayed)
        process.await_condition(
            lambda: server.kernel_counters().received == received + REPEATS, 10, "the arrival of what a stranger sent"
        )
        await client.delete()
        await _be_refused(server)

    for local, listener in ((topology.CLIENT_IPV4, server.ipv4), (topology.CLIENT_IPV6, server.ipv6)):
        with hosts.client.udp(local) as udp:
            for message in NOISE.values():
                for _ in range(REPEATS):
                    udp.sendto(message, (listener, server.port))
    hosts.client.call(lambda: asyncio.run(asyncio.wait_for(use(server), 30)))
    accounting = server.stop()
    kernel = server.kernel_counters()
    print(accounting, kernel)
    assert accounting.difference() == 0
    assert (accounting.received, accounting.sent) == (kernel.received, kernel.sent)
    assert kernel.receive_buffer_full == 0
    assert sum(accounting.drops.values()) >= (2 * len(NOISE) - 2) * REPEATS + REPEATS
