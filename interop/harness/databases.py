"""User databases for a server in the relay namespace: what names them on command lines, and how a test writes to them past turnadmin."""

import contextlib
import hashlib
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

from harness import pages, sql_databases, waiting
from harness.process import Process
from harness.topology import Namespace


class Sqlite(sql_databases.Lists):
    """A file."""

    def __init__(self, namespace: Namespace, folder: Path):
        self.namespace = namespace
        self.path = folder / "turndb"
        self.server_options = ("--userdb", str(self.path))
        self.turnadmin_options = ("-b", str(self.path))

    def __enter__(self) -> "Sqlite":
        return self

    def __exit__(self, *_) -> None:
        pass

    def empty(self) -> None:
        self.path.unlink(missing_ok=True)

    def deny_peer(self, realm: str, peer: str) -> None:
        with contextlib.closing(sqlite3.connect(self.path, timeout=waiting.PATIENCE)) as connection, connection:
            connection.execute("insert into denied_peer_ip values(?, ?)", (realm, f"{peer}-{peer}"))

    def put_token_key(self, name: str, key: str, cipher: str) -> None:
        with contextlib.closing(sqlite3.connect(self.path, timeout=waiting.PATIENCE)) as connection, connection:
            (table,) = [line for line in pages.lines("Tables", "sql") if line.startswith("create table oauth_key")]
            connection.execute(table.replace("create table", "create table if not exists"))
            connection.execute(sql_databases.PUT_TOKEN_KEY.format(name, key, cipher))

    def key(self, realm: str, user: str) -> str:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            query = "select hmackey from turnusers_lt where realm=? and name=?"
            return connection.execute(query, (realm, user)).fetchone()[0]


class Redis(sql_databases.Lists):
    """A server that Debian packages, on the namespace's loopback interface."""

    realm_option_line = "{}/{} = {}"
    PORT = 6379
    PASSWORD = "open-sesame"

    def __init__(self, namespace: Namespace, folder: Path):
        self.namespace = namespace
        self.folder = folder
        self.server_options = ("--redis-userdb", self.words())
        self.turnadmin_options = ("-N", self.words())
        self._process = None

    def words(self, connect_timeout_s: int = 2) -> str:
        """What names it on command lines."""
        return f"ip=127.0.0.1 port={self.PORT} dbname=3 password={self.PASSWORD} connect_timeout={connect_timeout_s}"

    def __enter__(self) -> "Redis":
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self) -> None:
        assert shutil.which("redis-server"), "redis-server is not installed; scripts/setup test installs it"
        self._process = Process(
            self.namespace,
            *("redis-server", "--port", str(self.PORT), "--bind", "127.0.0.1", "--requirepass", self.PASSWORD),
            *("--save", "", "--dir", str(self.folder)),
        )
        waiting.await_condition(lambda: self.namespace.reaches("127.0.0.1", self.PORT), "a Redis server")

    def stop(self) -> None:
        if self._process.running:
            self._process.kill()

    @contextlib.contextmanager
    def paused(self):
        """The server's process takes no part in anything meanwhile."""
        self._process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.signal(signal.SIGCONT)

    def command(self, *words: str) -> str:
        client = self.namespace.argv(
            *("redis-cli", "-p", str(self.PORT), "-a", self.PASSWORD, "--no-auth-warning", "-n", "3"), *words
        )
        done = subprocess.run(client, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def empty(self) -> None:
        self.command("FLUSHALL")

    def deny_peer(self, realm: str, peer: str) -> None:
        self.command("SADD", f"turn/realm/{realm}/denied-peer-ip", f"{peer}-{peer}")

    def put_token_key(self, name: str, key: str, cipher: str) -> None:
        fields = ("ikm_key", key, "timestamp", "0", "lifetime", "0", "as_rs_alg", cipher, "realm", "")
        self.command("HMSET", f"turn/oauth/kid/{name}", *fields)

    def key(self, realm: str, user: str) -> str:
        return self.command("GET", f"turn/realm/{realm}/user/{user}/key")


def key_of(realm: str, user: str, password: str) -> str:
    """The key of a user, as databases hold it."""
    return hashlib.md5(f"{user}:{realm}:{password}".encode()).hexdigest()


KINDS = {"SQLite": Sqlite, "Redis": Redis, "PostgreSQL": sql_databases.Postgres, "MariaDB": sql_databases.Mariadb}
