"""aiortc and the TURN client inside it, aioice, both in Python: the bare client, then two peer connections."""

import asyncio
import random
import socket

import aioice.stun
import aioice.turn
import aiortc
import pytest

from harness import peer, topology
from harness.server import NAME

MESSAGES = 500
TIMEOUT = 150
#: A receive buffer beyond the machine's limit, which root may ask for; Python has no name for it.
_RCVBUFFORCE = 33


class _Counting:
    """What arrives, counted by its framing."""

    channel_data = 0
    data_indications = 0

    def datagram_received(self, data, addr):
        if aioice.turn.is_channel_data(data):
            self.channel_data += 1
        elif data[:2] == b"\x00\x17":
            self.data_indications += 1
        super().datagram_received(data, addr)


class _ByUdp(_Counting, aioice.turn.TurnClientUdpProtocol):
    pass


class _ByTcp(_Counting, aioice.turn.TurnClientTcpProtocol):
    pass


class _Answers(asyncio.DatagramProtocol):
    """What the peer sent, as aioice hands it over."""

    def __init__(self):
        self.queue = asyncio.Queue()

    def datagram_received(self, data, addr):
        self.queue.put_nowait((data, addr[:2]))


async def _connect(server, host: str, transport: str):
    """aioice's client on a connection to the server, as its `create_turn_endpoint` would make it."""
    loop = asyncio.get_running_loop()
    address = (host, server.tls_port if transport == "TLS" else server.port)
    arguments = (address, server.user, server.password, 600, 500)
    if transport == "UDP":
        _, client = await loop.create_datagram_endpoint(lambda: _ByUdp(*arguments), remote_addr=address)
    else:
        _, client = await loop.create_connection(lambda: _ByTcp(*arguments), *address, ssl=transport == "TLS" or None)
    return client


