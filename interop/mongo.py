"""What the tests of every database ask, of MongoDB's protocol: FerretDB on PostgreSQL, and a build that has the driver. `scripts/test-mongo` runs it.

Its name is not that of a test file, because the build and the server of the other tests have no MongoDB. Debian builds coturn without it too: the
one here is built from the source of Debian's package (`interop/setup ferretdb`).
"""

import contextlib
import re
import subprocess
from pathlib import Path

import pymongo
import pytest

# These tests are this file's too; the fixtures below stand in the place of theirs.
from test_database import (  # noqa: F401
    keys_of_authorization_servers_in_the_database_count_for_either_server,
    peers_that_the_database_denies_are_denied_by_either_server,
    realms_of_origins_and_quotas_that_either_program_sets_count_for_either_server,
    secrets_that_either_program_adds_count_for_either_server,
    users_whom_either_program_adds_are_served_by_either_server,
    what_one_program_has_written_both_list_and_the_other_removes,
)

from conftest import INTEROP, SERVERS, TARGET
from harness import pages, sql_databases, turn, uclient, waiting
from harness.process import Process
from harness.server import Server
from harness.topology import Namespace

_HEADING = "MongoDB"
_PROGRAM = TARGET / "debug" / "turnbuckle"
_COTURN = INTEROP / ".build/coturn/bin"


class Ferret(sql_databases.Lists):
    """A server where the page has it, and the database that it keeps everything in."""

    origin_line = "{1} ==>> {0}"

    def __init__(self, namespace: Namespace, folder: Path):
        self.namespace, self._folder = namespace, folder
        self.uri = pages.value(_HEADING, "mongo-userdb")
        self.server_options = ("--mongo-userdb", self.uri)
        self.turnadmin_options = ("-J", self.uri)

    def __enter__(self) -> "Ferret":
        with contextlib.ExitStack() as stack:
            stack.enter_context(sql_databases.Postgres(self.namespace, self._folder))
            below = "postgres://turn:a-long-secret@127.0.0.1:5432/coturn"
            command = (str(INTEROP / ".build/ferretdb"), "-postgresql", below, "-listen", "127.0.0.1:27017")
            stack.enter_context(Process(self.namespace, *command))
            waiting.await_condition(lambda: self.namespace.reaches("127.0.0.1", 27017), "FerretDB")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_) -> None:
        self._stack.close()

    def _call(self, function):
        def called():
            with pymongo.MongoClient(self.uri, directConnection=True) as client:
                return function(client.get_default_database())

        return self.namespace.call(called)

    def empty(self) -> None:
        def drop_all(database):
            for name in database.list_collection_names():
                database.drop_collection(name)
            # coturn's turnadmin sets options of realms that have a document, and no others.
            database["realm"].insert_many([{"realm": Server.realm}, {"realm": "north.gov"}])

        self._call(drop_all)

    def deny_peer(self, realm: str, peer: str) -> None:
        add = {"$addToSet": {"denied_peer_ip": f"{peer}-{peer}"}}
        self._call(lambda database: database["realm"].update_one({"realm": realm}, add, upsert=True))

    def key(self, realm: str, user: str) -> str:
        return self._call(lambda database: database["turnusers_lt"].find_one({"realm": realm, "name": user})["hmackey"])

    def put_token_key(self, name: str, key: str, cipher: str) -> None:
        document = {"kid": name, "ikm_key": key, "as_rs_alg": cipher, "realm": "", "timestamp": 0, "lifetime": 0}
        self._call(lambda database: database["oauth_key"].insert_one(document))


@pytest.fixture(scope="module")
def ferret(hosts, tmp_path_factory):
    with Ferret(hosts.relay, tmp_path_factory.mktemp("database")) as ferret:
        yield ferret


@pytest.fixture
def database(ferret):
    ferret.empty()
    return ferret


@pytest.fixture
def turnadmin(tmp_path) -> str:
    path = tmp_path / "turnadmin"
    path.symlink_to(_PROGRAM)
    return str(path)


@pytest.fixture
def programs(database, turnadmin, tmp_path):
    def running(name: str):
        def run(*arguments: str) -> list[str]:
            command = database.namespace.argv(name, *database.turnadmin_options, *arguments)
            done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
            return [line for line in done.stdout.splitlines() if not re.match(r"\d+: :", line)]

        return run

    return {"coturn's turnadmin": running(str(_COTURN / "turnadmin")), "our turnadmin": running(turnadmin)}


@pytest.fixture(params=["coturn's turnadmin", "our turnadmin"])
def administer(request, programs):
    return programs[request.param]


@pytest.fixture(params=["turnbuckle", "coturn"])
def served(request, hosts, tmp_path, database):
    """Starts a server on the database, with more options; a `wide` one takes every channel number that `turnutils_uclient` draws."""
    program = {"turnbuckle": _PROGRAM, "coturn": _COTURN / "turnserver"}[request.param]
    with contextlib.ExitStack() as stack:

        def start(*options: str, wide: bool = False) -> Server:
            numbers = (uclient.WIDE_CHANNEL_NUMBERS,) if wide and request.param == "turnbuckle" else ()
            command = f"{program} {SERVERS[request.param].split(' ', 1)[1]}"
            server = stack.enter_context(Server(command, hosts, tmp_path, (*database.server_options, *numbers, *options)))
            stack.callback(lambda: print(server.output[-8000:]))
            server.await_ready()
            return server

        yield start


def the_configuration_and_the_command_of_the_page_serve_a_user_as_they_are_written(hosts, tmp_path, database, turnadmin):
    subprocess.run(database.namespace.argv(turnadmin, *pages.arguments(_HEADING)), check=True, capture_output=True)
    file = tmp_path / "turnserver.conf"
    file.write_text(pages.block(_HEADING, "conf"))
    with Server(f"{_PROGRAM} serve", hosts, tmp_path, ("-c", str(file))) as server:
        server.await_ready()

        def error() -> int | None:
            return turn.error_of_allocation(hosts.client, server.ipv4, server.port, "alice", "wonderland")

        waiting.await_condition(lambda: error() is None, "an allocation for alice")
