"""A user database in Redis that goes away, comes back, hangs, refuses, and is emptied."""

import contextlib
import json
import time

import pytest

from harness import binding, databases, topology, turn, waiting
from harness.server import Server

REALM = Server.realm

_COTURN_LOOKS_EVERY_S = 5


@pytest.fixture
def redis(hosts, tmp_path):
    with databases.Redis(hosts.relay, tmp_path) as redis:
        yield redis


@pytest.fixture
def starting(hosts, tmp_path, servers):
    """Starts our server with more options."""
    with contextlib.ExitStack() as stack:

        def start(*options: str) -> Server:
            return stack.enter_context(Server(servers["turnbuckle"], hosts, tmp_path, options))

        yield start


def changes_take_effect_sooner_than_the_next_look_of_coturn_and_flushdb_removes_all(hosts, redis, starting):
    server = starting(*redis.server_options)
    server.await_ready()
    _add(redis, "alice")
    took = _until(lambda: _error(hosts, server, "alice") is None)
    assert took < _COTURN_LOOKS_EVERY_S, f"a new user after {took} s"
    redis.command("DEL", f"turn/realm/{REALM}/user/alice/key")
    took = _until(lambda: _error(hosts, server, "alice") == 401)
    assert took < _COTURN_LOOKS_EVERY_S, f"a removal after {took} s"
    _add(redis, "alice")
    _until(lambda: _error(hosts, server, "alice") is None)
    redis.command("FLUSHDB")
    took = _until(lambda: _error(hosts, server, "alice") == 401)
    assert took < _COTURN_LOOKS_EVERY_S, f"a removal of all after {took} s"


def a_user_is_served_at_the_first_request_after_the_write(hosts, redis, starting):
    server = starting(*redis.server_options)
    server.await_ready()
    refused = []
    for number in range(40):
        began = time.monotonic()
        _add(redis, f"user-{number}")
        if _error(hosts, server, f"user-{number}") is not None:
            refused.append(number)
        # One address has ten users asked for in a second.
        time.sleep(max(0, began + 0.11 - time.monotonic()))
    server.stop()
    asks = json.loads(server.statistics.read_text())["asks"]
    # Who was asked for while the machine stood still for 300 ms is refused; nobody else is.
    assert len(refused) <= asks["away"] + asks["late"] + asks["broken"], (refused, asks)


def users_stay_while_the_database_is_away_and_changes_count_when_it_is_back(hosts, redis, starting):
    _add(redis, "alice")
    server = starting(*redis.server_options)
    server.await_ready()
    assert _error(hosts, server, "alice") is None
    redis.stop()
    waiting.await_condition(lambda: "users stay as they were read last" in server.output, "a line about the database")
    assert _error(hosts, server, "alice") is None
    assert _error(hosts, server, Server.user, Server.password) is None
    redis.start()
    _add(redis, "bob")
    _until(lambda: _error(hosts, server, "bob") is None)
    _until(lambda: _error(hosts, server, "alice") == 401)
    assert server.output.count("users stay as they were read last") == 1
    assert redis.PASSWORD not in server.output


def a_database_that_hangs_at_the_start_stops_nobody_else(hosts, redis, starting):
    _add(redis, "alice")
    with redis.paused():
        server = starting(*redis.server_options)
        server.await_ready()
        assert "it serves nobody until it is read" in server.output
        assert binding.answers(hosts.client, topology.CLIENT_IPV4, server.ipv4, server.port, waiting.PATIENCE)
        assert _error(hosts, server, Server.user, Server.password) is None
        assert _error(hosts, server, "alice") == 401
    _until(lambda: _error(hosts, server, "alice") is None)


def a_wrong_password_ends_the_start_and_is_not_shown(redis, starting):
    words = redis.server_options[1].replace(redis.PASSWORD, "hunter2")
    server = starting("--redis-userdb", words)
    waiting.await_condition(lambda: "the server refuses the name and the password" in server.output, "a refusal")
    assert "hunter2" not in server.output


def the_host_of_the_database_is_nobodys_peer(hosts, redis, starting):
    redis.command("CONFIG", "SET", "bind", f"127.0.0.1 {topology.LISTENER_IPV4}")
    words = redis.server_options[1].replace("127.0.0.1", topology.LISTENER_IPV4)
    server = starting("--redis-userdb", words, "--allowed-peer-ip", topology.LISTENER_IPV4)
    server.await_ready()
    with hosts.client.udp(topology.CLIENT_IPV4) as udp:
        client = turn.Client(udp, server.ipv4, server)
        client.allocate()
        with pytest.raises(turn.Refused) as refused:
            client.permit((topology.LISTENER_IPV4, redis.PORT))
        assert refused.value.code == 403


def _add(redis: databases.Redis, user: str) -> None:
    redis.command("SET", f"turn/realm/{REALM}/user/{user}/key", databases.key_of(REALM, user, "wonderland"))


def _until(condition) -> float:
    begun = time.monotonic()
    waiting.await_condition(condition, "an effect of what was written")
    return time.monotonic() - begun


def _error(hosts, server: Server, user: str, password: str = "wonderland") -> int | None:
    return turn.error_of_allocation(hosts.client, server.ipv4, server.port, user, password)
