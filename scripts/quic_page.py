"""What `scripts/measure-quic` makes of its figures: a page of tables, and which of the bars they meet."""

import collections
import statistics

#: The bars are those of the design; ratios are taken within a round, and it is their median that is judged.
#: MiB/s, ten times the most that the page has published whose question this is.
_PUBLISHED_TEN_TIMES = 480
#: From how many MiB on a transfer is long enough for its start not to count.
_LONG = 10


class Figures:
    """Rows of a measurement by what they are of, and within that by their round."""

    def __init__(self, rows, *fields):
        self._by_key = collections.defaultdict(dict)
        for row in rows:
            self._by_key[tuple(row[field] for field in fields)][row["round"]] = row

    def has(self, *key):
        return key in self._by_key

    def keys(self):
        return list(self._by_key)

    def of(self, key, value):
        """What `value` makes of each row, in the order of the rounds."""
        rows = self._by_key.get(key, {})
        return [value(rows[number]) for number in sorted(rows)]

    def ratios(self, key, other, value):
        """The same, each divided by the one of another key in the same round."""
        mine, others = self._by_key.get(key, {}), self._by_key.get(other, {})
        return [value(mine[number]) / value(others[number]) for number in sorted(set(mine) & set(others))]


def transfers(rows):
    return Figures(rows, "path", "direction", "mib", "pair")


def datagrams(rows):
    return Figures(rows, "bytes", "pair")


def connections(rows):
    return Figures(rows, "pair")


def rate(row):
    return row["mib_per_s"]


def both(row):
    """CPU time of both sides for each byte."""
    return row["client_ns_per_byte"] + row["server_ns_per_byte"]


def judge(bars, moved, sent, connected):
    """Takes note of all bars for which there are figures."""
    for path, direction, mib, pair in moved.keys():
        if pair != "gso":
            continue
        key = lambda pair: (path, direction, mib, pair)
        what = f"{path}, {direction}, {mib} MiB"
        if path == "lossy":
            _lossy(bars, moved, key, what)
            continue
        if mib >= _LONG:
            _compare(bars, "1: bytes", f"{what}: MiB/s of gso to quinn's", bars.at_least, 1, moved.ratios(key("gso"), key("quinn"), rate))
            _compare(bars, "1: bytes", f"{what}: CPU time per byte of gso to quinn's", bars.at_most, 0.9, moved.ratios(key("gso"), key("quinn"), both))
            _compare(bars, "1: bytes", f"{what}: gso", bars.at_least, _PUBLISHED_TEN_TIMES, moved.of(key("gso"), rate), "MiB/s")
            _compare(bars, "2: backends", f"{what}: CPU time per byte of single to that of gso", bars.at_least, 2, moved.ratios(key("single"), key("gso"), both))
        if mib == 1:
            for backend in ("mmsg", "gso"):
                _compare(bars, "2: backends", f"{what}: MiB/s of {backend} to those of single", bars.at_least, 0.95, moved.ratios(key(backend), key("single"), rate))
    for size, most in ((160, 0.5), (1150, 2)):
        us = sent.of((size, "gso"), lambda row: row["us_per_datagram"])
        _compare(bars, "3: datagrams", f"{size} bytes: CPU time of both ends for each, gso", bars.at_most, most, us, "us")
    each = lambda row: row["connections_per_cpu_s"]
    _compare(bars, "7: connections", "a CPU second of the server takes", bars.at_least, 2500, connected.of(("gso",), each))
    _compare(bars, "7: connections", "ours to quic-go's", bars.at_least, 2, connected.ratios(("gso",), ("quic-go",), each))


def _lossy(bars, moved, key, what):
    _compare(bars, "12: loss", f"{what}: MiB/s of gso to quinn's", bars.at_least, 0.95, moved.ratios(key("gso"), key("quinn"), rate))
    mine, quinns = (moved.of(key(pair), lambda row: row["spurious"]) for pair in ("gso", "quinn"))
    if mine and quinns and None not in mine + quinns:
        bars.at_most("12: loss", f"{what}: packets of gso held for lost that were not, all rounds", sum(quinns), sum(mine), "", "the bar is quinn's")


def _compare(bars, subject, what, hold, limit, values, unit=""):
    if values:
        hold(subject, what, limit, statistics.median(values), unit, f"{_number(min(values))} to {_number(max(values))}")


def _number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def tables(moved, pairs):
    """A table for each path and direction."""
    lines = []
    for path, direction in dict.fromkeys(key[:2] for key in moved.keys()):
        lost = "lost | spurious" if path == "lossy" else "lost"
        lines += [f"## {path}, {direction}", "", f"| MiB | pair | MiB/s | to quinn | client, ns per byte | server, ns per byte | both to quinn | {lost} |"]
        lines.append("|---" * lines[-1].count(" | ") + "|---|")
        for mib in sorted({key[2] for key in moved.keys() if key[:2] == (path, direction)}):
            lines += [_transfer(moved, (path, direction, mib), pair) for pair in pairs]
        lines.append("")
    return lines


def _transfer(moved, what, pair):
    key, quinns = (*what, pair), (*what, "quinn")
    cells = [what[2], pair, spread(moved.of(key, rate), 2 if what[0] == "lossy" else 0), _ratio(moved, key, quinns, rate)]
    cells += [spread(moved.of(key, lambda row: row[f"{side}_ns_per_byte"]), 2) for side in ("client", "server")]
    cells.append(_ratio(moved, key, quinns, both))
    cells += [_sum(moved.of(key, lambda row: row[name])) for name in (("lost", "spurious") if what[0] == "lossy" else ("lost",))]
    return f"| {' | '.join(map(str, cells))} |"


def datagrams_table(sent, pairs):
    lines = ["## datagrams there and back, loopback", "", "| bytes | pair | CPU us for each, both ends | to quinn | client | server | a second, there and back | lost |", "|---|---|---|---|---|---|---|---|"]
    for size in sorted({size for size, _ in sent.keys()}):
        for pair in pairs:
            if sent.has(size, pair):
                key, us = (size, pair), lambda row: row["us_per_datagram"]
                cells = [size, pair, spread(sent.of(key, us), 2), _ratio(sent, key, (size, "quinn"), us)]
                cells += [spread(sent.of(key, lambda row: row[f"{side}_us_per_datagram"]), 2) for side in ("client", "server")]
                cells += [spread(sent.of(key, lambda row: row["per_second"]), 0), _sum(sent.of(key, lambda row: row["lost"]))]
                lines.append(f"| {' | '.join(map(str, cells))} |")
    return [*lines, ""]


def connections_table(connected, servers):
    lines = ["## connections per CPU second of the server", "", "| server | a CPU second | to quic-go |", "|---|---|---|"]
    each = lambda row: row["connections_per_cpu_s"]
    for pair in servers:
        lines.append(f"| {pair} | {spread(connected.of((pair,), each), 0)} | {_ratio(connected, (pair,), ('quic-go',), each)} |")
    return [*lines, ""]


def _ratio(figures, key, other, value):
    ratios = figures.ratios(key, other, value)
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def _sum(counts):
    """Of what was counted in each round; nothing if it was not."""
    return "" if None in counts or not counts else f"{sum(counts):,}"


def spread(values, digits):
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})" if values else ""
