"""PostgreSQL and MariaDB that hang, and users who are served from the commit on."""

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from harness import binding, sql_databases, topology, turn, waiting
from harness.server import READY, Server


@dataclasses.dataclass(frozen=True)
class _Login:
    """What `turn.Client` has to know of a server and a user."""

    port: int
    user: str
    password: str


@pytest.fixture(scope="module", params=[sql_databases.Postgres, sql_databases.Mariadb], ids=["PostgreSQL", "MariaDB"])
def running(request, hosts, tmp_path_factory):
    with request.param(hosts.relay, tmp_path_factory.mktemp("database")) as database:
        yield database


@pytest.fixture
def database(running):
    running.empty()
    return running


def a_database_that_hangs_delays_nobody_at_start_or_later(hosts, tmp_path, database, servers):
    # MD5 of alice:example.org:wonderland
    key = subprocess.run(["md5sum"], input=f"alice:{Server.realm}:wonderland", capture_output=True, text=True, check=True)
    database.execute(f"insert into turnusers_lt values('{Server.realm}','alice','{key.stdout[:32]}')")
    with contextlib.ExitStack() as stack:
        stack.callback(database.go_on)
        database.hang()
        began = time.monotonic()
        server = _start(stack, servers["turnbuckle"], hosts, tmp_path, database, "--prometheus")
        assert time.monotonic() - began < 10, "it starts without the database"
        assert _page(hosts, "readyz") == "the user database has not been read yet"
        assert _metrics(hosts) == {"turnbuckle_userdb_up": 0}
        assert _bindings_answered(hosts, server) == 20
        assert _answer(hosts, server, Server.user, Server.password) is None, "a user of the configuration is served"
        assert _answer(hosts, server, "alice", "wonderland") == 401
        database.go_on()
        waiting.await_condition(lambda: _answer(hosts, server, "alice", "wonderland") is None, "an allocation for alice")
        # She may have been asked for, before the database was read.
        waiting.await_condition(lambda: "user database: read" in server.output, "a word about the first reading")
        returns = server.output.count("user database: read again")
        assert _page(hosts, "readyz") == "ok"
        metrics = _metrics(hosts)
        assert metrics["turnbuckle_userdb_up"] == 1 and metrics["turnbuckle_userdb_age_seconds"] >= 0
        database.hang()
        waiting.await_condition(lambda: "users stay as they were read last" in server.output, "a word about the database")
        assert _bindings_answered(hosts, server) == 20
        assert _answer(hosts, server, "alice", "wonderland") is None, "a user who was read stays"
        metrics = _metrics(hosts)
        assert metrics["turnbuckle_userdb_up"] == 0 and metrics["turnbuckle_userdb_age_seconds"] > 1
        database.go_on()
        waiting.await_condition(lambda: server.output.count("user database: read again") > returns, "a word about its return")
        assert server.output.count("users stay as they were read last") == 1, server.output
        assert "a-long-secret" not in server.output


