"""Servers of databases from Debian's packages, each on a folder of its own, for scripts that measure a relay beside them (root)."""

import contextlib
import glob
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

#: coturn's tables, but for what only `turnadmin` reads.
TABLES = (
    "turnusers_lt (realm varchar(127) default '', name varchar(512), hmackey char(128), primary key (realm,name))",
    "turn_secret (realm varchar(127) default '', value varchar(256), primary key (realm,value))",
    "allowed_peer_ip (realm varchar(127) default '', ip_range varchar(256), primary key (realm,ip_range))",
    "denied_peer_ip (realm varchar(127) default '', ip_range varchar(256), primary key (realm,ip_range))",
    "turn_origin_to_realm (origin varchar(127), realm varchar(127), primary key (origin))",
    "turn_realm_option (realm varchar(127) default '', opt varchar(32), value varchar(128), primary key (realm,opt))",
    "oauth_key (kid varchar(128), ikm_key varchar(256), timestamp bigint default 0, lifetime integer default 0, as_rs_alg varchar(64) default '', realm varchar(127), primary key (kid))",
)


class Database:
    """A server of Debian's package, run by the package's user. Users are in coturn's tables but with Redis."""

    def __init__(self, folder):
        self.folder = folder
        os.chmod(folder, 0o755)
        shutil.chown(folder, self.owner, self.owner)
        subprocess.run(self._as_owner(*self._prepare()), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
        self.start()

    def start(self):
        self._process = subprocess.Popen(self._as_owner(*self._command()), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
        while subprocess.run([*self._client(), "select 1"], capture_output=True).returncode != 0:
            if self._process.poll() is not None:
                sys.exit("the database ended")
            time.sleep(0.1)

    def stop(self):
        self._process.send_signal(self._end)
        self._process.wait()

    def fill(self, users, realm, password):
        """Makes coturn's tables, and so many users."""
        for table in TABLES:
            self.execute(f"create table {table}")
        self.execute(self._filling(users, realm, password))

    def add(self, realm, name, key):
        self.execute(f"insert into turnusers_lt values('{realm}','{name}','{key}')")

    def change(self, realm, keys):
        """Gives each of these users another key, each by itself; names and keys come in pairs."""
        self.execute("".join(f"update turnusers_lt set hmackey='{key}' where realm='{realm}' and name='{name}';" for name, key in keys))

    def remove(self, realm, name):
        self.execute(f"delete from turnusers_lt where realm='{realm}' and name='{name}'")

    def execute(self, statement):
        return subprocess.run([*self._client(), statement], check=True, capture_output=True, text=True).stdout

    def hang(self):
        self._signal(signal.SIGSTOP)

    def go_on(self):
        self._signal(signal.SIGCONT)

    def _signal(self, number):
        pid = self._process.pid
        os.kill(pid, number)
        for child in open(f"/proc/{pid}/task/{pid}/children").read().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), number)

    def _as_owner(self, *command):
        return ["setpriv", f"--reuid={self.owner}", f"--regid={self.owner}", "--clear-groups", "env", f"TMPDIR={self.folder}", *command]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go_on()
        self.stop()


class Postgres(Database):
    owner, _end = "postgres", signal.SIGINT
    option = "--psql-userdb=host=127.0.0.1 port=5496 user=turn dbname=postgres sslmode=disable"

    def _filling(self, users, realm, password):
        name = "'user'||lpad(n::text,7,'0')"
        return f"insert into turnusers_lt select '{realm}',{name},md5({name}||':{realm}:{password}') from generate_series(0,{users - 1}) n"

    def kill_connections(self):
        killed = "select count(pg_terminate_backend(pid)) from pg_stat_activity where pid<>pg_backend_pid() and usename='turn'"
        return int(self.execute(killed).split()[0])

    def _prepare(self):
        return [self._program("initdb"), "--no-sync", "-A", "trust", "-U", "turn", "-D", f"{self.folder}/data"]

    def _command(self):
        return [self._program("postgres"), "-D", f"{self.folder}/data", "-h", "127.0.0.1", "-p", "5496", "-k", self.folder, "-c", "fsync=off"]

    def _client(self):
        return ["psql", "-q", "-t", "-h", "127.0.0.1", "-p", "5496", "-U", "turn", "-d", "postgres", "-c"]

    def _program(self, name):
        return sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))[-1]


