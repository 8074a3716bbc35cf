//! The pair that counts connections per second.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::not_run::not_run;
use crate::ports::free_ports;
use crate::program::{Program, assert_refused, result, run};

/// How long a client goes on: it has to get something done, and on a busy machine may not in the shortest time.
const SECONDS: [&str; 3] = ["0.1", "1", "10"];

/// Connects to a server of this strategy; what the server and the client counted.
fn counted(server: &[&str], client: &[&str]) -> (Value, Value) {
    let mut all = SECONDS
        .map(|seconds| move || counted_for(seconds, server, client))
        .into_iter();
    let has_some =
        |(_, connected): &(Value, Value)| connected["connected_in_window"].as_u64() > Some(0);
    all.find_map(|count| Some(count()).filter(has_some))
        .expect("connections")
}

fn counted_for(seconds: &str, server: &[&str], client: &[&str]) -> (Value, Value) {
    let mut program = Program::start(&[&["accept-server", "--json", "-p", "0"], server].concat());
    let port = program.event("ready")["port"].to_string();
    let command = [
        "connect-client",
        "--json",
        "-p",
        &port,
        "-4",
        "127.0.0.1",
        "-l",
        seconds,
    ];
    let connected = result(&run(&[&command, client].concat()));
    program.signal(Signal::SIGINT);
    let accepted = program.event("result");
    assert!(program.succeeds());
    (accepted, connected)
}

#[test]
fn every_strategy_accepts_and_closes_all_that_connects() {
    for strategy in ["shared", "exclusive", "reuseport", "cpu", "uring"] {
        if strategy == "uring" && !has_ring() {
            not_run(&format!("{strategy}: io_uring is not allowed here"));
            continue;
        }
        for client in [&["-i", "3"][..], &["-i", "2", "-c", "8"]] {
            let server = ["-i", "3", "--strategy", strategy];
            let (accepted, connected) = counted(&server, client);
            assert!(
                connected["connected"].as_u64().unwrap() > 0,
                "{strategy}: {connected}"
            );
            assert_eq!(
                accepted["accepted"], connected["connected"],
                "{strategy} {client:?}: {accepted}"
            );
            assert_eq!(accepted["closed"], accepted["accepted"], "{strategy}");
            assert_eq!(connected["failed"], 0, "{connected}");
            assert_eq!(accepted["errors"], serde_json::json!({}));
            assert_eq!(connected["latency_us"]["samples"], connected["connected"]);
            // No handshake takes less than a microsecond, and none longer than the run.
            let us = |name: &str| connected["latency_us"][name].as_f64().unwrap();
            assert!(us("p50") > 1.0 && us("p50") <= us("p99"), "{connected}");
            assert!(us("p99") <= us("max") && us("max") < 60e6, "{connected}");
            assert_eq!(accepted["wrong_cpu"].is_u64(), strategy == "cpu");
        }
    }
}

#[test]
fn the_flags_of_the_originals_choose_their_strategies() {
    for (flags, strategy) in [
        (&[][..], "shared"),
        (&["-r"], "reuseport"),
        (&["-r", "-B"], "cpu"),
        (&["-B"], "cpu"),
    ] {
        let server = [&["-i", "8"], flags].concat();
        let (accepted, connected) = counted(&server, &["-i", "1", "--close", "fin"]);
        assert_eq!(accepted["strategy"], strategy);
        assert_eq!(accepted["workers"], 8);
        assert_eq!(accepted["accepted"], connected["connected"]);
    }
}

#[test]
fn the_last_line_of_the_client_is_the_rate_with_two_decimals() {
    let mut server = Program::start(&["accept-server", "--json", "-p", "0"]);
    let port = server.event("ready")["port"].to_string();
    let command = ["connect-client", "-p", &port, "-4", "127.0.0.1", "-i", "4"];
    let mut all = SECONDS.into_iter().map(|seconds| {
        let output = run(&[&command[..], &["-l", seconds]].concat());
        assert!(String::from_utf8_lossy(&output.stderr).contains("TIME-WAIT"));
        let text = String::from_utf8(output.stdout).unwrap();
        let last = text.lines().last().unwrap();
        let (whole, decimals) = last.split_once('.').unwrap();
        assert_eq!(decimals.len(), 2, "{text}");
        whole.parse::<u64>().unwrap()
    });
    assert!(all.any(|rate| rate > 0));
}

