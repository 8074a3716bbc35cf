//! What the generator can do besides sending packets: TCP relays, and requests that a server must refuse.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread;

use nix::sys::signal::Signal;
use serde_json::Value;
use turnbuckle_wire::{Class, Message, MessageWriter};

use crate::ports::free_ports;
use crate::program::{Program, assert_refused, relay, result, run};
use crate::transports::Certificate;

/// A relay on loopback.
struct Server {
    program: Program,
    address: String,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let (program, address) = relay(options);
        Self { program, address }
    }

    fn load(&self, arguments: &[&str]) -> (Value, bool) {
        let to_server = ["--server", &self.address, "--user", "u:p", "--json"];
        let output = run(&[&["load"], arguments, &to_server].concat());
        (result(&output), output.status.success())
    }

    fn stop(self) {
        self.program.signal(Signal::SIGTERM);
        assert!(self.program.succeeds());
    }
}

/// Starts a reflector that takes connections, and returns its address too.
fn reflector() -> (Program, String) {
    let address = format!("127.0.0.1:{}", free_ports());
    let mut peer = Program::start(&["peer", "--tcp", "--listen", &address, "--json"]);
    peer.event("ready");
    (peer, address)
}

#[test]
fn every_unusual_and_every_malformed_message_gets_the_answer_that_the_rfcs_want() {
    let server = Server::start(&["--no-tcp-relay=false", "--mobility"]);
    let (result, is_success) = server.load(&["negative", "--peer", "127.0.0.1:9", "--seed", "1"]);
    let checks = result["checks"].as_array().unwrap();
    let wrong: Vec<_> = checks
        .iter()
        .filter(|check| check["verdict"] != "passed")
        .collect();
    assert!(is_success && wrong.is_empty(), "{wrong:#?}");
    assert!(checks.len() > 80, "{} checks", checks.len());
    assert_eq!(result["passed"], checks.len(), "{result}");
    server.stop();
}

#[test]
fn what_needs_more_than_the_server_has_is_not_tried_and_is_no_failure() {
    let server = Server::start(&["--no-tcp"]);
    let (result, is_success) = server.load(&["negative"]);
    assert!(is_success, "{result}");
    assert_eq!(result["failed"], 0, "{result}");
    assert!(result["not_tried"].as_u64().unwrap() > 5, "{result}");
    server.stop();
}

/// Answers every message that is one, whatever it is, with success.
fn yes_man() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((len, from)) = socket.recv_from(&mut buffer) {
            let Ok(message) = Message::parse(&buffer[..len]) else {
                continue;
            };
            let mut bytes = [0; 256];
            let (method, id) = (message.method(), message.transaction_id());
            let mut writer = MessageWriter::new(&mut bytes, Class::Success, method, id);
            writer
                .xor_relayed_address(from)
                .xor_mapped_address(from)
                .lifetime(u32::MAX);
            let len = writer.finish().unwrap();
            socket.send_to(&bytes[..len], from).unwrap();
        }
    });
    address
}

