"""What Redis is told of sessions (`redis-statsdb`), as MONITOR shows it: beside coturn, with names that are no names, and with a Redis that goes away."""

import base64
import contextlib
import hashlib
import hmac
import re
import time

import pytest

from aioice import stun
from harness import databases, topology, turn, waiting
from harness.process import Process
from harness.server import Server

REALM = Server.realm

#: What the statuses are under, in Redis' way to match.
_STATUSES = "turn/*/allocation/*/status"

#: Time in which the statuses have to be those of the sessions after Redis is back, and in which all are gone when the server stops.
_MENDED_S = 5
_FAREWELL_S = 2


class Watched(databases.Redis):
    """A Redis server of which MONITOR shows every command."""

    def start(self) -> None:
        super().start()
        client = ("redis-cli", "-p", str(self.PORT), "-a", self.PASSWORD, "--no-auth-warning", "MONITOR")
        self._monitor = Process(self.namespace, *client)
        waiting.await_condition(lambda: "OK" in self._monitor.output, "MONITOR")

    def stop(self) -> None:
        super().stop()
        self._monitor.kill()

    def commands(self) -> list[list[str]]:
        """All commands about sessions so far, each as its words."""
        lines = [re.findall(r'"((?:[^"\\]|\\.)*)"', line) for line in self._monitor.output.splitlines()]
        lines = [[words[0].upper(), *words[1:]] for words in lines if words]
        # coturn also tells of connections on which nobody has said who he is.
        of_sessions = [words for words in lines if words[0] in ("SET", "DEL", "PUBLISH") and words[1].startswith("turn/")]
        return [words for words in of_sessions if "/user//" not in words[1]]

    def told(self, end: str) -> list[str]:
        """The messages to channels with this end."""
        return [words[2] for words in self.commands() if words[0] == "PUBLISH" and words[1].endswith(end)]

    def tellers(self) -> set[str]:
        """The connections of servers that have chosen their database, which is not the first: all but that of MONITOR and the one that asks."""
        connections = self.command("CLIENT", "LIST").splitlines()
        return {line.split()[0] for line in connections if line and " db=0 " not in line and " cmd=client|list " not in line}

    def statuses(self) -> set[str]:
        keys = self.command("--raw", "KEYS", _STATUSES)
        return set(keys.splitlines())

    def await_statuses(self, count: int) -> float:
        begun = time.monotonic()
        waiting.await_condition(lambda: len(self.statuses()) == count, f"{count} statuses")
        return time.monotonic() - begun


@pytest.fixture
def redis(hosts, tmp_path):
    with Watched(hosts.relay, tmp_path) as redis:
        yield redis


@pytest.fixture
def starting(hosts, tmp_path, servers, redis):
    """Starts a server that tells Redis of its sessions."""
    with contextlib.ExitStack() as stack:

        def start(*options: str, name: str = "turnbuckle", connect_timeout_s: int = 2) -> Server:
            options = ("--redis-statsdb", redis.words(connect_timeout_s), *options)
            server = stack.enter_context(Server(servers[name], hosts, tmp_path, options))
            server.await_ready()
            return server

        yield start


@pytest.fixture
def client(hosts):
    """Makes clients, each with a port of its own."""
    with contextlib.ExitStack() as stack:

        def make(server: Server, user: str | None = None, password: str | None = None) -> turn.Client:
            udp = stack.enter_context(hosts.client.udp(topology.CLIENT_IPV4))
            login = turn.Login(server.port, user or server.user, password or server.password)
            return turn.Client(udp, server.ipv4, login)

        yield make


def a_call_is_told_in_the_words_and_the_order_of_coturn(redis, starting, client):
    sequences = {}
    for name in ("coturn", "turnbuckle"):
        earlier = redis.tellers()
        server = starting(name=name)
        # Who connects later tells how sessions are by then.
        waiting.await_condition(lambda: redis.tellers() - earlier, "a connection of the server")
        before = len(redis.commands())
        caller = client(server)
        caller.request(stun.Method.ALLOCATE, {"REQUESTED-TRANSPORT": 17 << 24, "LIFETIME": 800})
        caller.request(stun.Method.REFRESH, {"LIFETIME": 700})
        caller.release()
        waiting.await_condition(lambda: redis.told("/total_traffic/peer")[len(sequences) :], "the end of a session")
        sequences[name] = [_plain(words) for words in redis.commands()[before:]]
        server.stop()
    # DEL has an empty word after its key in coturn.
    assert [words for words in sequences["coturn"] if words[0] == "DEL"][0][2:] == [""]
    assert sequences["turnbuckle"] == [words[:2] if words[0] == "DEL" else words for words in sequences["coturn"]]
    assert [words[0] for words in sequences["turnbuckle"]] == ["SET", "PUBLISH"] * 3 + ["PUBLISH"] * 2 + ["DEL"] + ["PUBLISH"] * 3


def _plain(words: list[str]) -> list[str]:
    """Without what differs from run to run: the number of the session, the client's port, and how much a server has counted."""
    words = [re.sub(r"/allocation/\d{18}/", "/allocation/N/", word) for word in words]
    words = [re.sub(r"(remote=[\d.]+):\d+", r"\1:P", word) for word in words]
    return [re.sub(r"((?:rcv|sent)[pb])=\d+", r"\1=N", word) for word in words]


