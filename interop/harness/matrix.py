"""Which client was seen to work over which transport and address family.

A test claims the cells of its row by the marker `client`; what a client cannot do stands here with the reason. `Matrix`
gathers the outcomes of a run and writes them down as a page.
"""

import collections
import dataclasses
import importlib.metadata
import re
import subprocess
from pathlib import Path

TRANSPORTS = ("UDP", "TCP", "TLS", "DTLS")
FAMILIES = ("IPv4", "IPv6")
COLUMNS = tuple((transport, family) for transport in TRANSPORTS for family in FAMILIES)

_TCP_RELAY_NEEDS_TCP = "RFC 6062 wants TCP or TLS towards the server, and `-T` implies `-t`"


@dataclasses.dataclass(frozen=True)
class Row:
    """A client, or a mode of one; what had to hold; and why some transports (or pairs of transport and family) are out of its reach."""

    client: str
    holds: str
    cannot: dict = dataclasses.field(default_factory=dict)

    def reason(self, column: tuple[str, str]) -> str | None:
        return self.cannot.get(column) or self.cannot.get(column[0])


ROWS = (
    Row(
        "Chromium",
        "two pages with relay candidates only: video and 400 messages each way, by `getStats` every packet and byte arrived",
        {"DTLS": "no TURN over DTLS: with `turns:` it always speaks TLS"},
    ),
    Row(
        "webrtcbin (libnice)",
        "two of them with relay candidates only: video and 400 messages each way, every message arrived, and the relay lost no RTP packet",
        {
            "TLS": "libnice has no TLS: given `turns:` it sends TURN to that port in the clear (a test watches it)",
            "DTLS": "libnice has no TURN over DTLS",
        },
    ),
    Row("pion/turn, IPv4 relay", "indications, then a channel; contents both ways, none lost of more than 2,000"),
    Row("pion/turn, IPv6 relay", "the same"),
    Row(
        "aioice",
        "500 messages by channel and 500 by indications, contents both ways",
        {"DTLS": "no TURN over DTLS"},
    ),
    Row(
        "aiortc",
        "two connections with relay candidates only: 500 messages of up to 16 KiB each way",
        {"DTLS": "no TURN over DTLS: `turns:` with `transport=udp` is passed over"},
    ),
    Row("uclient", "channels: the client's closing totals say that no message was lost"),
    Row("uclient -s", "indications: the same"),
    Row("uclient -y", "from one client's relay to another's: the same"),
    Row("uclient -M", "clients that move to another port once they have an allocation: the same"),
    Row("uclient -Z", "allocations of both families at once: the same"),
    Row("uclient -J", "access tokens (RFC 7635): the same"),
    Row("uclient -G", "extra permissions and channels: the same"),
    Row("uclient -T", "TCP relays (RFC 6062): the same", {"UDP": _TCP_RELAY_NEEDS_TCP, "DTLS": _TCP_RELAY_NEEDS_TCP}),
    Row(
        "uclient -P",
        "TCP relays that the peers connect to: every message of the peers arrived",
        {
            "UDP": _TCP_RELAY_NEEDS_TCP,
            "DTLS": _TCP_RELAY_NEEDS_TCP,
            "TLS": "with `-S` the client begins a TLS handshake on its own peer's socket before that is connected, and ends",
        },
    ),
    Row("uclient -N", "a random channel number: the client says `channel bind: error 400`"),
    Row("uclient -R", "corrupted messages: the server goes on, and no other client loses anything meanwhile"),
    Row("uclient -B", "clients that go without a word: the client's closing totals, and as for `-R`"),
)


#: A client, a transport and an address family.
Cell = tuple[str, str, str]


def cells_of(item) -> list[Cell]:
    """The cells that the marker `client` of a test claims."""
    cells = []
    for marker in item.iter_markers("client"):
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        client = marker.args[0].format(**parameters).strip()
        assert any(row.client == client for row in ROWS), f"no row {client!r} in harness/matrix.py"
        cells.append((client, parameters["transport"].split()[0], parameters["listener"]))
    return cells


class Matrix:
    """The outcomes of a run. A cell has passed when each test that claims it has."""

    def __init__(self):
        self._outcomes: dict[tuple[str, tuple[str, str]], list[bool]] = collections.defaultdict(list)

    def record(self, cells: list[Cell], passed: bool) -> None:
        """Notes the outcome of a test for each cell that it claims."""
        for client, transport, family in cells:
            self._outcomes[client, (transport, family)].append(passed)

    def verdict(self, row: Row, column: tuple[str, str]) -> str | None:
        """`passed`, `failed`, or None where no test has run."""
        outcomes = self._outcomes.get((row.client, column))
        return outcomes and ("passed" if all(outcomes) else "failed")

    def contradictions(self) -> list[str]:
        """Cells that neither a test nor a reason speaks for, and those that both do."""
        found = []
        for row in ROWS:
            for column in COLUMNS:
                tested, reason = self.verdict(row, column), row.reason(column)
                if not tested and not reason:
                    found.append(f"{row.client} over {' '.join(column)}: neither test nor reason")
                if tested and reason:
                    found.append(f"{row.client} over {' '.join(column)}: {tested}, although it says: {reason}")
        return found

    def page(self) -> str:
        reasons: list[str] = []

        def cell(row: Row, column: tuple[str, str]) -> str:
            if verdict := self.verdict(row, column):
                return verdict
            if not (reason := row.reason(column)):
                return "not run"
            if reason not in reasons:
                reasons.append(reason)
            return f"no ({reasons.index(reason) + 1})"

        titles = " | ".join(" ".join(column) for column in COLUMNS)
        lines = [
            "# Clients",
            "",
            "<!-- Written by a run of `scripts/interop` without arguments. The rows are in interop/harness/matrix.py. -->",
            "",
            "Which clients were seen to work with the relay, over which transport and from which address family, as the tests of",
            "[interop](../interop/README.md) found it. *no* is what the client cannot do, with the reason below.",
            "",
            f"| | {titles} |",
            "|---" * (len(COLUMNS) + 1) + "|",
        ]
        for row in ROWS:
            cells = " | ".join(cell(row, column) for column in COLUMNS)
            lines.append(f"| {_name(row)} | {cells} |")
        lines += ["", *(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))]
        lines += ["", "*passed* means:", "", *(f"- {_name(row)}: {row.holds}" for row in ROWS)]
        lines += ["", f"Versions: {', '.join(_versions())}.", ""]
        return "\n".join(lines)


def _name(row: Row) -> str:
    return f"`{row.client}`" if " -" in row.client else row.client


def _versions() -> list[str]:
    return [
        *(f"{name} {_debian(package)}" for name, package in DEBIAN.items()),
        *(f"{name} {importlib.metadata.version(name)}" for name in ("aioice", "aiortc")),
        f"pion/turn {_pion()}",
    ]


#: Names of clients, and Debian's packages of them.
DEBIAN = {
    "Chromium": "chromium",
    "coturn (uclient)": "coturn",
    "GStreamer (webrtcbin)": "gstreamer1.0-plugins-bad",
    "libnice": "libnice10",
}


def _debian(package: str) -> str:
    done = subprocess.run(["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True)
    return done.stdout or "not installed"


def _pion() -> str:
    modules = (Path(__file__).parents[1] / "pion" / "go.mod").read_text()
    return re.search(r"github.com/pion/turn/v\d+ v(\S+)", modules)[1]
