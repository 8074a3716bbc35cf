"""Clients do not wait until a server has started: they come at once after a restart, and must not be lost."""

import concurrent.futures
import contextlib

import pytest

from harness import topology, turn, waiting

CLIENTS = 32
CHANNEL = 0x4000


# Many threads, so that the time from the first listening socket to the last is long enough to hit.
@pytest.mark.parametrize("starting_server", [pytest.param(("--relay-threads", "48"), id="48 threads")], indirect=True)
def clients_that_come_while_the_server_starts_keep_their_allocations(hosts, starting_server):
    server = starting_server
    with contextlib.ExitStack() as stack:
        peer = stack.enter_context(hosts.peer.udp(topology.PEER_IPV4))
        peer.settimeout(waiting.PATIENCE)
        clients = []
        for _ in range(CLIENTS):
            udp = stack.enter_context(hosts.client.udp(topology.CLIENT_IPV4))
            udp.connect((server.ipv4, server.port))
            clients.append(turn.Client(udp, server.ipv4, server))
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            relayed = list(pool.map(turn.Client.allocate, clients))
        server.await_all_threads()
        for client, address in zip(clients, relayed):
            client.bind(CHANNEL, peer.getsockname())
            client.udp.send(turn.channel_data(CHANNEL, b"to the peer"))
            assert peer.recvfrom(2048) == (b"to the peer", address)
            client.release()