#[test]
fn more_connections_than_ports_are_warned_of() {
    let refused = closed_port();
    let command = [
        "connect-client",
        "-4",
        "127.0.0.1",
        "-i",
        "8",
        "-c",
        "4096",
        "-l",
        "0",
        "-p",
        &refused,
    ];
    let output = run(&[&command[..], &["--close", "rst"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("32768 connections at a time"), "{error}");
    assert!(error.contains("net.ipv4.ip_local_port_range"), "{error}");
}

#[test]
fn failures_are_counted_by_errno() {
    let port = closed_port();
    for in_flight in [&[][..], &["-c", "4"]] {
        let command = [
            "connect-client",
            "--json",
            "-4",
            "127.0.0.1",
            "-i",
            "1",
            "-l",
            "1",
            "-p",
            &port,
        ];
        let counted = result(&run(&[&command, in_flight].concat()));
        assert_eq!(counted["connected"], 0);
        assert!(counted["failed"].as_u64().unwrap() > 0);
        assert_eq!(counted["errors"]["ECONNREFUSED"], counted["failed"]);
        assert_eq!(counted["latency_us"], Value::Null);
        assert_eq!(counted["cpu_us_per_connection"], Value::Null);
    }
}

#[test]
fn a_server_without_descriptors_counts_that_and_takes_what_it_can() {
    let server = ["accept-server", "--json", "-p", "0", "-i", "1"];
    let mut server = Program::start_with(16, &server);
    let port = server.event("ready")["port"].as_u64().unwrap();
    let port = u16::try_from(port).unwrap();
    let connections: Vec<_> = (0..32)
        .map(|_| std::net::TcpStream::connect(("127.0.0.1", port)).unwrap())
        .collect();
    server.signal(Signal::SIGINT);
    let accepted = server.event("result");
    let number = accepted["accepted"].as_u64().unwrap();
    assert!(number > 0 && number < 16, "{accepted}");
    assert!(
        accepted["errors"]["EMFILE"].as_u64() > Some(0),
        "{accepted}"
    );
    drop(connections);
}

#[test]
fn connections_come_from_every_source_in_turn() {
    for in_flight in [&[][..], &["-c", "4"]] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let sources = std::thread::spawn(move || {
            let mut sources = std::collections::BTreeSet::new();
            while sources.len() < 2 {
                sources.insert(listener.accept().unwrap().1.ip().to_string());
            }
            sources
        });
        let command = ["connect-client", "--json", "-4", "127.0.0.1", "-p", &port];
        let and = ["--source", "127.0.0.6", "--close", "rst"];
        let mut all = SECONDS.into_iter().map(|seconds| {
            let more = ["-i", "1", "-l", seconds, "--source", "127.0.0.5"];
            result(&run(&[&command[..], &more, &and, in_flight].concat()))
        });
        assert!(all.any(|counted| counted["connected"].as_u64() > Some(1)));
        let sources: Vec<_> = sources.join().unwrap().into_iter().collect();
        assert_eq!(sources, ["127.0.0.5", "127.0.0.6"]);
    }
}

#[test]
fn an_address_that_is_not_this_hosts_is_named_as_a_cause() {
    let port = closed_port();
    let command = [
        "connect-client",
        "-4",
        "127.0.0.1",
        "-i",
        "1",
        "-l",
        "0.05",
        "-p",
        &port,
    ];
    let output = run(&[&command[..], &["--source", "192.0.2.1"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("EADDRNOTAVAIL") && error.contains("--source"),
        "{error}"
    );
}

#[test]
fn figures_begin_after_the_warm_up_and_counts_at_once() {
    let client = ["-i", "1", "--warm-up", "0.2", "--close", "rst"];
    let (accepted, connected) = counted(&["-i", "1"], &client);
    assert_eq!(accepted["accepted"], connected["connected"]);
    let number = |name: &str| connected[name].as_u64().unwrap();
    assert!(
        number("connected_in_window") < number("connected"),
        "{connected}"
    );
    let samples = connected["latency_us"]["samples"].as_u64().unwrap();
    assert!(samples < number("connected") && samples > 0, "{connected}");
}

/// What the kernel alone completes does not count when an answer is asked for.
#[test]
fn without_an_answer_a_connection_with_a_binding_has_failed() {
    for exchange in [&["--binding"][..], &["--tls"], &["--tls", "--binding"]] {
        let client = [&["-i", "1", "--close", "rst"][..], exchange].concat();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let mute = std::thread::spawn(move || {
            for connection in listener.incoming().take(1) {
                // Read and closed: an end without an answer.
                let _ = std::io::Read::read(&mut connection.unwrap(), &mut [0; 1024]);
            }
        });
        let command = [
            "connect-client",
            "--json",
            "-4",
            "127.0.0.1",
            "-l",
            "1",
            "-p",
            &port,
        ];
        let counted = result(&run(&[&command[..], &client].concat()));
        assert_eq!(counted["connected"], 0, "{counted}");
        assert!(counted["failed"].as_u64().unwrap() > 0, "{counted}");
        mute.join().unwrap();
    }
}

#[test]
fn wrong_values_are_refused_with_what_is_allowed() {
    let server = |more: &[&'static str]| [&["accept-server", "-p", "5000"], more].concat();
    assert_refused(&server(&["-i", "0"]), "1 to 1024");
    assert_refused(&server(&["--strategy", "magic"]), "exclusive");
    assert_refused(&server(&["--strategy", "cpu", "-r"]), "-r");
    let client = |more: &[&'static str]| [&["connect-client", "-p", "5000"], more].concat();
    assert_refused(&client(&[]), "-4");
    assert_refused(&client(&["-4", "nowhere"]), "-4");
    assert_refused(&client(&["-4", "127.0.0.1", "-l=-1"]), "86400");
    assert_refused(&client(&["-4", "127.0.0.1", "-c", "0"]), "1..=4096");
    assert_refused(&client(&["-4", "127.0.0.1", "-c", "2", "--tls"]), "--tls");
    assert_refused(&client(&["-4", "127.0.0.1", "--source", "x"]), "--source");
    assert_refused(
        &client(&["-4", "127.0.0.1", "--close", "softly"]),
        "rst, fin",
    );
}

/// Returns a port that nobody listens on.
fn closed_port() -> String {
    free_ports().to_string()
}

/// Returns whether the kernel lets this process use `io_uring`; containers often do not.
fn has_ring() -> bool {
    let command = [
        "accept-server",
        "-p",
        "0",
        "--strategy",
        "uring",
        "--duration",
        "0.01",
    ];
    let output = run(&command);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() || error.contains("io_uring"),
        "{error}"
    );
    output.status.success()
}
