//! Addresses that a machine gets after the start, in a network namespace of the relay's own.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};

mod not_run;

use not_run::not_run;

/// How long anything may take that has to come about.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A relay that is killed when dropped, and its lines.
struct Relay {
    child: Child,
    lines: Receiver<String>,
}

impl Relay {
    /// Starts a relay after `setup`, which are commands of a shell in its namespace.
    fn start(setup: &str, options: &str) -> Self {
        let binary = env!("CARGO_BIN_EXE_turnbuckle");
        Self::run(setup, &format!("{binary} serve"), options)
    }

    /// The same with another name of the program.
    fn run(setup: &str, program: &str, options: &str) -> Self {
        let script = format!(
            "ip link set lo up; ip link add net type veth peer name far; ip link set far up; ip link set net up; {setup}
             exec {program} -m 1 --user=a:b --realm=example.org --pin-threads=false {options} 2>&1"
        );
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    /// Runs `ip` in the relay's namespace.
    fn ip(&self, words: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("nsenter")
            .args(["--net", "--target", &pid, "ip"])
            .args(words.split(' '))
            .status();
        assert!(status.expect("nsenter runs").success(), "ip {words}");
    }

    /// Returns all lines up to the first that contains `text`.
    fn until(&self, text: &str) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            let line = self.lines.recv_timeout(TIMEOUT);
            let line = line.unwrap_or_else(|_| panic!("no `{text}` in {seen:#?}"));
            seen.push(line);
            if seen.last().is_some_and(|line| line.contains(text)) {
                return seen;
            }
        }
    }
}

/// Returns whether this process may make a network namespace, and says so if not.
fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        not_run("needs root, for a network namespace");
    }
    is_root
}

impl Drop for Relay {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a process"));
        let _ = kill(pid, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

#[test]
fn listens_on_and_relays_from_an_address_that_comes_later() {
    if !is_root() {
        return;
    }
    let relay = Relay::start("", "");
    let start = relay.until("ready").join("\n");
    assert!(start.contains("only loopback addresses now"), "{start}");
    relay.ip("address add 10.7.7.7/24 dev net");
    let change = [
        relay.until("relaying from 10.7.7.7 from now on"),
        relay.until("listening on TCP 10.7.7.7:3478 from now on"),
    ];
    let change = change.concat().join("\n");
    assert!(
        change.contains("listening on UDP 10.7.7.7:3478 from now on"),
        "{change}"
    );
    // The machine moves to another network.
    relay.ip("address del 10.7.7.7/24 dev net");
    relay.ip("address add 203.0.113.7/24 dev net");
    relay.until("relaying from 203.0.113.7 from now on");
    relay.until("listening on TCP 203.0.113.7:3478 from now on");
}

#[test]
fn listens_only_on_addresses_of_the_given_device() {
    let setup = "ip address add 10.7.7.7/24 dev net";
    let options = "--listening-device=net --relay-device=net";
    if !is_root() {
        return;
    }
    let relay = Relay::start(setup, options);
    let start = relay.until("ready").join("\n");
    assert!(
        start.contains("listening on UDP and TCP 10.7.7.7:3478"),
        "{start}"
    );
    assert!(!start.contains("[::1]"), "{start}");
    let line = "behind a 1:1 NAT write `external-ip=PUBLIC/10.7.7.7`";
    assert!(start.contains(line), "{start}");
    relay.ip("link add other type veth peer name beyond");
    relay.ip("address add 10.8.8.8/24 dev other");
    relay.ip("address add 10.7.7.8/24 dev net");
    let change = relay.until("listening on TCP 10.7.7.8:3478 from now on");
    let is_other = |line: &String| line.contains("10.8.8.8");
    assert!(!change.iter().any(is_other), "{change:?}");
}

#[test]
fn refuses_a_relay_address_that_the_machine_does_not_have() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let name = folder.path().join("turnserver");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_turnbuckle"), &name).expect("linked");
    let socket = folder.path().join("socket");
    let setup = "ip address add 10.7.7.7/24 dev net";
    let options = "--listening-ip=10.7.7.7 --relay-ip=10.9.9.9";
    let why = "cannot relay from 10.9.9.9: ";
    let refused = Relay::start(setup, options).until(why).concat();
    assert!(refused.contains("`relay-ip`: cannot"), "{refused}");
    // As coturn it starts, and is not ready before the address is there.
    let program = format!("{} -n --log-file=stdout --pidfile=pid", name.display());
    let socket_key = format!("--control-socket={}", socket.display());
    let relay = Relay::run(
        &format!("{setup}; cd {}", folder.path().display()),
        &program,
        &format!("{options} --external-ip=203.0.113.9 {socket_key}"),
    );
    let start = relay.until("ready").concat();
    assert!(start.contains(&format!("WARNING {why}")), "{start}");
    assert!(!start.contains("external-ip"), "{start}");
    let health = || {
        let ran = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
            .args(["ctl", "--socket"])
            .arg(&socket)
            .args(["health", "--json"])
            .output()
            .expect("it runs");
        (
            ran.status.success(),
            String::from_utf8_lossy(&ran.stdout).into_owned(),
        )
    };
    let (is_ready, faults) = health();
    assert!(!is_ready && faults.contains(why), "{faults}");
    relay.ip("address add 10.9.9.9/24 dev net");
    let (is_ready, faults) = health();
    assert!(is_ready, "{faults}");
}
