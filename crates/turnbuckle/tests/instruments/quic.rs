//! The pair that moves bytes over QUIC connections.

use std::net::UdpSocket;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::program::{Program, assert_refused, run};

/// Starts a server on loopback; it and its address.
fn server(options: &[&str]) -> (Program, String) {
    let fixed = ["quic-server", "--json", "--listen", "127.0.0.1:0"];
    let mut server = Program::start(&[&fixed[..], options].concat());
    let ready = server.event("ready");
    (server, ready["listen"].as_str().unwrap().to_owned())
}

/// Runs a client. Its events, and whether it succeeded.
fn client(server: &str, options: &[&str]) -> (Vec<Value>, bool) {
    let fixed = ["quic-client", "--json", "--warm-up", "0", server];
    let output = run(&[&fixed[..], options].concat());
    let out = String::from_utf8(output.stdout).unwrap();
    let events = out.lines().map(|line| serde_json::from_str(line).unwrap());
    (events.collect(), output.status.success())
}

fn events<'a>(events: &'a [Value], name: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["event"] == name)
}

#[test]
fn bytes_go_up_and_down_by_every_backend_on_either_side() {
    for (here, there) in [("single", "gso"), ("mmsg", "single"), ("gso", "mmsg")] {
        let (mut program, address) = server(&["--backend", there]);
        let options = [
            "--backend",
            here,
            "--up",
            "256K",
            "--down",
            "256K",
            "--runs",
            "2",
        ];
        let (client_events, succeeded) = client(&address, &options);
        assert!(succeeded, "{here} to {there}: {client_events:?}");
        let results: Vec<_> = events(&client_events, "result").collect();
        assert_eq!(results.len(), 2, "{here} to {there}");
        for result in &results {
            assert_eq!((&result["runs"], &result["failed"]), (&2.into(), &0.into()));
            assert!(result["mib_per_s"]["median"].as_f64().unwrap() > 0.0);
        }
        for run in events(&client_events, "run") {
            let batching = &run["batching"];
            let trains = batching["gso_sends"].as_u64().unwrap();
            let is_up = run["direction"] == "up";
            if here != "gso" {
                assert_eq!(trains, 0, "{run}");
            } else if is_up {
                assert!(trains > 0, "{run}");
            }
            if here == "single" {
                assert_eq!(batching["send_calls"], batching["sent_datagrams"], "{run}");
            }
        }
        program.signal(Signal::SIGINT);
        let result = program.event("result");
        assert_eq!(result["connections"], 4, "{result}");
        assert_eq!(result["panicked_connections"], 0);
        let trains = result["batching"]["gso_sends"].as_u64().unwrap();
        assert_eq!(trains > 0, there == "gso", "{result}");
        assert!(program.succeeds());
    }
}

#[test]
fn streams_share_a_connection() {
    let (_server, address) = server(&[]);
    let options = [
        "--streams",
        "7",
        "--up",
        "300K",
        "--down",
        "300K",
        "--runs",
        "1",
    ];
    let (client_events, succeeded) = client(&address, &options);
    assert!(succeeded, "{client_events:?}");
    assert_eq!(events(&client_events, "result").count(), 2);
}

#[test]
fn datagrams_come_back_and_what_a_path_loses_is_counted() {
    let (_server, address) = server(&[]);
    let mut path = Program::start(&[
        "link",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--to",
        &address,
        "--loss",
        "2",
    ]);
    let lossy = path.event("ready")["listen"].as_str().unwrap().to_owned();
    let ask = ["--datagrams", "160,1150", "--count", "3000", "--runs", "1"];
    for (to, loses) in [(&address, false), (&lossy, true)] {
        let (client_events, succeeded) = client(to, &ask);
        assert!(succeeded, "{client_events:?}");
        let rows: Vec<_> = events(&client_events, "datagrams").collect();
        assert_eq!([&rows[0]["bytes"], &rows[1]["bytes"]], [160, 1150]);
        for row in rows {
            assert_eq!(row["sent"], 3000);
            assert_eq!(row["lost"].as_u64().unwrap() > 0, loses, "{row}");
            assert!(row["per_second"].as_f64().unwrap() > 0.0);
            assert!(row["round_trip_us"]["median"].as_f64().unwrap() > 0.0);
        }
    }
    path.signal(Signal::SIGINT);
    assert!(path.event("result")["lost_datagrams"].as_u64().unwrap() > 0);
}

#[test]
fn a_server_says_at_the_end_of_a_connection_what_it_has_lost_on_the_way_down() {
    let (mut program, address) = server(&[]);
    let mut path = Program::start(&[
        "link",
        "--json",
        "--listen",
        "127.0.0.1:0",
        "--to",
        &address,
        "--loss",
        "3",
    ]);
    let lossy = path.event("ready")["listen"].as_str().unwrap().to_owned();
    let (client_events, succeeded) = client(&lossy, &["--down", "2M", "--runs", "1"]);
    assert!(succeeded, "{client_events:?}");
    program.signal(Signal::SIGINT);
    let connection = program.event("connection");
    path.signal(Signal::SIGINT);
    let dropped = path.event("result");
    let count = |event: &Value, name: &str| event[name].as_u64().unwrap();
    assert!(count(&dropped, "lost_down_datagrams") > 0, "{dropped}");
    assert_eq!(
        count(&dropped, "lost_up_datagrams") + count(&dropped, "lost_down_datagrams"),
        count(&dropped, "lost_datagrams")
    );
    // All is written before anything can be lost.
    assert!(count(&connection, "lost_packets") > 0, "{connection}");
    assert!(count(&connection, "sent_packets") > 2 * 1024 * 1024 / 1_350);
}

#[test]
fn a_quiet_server_says_of_all_connections_together_what_became_of_them() {
    for (options, first) in [(&["--quiet"][..], "result"), (&[], "connection")] {
        let (mut program, address) = server(options);
        let (client_events, succeeded) = client(&address, &["--down", "1K", "--runs", "2"]);
        assert!(succeeded, "{client_events:?}");
        program.signal(Signal::SIGINT);
        let event = program.next_event();
        assert_eq!(event["event"], first, "{options:?}");
        if first == "result" {
            assert_eq!(event["connections"], 2);
        }
    }
}

#[test]
fn a_server_that_says_nothing_is_a_failure_and_no_figure() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let (client_events, succeeded) =
        client(&address, &["--up", "1K", "--runs", "1", "--timeout", "0.3"]);
    assert!(!succeeded);
    assert_eq!(
        events(&client_events, "failure").count(),
        1,
        "{client_events:?}"
    );
    assert_eq!(events(&client_events, "result").count(), 0);
}

#[test]
fn a_certificate_of_nobody_known_is_refused_if_authorities_are_named() {
    let (_server, address) = server(&[]);
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("ca.pem");
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(&file, other.cert.pem()).unwrap();
    let file = file.to_str().unwrap();
    let options = ["--up", "1K", "--runs", "1", "--ca-file", file];
    let (client_events, succeeded) = client(&address, &options);
    assert!(!succeeded);
    let failure = events(&client_events, "failure").next().unwrap();
    let error = failure["error"].as_str().unwrap();
    assert!(error.contains("certificate"), "{error}");
}

#[test]
fn a_size_that_is_none_is_refused() {
    assert_refused(&["quic-client", "127.0.0.1:1", "--up", "1T"], "1024G");
    assert_refused(&["quic-client", "127.0.0.1:1"], "--up");
    assert_refused(
        &["quic-client", "127.0.0.1:1", "--datagrams", "7"],
        "8..=1400",
    );
}
