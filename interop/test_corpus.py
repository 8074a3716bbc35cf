"""What coturn starts with, `turnserver` starts with: configurations beside Debian's coturn, each server in a namespace of its own.

Every difference that is seen must be one that `docs/compatibility.md` tells of. Those of `EVERYWHERE` may be seen with any configuration, those of `NAMED` only
where its file says so, and then they must be.
"""

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import corpus
from harness.corpus import ADDRESSES, OUTPUT, PUBLIC, Configuration, Host, Server
from harness.topology import PREFIX
from harness.waiting import PATIENCE

#: How long a server takes to begin is judged.
pytestmark = pytest.mark.alone

HERE = Path(__file__).parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target"))
PAGE = HERE.parent / "docs/compatibility.md"
#: How many seconds a server may take until it listens. Where coturn waits for an address it takes a minute, and ends then.
PATIENCE_WITH_COTURN = 5
COTURN = Server("turnserver", "Total General servers", PATIENCE_WITH_COTURN)
#: Debian's. Another one differs in other places.
COTURN_VERSION = "4.6.1"
#: Pairs that run at the same time. They wait for each other's answers most of the time.
PAIRS = 3
SPECIAL = {
    *("169.254.169.254", "224.0.0.1", "240.0.0.1", "255.255.255.255", "fc00::1", "fe80::1", "ff02::1"),
    *("::ffff:8.8.8.8", "::ffff:10.9.9.9", "64:ff9b::808:808", "64:ff9b::a09:909", "2002:a09:909::1"),
}


def _peer(field: str) -> str:
    return field.rpartition(" / peer ")[2]


def _is_outcome(field: str) -> bool:
    return field.rpartition(" / ")[2] in ("allocate", "second", "third", "ipv6", "tcp relay")


def _relayed(outcome) -> str | None:
    """The relayed address, where there is one."""
    return outcome[1][0] if outcome and outcome[1] else None


def _has_second_ports(field, coturn, ours) -> bool:
    """Whether all that only coturn listens on is next to what is listened on anyway."""
    if field != "listeners" or not coturn or not ours or not ours < coturn:
        return False
    return all((transport, address, port - 1) in ours for transport, address, port in coturn - ours)


def _are_local(field, coturn, ours) -> bool:
    return _is_outcome(field) and {_relayed(coturn), _relayed(ours)} <= set(ADDRESSES)


def _concerns_clients(field, coturn, ours) -> bool:
    return field == "realm" or field.startswith("login ")


def _relayed_otherwise(field, coturn, ours) -> bool:
    return _is_outcome(field) and bool(_relayed(coturn)) and bool(_relayed(ours)) or _peer(field) == "0.0.0.0"


def _only_coturn_listens(field, coturn, ours) -> bool:
    return field == "listeners" and ours < coturn


def _has_another_family(field, coturn, ours) -> bool:
    """One server relays a family, and the other does not."""
    if _is_outcome(field):
        return bool(coturn and ours) and 440 in (coturn[0], ours[0])
    return ":" in _peer(field) and None in (coturn, ours)


def _refused_both(field, coturn, ours) -> bool:
    return _is_outcome(field) and bool(coturn and ours) and coturn[0] != 0 and ours[0] != 0


def _cannot_bind(field, coturn, ours) -> bool:
    """Coturn refuses a client after it has tried to bind 65,535 times, which may take longer than the client waits."""
    return field.endswith(" / ipv6") and (coturn is None or coturn[0] == 508) and ours == (440, None, None)


def _starts(field, coturn, ours) -> bool:
    return True