async def _exchange(
    server, host: str, transport: str, with_channel: tuple[str, int], with_permission: tuple[str, int]
):
    client = await _connect(server, host, transport)
    answers = client.receiver = _Answers()
    relayed = await client.connect()

    permission = aioice.stun.Message(aioice.stun.Method.CREATE_PERMISSION, aioice.stun.Class.REQUEST)
    permission.attributes["XOR-PEER-ADDRESS"] = with_permission
    await client.request_with_retry(permission)

    payloads = random.Random(8656)
    for number in range(MESSAGES):
        payload = payloads.randbytes(1 + number * 1200 // MESSAGES)
        await client.send_data(payload, with_channel)
        assert await answers.queue.get() == (peer.transformed(payload), with_channel)
    for number in range(MESSAGES):
        payload = payloads.randbytes(1 + number * 1200 // MESSAGES)
        indication = aioice.stun.Message(aioice.stun.Method.SEND, aioice.stun.Class.INDICATION)
        indication.attributes["XOR-PEER-ADDRESS"] = with_permission
        indication.attributes["DATA"] = payload
        client.send_stun(indication, client.server)
        assert await answers.queue.get() == (peer.transformed(payload), with_permission)
    await client.delete()
    return client, relayed


@pytest.mark.secure
@pytest.mark.client("aioice")
@pytest.mark.parametrize("listener", ["IPv4", "IPv6"])
@pytest.mark.parametrize("transport", ["UDP", "TCP", "TLS"])
def aioice_relays_by_channel_and_by_indications_with_contents_intact(
    hosts, server, certificate, monkeypatch, transport, listener
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # whom Python's TLS trusts
    host = {"IPv4": server.ipv4, "IPv6": server.ipv6}[listener]
    with (
        peer.TransformingPeer(hosts.peer, topology.PEER_IPV4) as channel,
        peer.TransformingPeer(hosts.peer, topology.PEER_IPV4) as permission,
    ):
        exchange = _exchange(
            server, host, transport, (channel.address, channel.port), (permission.address, permission.port)
        )
        client, relayed = hosts.client.call(lambda: asyncio.run(asyncio.wait_for(exchange, TIMEOUT)))
        assert relayed[0] == topology.RELAY_IPV4
        assert channel.sources == permission.sources == {relayed}
    assert client.channel_data == MESSAGES
    assert client.data_indications == MESSAGES


def _message(sender: int, number: int) -> bytes:
    """The contents of a data channel message: up to 16 KiB, so that one is spread over several datagrams."""
    return random.Random(f"{sender}/{number}").randbytes(1 + number * 16_000 // MESSAGES)


async def _call(server, url: str):
    configuration = aiortc.RTCConfiguration(
        iceServers=[
            aiortc.RTCIceServer(
                urls=url,
                username=server.user,
                credential=server.password,
            )
        ],
        iceTransportPolicy=aiortc.RTCIceTransportPolicy.RELAY,
    )
    offerer, answerer = aiortc.RTCPeerConnection(configuration), aiortc.RTCPeerConnection(configuration)
    received = [[], []]
    complete = [asyncio.Event(), asyncio.Event()]

    def listen(side: int, channel) -> None:
        @channel.on("message")
        def _(message):
            received[side].append(message)
            if len(received[side]) == MESSAGES:
                complete[side].set()

    def talk(side: int, channel) -> None:
        for number in range(MESSAGES):
            channel.send(_message(side, number))

    try:
        channel = offerer.createDataChannel("contents")
        listen(0, channel)
        channel.on("open", lambda: talk(0, channel))

        @answerer.on("datachannel")
        def _(channel):
            listen(1, channel)
            talk(1, channel)

        await offerer.setLocalDescription(await offerer.createOffer())
        await answerer.setRemoteDescription(offerer.localDescription)
        await answerer.setLocalDescription(await answerer.createAnswer())
        await offerer.setRemoteDescription(answerer.localDescription)
        await asyncio.gather(*(event.wait() for event in complete))
        return received, [offerer.localDescription.sdp, answerer.localDescription.sdp]
    finally:
        await asyncio.gather(offerer.close(), answerer.close())


@pytest.fixture
def roomy_sockets(monkeypatch):
    """Sockets that hold all that SCTP has under way: aiortc takes minutes to recover from what else a busy machine makes it lose."""
    monkeypatch.setattr(socket, "SO_RCVBUF", _RCVBUFFORCE)
    monkeypatch.setattr(aioice.turn, "UDP_SOCKET_BUFFER_SIZE", 4 << 20)


@pytest.fixture
def named(server, listener, monkeypatch):
    """The server's name, which leads to its address of one family: aiortc's URLs take no IPv6 address."""
    address = {"IPv4": server.ipv4, "IPv6": server.ipv6}[listener]
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: resolve(address if host == NAME else host, *rest, **more))
    return NAME


@pytest.mark.secure
@pytest.mark.client("aiortc")
@pytest.mark.parametrize("listener", ["IPv4", "IPv6"])
@pytest.mark.parametrize("transport", ["UDP", "TCP", "TLS"])
def two_aiortc_connections_exchange_data_channel_messages_over_two_relays(
    hosts, server, named, roomy_sockets, certificate, monkeypatch, transport, listener
):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # whom aiortc's TLS client trusts
    url = {
        "UDP": f"turn:{named}:{server.port}?transport=udp",
        "TCP": f"turn:{named}:{server.port}?transport=tcp",
        "TLS": f"turns:{named}:{server.tls_port}?transport=tcp",
    }[transport]
    received, descriptions = hosts.client.call(lambda: asyncio.run(asyncio.wait_for(_call(server, url), TIMEOUT)))
    for sdp in descriptions:
        candidates = [line.split() for line in sdp.splitlines() if line.startswith("a=candidate:")]
        assert candidates and all(line[4] == topology.RELAY_IPV4 and line[7] == "relay" for line in candidates), sdp
    for side, messages in enumerate(received):
        assert messages == [_message(1 - side, number) for number in range(MESSAGES)]