class Mariadb(Database):
    owner, _end = "mysql", signal.SIGTERM
    option = "--mysql-userdb=host=127.0.0.1 port=3396 user=turn password=a-secret dbname=turn"

    def _filling(self, users, realm, password):
        name = "concat('user',lpad(seq,7,'0'))"
        return f"insert into turnusers_lt select '{realm}',{name},md5(concat({name},':{realm}:{password}')) from seq_0_to_{users - 1}"

    def kill_connections(self):
        others = self.execute("select id from information_schema.processlist where user='turn' and id<>connection_id()").split()
        killed = 0
        for other in others:
            # It may just have gone.
            with contextlib.suppress(subprocess.CalledProcessError):
                self.execute(f"kill connection {other}")
                killed += 1
        return killed

    def _prepare(self):
        users = "".join(f"create user turn@{host} identified by 'a-secret';\ngrant all on turn.* to turn@{host};\n" for host in ("localhost", "'127.0.0.1'"))
        with open(f"{self.folder}/first.sql", "w") as file:
            file.write(f"create database if not exists turn;\n{users.replace('create user', 'create user if not exists')}")
        return ["mariadb-install-db", "--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal", f"--datadir={self.folder}/data"]

    def _command(self):
        files = {"datadir": "data", "socket": "socket", "pid-file": "pid", "init-file": "first.sql"}
        options = [f"--{option}={self.folder}/{name}" for option, name in files.items()]
        return ["mariadbd", "--no-defaults", "--bind-address=127.0.0.1", "--port=3396", "--innodb-flush-log-at-trx-commit=0", *options]

    def _client(self):
        return ["mariadb", "--no-defaults", "--batch", "--skip-column-names", "--host=127.0.0.1", "--port=3396", "--user=turn", "--password=a-secret", "turn", "-e"]


class Redis(Database):
    """What it holds outlives its end in a file of commands."""

    owner, _end = "redis", signal.SIGTERM
    option = "--redis-userdb=ip=127.0.0.1 port=6396"

    def start(self):
        self._process = subprocess.Popen(self._as_owner(*self._command()), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
        # While it reads its file it answers with an error.
        while subprocess.run([*self._client(), "ping"], capture_output=True, text=True).stdout != "PONG\n":
            if self._process.poll() is not None:
                sys.exit("the database ended")
            time.sleep(0.1)

    def fill(self, users, realm, password):
        names = (f"user{number:07}" for number in range(users))
        self._send(((name, hashlib.md5(f"{name}:{realm}:{password}".encode()).hexdigest()) for name in names), realm)

    def add(self, realm, name, key):
        self.change(realm, [(name, key)])

    def change(self, realm, keys):
        self._send(keys, realm)

    def remove(self, realm, name):
        subprocess.run([*self._client(), "del", _key_of(realm, name)], check=True, capture_output=True)

    def kill_connections(self):
        killed = subprocess.run([*self._client(), "client", "kill", "type", "normal", "skipme", "yes"], check=True, capture_output=True, text=True)
        return int(killed.stdout)

    def _send(self, keys, realm):
        commands = "".join(f"SET {_key_of(realm, name)} {key}\n" for name, key in keys)
        subprocess.run([*self._client(), "--pipe"], input=commands, check=True, capture_output=True, text=True)

    def _prepare(self):
        return ["true"]

    def _command(self):
        return ["redis-server", "--port", "6396", "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "no", "--dir", self.folder]

    def _client(self):
        return ["redis-cli", "-p", "6396"]


def _key_of(realm, name):
    return f"turn/realm/{realm}/user/{name}/key"
