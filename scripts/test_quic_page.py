"""Which bars scripts/measure-quic takes for met."""

import contextlib
import io
import unittest

import measuring
import quic_page


def transfer(path, direction, mib, pair, mib_per_s, ns, spurious=None):
    """A row for each of three rounds, of which the machine was slower in each."""
    for number in (1, 2, 3):
        cost = {"mib_per_s": mib_per_s / number, "client_ns_per_byte": ns * number / 2, "server_ns_per_byte": ns * number / 2}
        yield {"round": number, "path": path, "direction": direction, "mib": mib, "pair": pair, **cost, "lost": spurious, "spurious": spurious}


def judged(moved=(), sent=(), connected=()):
    """What became of each bar."""
    bars = measuring.Bars()
    with contextlib.redirect_stdout(io.StringIO()):
        quic_page.judge(bars, quic_page.transfers(moved), quic_page.datagrams(sent), quic_page.connections(connected))
    rows = [row.strip("| ").split(" | ") for row in bars.table()[2:-2]]
    return {(row[0], row[1]): row[-1] for row in rows}


class ABar(unittest.TestCase):
    def test_is_judged_by_ratios_within_a_round(self):
        rows = [*transfer("loopback", "up", 10, "gso", 1500, 1.7), *transfer("loopback", "up", 10, "quinn", 1400, 2), *transfer("loopback", "up", 10, "single", 700, 3.3)]
        found = judged(rows)
        self.assertEqual(found["1: bytes", "loopback, up, 10 MiB: MiB/s of gso to quinn's"], "met")
        self.assertEqual(found["1: bytes", "loopback, up, 10 MiB: CPU time per byte of gso to quinn's"], "met")
        self.assertEqual(found["1: bytes", "loopback, up, 10 MiB: gso"], "met")
        self.assertEqual(found["2: backends", "loopback, up, 10 MiB: CPU time per byte of single to that of gso"], "MISSED")

    def test_of_one_mib_is_missed_by_a_backend_that_loses_more_than_five_percent(self):
        rows = [row for pair, rate in (("single", 100), ("mmsg", 96), ("gso", 94)) for row in transfer("loopback", "down", 1, pair, rate, 2)]
        found = judged(rows)
        self.assertEqual(found["2: backends", "loopback, down, 1 MiB: MiB/s of mmsg to those of single"], "met")
        self.assertEqual(found["2: backends", "loopback, down, 1 MiB: MiB/s of gso to those of single"], "MISSED")

    def test_of_the_path_that_loses_is_quinns_goodput_and_its_spurious_losses(self):
        for spurious, verdict in ((2, "met"), (3, "MISSED")):
            rows = [*transfer("lossy", "down", 2, "gso", 95, 2, spurious), *transfer("lossy", "down", 2, "quinn", 100, 2, 2)]
            found = judged(rows)
            self.assertEqual(found["12: loss", "lossy, down, 2 MiB: MiB/s of gso to quinn's"], "met")
            self.assertEqual(found["12: loss", "lossy, down, 2 MiB: packets of gso held for lost that were not, all rounds"], verdict)

    def test_of_datagrams_and_connections_is_a_number(self):
        sent = [{"round": 1, "bytes": size, "pair": "gso", "us_per_datagram": us} for size, us in ((160, 0.5), (500, 9), (1150, 2.1))]
        connected = [{"round": 1, "pair": pair, "connections_per_cpu_s": count} for pair, count in (("gso", 2600), ("quic-go", 1400))]
        found = judged(sent=sent, connected=connected)
        self.assertEqual(list(found.values()), ["met", "MISSED", "met", "MISSED"])

    def test_without_figures_is_not_judged(self):
        self.assertEqual(judged(transfer("loopback", "up", 5, "gso", 100, 2)), {})


if __name__ == "__main__":
    unittest.main()