#[test]
fn a_server_that_grants_everything_fails_the_negative_tests() {
    let server = yes_man().to_string();
    let output = run(&[
        "load", "negative", "--server", &server, "--user", "a:b", "--json",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let result = result(&output);
    assert!(result["failed"].as_u64().unwrap() > 30, "{result}");
}

#[test]
fn bytes_go_through_tcp_relays_both_ways_and_none_is_lost() {
    let certificate = Certificate::new();
    let server = Server::start(&[
        "--no-tcp-relay=false",
        "--cert",
        &certificate.file("cert.pem"),
        "--pkey",
        &certificate.file("key.pem"),
    ]);
    let (peer, address) = reflector();
    // So many packets, however long they take: how many there are in a time is a speed.
    let paced = (50, ["--packets", "50", "--rate", "50"]);
    let flood = (10_000, ["--packets", "10000", "--size", "1200"]);
    let limit = ["--max-loss", "0", "--clients", "6", "--warm-up", "0"];
    let patience = ["--duration", "300"];
    for way in [
        &["--peer", &address][..],
        &["--pairs"],
        &["--passive"],
        &["--peer", &address, "--listener-threads", "1"],
        &["--peer", &address, "--transport", "tls"],
        &["--pairs", "--transport", "tls"],
        &["--passive", "--transport", "tls"],
    ] {
        for (packets, pace) in [paced, flood] {
            let line = [&["tcp-relay"], &limit[..], &patience, way, &pace].concat();
            let (result, is_success) = server.load(&line);
            assert!(is_success, "{line:?}: {result}");
            for (key, value) in [
                ("sent_packets", 6 * packets),
                ("received_packets", 6 * packets),
                ("lost", 0),
                ("corrupted", 0),
                ("closed_early", 0),
                ("clients_failed", 0),
            ] {
                assert_eq!(result[key], value, "{key} in {line:?}: {result}");
            }
            assert_eq!(result["allocations"]["released"], 6, "{line:?}: {result}");
        }
    }
    peer.signal(Signal::SIGTERM);
    server.stop();
}

#[test]
fn so_many_packets_are_sent_over_a_tcp_relay_as_were_asked_for() {
    let server = Server::start(&["--no-tcp-relay=false"]);
    let (mut peer, address) = reflector();
    let (result, _) = server.load(&[
        "tcp-relay",
        "--peer",
        &address,
        "--clients",
        "3",
        "--packets",
        "100",
        "--warm-up",
        "0",
        "--size",
        "1000",
    ]);
    assert_eq!(result["sent_packets"], 300, "{result}");
    assert_eq!(result["received_bytes"], 300_000, "{result}");
    peer.signal(Signal::SIGINT);
    let counted = &peer.event("result")["tcp"];
    assert_eq!(counted["connections"], 3, "{counted}");
    assert_eq!(counted["received_bytes"], 300_000, "{counted}");
    assert_eq!(counted["sent_bytes"], 300_000, "{counted}");
    server.stop();
}

#[test]
fn clients_move_while_packets_flow_and_lose_none_and_used_tickets_are_refused() {
    // With one thread: of two, that of the new path may see its first packet, with which the old path ends (RFC 8016 §3.2.2), before the
    // other sees the last one of the old path.
    let server = Server::start(&["--mobility", "--relay-threads", "1"]);
    let (peer, address) = reflector();
    let common = [
        "--clients",
        "6",
        "--rate",
        "20",
        "--duration",
        "1.5",
        "--warm-up",
        "0.1",
        "--move-every",
        "0.25",
        "--max-loss",
        "0",
    ];
    for way in [
        &["--peer", &address][..],
        &["--peer", &address, "--indications"],
        &["--pairs"],
    ] {
        let line = [&["mix"], way, &common].concat();
        let (result, is_success) = server.load(&line);
        assert!(is_success, "{line:?}: {result}");
        assert_eq!(result["lost"], 0, "{line:?}: {result}");
        assert_eq!(result["allocations"]["released"], 6, "{line:?}: {result}");
        let moves = &result["moves"];
        let done = moves["done"].as_u64().unwrap();
        // Each once at least, on however busy a machine.
        assert!(done >= 6, "{line:?}: {result}");
        assert_eq!(moves["failed"], 0, "{line:?}: {result}");
        assert_eq!(moves["stale_tickets_taken"], 0, "{line:?}: {result}");
        let refused = moves["stale_tickets_refused"].as_u64().unwrap();
        // The last ones of a run have no time for it.
        assert!(refused >= 1 && refused + 12 >= done, "{line:?}: {result}");
    }
    peer.signal(Signal::SIGTERM);
    server.stop();
}

#[test]
fn a_server_without_mobility_is_an_error_that_says_so() {
    let server = Server::start(&[]);
    let output = run(&[
        "load",
        "mix",
        "--peer",
        "127.0.0.1:9",
        "--move-every",
        "1",
        "--server",
        &server.address,
        "--user",
        "u:p",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    // What the server has not heard of it passes over (RFC 8016 §3.1.2), or it says that it is not allowed.
    assert!(
        error.contains("no_ticket (1 time)") || error.contains("405 (1 time)"),
        "{error}"
    );
    server.stop();
}

#[test]
fn packets_go_by_both_addresses_of_a_dual_allocation() {
    let server = Server::start(&["--relay-ip", "::1"]);
    let ports = free_ports();
    let listen = [format!("127.0.0.1:{ports}"), format!("[::1]:{ports}")];
    for transport in ["udp", "tcp"] {
        for way in ["--max-loss=0", "--indications"] {
            // One for each run: the relay may give a later run a port that an earlier one had.
            let mut peer = Program::start(&[
                "peer", "--listen", &listen[0], "--listen", &listen[1], "--json",
            ]);
            peer.event("ready");
            let (result, is_success) = server.load(&[
                "mix",
                "--dual",
                "--peer",
                &listen[0],
                "--peer",
                &listen[1],
                "--clients",
                "4",
                "--packets",
                "20",
                "--warm-up",
                "0",
                "--transport",
                transport,
                way,
            ]);
            assert!(is_success, "{result}");
            // Of each client by each address.
            assert_eq!(result["sent_datagrams"], 160, "{transport} {way}: {result}");
            assert_eq!(
                result["received_datagrams"], 160,
                "{transport} {way}: {result}"
            );
            assert_eq!(result["allocations"]["released"], 4, "{result}");
            peer.signal(Signal::SIGINT);
            let seen = peer.event("result");
            assert_eq!(seen["sources"], 8, "{seen}");
            assert!(peer.succeeds());
        }
    }
    server.stop();
}

/// Starts a peer that changes a byte of every connection's first packet, and returns its address.
fn careless_peer() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                let mut is_first = true;
                while let Ok(len @ 1..) = stream.read(&mut buffer) {
                    if std::mem::take(&mut is_first) {
                        buffer[len - 1] ^= 1;
                    }
                    if stream.write_all(&buffer[..len]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn a_byte_that_a_peer_changed_is_noticed_and_an_error() {
    let server = Server::start(&["--no-tcp-relay=false"]);
    let peer = careless_peer().to_string();
    let line = [
        "tcp-relay",
        "--peer",
        &peer,
        "--clients",
        "3",
        "--rate",
        "20",
    ];
    let end = ["--duration", "0.5", "--warm-up", "0"];
    let (result, is_success) = server.load(&[&line[..], &end].concat());
    assert!(!is_success, "{result}");
    assert_eq!(result["corrupted"], 3, "{result}");
    assert_eq!(result["lost"], 3, "{result}");
    server.stop();
}

#[test]
fn a_server_without_tcp_relays_is_an_error_that_says_so() {
    let server = Server::start(&[]);
    let output = run(&[
        "load",
        "tcp-relay",
        "--pairs",
        "--clients",
        "2",
        "--server",
        &server.address,
        "--user",
        "u:p",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("none of 2 clients got a connection: 442 ("),
        "{error}"
    );
    server.stop();
}

#[test]
fn lines_that_make_no_sense_are_refused_with_the_reason() {
    for (line, expected) in [
        ("tcp-relay --server 127.0.0.1 --user a:b", "needs a --peer"),
        (
            "tcp-relay --server 127.0.0.1 --user a:b --pairs --clients 2 --indications",
            "no headers",
        ),
        (
            "tcp-relay --server 127.0.0.1 --user a:b --pairs --clients 3",
            "even",
        ),
        (
            "mix --server 127.0.0.1 --user a:b --passive",
            "for tcp-relay",
        ),
        (
            "mix --server 127.0.0.1 --user a:b --pairs --clients 2 --move-every 1 --transport tcp",
            "by UDP",
        ),
        (
            "alloc --server 127.0.0.1 --user a:b --move-every 1",
            "that are kept",
        ),
        (
            "mix --server 127.0.0.1 --user a:b --dual --peer 127.0.0.1:9",
            "one of IPv6",
        ),
        (
            "tcp-relay --server 127.0.0.1 --user a:b --pairs --clients 2 --transport dtls",
            "not by dtls",
        ),
        ("negative --server 127.0.0.1", "needs --user"),
        ("negative --user a:b", "--server is missing"),
        (
            "negative --server 127.0.0.1 --user a:b --rate 5",
            "--rate is for",
        ),
    ] {
        let words: Vec<_> = std::iter::once("load").chain(line.split(' ')).collect();
        assert_refused(&words, expected);
    }
}
