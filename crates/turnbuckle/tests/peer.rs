//! `turnbuckle peer` as a program.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const BACKENDS: [&str; 3] = ["single", "mmsg", "gso"];

/// A running peer, ended when dropped.
struct Peer {
    child: Child,
    out: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Peer {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
            .arg("peer")
            .args(arguments)
            .arg("--json")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let ready = event(&mut out, "ready");
        let address = ready["listen"][0].as_str().unwrap().parse().unwrap();
        Self {
            child,
            out,
            address,
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    /// Ends it by SIGINT and reads what it counted.
    fn finish(mut self) -> Value {
        self.signal(Signal::SIGINT);
        let result = event(&mut self.out, "result");
        assert!(self.child.wait().unwrap().success());
        result
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next event of this name.
fn event(out: &mut impl std::io::BufRead, name: &str) -> Value {
    out.lines()
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap())
        .find(|event| event["event"] == name)
        .unwrap()
}

fn socket(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((to.ip(), 0)).unwrap();
    socket.connect(to).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    socket
}

fn turnbuckle(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn every_datagram_comes_back_unchanged_and_is_counted() {
    for listen in ["127.0.0.1:0", "[::1]:0"] {
        for backend in BACKENDS {
            let listen = ["--listen", listen, "--backend", backend, "--threads", "1"];
            let peer = Peer::start(&listen);
            let socket = socket(peer.address);
            let mut sent = 0;
            for size in [0, 1, 100, 100, 100, 99, 1_400, 20_000, 100] {
                let datagram: Vec<u8> = (0..size).map(|at: usize| at.to_le_bytes()[0]).collect();
                socket.send(&datagram).unwrap();
                sent += size;
                let mut answer = vec![0; 65_536];
                let len = socket.recv(&mut answer).unwrap();
                assert_eq!(answer[..len], datagram, "{backend}");
            }
            let result = peer.finish();
            for (key, value) in [
                ("received_datagrams", 9),
                ("sent_datagrams", 9),
                ("received_bytes", sent),
                ("sent_bytes", sent),
                ("send_failed_datagrams", 0),
                ("socket_drops", 0),
                ("sources", 1),
            ] {
                assert_eq!(result[key], value, "{key} with {backend}");
            }
        }
    }
}

#[test]
fn what_each_source_sent_is_told_apart() {
    let peer = Peer::start(&["--listen", "127.0.0.1:0"]);
    let mut expected = HashMap::new();
    for number in 1..=5 {
        let socket = socket(peer.address);
        for _ in 0..number {
            socket.send(&[7; 50]).unwrap();
            socket.recv(&mut [0; 50]).unwrap();
        }
        expected.insert(socket.local_addr().unwrap().to_string(), number);
    }
    let result = peer.finish();
    assert_eq!(result["sources"], 5);
    let busiest = result["busiest_sources"].as_array().unwrap();
    assert_eq!(busiest[0]["datagrams"], 5);
    for source in busiest {
        let name = source["source"].as_str().unwrap();
        assert_eq!(source["datagrams"], expected[name]);
        assert_eq!(source["bytes"], expected[name] * 50);
    }
}

#[test]
fn a_sink_answers_nothing() {
    let mut peer = Peer::start(&["sink", "--listen", "127.0.0.1:0"]);
    let socket = socket(peer.address);
    for _ in 0..100 {
        socket.send(&[1; 10]).unwrap();
    }
    // A figure asked for by signal comes after what had arrived before.
    let seen = loop {
        peer.signal(Signal::SIGUSR1);
        let snapshot = event(&mut peer.out, "snapshot");
        if snapshot["received_datagrams"] == 100 {
            break snapshot;
        }
    };
    assert_eq!(seen["sent_datagrams"], 0);
    socket.set_nonblocking(true).unwrap();
    let answer = socket.recv(&mut [0; 10]);
    assert!(answer.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    assert_eq!(peer.finish()["received_datagrams"], 100);
}

#[test]
fn a_source_sends_to_whoever_opened_a_flow() {
    let arguments = [
        "source",
        "--listen",
        "127.0.0.1:0",
        "--rate",
        "2000",
        "--size",
        "77",
    ];
    let peer = Peer::start(&arguments);
    let socket = socket(peer.address);
    socket.send(b"open").unwrap();
    for _ in 0..200 {
        assert_eq!(socket.recv(&mut [0; 100]).unwrap(), 77);
    }
    let result = peer.finish();
    assert_eq!(result["received_datagrams"], 1);
    assert!(result["sent_datagrams"].as_u64().unwrap() >= 200);
}

#[test]
fn a_duration_ends_the_run_with_a_sentence_for_people() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
        .args(["peer", "--listen", "127.0.0.1:0", "--duration", "0.1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    let mut out = child.stdout.take().unwrap();
    out.read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    let last = text.lines().last().unwrap();
    assert!(
        last.starts_with("received 0, sent 0, failed to send 0"),
        "{text}"
    );
}

#[test]
fn wrong_values_are_refused_with_what_is_allowed() {
    for (arguments, expected) in [
        (["--threads", "0"], "1 to 64"),
        (["--listen", "nowhere"], "--listen"),
        (["--backend", "magic"], "auto, single, mmsg, gso"),
        (["--cpus", "one"], "CPU numbers"),
        (["--size", "0"], "1..=65507"),
        (["--duration", "forever"], "86400 seconds"),
    ] {
        let output = turnbuckle(&["peer", arguments[0], arguments[1]]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    // An address that is not this machine's.
    let output = turnbuckle(&["peer", "--listen", "192.0.2.1:1"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot listen on 192.0.2.1:1"), "{error}");
}
