//! The laboratory: its report, and that nothing stays behind whatever ends it.
//!
//! Where the instruments themselves are not the point, a script stands in for `turnbuckle load` and `turnbuckle peer`.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use tempfile::TempDir;

mod not_run;

use not_run::not_run;

/// What the stand-in reports: 100 sent, 98 back, 2 lost in a window of a second.
const INSTRUMENTS: &str = r#"#!/bin/sh
mode=$1
echo "$*" >> "$0.log"
case $mode in
peer)
    trap 'echo "{\"event\":\"snapshot\",\"received_datagrams\":$n,\"sent_datagrams\":$n}"; n=$((n + 100))' USR1
    trap 'echo "{\"event\":\"result\"}"; exit 0' INT TERM
    n=0
    echo '{"event":"ready"}'
    while :; do sleep 0.05; done ;;
load)
    echo '{"event":"ready","clients":4}'
    echo '{"event":"measuring"}'
    sleep WINDOW
    echo '{"event":"measured"}'
    echo '{"event":"result","seconds":1,"clients":4,"clients_failed":0,"sent_datagrams":100,"received_datagrams":98,"lost":2,"send_pps":100.0,"recv_pps":98.0,"latency_us":{"p50":10.0,"p90":11.0,"p99":12.0,"p99_9":13.0,"p99_99":14.0,"max":15.0}}' ;;
esac
"#;

fn instruments(folder: &Path, window: &str) -> PathBuf {
    let path = folder.join("instruments");
    fs::write(&path, INSTRUMENTS.replace("WINDOW", window)).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    path
}

/// Returns hosts that are this machine, with the stand-in for instruments.
fn stand_in_hosts(instruments: &Path) -> String {
    let program = instruments.display();
    format!(
        "arrival = 'offloads'\n[load]\nturnbuckle = '{program}'\ncpus = '0'\n[relay]\naddress = '127.0.0.1'\ncpus = '0'\n\
         [peer]\naddress = '127.0.0.1'\nturnbuckle = '{program}'\ncpus = '0'\n"
    )
}

fn bench() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnbuckle"));
    command.arg("bench").stdin(Stdio::null());
    command
}

/// Keeps the tests that bring hosts up apart, those of other programs too: there is one laboratory to a machine, and a run changes settings of the machine.
/// The file is locked until it is dropped.
fn laboratory() -> File {
    fs::create_dir_all(STATE_DIRECTORY).expect("made by root");
    let file = File::create(Path::new(STATE_DIRECTORY).join("tests")).expect("opened");
    file.lock().expect("locked");
    file
}

fn namespaces_can_be_had() -> bool {
    let can = Uid::effective().is_root()
        && Command::new("ip")
            .args(["netns", "list"])
            .output()
            .is_ok_and(|output| output.status.success());
    if !can {
        not_run("network namespaces need root and iproute2");
    }
    can
}

/// Waits for what must come about; how long it takes is not judged.
fn wait_until(what: &str, come_about: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !come_about() {
        assert!(Instant::now() < deadline, "{what} did not come about");
        thread::sleep(Duration::from_millis(50));
    }
}

