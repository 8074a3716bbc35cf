"""Fixtures: the namespaces once per run, a freshly started server per test, and the page of which client works."""

import contextlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.matrix import Matrix, cells_of
from harness.server import NAME, STATISTICS_PLACEHOLDER, Server, is_turnbuckle
from harness.topology import LISTENER_IPV4, LISTENER_IPV6, Topology, Turn, processors, udp_counters, why_unavailable

INTEROP = Path(__file__).parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", INTEROP.parent / "target"))

#: Names that stand for a whole command line.
SERVERS = {
    "turnbuckle": f"{TARGET}/release/turnbuckle serve --statistics-file {STATISTICS_PLACEHOLDER}",
    "coturn": "turnserver -n --no-cli --no-tls --no-dtls --lt-cred-mech --fingerprint --log-file stdout --pidfile /dev/null",
}


def pytest_addoption(parser):
    parser.addoption(
        "--server",
        default=os.environ.get("INTEROP_SERVER", "turnbuckle"),
        help="the server under test: 'turnbuckle' (default), 'coturn', or a command line that takes turnserver's options "
        f"({STATISTICS_PLACEHOLDER} in it stands for the file of the final accounting); also INTEROP_SERVER",
    )
    parser.addoption(
        "--clients",
        metavar="FILE",
        help="write there, as a page, which client worked over which transport; a cell without a test or a reason fails the run",
    )


_MATRIX = pytest.StashKey[Matrix]()
_NOT_RUN = pytest.StashKey[list[str]]()


def pytest_configure(config):
    config.stash[_MATRIX] = Matrix()
    config.stash[_NOT_RUN] = []
    if not _is_worker(config):
        config.pluginmanager.register(_Outcomes(config))


def _is_worker(config) -> bool:
    """Whether this is one of the processes among which pytest-xdist divides a run."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    # Goes with the report to the process that writes the page.
    report.cells = cells_of(item)
    return report


class _Outcomes:
    """Gathers what became of the tests, in the one process that sees all reports."""

    def __init__(self, config):
        self._config = config

    def pytest_runtest_logreport(self, report):
        # A test that fails while its fixtures are made or ended has failed too.
        if report.when == "call" and not report.skipped or report.failed:
            self._config.stash[_MATRIX].record(report.cells, report.passed)
        if report.skipped:
            self._note_not_run(report)

    def _note_not_run(self, report) -> None:
        """Names a test that was not run where `scripts/test` counts them."""
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        self._config.stash[_NOT_RUN].append(report.nodeid)
        if file := os.environ.get("TURNBUCKLE_NOT_RUN"):
            with open(file, "a") as lines:
                lines.write(f"{report.nodeid}: {reason.removeprefix('Skipped: ').removeprefix('not run: ')}\n")


def pytest_sessionfinish(session):
    if _is_worker(session.config):
        return
    # Against another server many tests have nothing to try; ours has to be tried with all of them.
    if session.config.stash[_NOT_RUN] and is_turnbuckle(_command(session.config)) and not os.environ.get("TURNBUCKLE_ALLOW_SKIP"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    file = session.config.getoption("--clients")
    if file and not session.config.option.collectonly:
        matrix = session.config.stash[_MATRIX]
        Path(file).write_text(matrix.page())
        if matrix.contradictions():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if config.stash[_NOT_RUN]:
        terminalreporter.write_line(f"{len(config.stash[_NOT_RUN])} tests were not run; TURNBUCKLE_ALLOW_SKIP=1 passes over them", red=True)
    if config.getoption("--clients"):
        for contradiction in config.stash[_MATRIX].contradictions():
            terminalreporter.write_line(f"{config.getoption('--clients')}: {contradiction}", red=True)


def pytest_collection_modifyitems(items):
    reason = why_unavailable()
    if reason:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"not run: {reason}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    """Waits here for another run to end, because the wait must not count as the first test's time."""
    if session.config.option.collectonly or why_unavailable():
        return (yield)
    _go_first()
    # The workers of a run share its turn, and have namespaces of their own.
    with contextlib.nullcontext() if _is_worker(session.config) else Turn():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Waits here for the processors, because the wait must not count as the test's time."""
    if not _is_worker(item.config):
        return (yield)
    with processors(alone=item.get_closest_marker("alone") is not None):
        return (yield)


