"""The log as Debian's rsyslog and systemd's journal read it: both run here, in namespaces of their own, beside a relay and coturn's client."""

import json
import re
import subprocess

import pytest

#: Characters that end a value in one form of the log or another.
USER = 'o\'brien "x" ]\\ ='

#: Where systemd has its journal daemon, which is in no PATH.
JOURNALD = "/lib/systemd/systemd-journald"

#: Its own network, `/dev` and `/run`, so that neither daemon is the machine's. `$1` is the folder, `$2` the binary.
PLACE = r"""
set -e
cd "$1"
ip link set lo up
mkdir dev
for device in null zero random urandom; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mount --rbind dev /dev
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/journal /run/log/journal
daemon=
trap '[ -z "$daemon" ] || kill -9 "$daemon"' EXIT
await() {
    for _ in $(seq 600); do
        if eval "$1"; then return; fi
        sleep 0.1
    done
    echo "not so within a minute: $1" >&2
    exit 1
}
"""

#: One call through the relay, which logs as `$log` says and ends when its sessions have ended.
CALL = r"""
"$2" serve --listening-ip=127.0.0.1 --realm=example.org --user="$3:secret" --allow-loopback-peers --rfc5766-channel-numbers --relay-threads=1 $log >relay.out 2>&1 &
relay=$!
await 'timeout 1 turnutils_stunclient 127.0.0.1 >/dev/null 2>&1 || ! kill -0 $relay 2>/dev/null'
timeout 60 turnutils_uclient -y -c -u "$3" -w secret -n 5 -m 1 -l 100 127.0.0.1 >client.out 2>&1
kill "$relay"
wait "$relay"
"""

RSYSLOG = r"""
cat >rsyslog.conf <<END
module(load="imuxsock" SysSock.UseSpecialParser="off" SysSock.ParseHostname="on")
template(name="record" type="list") {
    property(name="jsonmesg") constant(value="\n")
}
action(type="omfile" file="$PWD/records" template="record")
END
rsyslogd -n -f "$PWD/rsyslog.conf" -i "$PWD/rsyslog.pid" >rsyslog.out 2>&1 &
daemon=$!
await '[ -S /dev/log ]'
"""


def _records(tmp_path, binary, program, begin: str, log: str, end: str) -> str:
    """What the daemon that `begin` starts has kept of a call, as `end` prints it."""
    for name in ("turnutils_uclient", "turnutils_stunclient", "unshare"):
        program(name)
    script = f"{PLACE}\n{begin}\nlog='{log}'\n{CALL}\n{end}\n"
    command = ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", script, "sh", str(tmp_path), str(binary), USER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    outputs = "\n".join(f"{file.name}:\n{file.read_text(errors='replace')}" for file in sorted(tmp_path.glob("*.out")))
    assert done.returncode == 0, f"{done.stderr}\n{outputs}"
    return done.stdout


def _check(session: dict) -> None:
    """The fields of a session of five messages each way."""
    assert session["realm"] == "example.org"
    assert session["transport"] == "UDP"
    assert session["reason"] == "released"
    assert re.fullmatch(r"127\.0\.0\.1:\d+", session["client"])
    assert session["server"] == "127.0.0.1:3478"
    assert re.fullmatch(r"127\.0\.0\.1:\d+", session["relay"])
    assert 0 < int(session["duration_ms"]) < 300_000
    for side in ("client_in", "client_out", "peer_in", "peer_out"):
        assert int(session[side]) >= 5, session
        assert int(session[f"{side}_bytes"]) >= 500, session


def the_journal_has_each_session_with_its_fields(tmp_path, binary, program):
    begin = f"{JOURNALD} >journald.out 2>&1 &\ndaemon=$!\nawait '[ -S /run/systemd/journal/socket ]'"
    query = "journalctl --directory /run/log/journal --output json SYSLOG_IDENTIFIER=turnbuckle"
    # The journal is asked again until it has written what it was sent.
    end = f"await '{query} | grep -q TURN_USER && {query} | grep -q stopped'\n{query}"
    lines = _records(tmp_path, binary, program, begin, "--journald", end)
    entries = [json.loads(line) for line in lines.splitlines()]
    sessions = [entry for entry in entries if "TURN_SESSION" in entry]
    assert len(sessions) == 2, entries
    for entry in sessions:
        assert entry["TURN_USER"] == USER
        assert entry["PRIORITY"] == "6"
        assert entry["_TRANSPORT"] == "journal"
        assert entry["MESSAGE"] == f"session {entry['TURN_SESSION']}: ended, reason: released"
        _check({name.removeprefix("TURN_").lower(): value for name, value in entry.items() if name.startswith("TURN_")})
    assert any(entry["MESSAGE"].startswith("stopped; ") for entry in entries)


@pytest.mark.parametrize("form", ["rfc5424", "json"])
def rsyslog_has_each_session_with_its_fields(tmp_path, binary, program, form):
    program("rsyslogd")
    log = f"--syslog --syslog-facility=LOG_LOCAL3 --log-format={form}"
    lines = _records(tmp_path, binary, program, RSYSLOG, log, "await 'grep -q stopped records'\ncat records")
    records = [json.loads(line) for line in lines.splitlines()]
    records = [record for record in records if record["programname"] == "turnbuckle"]
    assert all(record["syslogfacility"] == "19" for record in records)
    assert any("stopped; " in record["msg"] for record in records)
    if form == "json":
        objects = [json.loads(record["msg"]) for record in records]
        sessions = [each for each in objects if each.get("event") == "session_ended"]
        assert [session["user"] for session in sessions] == [USER] * 2
    else:
        sessions = [_parameters(record["structured-data"]) for record in records if record["msgid"] == "SESSION"]
        assert [session["user"].replace("\\\\", "\\") for session in sessions] == [USER] * 2
    assert len(sessions) == 2, records
    for session in sessions:
        _check(session)


def _parameters(data: str) -> dict[str, str]:
    """The parameters of one element of structured data (RFC 5424 §6.3.3)."""
    assert data.startswith("[session@32473 ") and data.endswith("]")
    found = re.findall(r'([a-z_]+)="((?:[^"\\\]]|\\.)*)"', data)
    return {name: re.sub(r'\\(["\\\]])', r"\1", value) for name, value in found}