def a_configuration_that_is_read_again_holds_beside_the_database_also_while_it_hangs(hosts, tmp_path, database, servers, binary):
    file, control = tmp_path / "relay.conf", tmp_path / "control.sock"

    def reload(content: str) -> dict:
        file.write_text(content)
        command = [binary, "ctl", f"--socket={control}", "--json", "reload"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    database.execute(f"insert into turnusers_lt values('{Server.realm}','alice','{_key('alice', 'wonderland')}')")
    file.write_text("")
    with contextlib.ExitStack() as stack:
        stack.callback(database.go_on)
        server = _start(stack, servers["turnbuckle"], hosts, tmp_path, database, "-c", str(file), f"--control-socket={control}")
        waiting.await_condition(lambda: _answer(hosts, server, "alice", "wonderland") is None, "an allocation for alice")
        assert _answer(hosts, server, "carol", "singer") == 401
        assert reload("user=carol:singer\n") == {"changed": ["user"], "restart_pending": [], "notes": [], "dry_run": False}
        assert _answer(hosts, server, "carol", "singer") is None
        assert _answer(hosts, server, "alice", "wonderland") is None
        # Who comes later is added to the configuration of the moment.
        database.execute(f"insert into turnusers_lt values('{Server.realm}','bob','{_key('bob', 'builder')}')")
        waiting.await_condition(lambda: _answer(hosts, server, "bob", "builder") is None, "an allocation for bob")
        assert _answer(hosts, server, "carol", "singer") is None
        # Secrets count in place of the database's users, and then these again.
        reload("user=carol:singer\nuse-auth-secret\nstatic-auth-secret=a-long-secret\nusers-beside-secrets=false\n")
        waiting.await_condition(lambda: _answer(hosts, server, "bob", "builder") == 401, "a refusal for bob")
        reload("user=carol:singer\n")
        for name, password in (("bob", "builder"), ("alice", "wonderland")):
            # Each may have been asked for before all are read again, so that the one says nothing about the other.
            waiting.await_condition(lambda: _answer(hosts, server, name, password) is None, f"an allocation for {name}")
        database.hang()
        assert reload("user-quota=0\n")["changed"] == ["user"]
        assert _answer(hosts, server, "carol", "singer") == 401
        assert _answer(hosts, server, "alice", "wonderland") is None
        database.go_on()


def calls_go_on_at_once_after_a_kill_while_the_database_hangs_and_a_refresh_waits_for_it(hosts, tmp_path, database, servers):
    database.execute(f"insert into turnusers_lt values('{Server.realm}','alice','{_key('alice', 'wonderland')}')")
    channel = 0x4000
    with contextlib.ExitStack() as stack:
        stack.callback(database.go_on)
        server = _start(stack, servers["turnbuckle"], hosts, tmp_path, database, "--survive", "on")
        waiting.await_condition(lambda: _answer(hosts, server, "alice", "wonderland") is None, "an allocation for alice")
        udp = stack.enter_context(hosts.client.udp(topology.CLIENT_IPV4))
        peer = stack.enter_context(hosts.peer.udp(topology.PEER_IPV4))
        peer.settimeout(waiting.PATIENCE)
        client = turn.Client(udp, server.ipv4, _Login(server.port, "alice", "wonderland"))
        relayed = client.allocate()
        client.bind(channel, peer.getsockname())
        database.hang()
        served = server.output.count(READY)
        os.kill(int(re.findall(r"is the keeper of process (\d+)", server.output)[-1]), signal.SIGKILL)
        waiting.await_condition(lambda: server.output.count(READY) > served, "the next relay")
        assert "requests of its users wait until it is read" in server.output
        udp.sendto(turn.channel_data(channel, b"there"), client.server)
        assert peer.recvfrom(2048)[0] == b"there"
        peer.sendto(b"back", relayed)
        assert client.receive() == (channel, b"back")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            sent = client.requests_sent
            released = pool.submit(client.release)
            waiting.await_condition(lambda: released.done() or client.requests_sent >= sent + 3, "a request that is sent again")
            assert not released.done(), "it is neither granted nor refused"
            database.go_on()
            released.result(waiting.PATIENCE)
        # She is asked for by herself, so she may be released before all users are read.
        waiting.await_condition(lambda: "user database: read" in server.output, "a word about the first reading")
        accounting = server.stop()
        assert accounting.drops["users_due"] >= 2
        assert accounting.difference() == 0


def _page(hosts, name: str) -> str:
    get = "import http.client, sys; c = http.client.HTTPConnection('127.0.0.1', 9641, 10); c.request('GET', sys.argv[1]); print(c.getresponse().read().decode(), end='')"
    command = hosts.relay.argv(sys.executable, "-c", get, f"/{name}")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _metrics(hosts) -> dict[str, float]:
    """What the metrics say about the user database."""
    lines = [line.split() for line in _page(hosts, "metrics").splitlines() if line.startswith("turnbuckle_userdb_")]
    return {name: float(value) for name, value in lines}


def _start(stack, command: str, hosts, tmp_path, database, *options: str) -> Server:
    server = stack.enter_context(Server(command, hosts, tmp_path, (database.option, database.words, *options)))
    stack.callback(lambda: print(server.output[-8000:]))
    server.await_ready()
    return server


def _bindings_answered(hosts, server: Server) -> int:
    """How many of twenty Binding requests are answered while the database hangs. One that waited for the end of its silence, 5 s, would not be among them."""
    return sum(binding.answers(hosts.client, topology.CLIENT_IPV4, server.ipv4, server.port, 4) for _ in range(20))


def _answer(hosts, server: Server, user: str, password: str) -> int | None:
    """The error code of an Allocate request, or of the Refresh request that ends the allocation, or none."""
    with hosts.client.udp(topology.CLIENT_IPV4) as udp:
        client = turn.Client(udp, server.ipv4, _Login(server.port, user, password))
        try:
            client.allocate()
            # The server may notice a change of the database between the two requests.
            client.release()
        except turn.Refused as refused:
            return refused.code
        return None


def a_user_is_served_at_the_first_request_after_the_commit(hosts, tmp_path, database, servers):
    with contextlib.ExitStack() as stack:
        server = _start(stack, servers["turnbuckle"], hosts, tmp_path, database)
        session = stack.enter_context(database.session())
        refused = []
        for number in range(120):
            began = time.monotonic()
            name, password = f"user-{number}", f"password-{number}"
            session.execute(f"insert into turnusers_lt values('{Server.realm}','{name}','{_key(name, password)}')")
            if _answer(hosts, server, name, password) is not None:
                refused.append(number)
            # One address has ten users asked for in a second.
            time.sleep(max(0, began + 0.11 - time.monotonic()))
        server.stop()
        asks = json.loads(server.statistics.read_text())["asks"]
        # The others were read first.
        assert asks["found"] > 60, asks
        # A machine that stands still for 300 ms has a question come to nothing, and who was asked for is refused; nobody else is.
        assert len(refused) <= asks["away"] + asks["late"] + asks["broken"], (refused, asks)


def a_database_that_hangs_is_asked_once_and_delays_nobody_who_is_known(hosts, tmp_path, database, servers):
    database.execute(f"insert into turnusers_lt values('{Server.realm}','alice','{_key('alice', 'wonderland')}')")
    with contextlib.ExitStack() as stack:
        stack.callback(database.go_on)
        server = _start(stack, servers["turnbuckle"], hosts, tmp_path, database)
        waiting.await_condition(lambda: _answer(hosts, server, "alice", "wonderland") is None, "an allocation for alice")
        database.hang()
        for number in range(12):
            assert _answer(hosts, server, f"nobody-{number}", "wonderland") == 401
            assert _answer(hosts, server, "alice", "wonderland") is None
            assert _bindings_answered(hosts, server) == 20
        database.go_on()
        session = stack.enter_context(database.session())
        session.execute(f"insert into turnusers_lt values('{Server.realm}','bob','{_key('bob', 'builder')}')")
        waiting.await_condition(lambda: _answer(hosts, server, "bob", "builder") is None, "an allocation for bob")
        server.stop()
        asks = json.loads(server.statistics.read_text())["asks"]
        # Three wait for an answer that does not come, and then one from time to time: without that rule all would.
        assert asks["away"] + asks["late"] < 12, asks


def _key(name: str, password: str) -> str:
    return hashlib.md5(f"{name}:{Server.realm}:{password}".encode()).hexdigest()