def _go_first() -> None:
    """Has what is run from here on go before the machine's other work, where that is allowed: of buffers that hold a second, none runs over."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
        # Where the kernel shares the time out among sessions first, that counts in this one only.
        Path("/proc/self/autogroup").write_text("-10")


def pytest_report_header(config):
    return f"server under test: {_command(config)}"


def _command(config) -> str:
    chosen = config.getoption("--server")
    return SERVERS.get(chosen, chosen)


@pytest.fixture(scope="session")
def hosts():
    with Topology() as hosts:
        yield hosts


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A file with a key and a certificate for the listening addresses and the name, signed by itself."""
    file = tmp_path_factory.mktemp("certificate") / "relay.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-keyout", "/dev/stdout", "-out", "/dev/stdout", "-days", "2", "-subj", "/CN=relay"),
            *("-addext", f"subjectAltName=DNS:{NAME},IP:{LISTENER_IPV4},IP:{LISTENER_IPV6}"),
        ],
        check=True,
        stdout=file.open("wb"),
        stderr=subprocess.DEVNULL,
    )
    return file


@pytest.fixture(scope="session")
def serving(request, hosts, tmp_path_factory):
    """A function that starts the server under test: `with serving(*options, ours=(), secure=False) as server`.

    With `secure` it has a certificate and speaks TLS and DTLS too; the options `ours` are for turnbuckle only. At the end it must stop
    cleanly, and account for every datagram if it can.
    """

    @contextlib.contextmanager
    def started(*options: str, ours: tuple[str, ...] = (), secure: bool = False):
        command = _command(request.config)
        if secure:
            certificate = str(request.getfixturevalue("certificate"))
            options += ("--cert", certificate, "--pkey", certificate)
            command = command.replace(" --no-tls", "").replace(" --no-dtls", "")
            ours += ("--dtls",)
        if is_turnbuckle(command):
            options += ours
        lost_before = {host: udp_counters(host).receive_buffer_full for host in (hosts.client, hosts.peer)}
        with Server(command, hosts, tmp_path_factory.mktemp("server"), options) as server:
            yield server
            accounting = server.stop()
            print(server.output[-8000:])
            print(server.kernel_counters())
            # What clients and peers lost in their own sockets is none of the server's losses.
            for host, before in lost_before.items():
                print(f"{host.name}: {udp_counters(host).receive_buffer_full - before} lost in receive buffers")
            if accounting is not None:
                print(accounting)
                assert accounting.difference() == 0, f"{accounting.difference()} datagrams unaccounted for: {accounting}"

    return started


@pytest.fixture
def starting_server(request, serving):
    """A server just started, as `serving` does it, with what the test's markers `secure` and `for_turnbuckle` say.

    Indirect parameters are options that only turnbuckle has: against another server the test is not run. The options of the
    marker `for_turnbuckle` make turnbuckle do what another server does by default: another server goes without them.
    """
    extra = getattr(request, "param", ())
    if extra and not is_turnbuckle(_command(request.config)):
        pytest.skip(f"not run: {shlex.join(extra)} is an option of turnbuckle alone")
    ours = tuple(option for marker in request.node.iter_markers("for_turnbuckle") for option in marker.args)
    with serving(*extra, ours=ours, secure=request.node.get_closest_marker("secure") is not None) as server:
        yield server


@pytest.fixture(scope="session")
def servers() -> dict[str, str]:
    """The command lines that stand behind names."""
    return SERVERS


@pytest.fixture(scope="session")
def binary() -> Path:
    """The binary that was built, whatever server is under test."""
    return TARGET / "release" / "turnbuckle"


@pytest.fixture
def server(starting_server):
    """A server that answers. Parametrize `starting_server` to give it options."""
    starting_server.await_ready()
    return starting_server


@pytest.fixture(scope="session")
def program():
    """Path of an installed program; `scripts/interop` installs all of them, so a missing one fails the test."""

    def find(name: str) -> str:
        path = shutil.which(name)
        assert path, f"{name} is not installed; scripts/setup test installs it"
        return path

    return find


@pytest.fixture(scope="session")
def coturns_name(tmp_path_factory):
    """Path of turnbuckle under a name, which makes it one of coturn's programs."""
    binary = TARGET.resolve() / "release" / "turnbuckle"
    if not binary.exists():
        pytest.skip(f"not run: {binary} is not built")
    folder = tmp_path_factory.mktemp("names")

    def linked(name: str) -> str:
        path = folder / name
        if not path.exists():
            path.symlink_to(binary)
        return str(path)

    return linked