#: By the names that the page gives them: whether a difference in one field is explained. These may be seen with any configuration.
EVERYWHERE = {
    "binding-attributes": lambda field, coturn, ours: field == "binding" and bool(coturn and ours) and coturn[0] == ours[0],
    "second-ports": _has_second_ports,
    "own-addresses": lambda field, coturn, ours: _peer(field) in ADDRESSES and (coturn, ours) == (0, 403),
    "special-peers": lambda field, coturn, ours: _peer(field) in SPECIAL and (coturn, ours) in ((0, 403), (0, 443), (403, 443)),
    "relay-address": _are_local,
}
#: These only where the configuration says so, and then they must be seen.
NAMED = {
    "no-open-relay": _concerns_clients,
    "redirect-after-login": lambda field, coturn, ours: field == "realm" and coturn[0] == 300 and ours[0] == 401,
    "useless-redirection": _concerns_clients,
    "useless-relay-address": _cannot_bind,
    "useless-external-ip": _relayed_otherwise,
    "external-ip-of-each-family": _relayed_otherwise,
    "random-ports": _only_coturn_listens,
    "administration": _only_coturn_listens,
    "metrics": lambda field, coturn, ours: field == "listeners" and coturn < ours,
    "dtls-by-default": _only_coturn_listens,
    "refused-ranges": _starts,
    "refused-ports": _starts,
    "refused-databases": _starts,
    "starts-without": _starts,
    "ports-the-other-way-round": _concerns_clients,
    "other-codes": _refused_both,
    "families-of-a-wildcard": _has_another_family,
    "time-limited-names": _concerns_clients,
    "narrowest-range": lambda field, coturn, ours: bool(_peer(field)) and (coturn, ours) == (0, 403),
    "prefixes": lambda field, coturn, ours: bool(_peer(field)) and (coturn, ours) == (0, 403),
}
#: What coturn does at one time and not at another.
SOMETIMES = {"families-of-a-wildcard"}
CONFIGURATIONS = [Configuration.read(file) for file in sorted((HERE / "corpus").glob("*.conf"))]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory, request):
    """What coturn and turnserver were seen to do, by the name of the configuration."""
    version = subprocess.run(["turnserver", "--version"], capture_output=True, text=True).stdout.split()[-1:]
    assert version == [COTURN_VERSION], f"the differences are those of coturn {COTURN_VERSION}, and there is {version or 'none'}"
    folder = tmp_path_factory.mktemp("corpus")
    _make_readable(folder)
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=relay"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    (folder / "turnserver").symlink_to(TARGET / "release/turnbuckle")
    ours = Server(str(folder / "turnserver"), " ready\n", PATIENCE)
    todo, seen = list(CONFIGURATIONS), {}

    def work(number: int) -> None:
        with Host(f"{PREFIX}coturn-{number}") as coturns, Host(f"{PREFIX}ours-{number}") as own:
            while todo:
                # One of a list is taken by one thread only.
                configuration = todo.pop()
                places = [_place(folder, configuration, name) for name in ("coturn", "ours")]
                with ThreadPoolExecutor(2) as two:
                    jobs = [
                        two.submit(corpus.observe, server, configuration, host, place)
                        for server, host, place in zip((COTURN, ours), (coturns, own), places)
                    ]
                    seen[configuration.name] = tuple(job.result() for job in jobs)

    with ThreadPoolExecutor(PAIRS) as pool:
        for job in [pool.submit(work, number) for number in range(PAIRS)]:
            job.result()
    return seen


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name)
def what_differs_from_coturn_is_named_by_the_page(configuration, pairs):
    coturn, ours = pairs[configuration.name]
    rules = EVERYWHERE | {name: NAMED[name] for name in configuration.differs}
    unused = set(configuration.differs) - SOMETIMES
    unexplained = []
    for field in sorted(coturn.keys() | ours.keys() - {OUTPUT}):
        values = coturn.get(field), ours.get(field)
        if field == OUTPUT or values[0] == values[1]:
            continue
        explained = [name for name, explains in rules.items() if explains(field, *values)]
        unused -= set(explained)
        if not explained:
            unexplained.append(f"{field}: coturn {values[0]}, ours {values[1]}")
    told = "\n".join(unexplained)
    assert not unexplained, f"{configuration.about}\n{told}\n--- ours said\n{ours[OUTPUT]}\n--- coturn said\n{coturn[OUTPUT]}"
    assert not unused, f"says that it differs by {unused}, and does not"


def the_page_names_every_difference_and_no_other():
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE.read_text().split("## Seen beside coturn 4.6.1")[1].split("\n## ")[0], re.M)
    assert sorted(rows) == sorted(EVERYWHERE | NAMED)
    assert set(NAMED) == {name for configuration in CONFIGURATIONS for name in configuration.differs}


def the_corpus_has_sixty_configurations_at_least():
    assert len(CONFIGURATIONS) >= 60


def _make_readable(folder: Path) -> None:
    """For who a server becomes (`proc-user`)."""
    for above in (folder, *folder.parents):
        if above.owner() != "root" or above == Path("/tmp"):
            return
        above.chmod(above.stat().st_mode | 0o055)


def _place(folder: Path, configuration: Configuration, name: str) -> Path:
    place = folder / f"{configuration.name}-{name}"
    place.mkdir()
    for file in ("cert.pem", "key.pem"):
        shutil.copy(folder / file, place)
    return place