def a_call_that_is_over_before_redis_answers_is_told_all_the_same(redis, starting, client):
    with redis.paused():
        server = starting(connect_timeout_s=waiting.PATIENCE)
        caller = client(server)
        caller.allocate()
        caller.release()
    waiting.await_condition(lambda: redis.told("/total_traffic/peer"), "the end of the session")
    told = redis.told("/status")
    assert [text.split()[0] for text in told] == ["new", "refreshed", "deleted"], told


def traffic_is_told_after_4096_datagrams_and_the_sum_at_the_end(hosts, redis, starting, client):
    server = starting()
    caller = client(server)
    caller.allocate()
    with hosts.peer.udp(topology.PEER_IPV4) as peer:
        caller.bind(0x4000, peer.getsockname())
        for number in range(4100):
            caller.udp.sendto(turn.channel_data(0x4000, number.to_bytes(4, "big")), caller.server)
            peer.settimeout(waiting.PATIENCE)
            peer.recv(16)
    waiting.await_condition(lambda: redis.told("/traffic"), "a report after 4,096 datagrams")
    assert redis.statuses(), "the session is not over"
    caller.release()
    waiting.await_condition(lambda: redis.told("/total_traffic/peer"), "the end of the session")
    client_side, peer_side = ([_numbers(text) for text in redis.told(end)] for end in ("/traffic", "/traffic/peer"))
    assert [sum(column) for column in zip(*client_side, strict=True)] == [4100, 4100 * 8, 0, 0]
    assert [sum(column) for column in zip(*peer_side, strict=True)] == [0, 0, 4100, 4100 * 4]
    assert _numbers(redis.told("/total_traffic")[0]) == [4100, 4100 * 8, 0, 0]


def _numbers(text: str) -> list[int]:
    found = re.fullmatch(r"rcvp=(\d+), rcvb=(\d+), sentp=(\d+), sentb=(\d+)", text)
    return [int(number) for number in found.groups()]


def a_name_that_is_a_command_or_a_format_stays_a_name(redis, starting, client):
    redis.command("SET", "canary", "sings")
    server = starting("--use-auth-secret", "--static-auth-secret", "hush")

    def call(name: str) -> None:
        user = f"{int(time.time()) + 600}:{name}"
        password = base64.b64encode(hmac.digest(b"hush", user.encode(), hashlib.sha1)).decode()
        client(server, user, password).allocate()

    names = ["%n%n%s%x", "*1 $8 FLUSHALL", 'x" "y', "../../status", "a/allocation/1/status", "<img src=x onerror=alert(1)>"]
    for name in names:
        call(name)
    redis.await_statuses(len(names))
    told = {words[1].replace("\\", "") for words in redis.commands() if words[0] == "SET"}
    for name in names:
        assert any(f":{name}/allocation/0" in key for key in told), (name, told)
    # Names with control characters are nobody's, so not even a server that reads lines would be told of them.
    for name in ("a\r\nFLUSHALL\r\n", "*1\r\n$8\r\nFLUSHALL\r\n"):
        with pytest.raises(turn.Refused) as refused:
            call(name)
        assert refused.value.code == 401
    assert redis.command("GET", "canary") == "sings"
    assert len(redis.statuses()) == len(names)


def only_statuses_of_this_server_are_deleted_and_at_its_stop_all_of_them(redis, starting, client):
    def status(number: int, local: str) -> None:
        key = f"turn/realm/{REALM}/user/alice/allocation/{number:018}/status"
        redis.command("SET", key, f"new lifetime=600, type=UDP, local={local}, remote=192.0.2.1:1, ssl=NONE, cipher=NONE")

    status(1, f"{topology.LISTENER_IPV4}:{Server.port}")
    status(2, f"{topology.LISTENER_IPV4}:3479")
    status(3, "198.51.100.1:3478")
    server = starting()
    redis.await_statuses(2)
    assert all("/00000000000000000" in key for key in redis.statuses())
    for _ in range(5):
        client(server).allocate()
    redis.await_statuses(7)
    deleted = len(redis.told("/status"))
    begun = time.monotonic()
    server.stop()
    assert time.monotonic() - begun < _FAREWELL_S
    assert len(redis.statuses()) == 2
    assert redis.told("/status")[deleted:] == ["deleted"] * 5


@pytest.mark.parametrize("absence", ["paused", "restarted"])
def after_redis_was_away_the_statuses_are_those_of_the_sessions(redis, starting, client, absence):
    server = starting()
    stays, ends = client(server), client(server)
    for caller in (stays, ends):
        caller.allocate()
    redis.await_statuses(2)
    begins, short = client(server), client(server)

    def meanwhile() -> None:
        ends.release()
        begins.allocate()
        short.allocate()
        short.release()
        waiting.await_condition(lambda: "statuses are mended when it is back" in server.output, "a line about Redis")

    if absence == "paused":
        with redis.paused():
            meanwhile()
    else:
        redis.stop()
        meanwhile()
        redis.start()
    begun = time.monotonic()
    ports = {caller.udp.getsockname()[1] for caller in (stays, begins)}

    def remotes() -> set[int]:
        values = [redis.command("GET", key) for key in redis.statuses()]
        return {int(found[1]) for value in values if (found := re.search(r"remote=[\d.]+:(\d+)", value))}

    waiting.await_condition(lambda: remotes() == ports, "the statuses of the sessions")
    assert time.monotonic() - begun < _MENDED_S
    port = begins.udp.getsockname()[1]
    waiting.await_condition(
        lambda: any(text.startswith("new ") and f":{port}," in text for text in redis.told("/status")), "a message of what has begun"
    )
    waiting.await_condition(lambda: server.output.count("is told of sessions") == 2, "a line that it is back")
    assert redis.PASSWORD not in server.output
