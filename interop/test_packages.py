"""The Debian packages as Debian's own tools judge them. `scripts/try-packages` installs them and runs the image, which takes minutes."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: The highest exposure that `systemd-analyze security` may find; Debian's coturn.service has 9.0.
EXPOSURE_MAX = 2.0

SERVICES = {"turnbuckle": "turnbuckle.service", "turnbuckle-coturn": "coturn.service"}


@pytest.fixture(scope="module")
def packages(tmp_path_factory, binary) -> dict[str, Path]:
    """The packages by their names, from the binary that the other tests use."""
    folder = tmp_path_factory.mktemp("packages")
    command = ["env", f"TURNBUCKLE={binary}", "scripts/package", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return {Path(line).name.split("_")[0]: Path(line) for line in done.stdout.splitlines()}


def _output(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.stdout + done.stderr


def lintian_finds_no_error(packages, program):
    found = _output(program("lintian"), "--allow-root", "--tag-display-limit", "0", *packages.values())
    assert not re.findall(r"^E: .*", found, re.MULTILINE), found


def what_coturn_is_called_is_in_the_package_that_takes_its_place(packages):
    fields = _output("dpkg-deb", "--field", packages["turnbuckle-coturn"])
    for relation in ("Provides", "Conflicts", "Replaces"):
        assert re.search(rf"^{relation}: coturn$", fields, re.MULTILINE), fields
    content = _output("dpkg-deb", "--contents", packages["turnbuckle-coturn"])
    for name in ("turnserver", "turnadmin", "turnutils_uclient", "turnutils_peer", "turnutils_stunclient", "turnutils_natdiscovery"):
        assert f"./usr/bin/{name} -> turnbuckle\n" in content, content
    # The other package is of use beside coturn.
    assert "coturn" not in _output("dpkg-deb", "--field", packages["turnbuckle"], "Conflicts", "Replaces")


@pytest.mark.parametrize("package", SERVICES)
def a_service_exposes_little_and_has_descriptors_for_many_clients(packages, package, program, tmp_path):
    subprocess.run(["dpkg-deb", "--extract", packages[package], tmp_path], check=True)
    unit = tmp_path / "usr/lib/systemd/system" / SERVICES[package]
    verdict = _output(program("systemd-analyze"), "security", "--offline=yes", unit)
    exposure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", verdict)
    assert exposure and float(exposure[1]) <= EXPOSURE_MAX, verdict
    lines = unit.read_text().splitlines()
    assert "LimitNOFILE=1048576" in lines
    # The relay pins its threads and raises its limit of descriptors, which are calls of this group.
    assert not any(line.startswith("SystemCallFilter=~") and "@resources" in line for line in lines)
    # A thread that hangs has the service started anew; the relay, which is not the main process with survive, may feed the watchdog.
    for line in ("WatchdogSec=60", "NotifyAccess=all", "Restart=on-failure"):
        assert line in lines, line
