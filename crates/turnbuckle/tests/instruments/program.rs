//! Programs that print events as lines of JSON.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::ports::free_ports;

/// A running `turnbuckle`, ended when dropped.
pub(crate) struct Program {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::spawn(Command::new(env!("CARGO_BIN_EXE_turnbuckle")).args(arguments))
    }

    /// Starts the program with no more than so many descriptors.
    pub(crate) fn start_with(descriptors: u32, arguments: &[&str]) -> Self {
        let script = format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"");
        let program = env!("CARGO_BIN_EXE_turnbuckle");
        Self::spawn(
            Command::new("sh")
                .args(["-c", &script, program])
                .args(arguments),
        )
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Returns the next event, whatever its name.
    pub(crate) fn next_event(&mut self) -> Value {
        let line = (&mut self.out).lines().next().unwrap();
        serde_json::from_str(&line.unwrap()).unwrap()
    }

    /// Returns the next event of this name.
    pub(crate) fn event(&mut self, name: &str) -> Value {
        (&mut self.out)
            .lines()
            .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap())
            .find(|event| event["event"] == name)
            .unwrap()
    }

    /// Waits for the next line that is `line`.
    pub(crate) fn wait_for_line(&mut self, line: &str) {
        let found = (&mut self.out).lines().any(|found| found.unwrap() == line);
        assert!(found, "no line {line}");
    }

    /// Waits for its end.
    pub(crate) fn succeeds(mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a relay on loopback whose user is `u` with the password `p`, and returns its address too.
pub(crate) fn relay(options: &[&str]) -> (Program, String) {
    let port = free_ports();
    (relay_at(port, options), format!("127.0.0.1:{port}"))
}

/// Starts a relay as [`relay`] does, at a port that is given.
pub(crate) fn relay_at(port: u16, options: &[&str]) -> Program {
    // A port of its own for TLS too: no two servers may listen at one address, and tests run side by side.
    let [port, tls_port] = [port, free_ports()].map(|port| port.to_string());
    let always = [
        "serve",
        "--user=u:p",
        "--realm=r",
        "--listening-ip=127.0.0.1",
        "--relay-ip=127.0.0.1",
        "--listening-port",
        &port,
        "--tls-listening-port",
        &tls_port,
        "--allow-loopback-peers",
        "--pin-threads=false",
        "--unverified-excess-bytes-per-second=1000000000",
        "--unverified-bytes-per-second=1000000000",
    ];
    let mut relay = Program::start(&[&always, options].concat());
    relay.wait_for_line("ready");
    relay
}

/// Runs `turnbuckle` to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Checks that a command line is refused as such, with a sentence that contains `expected`.
pub(crate) fn assert_refused(arguments: &[&str], expected: &str) {
    let output = run(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(expected), "{error}");
}

/// Returns the last event of a program that ran to its end.
pub(crate) fn result(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_else(|| {
        panic!(
            "nothing printed: {}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    let value: Value = serde_json::from_str(line).unwrap();
    assert_eq!(value["event"], "result", "{value}");
    value
}
