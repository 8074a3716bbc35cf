"""coturn's own client in each of its modes, over each transport that the mode allows.

The modes run at the same time against one server that has everything switched on, so that those which misbehave on purpose (`-N`,
`-R`, `-B`) do it beside others, which may not lose anything by that.
"""

import dataclasses
from collections.abc import Callable

import pytest

from harness import matrix, topology, uclient

LOAD = uclient.Load(sessions=4, messages=250, interval_ms=25)
#: The more sessions, the likelier one of them is unlucky.
ALONE = uclient.Load(sessions=1, messages=400, interval_ms=25)
#: `-B` cuts the connections once six messages leave at the same time.
HURRIED = uclient.Load(sessions=12, messages=250, interval_ms=1)

EVERYTHING = (
    uclient.WIDE_CHANNEL_NUMBERS,
    "--no-tcp-relay=false",
    "--mobility",
    *("--oauth", *(word for key in uclient.OAUTH_KEYS for word in ("--oauth-key", ":".join(key)))),
    # With `-P` the client is its own peer.
    *("--allowed-peer-ip", topology.CLIENT_IPV4, "--allowed-peer-ip", topology.CLIENT_IPV6),
)


def _loses_nothing(ended: uclient.Ended, load: uclient.Load) -> None:
    assert ended.succeeded() == uclient.without_loss(load.total)


def _half_arrives(ended: uclient.Ended, load: uclient.Load) -> None:
    # The client counts what it sends on either end and what it receives on one, so that half of it is "lost" whatever the server: with
    # coturn it counts the same.
    totals = ended.succeeded()
    assert (totals.sent, totals.received, totals.send_dropped) == (load.total, load.total / 2, 0)


def _is_refused(ended: uclient.Ended, load: uclient.Load) -> None:
    assert (ended.status, "channel bind: error 400" in ended.output) == (255, True), ended


def _moves_and_loses_nothing(ended: uclient.Ended, load: uclient.Load) -> None:
    _loses_nothing(ended, load)
    assert "ERROR: smid_len" not in ended.output, "the client has no room for such a ticket"
    # Each session has one connection that it tries the server with and one that it uses, and moves both. Where the kernel gives it a port
    # that another client has just left, together with an allocation, the answer is 437, and it connects once more from another port.
    left_behind = ended.output.count("trying allocate again 437")
    assert ended.output.count("Connected to") == 4 * load.sessions + left_behind, ended.output[-20_000:]


def _ends_by_itself(ended: uclient.Ended, load: uclient.Load) -> None:
    assert ended.succeeded().sent <= load.total


def _is_no_crash(ended: uclient.Ended, load: uclient.Load) -> None:
    # A request that it corrupted is repeated as it is, and awaited for minutes or, over TCP, for ever; so it may have been killed.
    assert ended.status in (0, 1, 255, None), ended


@dataclasses.dataclass(frozen=True)
class Mode:
    """What has to hold of a client's end, whether it sends to the echo peer, and how it is started."""

    holds: Callable[[uclient.Ended, uclient.Load], None] = _loses_nothing
    with_peer: bool = True
    load: uclient.Load = LOAD
    more_flags: tuple[str, ...] = ()
    may_hang: bool = False
    is_to_fail: bool = False


MODES = {
    "-y": Mode(with_peer=False),
    # Verbose, so that it says how often it connects.
    "-M": Mode(_moves_and_loses_nothing, more_flags=("-v",)),
    "-Z": Mode(),
    "-J": Mode(),
    "-G": Mode(),
    "-T": Mode(with_peer=False),
    "-P": Mode(_half_arrives, with_peer=False),
    "-N": Mode(_is_refused, is_to_fail=True),
    "-R": Mode(_is_no_crash, may_hang=True, is_to_fail=True),
    "-B": Mode(_ends_by_itself, load=HURRIED),
}

_CANNOT = {row.client.removeprefix("uclient "): row for row in matrix.ROWS if row.client.startswith("uclient -")}

CELLS = [
    pytest.param(transport, mode, listener, id=f"{transport}-{mode}-{listener}")
    for transport in matrix.TRANSPORTS
    for mode in MODES
    for listener in matrix.FAMILIES
    if not _CANNOT[mode].reason((transport, listener))
]


def _load(mode: str, transport: str) -> uclient.Load:
    return ALONE if (mode, transport) in (("-M", "TLS"), ("-M", "DTLS")) else MODES[mode].load


def _client(server, listener: str, transport: str, flag: str, port: int) -> uclient.Client:
    address, own, peer = {
        "IPv4": (server.ipv4, topology.CLIENT_IPV4, topology.PEER_IPV4),
        "IPv6": (server.ipv6, topology.CLIENT_IPV6, topology.PEER_IPV6),
    }[listener]
    mode = MODES[flag]
    if mode.with_peer:
        how = ("-e", peer, "-r", str(port))
    else:
        how = ("-L", own, *(("-x",) if listener == "IPv6" else ()))
    flags = (flag, "-c", *mode.more_flags, *how)
    return uclient.Client(address, transport, _load(flag, transport), flags, mode.may_hang, mode.is_to_fail)


@pytest.fixture(scope="module")
def at_once(hosts, program, serving):
    """How the clients of all modes and both families ended, by transport, all at once on one server."""

    @uclient.once
    def over(transport: str) -> dict:
        with serving(ours=EVERYTHING, secure=True) as server:
            server.await_ready()
            cells = [(mode, listener) for _, mode, listener in (cell.values for cell in CELLS if cell.values[0] == transport)]
            # One each, because `-B` sends more at once than anybody else has to bear.
            with uclient.echoing(hosts, program, len(cells)) as ports:
                clients = {
                    (mode, listener): _client(server, listener, transport, mode, port)
                    for (mode, listener), port in zip(cells, ports)
                }
                return uclient.run_all(hosts, server, program, clients, timeout=200)

    return over


@pytest.mark.client("uclient {mode}")
@pytest.mark.parametrize(("transport", "mode", "listener"), CELLS)
def every_mode_does_what_its_author_meant(at_once, transport, mode, listener):
    outcomes = at_once(transport)
    MODES[mode].holds(outcomes[mode, listener], _load(mode, transport))
    if MODES[mode].is_to_fail or mode == "-B":
        for (other, _), ended in outcomes.items():
            if MODES[other].holds is _loses_nothing:
                _loses_nothing(ended, _load(other, transport))
