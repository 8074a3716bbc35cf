"""One database, two servers and two programs that administer it: Debian's and ours, in every combination, on each kind of database."""

import base64
import contextlib
import hashlib
import hmac
import json
import re
import subprocess
import time

import pytest

from harness import databases, topology, turn, uclient, waiting
from harness.server import Server


@pytest.fixture(scope="module", params=databases.KINDS)
def running(request, hosts, tmp_path_factory):
    with databases.KINDS[request.param](hosts.relay, tmp_path_factory.mktemp("database")) as database:
        yield database


@pytest.fixture
def database(running):
    running.empty()
    return running


@pytest.fixture
def programs(program, tmp_path, database, coturns_name):
    """Each program that administers a database: carries out a command on it and returns its lines, without coturn's own log lines."""

    def running(name: str):
        def run(*arguments: str) -> list[str]:
            command = database.namespace.argv(name, *database.turnadmin_options, *arguments)
            done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
            return [line for line in done.stdout.splitlines() if not re.match(r"\d+: :", line)]

        return run

    return {"Debian's turnadmin": running(program("turnadmin")), "our turnadmin": running(coturns_name("turnadmin"))}


@pytest.fixture(params=["Debian's turnadmin", "our turnadmin"])
def administer(request, programs):
    """One of the two programs."""
    return programs[request.param]


@pytest.fixture(params=["turnbuckle", "coturn"])
def served(request, hosts, tmp_path, database, servers):
    """Starts a server on the database, with more options; a `wide` one takes every channel number that `turnutils_uclient` draws."""
    with contextlib.ExitStack() as stack:
        started = []

        def start(*options: str, wide: bool = False) -> Server:
            # coturn has no key for RFC 5766's channel numbers: it takes them.
            numbers = (uclient.WIDE_CHANNEL_NUMBERS,) if wide and request.param == "turnbuckle" else ()
            options = (*database.server_options, *numbers, *options)
            server = stack.enter_context(Server(servers[request.param], hosts, tmp_path, options))
            started.append(server)
            server.await_ready()
            return server

        yield start
        for server in started:
            print(server.output[-8000:])


def users_whom_either_program_adds_are_served_by_either_server(hosts, administer, served):
    administer("-a", "-u", "alice", "-r", Server.realm, "-p", "wonderland")
    server = served()
    assert _answer(hosts, server, "alice", "wonderland") is None
    assert _answer(hosts, server, "alice", "looking-glass") == 401
    assert _answer(hosts, server, "bob", "builder") == 401
    # while the server runs
    alice, bob = f"alice[{Server.realm}]", f"bob[{Server.realm}]"
    _write(administer, "-a", "-u", "bob", "-r", Server.realm, "-p", "builder", until=("-l", {alice, bob}))
    waiting.await_condition(lambda: _answer(hosts, server, "bob", "builder") is None, "an allocation for bob")
    _write(administer, "-d", "-u", "alice", "-r", Server.realm, until=("-l", {bob}))
    waiting.await_condition(lambda: _answer(hosts, server, "alice", "wonderland") == 401, "a refusal for alice")


