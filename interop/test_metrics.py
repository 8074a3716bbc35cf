"""The metrics as Prometheus' own client for Python reads them: its parser of OpenMetrics takes nothing that the standard does not allow."""

import urllib.request

import prometheus_client.openmetrics.parser
import prometheus_client.parser
import pytest

from harness import topology, turn, waiting
from harness.server import Server

URL = "http://127.0.0.1:9641/metrics"
#: What ends a label, and what ends a line.
USER = 'al\\ice"} 1'

OPENMETRICS = ("application/openmetrics-text; version=1.0.0", prometheus_client.openmetrics.parser.text_string_to_metric_families)
TEXT = ("text/plain; version=0.0.4", prometheus_client.parser.text_string_to_metric_families)


@pytest.fixture
def server(hosts, tmp_path, servers, certificate):
    options = ("--prometheus", "--prometheus-username-labels", "--user", f"{USER}:hush")
    secure = ("--cert", str(certificate), "--pkey", str(certificate))
    with Server(servers["turnbuckle"], hosts, tmp_path, (*options, *secure)) as server:
        server.await_ready()
        yield server


def a_strict_reader_of_openmetrics_takes_every_family_and_finds_what_the_plain_text_has(hosts, server):
    def families(wanted: tuple) -> dict:
        media_type, read = wanted

        def scraped() -> str:
            with urllib.request.urlopen(urllib.request.Request(URL, headers={"Accept": media_type}), timeout=waiting.PATIENCE) as answer:
                assert answer.headers["Content-Type"].startswith(media_type)
                return answer.read().decode()

        return {family.name: family for family in read(hosts.relay.call(scraped))}

    with hosts.client.udp(topology.CLIENT_IPV4) as udp:
        client = turn.Client(udp, server.ipv4, turn.Login(server.port, USER, "hush"))
        client.allocate()
        client.release()
    waiting.await_condition(lambda: families(OPENMETRICS)["turn_traffic_rcvp"].samples, "the end of the session")
    strict, plain = families(OPENMETRICS), families(TEXT)
    traffic = strict["turn_traffic_rcvp"]
    assert traffic.type == "unknown" and traffic.samples[0].labels["user"] == USER
    assert strict["turnbuckle_drops"].type == "counter" and strict["turnbuckle_session_lifetime_seconds"].type == "histogram"
    assert strict["turnbuckle_certificate_expiry_timestamp_seconds"].samples[0].labels["file"]
    assert len(strict) > 60 and all(family.documentation for family in strict.values())
    assert _series(strict) == _series(plain)


def _series(families: dict) -> set:
    """Names and labels of all samples. The reader of plain text puts `_total` behind coturn's counters, which do not have it."""
    return {(sample.name.removesuffix("_total"), *sorted(sample.labels.items())) for family in families.values() for sample in family.samples}
