"""Databases of a network, from Debian's packages, each in the relay's namespace on a folder of its own, and by a user that is not root."""

import contextlib
import glob
import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

from harness import pages
from harness.process import Process
from harness.topology import Namespace
from harness.waiting import await_condition

#: A key of an authorization server, as coturn's console writes it: name, key in base64, cipher.
PUT_TOKEN_KEY = "insert into oauth_key (kid,ikm_key,timestamp,lifetime,as_rs_alg,realm) values('{}','{}',0,0,'{}','')"


class Session:
    """A client of a database."""

    def __init__(self, process: subprocess.Popen):
        self._process = process

    def execute(self, statement: str) -> None:
        self._process.stdin.write(f"{statement};\nselect 'done';\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline().strip()
        assert line == "done", line


class Lists:
    """How turnadmin lists what a database has, where that is not the same on all kinds."""

    origin_line = "{} ==>> {}"
    realm_option_line = "{1}[{0}]={2}"


class Database(Lists):
    """A running server; `option` and `letter` name it to turnserver and turnadmin. It is where the page about databases has it, and made as that says."""

    #: Its section of the page.
    heading: str
    option: str
    letter: str
    _owner: str
    #: Has the client print each result at once, and nothing else.
    _unbuffered: list[str]
    #: What ends it without waiting for those who are connected.
    _end: signal.Signals

    def __init__(self, namespace: Namespace, folder: Path):
        self.namespace, self.folder = namespace, folder
        # Whoever owns the server must be able to reach the folder.
        for parent in [folder, *folder.parents]:
            if parent.owner() == pwd.getpwuid(os.getuid()).pw_name and parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)
        shutil.chown(folder, self._owner)
        subprocess.run(self._as_owner(*self._prepare()), check=True, capture_output=True, cwd="/")
        self._process = Process(namespace, *self._as_owner(*self._command()))
        await_condition(self._answers, f"an answer of {self._command()[0]}")
        self.empty()

    @property
    def words(self) -> str:
        """The connection."""
        return pages.value(self.heading, self.option.removeprefix("--"))

    @property
    def server_options(self) -> tuple[str, str]:
        return (self.option, self.words)

    @property
    def turnadmin_options(self) -> tuple[str, str]:
        return (self.letter, self.words)

    def execute(self, statement: str) -> None:
        self._query(statement)

    def _query(self, statement: str) -> str:
        command = self.namespace.argv(*self._client()[:-1], *self._unbuffered, self._client()[-1], statement)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def empty(self) -> None:
        """Has coturn's tables there, without rows."""
        statements = pages.lines("Tables", "sql")
        drops = [f"drop table if exists {statement.split()[2]};" for statement in statements]
        self.execute(" ".join([*drops, *statements]))

    def deny_peer(self, realm: str, peer: str) -> None:
        self.execute(f"insert into denied_peer_ip values('{realm}','{peer}-{peer}')")

    def put_token_key(self, name: str, key: str, cipher: str) -> None:
        self.execute(PUT_TOKEN_KEY.format(name, key, cipher))

    def key(self, realm: str, user: str) -> str:
        return self._query(f"select hmackey from turnusers_lt where realm='{realm}' and name='{user}'")

    @contextlib.contextmanager
    def session(self):
        """A client that stays connected: each statement is committed when `execute` returns."""
        client = self._client()[:-1]
        command = self.namespace.argv(*client, *self._unbuffered)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            yield Session(process)
            process.stdin.close()

    def hang(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *_) -> None:
        self.go_on()
        os.kill(self._process.pid, self._end)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        pid = self._process.pid
        # First the one that makes others.
        os.kill(pid, number)
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            # It may just have ended.
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), number)

    def _answers(self) -> bool:
        if not self._process.running:
            raise RuntimeError(f"the database ended at once:\n{self._process.output}")
        return subprocess.run(self.namespace.argv(*self._client(), "select 1"), capture_output=True).returncode == 0

    def _as_owner(self, *command: str) -> list[str]:
        owner = [f"--reuid={self._owner}", f"--regid={self._owner}", "--clear-groups"]
        # A server of MariaDB deletes the temporary files of others that share the folder.
        return ["setpriv", *owner, "env", f"TMPDIR={self.folder}", *command]

    def _prepare(self) -> list[str]:
        raise NotImplementedError

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _client(self) -> list[str]:
        raise NotImplementedError


class Postgres(Database):
    heading = "PostgreSQL"
    option, letter = "--psql-userdb", "-e"
    _unbuffered = ["-At"]
    _owner, _end = "postgres", signal.SIGINT

    def _prepare(self):
        # As Debian's package sets it up: passwords by TCP.
        ways = ["--auth-local=trust", "--auth-host=scram-sha-256"]
        return [_postgres("initdb"), "--no-sync", *ways, "-U", "postgres", "-D", f"{self.folder}/data"]

    def _command(self):
        options = ["-h", "127.0.0.1", "-k", str(self.folder), "-c", "fsync=off"]
        return [_postgres("postgres"), "-D", f"{self.folder}/data", *options]

    def _client(self):
        return ["psql", "-q", "-v", "ON_ERROR_STOP=1", self.words, "-c"]

    def _answers(self):
        first = [word for statement in pages.lines(self.heading, "postgresql") for word in ("-c", statement)]
        create = ["psql", "-q", "-h", str(self.folder), "-U", "postgres", *first, "postgres"]
        # Whatever is there already is an error.
        subprocess.run(self.namespace.argv(*create), capture_output=True)
        return super()._answers()


class Mariadb(Database):
    heading = "MySQL and MariaDB"
    option, letter = "--mysql-userdb", "-M"
    _unbuffered = ["-nN"]
    _owner, _end = "mysql", signal.SIGTERM

    def _prepare(self):
        (self.folder / "first.sql").write_text(pages.block(self.heading, "mysql"))
        options = ["--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"]
        return ["mariadb-install-db", *options, f"--datadir={self.folder}/data"]

    def _command(self):
        files = {"datadir": "data", "socket": "socket", "pid-file": "pid", "init-file": "first.sql"}
        options = [f"--{option}={self.folder}/{name}" for option, name in files.items()]
        return ["mariadbd", "--no-defaults", "--bind-address=127.0.0.1", "--port=3306", *options]

    def _client(self):
        login = ["--host=127.0.0.1", "--port=3306", "--user=turn", "--password=a-long-secret"]
        return ["mariadb", "--no-defaults", *login, "coturn", "-e"]


def _postgres(program: str) -> str:
    """The newest of Debian's; its servers are not in the search path."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{program}"))
    assert found, f"{program} is not installed; scripts/setup test installs it"
    return found[-1]