fn files_of(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

#[test]
fn a_run_over_named_machines_leaves_a_complete_report() {
    let folder = TempDir::new().expect("a folder");
    let instruments = instruments(folder.path(), "1");
    let scenario = folder.path().join("plain.toml");
    fs::write(
        &scenario,
        "title = 'Stand-ins'\nquestion = 'instruments'\ndirect = true\narrivals = ['offloads']\nload = 'rate --rate 100'\n\
         warm_up_s = 0\nwindow_s = 1\nrounds = 2\nmetrics = ['loss_percent', 'p99_us']\n",
    )
    .expect("written");
    let hosts = folder.path().join("hosts.toml");
    fs::write(&hosts, stand_in_hosts(&instruments)).expect("written");
    let report = folder.path().join("report");
    let run = |more: &[&str]| {
        let output = bench()
            .arg(&scenario)
            .args(["--server", "turnbuckle"])
            .arg("--hosts")
            .arg(&hosts)
            .arg("--into")
            .arg(&report)
            .args(more)
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
    };
    run(&[]);
    assert_eq!(
        files_of(&report),
        [
            "README.md",
            "env.json",
            "raw.csv",
            "report.html",
            "summary.md"
        ]
    );
    let raw = fs::read_to_string(report.join("raw.csv")).expect("raw.csv");
    assert_eq!(raw.lines().count(), 3, "a header and two rounds: {raw}");
    let summary = fs::read_to_string(report.join("summary.md")).expect("summary.md");
    assert!(
        summary.contains("4 of 200"),
        "losses of both rounds: {summary}"
    );
    assert!(summary.contains("2.00 [2.00-2.00]"), "percent: {summary}");
    let html = fs::read_to_string(report.join("report.html")).expect("report.html");
    assert!(html.contains("<svg"), "a plot");
    for outside in ["<script", "<link", "src=", "@import"] {
        assert!(!html.contains(outside), "{outside} would not open offline");
    }
    // Further rounds follow those that there are, so that no two servers of different hours meet in one.
    run(&["--rounds", "1", "--window", "0.5"]);
    let raw = fs::read_to_string(report.join("raw.csv")).expect("raw.csv");
    let rounds: Vec<String> = rows(&raw).iter().map(|row| row["round"].clone()).collect();
    assert_eq!(rounds, ["1", "2", "3"]);
}

#[test]
fn commands_can_be_printed_to_be_started_by_hand() {
    let output = bench()
        .args(["flood-1", "--server", "coturn", "--print-commands"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for part in [
        "relay $ turnserver -n --listening-ip 10.99.1.2",
        "peer  $ ",
        "load  $ ",
        "load packet --clients 1 --size 120 --server 10.99.1.2:3478 --user bench:turnbuckle-bench --peer 10.99.2.1:3480",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Else bulk fills the socket that the calls' datagrams wait in, and its delay counts as the relay's.
#[test]
fn what_runs_beside_the_calls_has_a_reflector_of_its_own() {
    let output = bench()
        .args(["masque-mixed", "--server", "turnbuckle-masque"])
        .arg("--print-commands")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let of = |line: &str, after: &str| {
        let (_, rest) = line.split_once(after)?;
        rest.split(' ').next().map(str::to_owned)
    };
    let listens: Vec<_> = text
        .lines()
        .filter_map(|line| of(line, "--listen "))
        .collect();
    assert_eq!(listens, ["10.99.2.1:3480", "10.99.2.1:3481"], "{text}");
    let peer_of = |words: &str| {
        let line = text.lines().find(|line| line.contains(words));
        of(line.expect(words), "--peer ").expect("a peer")
    };
    assert_eq!(peer_of("load mix "), listens[0], "{text}");
    assert_eq!(peer_of("load packet "), listens[1], "{text}");

    // And a run starts both.
    let folder = TempDir::new().expect("a folder");
    let instruments = instruments(folder.path(), "1");
    let scenario = folder.path().join("beside.toml");
    fs::write(
        &scenario,
        "title = 'Stand-ins'\nquestion = 'beside'\ndirect = true\narrivals = ['offloads']\nload = 'mix'\nmeanwhile = 'packet'\n\
         meanwhile_peer = 'reflect'\nwarm_up_s = 0\nwindow_s = 1\nrounds = 1\nmetrics = ['p99_beside_quiet']\n",
    )
    .expect("written");
    let hosts = folder.path().join("hosts.toml");
    fs::write(&hosts, stand_in_hosts(&instruments)).expect("written");
    let report = folder.path().join("report");
    let output = bench()
        .arg(&scenario)
        .args(["--server", "turnbuckle"])
        .arg("--hosts")
        .arg(&hosts)
        .arg("--into")
        .arg(&report)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let started = fs::read_to_string(folder.path().join("instruments.log")).expect("a log");
    for words in [
        "peer reflect --listen 127.0.0.1:3480",
        "peer reflect --listen 127.0.0.1:3481",
        "load packet --peer 127.0.0.1:3481",
        "load mix --peer 127.0.0.1:3480",
    ] {
        assert!(started.contains(words), "{words}: {started}");
    }
    let raw = fs::read_to_string(report.join("raw.csv")).expect("raw.csv");
    // That of the calls' reflector alone.
    assert_eq!(rows(&raw)[0]["peer_received"], "100", "{raw}");
}

#[test]
fn cpus_that_are_not_there_are_refused_with_those_that_are() {
    let output = bench()
        .args(["smoke", "--load-cpus", "0,1023"])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("--load-cpus 0,1023: this machine has the CPUs 0"),
        "{said}"
    );
}

/// A run in namespaces whose load never ends.
struct Endless {
    child: Child,
    folder: TempDir,
}

const NAMESPACES: [&str; 3] = ["tb-lab-load", "tb-lab-relay", "tb-lab-peer"];
const BACKLOG: &str = "/proc/sys/net/core/netdev_max_backlog";
const STATE_DIRECTORY: &str = "/run/turnbuckle-lab";
const RECORD: &str = "/run/turnbuckle-lab/undo.sh";

impl Endless {
    /// Starts it and waits until its server runs.
    fn start() -> Self {
        let folder = TempDir::new().expect("a folder");
        let instruments = instruments(folder.path(), "600");
        let child = bench()
            .args(["smoke", "--server", "turnbuckle", "--rounds", "1"])
            .arg("--instruments")
            .arg(&instruments)
            .arg("--into")
            .arg(folder.path().join("report"))
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let started = Self { child, folder };
        let sign = started.folder.path().display().to_string();
        wait_until("a load in its namespace", || {
            in_namespace("tb-lab-load").iter().any(|pid| {
                fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&sign))
            })
        });
        started
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("a process");
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn in_namespace(name: &str) -> Vec<String> {
    Command::new("ip")
        .args(["netns", "pids", name])
        .output()
        .map(|output| {
            String::from_utf8_lossy(&output.stdout)
                .split_whitespace()
                .map(str::to_owned)
                .collect()
        })
        .unwrap_or_default()
}

fn is_there(namespace: &str) -> bool {
    Path::new("/run/netns").join(namespace).exists()
}

fn backlog() -> String {
    fs::read_to_string(BACKLOG).expect("a setting")
}

fn nothing_is_left() -> bool {
    !Path::new(RECORD).exists() && !NAMESPACES.into_iter().any(is_there)
}

#[test]
fn nothing_stays_behind_whatever_ends_a_run() {
    if !namespaces_can_be_had() {
        return;
    }
    let _laboratory = laboratory();
    let before = backlog();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let mut run = Endless::start();
        assert!(NAMESPACES.into_iter().all(is_there));
        let scratch = std::env::temp_dir().join(format!("turnbuckle-lab-{}", run.child.id()));
        assert!(scratch.exists());
        let programs: Vec<String> = NAMESPACES.into_iter().flat_map(in_namespace).collect();
        run.signal(signal);
        let status = run.child.wait().expect("an end");
        assert!(!status.success());
        wait_until("the end of namespaces", nothing_is_left);
        for pid in programs {
            wait_until("the end of a program", || {
                fs::read_to_string(format!("/proc/{pid}/stat"))
                    .map_or(true, |stat| stat.contains(") Z "))
            });
        }
        assert_eq!(backlog(), before, "after {signal}");
        wait_until("the end of its directory", || !scratch.exists());
    }

    // The janitor is killed with the runner: the next start finds what is left.
    let mut run = Endless::start();
    let janitor = janitor();
    run.signal(Signal::SIGKILL);
    kill(Pid::from_raw(janitor), Signal::SIGKILL).expect("a process");
    run.child.wait().expect("an end");
    assert!(Path::new(RECORD).exists() && is_there("tb-lab-relay"));
    let folder = TempDir::new().expect("a folder");
    let output = bench()
        .args(["smoke", "--server", "turnbuckle", "--rounds", "1"])
        .arg("--instruments")
        .arg(instruments(folder.path(), "0.1"))
        .arg("--into")
        .arg(folder.path().join("report"))
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("an earlier run left behind"), "{said}");
    assert!(output.status.success(), "{said}");
    wait_until("the end of namespaces", nothing_is_left);
    assert_eq!(backlog(), before);
}

/// Servers that do not do what a scenario needs have no figures, and what they leave behind keeps no run from its end.
#[test]
fn a_server_that_is_no_server_or_refuses_clients_is_reported_and_holds_nothing_up() {
    if !namespaces_can_be_had() {
        return;
    }
    let _laboratory = laboratory();
    let folder = TempDir::new().expect("a folder");
    let servers = folder.path().join("servers.toml");
    let ours = "{turnbuckle} serve --listening-ip {listen} --listening-port {port} --relay-ip {relay} --user {user}:{password} \
                --realm {realm} --relay-threads {threads} --no-tcp";
    fs::write(
        &servers,
        format!(
            "[[server]]\nname = 'small'\ncommand = '{ours} --allowed-peer-ip {{peer_net}} --user-quota 2'\n\
             [[server]]\nname = 'closed'\ncommand = '{ours}'\n\
             [[server]]\nname = 'untidy'\ncommand = \"\"\"sh -c 'sleep 3600 & exec {ours} --allowed-peer-ip {{peer_net}}'\"\"\"\n\
             [[server]]\nname = 'dead'\ncommand = 'sh -c \"echo out of order; exit 3\"'\n"
        ),
    )
    .expect("written");
    let report = folder.path().join("report");
    let output = bench()
        .args([
            "smoke",
            "--rounds",
            "1",
            "--window",
            "0.5",
            "--warm-up",
            "0",
        ])
        .args([
            "--server", "small", "--server", "closed", "--server", "untidy", "--server", "dead",
        ])
        .arg("--servers")
        .arg(&servers)
        .arg("--into")
        .arg(&report)
        .output()
        .expect("it runs");
    // One has failed; two have said what they cannot do, which is no failure.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("1 runs gave no figures"), "{said}");
    let raw = fs::read_to_string(report.join("raw.csv")).expect("raw.csv");
    for (server, status, why) in [
        (
            "small",
            "cannot-run",
            "it refused 2 of 4 clients: 486 (2 times)",
        ),
        (
            "closed",
            "cannot-run",
            "it refused 4 of 4 clients: 403 (4 times)",
        ),
        ("untidy", "measured", ""),
        ("dead", "failed", "out of order"),
    ] {
        let rows = rows(&raw);
        let row = rows
            .iter()
            .find(|row| row["server"] == server)
            .expect(server);
        assert_eq!(row["status"], status, "{raw}");
        assert!(row["note"].contains(why), "{raw}");
    }
    let summary = fs::read_to_string(report.join("summary.md")).expect("summary.md");
    assert!(
        summary.contains("cannot run: it refused 2 of 4 clients"),
        "{summary}"
    );
    wait_until("the end of namespaces", nothing_is_left);
}

/// Returns the shell that waits to take everything down.
fn janitor() -> i32 {
    let is_janitor = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
            let line = String::from_utf8_lossy(&line);
            line.starts_with("sh\0-c\0trap") && line.contains(RECORD)
        })
    };
    fs::read_dir("/proc")
        .expect("processes")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(is_janitor)
        .expect("a janitor")
}

