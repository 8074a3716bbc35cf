"""What the pages about databases say, carried out as it is written there: on servers of Debian's packages that nothing was done to before."""

import contextlib
import dataclasses
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import databases, pages, sql_databases, turn, waiting
from harness.server import Server
from harness.topology import Namespace

_SECRET = "a-long-secret"


@dataclasses.dataclass(frozen=True)
class Place:
    """A database where its page has it."""

    heading: str
    namespace: Namespace
    #: Returns a command that finds the files of the page where the page says.
    within: Callable[..., list[str]]
    #: Carries out a command of Redis.
    command: Callable[..., str] | None = None


@contextlib.contextmanager
def _sqlite(heading: str, namespace: Namespace, folder: Path):
    (folder / "turn").mkdir()

    def within(*command: str) -> list[str]:
        # The mounts of `ip netns exec` are its own: the machine's directory is as before.
        return ["sh", "-c", 'mount --bind "$0" /var/lib && exec "$@"', str(folder), *command]

    yield Place(heading, namespace, within)


@contextlib.contextmanager
def _network(heading: str, namespace: Namespace, folder: Path):
    (kind,) = [kind for kind in (sql_databases.Postgres, sql_databases.Mariadb) if kind.heading == heading]
    with kind(namespace, folder):
        yield Place(heading, namespace, _as_it_is)


class _Redis(databases.Redis):
    PASSWORD = _SECRET


@contextlib.contextmanager
def _redis(heading: str, namespace: Namespace, folder: Path):
    with _Redis(namespace, folder) as redis:
        yield Place(heading, namespace, _as_it_is, redis.command)


def _as_it_is(*command: str) -> list[str]:
    return list(command)


#: The section of the page, and what has the database there.
_PLACES = {
    "SQLite": ("SQLite", _sqlite),
    "PostgreSQL": ("PostgreSQL", _network),
    "MariaDB": ("MySQL and MariaDB", _network),
    "Redis": ("Redis and Valkey", _redis),
}


def every_configuration_of_the_page_is_carried_out():
    # What `mongo.py` carries out needs another build.
    assert sorted(pages.headings("conf")) == sorted([*(heading for heading, _ in _PLACES.values()), "MongoDB"])


@pytest.fixture(params=_PLACES)
def place(request, hosts, tmp_path):
    folder = tmp_path / "database"
    folder.mkdir()
    heading, start = _PLACES[request.param]
    with start(heading, hosts.relay, folder) as place:
        yield place


def a_configuration_and_a_command_of_the_page_serve_a_user_as_they_are_written(hosts, tmp_path, place, program, binary, coturns_name):
    configuration = pages.block(place.heading, "conf")
    for turnadmin, added in ((coturns_name("turnadmin"), "alice"), (program("turnadmin"), "bob")):
        words = [added if word == "alice" else word for word in pages.arguments(place.heading)]
        subprocess.run(place.namespace.argv(*place.within(turnadmin, *words)), check=True, capture_output=True, cwd=tmp_path)
    output = _serves(hosts, tmp_path, place, binary, configuration, ("alice", "bob"))
    assert _SECRET not in output
    for words in ((), ("--json",)):
        check = place.within(str(binary), "check", str(tmp_path / "turnserver.conf"), *words)
        done = subprocess.run(place.namespace.argv(*check), check=True, capture_output=True, text=True)
        assert "userdb" in done.stdout and _SECRET not in done.stdout + done.stderr, done.stdout


@pytest.mark.parametrize("place", ["MariaDB"], indirect=True)
def a_password_that_is_encrypted_as_the_page_says_opens_the_database(hosts, tmp_path, place, binary, coturns_name):
    turnadmin = coturns_name("turnadmin")
    key, printed = str(tmp_path / "turnserver.key"), ""
    commands = [line for line in pages.lines(place.heading, "sh", number=1) if line]
    for command in commands:
        name, *words = shlex.split(command.replace("/etc/turnserver.key", key))
        assert name == "turnadmin"
        printed = subprocess.run([turnadmin, *words], check=True, capture_output=True, text=True).stdout
    words = pages.arguments(place.heading)
    subprocess.run(place.namespace.argv(turnadmin, *words), check=True, capture_output=True)
    encrypted = printed.splitlines()[-1].strip()
    configuration = pages.block(place.heading, "conf").replace(_SECRET, encrypted)
    output = _serves(hosts, tmp_path, place, binary, f"{configuration}secret-key-file={key}\n", ("alice",))
    assert _SECRET not in output and encrypted not in output


@pytest.mark.parametrize("place", ["Redis"], indirect=True)
def the_access_list_of_the_page_is_enough_for_the_relay(hosts, tmp_path, place, binary, coturns_name):
    (command,) = pages.lines("What to expect", "redis", "redis.md")
    place.command(*shlex.split(command, posix=False))
    subprocess.run(place.namespace.argv(coturns_name("turnadmin"), *pages.arguments(place.heading)), check=True, capture_output=True)
    configuration = pages.block(place.heading, "conf").replace("password=", "user=turn password=")
    output = _serves(hosts, tmp_path, place, binary, configuration, ("alice",))
    assert "user database redis" not in output and "NOPERM" not in output, output


def _serves(hosts, tmp_path, place: Place, binary, configuration: str, users: tuple[str, ...]) -> str:
    """What the server says that serves these users with this configuration."""
    file = tmp_path / "turnserver.conf"
    file.write_text(configuration)
    command = shlex.join(place.within(str(binary), "serve"))
    with Server(command, hosts, tmp_path, ("-c", str(file))) as server:
        try:
            server.await_ready()
            for user in users:
                answers = lambda user=user: turn.error_of_allocation(hosts.client, server.ipv4, server.port, user, "wonderland")  # noqa: E731
                waiting.await_condition(lambda answers=answers: answers() is None, f"an allocation for {user}")
        finally:
            print(server.output[-8000:])
        return server.output