def a_configuration_that_is_read_again_holds_beside_the_database(hosts, tmp_path, database, servers, binary, coturns_name):
    file, control = tmp_path / "relay.conf", tmp_path / "control.sock"

    def reload(content: str) -> list[str]:
        file.write_text(content)
        command = [binary, "ctl", f"--socket={control}", "--json", "reload"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["changed"]

    def add(name: str, password: str) -> None:
        command = database.namespace.argv(coturns_name("turnadmin"), *database.turnadmin_options, "-a", "-u", name, "-r", Server.realm, "-p", password)
        subprocess.run(command, check=True, capture_output=True)

    add("alice", "wonderland")
    file.write_text("")
    options = (*database.server_options, "-c", str(file), f"--control-socket={control}")
    with Server(servers["turnbuckle"], hosts, tmp_path, options) as server:
        server.await_ready()
        assert _answer(hosts, server, "alice", "wonderland") is None
        assert _answer(hosts, server, "carol", "singer") == 401
        assert reload("user=carol:singer\nverbose\n") == ["user", "verbose"]
        assert _answer(hosts, server, "carol", "singer") is None
        assert _answer(hosts, server, "alice", "wonderland") is None
        add("bob", "builder")
        waiting.await_condition(lambda: _answer(hosts, server, "bob", "builder") is None, "an allocation for bob")
        assert _answer(hosts, server, "carol", "singer") is None
        assert reload("user-quota=0\n") == ["user", "verbose"]
        assert _answer(hosts, server, "carol", "singer") == 401
        assert _answer(hosts, server, "bob", "builder") is None


def secrets_that_either_program_adds_count_for_either_server(hosts, administer, served):
    administer("-s", "logen", "-r", Server.realm)
    server = served("--use-auth-secret")
    user = f"{int(time.time()) + 600}:carol"

    def password(secret: str) -> str:
        return base64.b64encode(hmac.digest(secret.encode(), user.encode(), hashlib.sha1)).decode()

    assert _answer(hosts, server, user, password("logen")) is None
    assert _answer(hosts, server, user, password("bloody9")) == 401
    logen, bloody9 = f"logen[{Server.realm}]", f"bloody9[{Server.realm}]"
    _write(administer, "-s", "bloody9", "-r", Server.realm, until=("-S", {logen, bloody9}))
    _write(administer, "-X", "logen", "-r", Server.realm, until=("-S", {bloody9}))
    waiting.await_condition(lambda: _answer(hosts, server, user, password("bloody9")) is None, "the use of the new secret")
    waiting.await_condition(lambda: _answer(hosts, server, user, password("logen")) == 401, "the end of the old secret")


def peers_that_the_database_denies_are_denied_by_either_server(hosts, served, database, administer):
    administer("-a", "-u", "alice", "-r", Server.realm, "-p", "wonderland")
    server = served()
    with hosts.client.udp(topology.CLIENT_IPV4) as udp:
        client = turn.Client(udp, server.ipv4, turn.Login(server.port, "alice", "wonderland"))
        client.allocate()
        # Outside the ranges that the harness allows: for coturn they come before whatever is denied.
        peer = ("93.184.216.77", 7000)
        client.permit(peer)
        database.deny_peer(Server.realm, peer[0])

        def is_denied() -> bool:
            try:
                client.permit(peer)
            except turn.Refused as refused:
                return refused.code == 403
            return False

        waiting.await_condition(is_denied, "a refusal of the peer")
        client.permit(("93.184.216.78", 7000))


def realms_of_origins_and_quotas_that_either_program_sets_count_for_either_server(hosts, programs, administer, served):
    origin, realm = "https://north.gov:443", "north.gov"
    administer("-O", "-o", origin, "-r", realm)
    administer("-a", "-u", "alice", "-r", Server.realm, "-p", "wonderland")
    administer("-g", "-r", Server.realm, "--user-quota", "1")
    server = served()
    # coturn reads its realms every five seconds, and may answer without a challenge meanwhile.
    waiting.await_condition(lambda: _realm(hosts, server, origin) == realm, f"the realm {realm}")
    waiting.await_condition(lambda: _realm(hosts, server, "https://south.gov:443") == Server.realm, "the realm of an origin that none has")
    with hosts.client.udp(topology.CLIENT_IPV4) as udp:
        client = turn.Client(udp, server.ipv4, turn.Login(server.port, "alice", "wonderland"))
        client.allocate()
        waiting.await_condition(lambda: _answer(hosts, server, "alice", "wonderland") == 486, "a refusal of a second allocation")
        # Debian's takes no 0.
        _write(programs["our turnadmin"], "-g", "-r", Server.realm, "--user-quota", "0", until=("-G", set()))
        waiting.await_condition(lambda: _answer(hosts, server, "alice", "wonderland") is None, "a second allocation")
    _write(administer, "-R", "-o", origin, until=("-I", set()))
    waiting.await_condition(lambda: _realm(hosts, server, origin) == Server.realm, "the realm of all others")


def keys_of_authorization_servers_in_the_database_count_for_either_server(hosts, program, served, database):
    for key in uclient.OAUTH_KEYS:
        database.put_token_key(*key)
    server = served("--oauth", wide=True)
    load = uclient.Load(sessions=1, messages=5, interval_ms=20)
    with uclient.echoing(hosts, program) as (port,):
        flags = ("-J", "-c", "-e", topology.PEER_IPV4, "-r", str(port))
        ended = uclient.run(hosts, server, program, uclient.Client(server.ipv4, "UDP", load, flags), timeout=60)
    assert ended.succeeded() == uclient.without_loss(load.total)


def what_one_program_has_written_both_list_and_the_other_removes(programs, administer, database):
    for arguments in [
        ("-a", "-u", "gorst", "-r", "north.gov", "-p", "wrong"),
        ("-a", "-u", "gorst", "-r", "north.gov", "-p", "hero"),
        ("-s", "logen", "-r", "north.gov"),
        ("-s", "bloody9", "-r", "north.gov"),
        ("-O", "-o", "https://North.gov/war", "-r", "north.gov"),
        ("-A", "-u", "skarling", "-p", "hoodless", "-r", "north.gov"),
        ("-A", "-u", "bayaz", "-p", "magi"),
        ("-g", "-r", "north.gov", "--max-bps", "500000", "--user-quota", "5"),
    ]:
        administer(*arguments)
    written = [
        {"gorst[north.gov]"},
        {"logen[north.gov]", "bloody9[north.gov]"},
        {database.origin_line.format("https://north.gov:443", "north.gov")},
        {"skarling[north.gov]", "bayaz"},
        {database.realm_option_line.format("north.gov", "max-bps", 500000), database.realm_option_line.format("north.gov", "user-quota", 5)},
    ]
    assert [_listed(run) for run in programs.values()] == [written, written]
    assert database.key("north.gov", "gorst").strip() == hashlib.md5(b"gorst:north.gov:hero").hexdigest()
    (other,) = [run for run in programs.values() if run is not administer]
    for arguments in [
        ("-X", "logen", "-r", "north.gov"),
        ("-d", "-u", "gorst", "-r", "north.gov"),
        ("-R", "-o", "https://north.gov:443"),
        ("-D", "-u", "bayaz"),
    ]:
        other(*arguments)
    # Debian's takes no 0.
    ours = programs["our turnadmin"]
    ours("-g", "-r", "north.gov", "--max-bps", "0")
    left = [set(), {"bloody9[north.gov]"}, set(), {"skarling[north.gov]"}, {database.realm_option_line.format("north.gov", "user-quota", 5)}]
    assert [_listed(run) for run in programs.values()] == [left, left]
    other("-D", "-u", "skarling")
    # Debian's leaves those in Redis.
    ours("--delete-all-secrets", "-r", "north.gov")
    ours("-g", "-r", "north.gov", "--user-quota", "0")
    assert [_listed(run) for run in programs.values()] == [[set()] * 5] * 2


def _listed(run) -> list[set[str]]:
    """Everything that a program lists."""
    return [set(run(option)) for option in ("-l", "-S", "-I", "-L", "-G")]


def _realm(hosts, server: Server, origin: str) -> str:
    return turn.realm_of_origin(hosts.client, server.ipv4, server.port, origin)


def _write(administer, *command: str, until: tuple[str, set[str]]) -> None:
    """Carries out a command until the database lists what it must then.

    Debian's turnadmin ends well, and has written nothing, where the server is just reading: it neither waits for it nor looks
    at what SQLite says of that.
    """
    option, rows = until

    def is_written() -> bool:
        administer(*command)
        return set(administer(option)) == rows

    waiting.await_condition(is_written, f"a database in which turnadmin {option} finds {rows}")


def _answer(hosts, server: Server, user: str, password: str) -> int | None:
    """The error code of an Allocate request, or of the Refresh request that ends the allocation, or none."""
    return turn.error_of_allocation(hosts.client, server.ipv4, server.port, user, password)