/// The whole laboratory with the real instruments, at a rate that any machine carries. Judged by counts, not by speed.
#[test]
fn the_smoke_test_loses_nothing_and_its_sums_agree() {
    if !namespaces_can_be_had() {
        return;
    }
    let _laboratory = laboratory();
    let folder = TempDir::new().expect("a folder");
    let report = folder.path().join("report");
    let mut command = bench();
    command.args(["smoke", "--server", "turnbuckle", "--against", "turnbuckle"]);
    if Command::new("turnserver").arg("--version").output().is_ok() {
        command.args(["--server", "coturn"]);
    }
    let output = command
        .arg("--into")
        .arg(&report)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        files_of(&report),
        [
            "README.md",
            "env.json",
            "raw.csv",
            "report.html",
            "summary.md"
        ]
    );
    let raw = fs::read_to_string(report.join("raw.csv")).expect("raw.csv");
    let rows = rows(&raw);
    assert!(rows.len() >= 2, "{raw}");
    for row in rows {
        let number = |name: &str| row[name].parse::<f64>().expect("a number");
        assert_eq!(row["status"], "measured", "{row:?}");
        let (sent, received, lost) = (
            number("sent_datagrams"),
            number("received_datagrams"),
            number("lost"),
        );
        assert!(sent > 0.0, "{row:?}");
        assert_eq!(sent, received + lost, "{row:?}");
        // A machine busy with other tests may starve a program for a second, and its socket overflows: the kernel counts that. More than a few that nobody has
        // counted are a bug.
        let dropped = ["load", "relay", "peer"].map(|host| {
            number(&format!("{host}_socket_drops")) + number(&format!("{host}_link_drops"))
        });
        let dropped = dropped.iter().sum::<f64>() + number("backlog_drops");
        assert!(lost <= dropped + sent * 0.01, "{row:?}");
        assert_eq!(number("corrupted"), 0.0, "{row:?}");
        assert_eq!(number("clients_failed"), 0.0, "{row:?}");
        // Both ways through the relay: the windows of counters and load differ by moments, not by half.
        assert!(number("packets_out") > sent, "{row:?}");
        assert!(number("server_cpu_s") > 0.0 && number("server_rss_kib") > 0.0);
    }
}

