//! The reflector.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::program::{Program, assert_refused, result, run};

const BACKENDS: [&str; 3] = ["single", "mmsg", "gso"];

/// A running peer.
struct Peer {
    program: Program,
    address: SocketAddr,
}

impl Peer {
    fn start(arguments: &[&str]) -> Self {
        let mut program = Program::start(&[&["peer", "--json"], arguments].concat());
        let ready = program.event("ready");
        let address = ready["listen"][0].as_str().unwrap().parse().unwrap();
        Self { program, address }
    }

    /// Ends it by SIGINT and reads what it counted.
    fn finish(mut self) -> Value {
        self.program.signal(Signal::SIGINT);
        let result = self.program.event("result");
        assert!(self.program.succeeds());
        result
    }
}

fn socket(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((to.ip(), 0)).unwrap();
    socket.connect(to).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    socket
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
fn all_threads_listen_on_the_port_that_the_kernel_chose() {
    let peer = Peer::start(&["--listen", "127.0.0.1:0", "--threads", "4"]);
    // 127.0.0.1 as proc_net_udp(5) has it: others may have the port at other addresses.
    let address = format!("0100007F:{:04X}", peer.address.port());
    let sockets = std::fs::read_to_string("/proc/net/udp").unwrap();
    let local = sockets
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    assert_eq!(local.filter(|local| *local == address).count(), 4);
    peer.finish();
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
        peer.program.signal(Signal::SIGUSR1);
        let snapshot = peer.program.event("snapshot");
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
fn what_a_source_sends_is_counted_by_the_generator() {
    let peer = Peer::start(&["source", "--listen", "127.0.0.1:0", "--rate", "200"]);
    let address = peer.address.to_string();
    let words = [
        "load",
        "rate",
        "--direct",
        "--peer",
        &address,
        "--clients",
        "2",
        "--rate",
        "20",
        "--no-receive",
        "--duration",
        "1",
        "--json",
    ];
    let output = run(&words);
    let result = result(&output);
    assert!(output.status.success(), "{result}");
    let by_itself = &result["by_itself"];
    assert!(
        by_itself["received_datagrams"].as_u64().unwrap() > 100,
        "{result}"
    );
    assert_eq!(by_itself["lost"], 0, "{result}");
    assert_eq!(result["corrupted"], 0, "{result}");
    peer.finish();
}

#[test]
fn a_duration_ends_the_run_with_a_sentence_for_people() {
    let output = run(&["peer", "--listen", "127.0.0.1:0", "--duration", "0.1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
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
        assert_refused(&["peer", arguments[0], arguments[1]], expected);
    }
    // An address that is not this machine's.
    let output = run(&["peer", "--listen", "192.0.2.1:1"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot listen on 192.0.2.1:1"), "{error}");
}
