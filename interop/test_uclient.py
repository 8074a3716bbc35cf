"""coturn's own client and echo peer: many sessions and messages, of which every one must come back.

Clients that reach the server in the same way run at the same time against one server: most of such a client's time is waiting.
"""

import pytest

from harness import matrix, topology, uclient

pytestmark = pytest.mark.alone


#: About 40 messages a second of each session at most: at such a rate a relay socket, whose buffer begins small, holds what comes during most
#: of a second in which its thread is not run. Many sessions make up for it.
MANY = uclient.Load(sessions=100, messages=1_000, interval_ms=40)
FEWER = uclient.Load(sessions=40, messages=500, interval_ms=24)
FEW = uclient.Load(sessions=100, messages=100, interval_ms=50)


def _client(server, listener: str, transport: str, load: uclient.Load, port: int, *flags: str) -> uclient.Client:
    address, peer = {"IPv4": (server.ipv4, topology.PEER_IPV4), "IPv6": (server.ipv6, topology.PEER_IPV6)}[listener]
    return uclient.Client(address, transport, load, ("-e", peer, "-r", str(port), "-c", *flags))


def _load(transport: str) -> uclient.Load:
    return MANY if transport == "UDP" else FEWER


@pytest.fixture(scope="module")
def at_once(hosts, program, serving):
    """How clients of each family ended that used channels and indications, by transport, all at once on one server."""

    @uclient.once
    def over(transport: str) -> dict:
        with serving(ours=(uclient.WIDE_CHANNEL_NUMBERS,), secure=transport != "UDP") as server:
            server.await_ready()
            cells = [(listener, mode) for listener in matrix.FAMILIES for mode in ("", "-s")]
            with uclient.echoing(hosts, program, len(cells)) as ports:
                clients = {
                    (listener, mode): _client(server, listener, transport, _load(transport), port, *mode.split())
                    for (listener, mode), port in zip(cells, ports)
                }
                return uclient.run_all(hosts, server, program, clients, timeout=200)

    return over


@pytest.mark.client("uclient {mode}")
@pytest.mark.parametrize("listener", matrix.FAMILIES)
@pytest.mark.parametrize("mode", ["", "-s"], ids=["channels", "indications"])
@pytest.mark.parametrize("transport", uclient.TRANSPORTS)
def every_message_of_many_sessions_returns(at_once, transport, mode, listener):
    assert at_once(transport)[listener, mode].succeeded() == uclient.without_loss(_load(transport).total)


@pytest.mark.for_turnbuckle(uclient.WIDE_CHANNEL_NUMBERS)
@pytest.mark.parametrize(
    "starting_server",
    [pytest.param(("--udp-backend", backend), id=backend) for backend in ("single", "mmsg", "gso")],
    indirect=True,
)
def ten_thousand_messages_return_without_loss_on_every_backend(hosts, server, program):
    with uclient.echoing(hosts, program) as (port,):
        ended = uclient.run(hosts, server, program, _client(server, "IPv4", "UDP", FEW, port))
    assert ended.succeeded() == uclient.without_loss(FEW.total)