/// Returns the values by column of a CSV file none of whose values has a quote.
fn rows(raw: &str) -> Vec<std::collections::BTreeMap<String, String>> {
    let mut lines = raw.lines();
    let names: Vec<&str> = lines.next().expect("a header").split(',').collect();
    lines
        .map(|line| {
            names
                .iter()
                .map(|name| (*name).to_owned())
                .zip(line.split(',').map(str::to_owned))
                .collect()
        })
        .collect()
}

/// Scenarios about connections with the real programs. Judged by counts, not by speed.
#[test]
fn connections_are_counted_in_every_cell_and_a_shortage_of_descriptors_loses_none() {
    if !namespaces_can_be_had() {
        return;
    }
    let _laboratory = laboratory();
    let folder = TempDir::new().expect("a folder");
    let common = "arrivals = ['offloads']\nwarm_up_s = 0.2\nrounds = 1\n";
    let scenarios = [
        (
            "strategies",
            "window_s = 0.5\ntitle = 'Strategies'\nquestion = 'connections'\nload = '-i 4 --close rst'\nservers = ['accept-shared', 'accept-cpu']\n\
             metrics = ['connections_per_second', 'cpu_us_per_connection']\n\
             [connections]\nplaces = ['loopback', 'namespaces']\nworkers = ['2']\nall_cpus = true\n",
        ),
        (
            "calls",
            "window_s = 0.5\ntitle = 'Calls'\nquestion = 'storm'\nload = 'mix --clients 4 --rate 50'\nservers = ['turnbuckle']\nmetrics = ['p99_beside_quiet']\n\
             [connections.variants]\nresets = '-i 1 -c 4 --close rst'\n",
        ),
        (
            "descriptors",
            "window_s = 3\ntitle = 'Descriptors'\nquestion = 'shortage'\nload = '--tls --binding -i 30 --close rst'\nservers = ['turnbuckle']\n\
             metrics = ['connections_lost']\n[[bar]]\nserver = 'turnbuckle'\nmetric = 'connections_lost'\nat_most = 0\n\
             [connections]\nshortage_s = 0.3\nport = 5349\n",
        ),
    ];
    let report = folder.path().join("report");
    let mut command = bench();
    for (name, text) in scenarios {
        let path = folder.path().join(format!("{name}.toml"));
        // Before the tables, which begin a line.
        let at = text.find("\n[").map_or(text.len(), |at| at + 1);
        fs::write(&path, format!("{}{common}{}", &text[..at], &text[at..])).expect("written");
        command.arg(&path);
    }
    // A second call goes on with the next round.
    for _ in 0..2 {
        let output = command
            .args(["--into"])
            .arg(&report)
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
        command = bench();
        command.arg(folder.path().join("calls.toml"));
    }
    let page = fs::read_to_string(report.join("README.md")).expect("a page");
    for part in [
        "| loopback, 2 workers | shared |",
        "| namespaces, 2 workers | cpu |",
        "Failed connects: 0. Runs in which accepting met an error: 0.",
        "| turnbuckle | resets |",
        "bar at most 0: met",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let rows = fs::read_to_string(report.join("raw.csv")).expect("records");
    let rounds = |round: &str| rows.lines().filter(|row| row.contains(round)).count();
    assert_eq!(rounds("calls,offloads,,turnbuckle,1,measured"), 1, "{rows}");
    assert_eq!(rounds("calls,offloads,,turnbuckle,2,measured"), 1, "{rows}");
    let html = fs::read_to_string(report.join("report.html")).expect("a page");
    assert!(html.contains("loopback, by workers"));
}
