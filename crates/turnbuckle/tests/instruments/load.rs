//! The load generator: against a stand-in whose faults are known, and against the relay and the reflector.

use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::program::{Program, assert_refused, relay, result, run};
use crate::stand_in::{Harm, StandIn};

pub(crate) fn load(arguments: &[&str]) -> (Value, bool) {
    let output = run(&[&["load"], arguments, &["--json"]].concat());
    (result(&output), output.status.success())
}

/// Runs at a stand-in without a warm-up, so that every packet counts.
fn at_stand_in(harm: Harm, arguments: &[&str]) -> (Value, bool, crate::stand_in::Done) {
    let stand_in = StandIn::start(harm);
    let server = stand_in.address.to_string();
    let always = [
        "rate",
        "--server",
        &server,
        "--peer",
        "192.0.2.1:1",
        "--user",
        "a:b",
        "--warm-up",
        "0",
    ];
    let (result, is_success) = load(&[&always, arguments].concat());
    (result, is_success, stand_in.finish())
}

#[test]
fn what_happened_to_packets_is_counted_exactly() {
    for arguments in [
        // So slow that a socket buffer holds what comes while a busy machine does something else.
        ["--rate", "400", "--clients", "4", "--duration", "2"],
        ["--rate", "400", "--clients", "1", "--duration", "2"],
    ] {
        let (result, _, done) = at_stand_in(Harm::Tenths, &arguments);
        assert!(done.dropped > 0 && done.doubled > 0 && done.swapped > 0 && done.changed > 0);
        for (key, value) in [
            ("sent_datagrams", done.received),
            // A changed packet did not arrive as it was sent.
            ("lost", done.dropped + done.changed),
            (
                "received_datagrams",
                done.received - done.dropped - done.changed,
            ),
            ("duplicated", done.doubled),
            ("reordered", done.swapped),
            ("corrupted", done.changed),
            ("send_failed_datagrams", 0),
            ("socket_drops", 0),
        ] {
            assert_eq!(result[key], value, "{key}: {result}");
        }
    }
}

#[test]
fn a_known_delay_is_reported_within_five_per_cent() {
    let delay = Duration::from_millis(500);
    let arguments = ["--rate", "200", "--clients", "2", "--duration", "2"];
    let mut ratios = Vec::new();
    // A busy machine adds to what a packet takes on its way to the stand-in and back, which nobody knows; but not each time.
    for _ in 0..20 {
        let (result, _, mut done) = at_stand_in(Harm::Delay(delay), &arguments);
        if result["lost"] != 0 {
            // Later than the generator waits.
            continue;
        }
        assert_eq!(result["latency_us"]["samples"], done.received);
        // The stand-in keeps a packet a little longer than it means to on a busy machine, and says how long it was.
        done.delays.sort_unstable();
        ratios = [(50, "p50"), (90, "p90")]
            .map(|(per_cent, key)| {
                let expected = done.delays[done.delays.len() * per_cent / 100].as_secs_f64() * 1e6;
                result["latency_us"][key].as_f64().unwrap() / expected
            })
            .to_vec();
        // No packet was faster than the stand-in.
        assert!(ratios.iter().all(|ratio| *ratio > 0.95), "{ratios:?}");
        if ratios.iter().all(|ratio| *ratio < 1.05) {
            return;
        }
    }
    panic!("{ratios:?}");
}

/// No coordinated omission: packets that are due while something stands still are not left out, nor counted from when they left.
#[test]
fn whoever_stands_still_shows_in_the_percentiles() {
    for is_server in [true, false] {
        let bench = Bench::start(&[]);
        let always = ["load", "rate", "--rate", "500", "--duration", "4", "--json"];
        let words = bench.to_server.iter().chain(&bench.to_peer);
        let words = always.into_iter().chain(words.map(String::as_str));
        let mut load = Program::start(&words.collect::<Vec<_>>());
        load.event("measuring");
        let who = if is_server { &bench.server } else { &load };
        who.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(400));
        who.signal(Signal::SIGCONT);
        let result = load.event("result");
        assert!(load.succeeds());
        // A tenth of the packets was due meanwhile, so a hundredth waited for nearly all of it.
        let latency = &result["latency_us"];
        assert!(latency["p99"].as_f64().unwrap() > 300_000.0, "{result}");
        assert!(latency["max"].as_f64().unwrap() > 390_000.0, "{result}");
        assert!(
            result["sent_datagrams"].as_u64().unwrap() > 1_800,
            "{result}"
        );
        let lateness = result["lateness_us"]["p99"].as_f64().unwrap();
        assert!(is_server || lateness > 300_000.0, "{result}");
        bench.finish();
    }
}

#[test]
fn a_limit_that_is_broken_is_an_exit_code() {
    let rate = ["--rate", "1000", "--duration", "0.5"];
    for (limit, is_kept) in [
        (["--max-loss", "50"], true),
        (["--max-loss", "5"], false),
        (["--max-p99-us", "60000000"], true),
        (["--max-p99-us", "0"], false),
    ] {
        let arguments = [&rate[..], &limit].concat();
        let (result, is_success, _) = at_stand_in(Harm::Tenths, &arguments);
        assert_eq!(is_success, is_kept, "{limit:?}: {result}");
    }
}

/// The relay and a reflector, on loopback.
pub(crate) struct Bench {
    pub(crate) server: Program,
    peer: Program,
    pub(crate) to_server: [String; 4],
    pub(crate) to_peer: [String; 2],
}

impl Bench {
    pub(crate) fn start(options: &[&str]) -> Self {
        let mut peer = Program::start(&["peer", "--listen", "127.0.0.1:0", "--json"]);
        let ready = peer.event("ready");
        let peer_address = ready["listen"][0].as_str().unwrap().to_owned();
        let (server, server_address) = relay(options);
        Self {
            server,
            peer,
            to_server: [
                "--server".into(),
                server_address,
                "--user".into(),
                "u:p".into(),
            ],
            to_peer: ["--peer".into(), peer_address],
        }
    }

    pub(crate) fn load(&self, arguments: &[&str]) -> (Value, bool) {
        let mut line = arguments.to_vec();
        line.extend(self.to_server.iter().map(String::as_str));
        if !matches!(arguments[0], "alloc" | "invalid") && !arguments.contains(&"--pairs") {
            line.extend(self.to_peer.iter().map(String::as_str));
        }
        load(&line)
    }

    pub(crate) fn finish(self) {
        for program in [self.server, self.peer] {
            program.signal(Signal::SIGTERM);
            assert!(program.succeeds());
        }
    }
}

pub(crate) fn assert_all_came_back(result: &Value, context: &str) {
    assert_intact(result, context);
    let allocations = &result["allocations"];
    assert_eq!(allocations["succeeded"], result["clients"], "{result}");
    assert_eq!(allocations["released"], result["clients"], "{result}");
}

/// Fails unless packets went, and each came back once, as it was and in its turn.
pub(crate) fn assert_intact(result: &Value, context: &str) {
    let sent = result["sent_datagrams"].as_u64().unwrap();
    assert!(sent > 0, "{context}: {result}");
    for (key, value) in [
        ("received_datagrams", sent),
        ("lost", 0),
        ("duplicated", 0),
        ("reordered", 0),
        ("corrupted", 0),
        ("clients_failed", 0),
        ("send_failed_datagrams", 0),
    ] {
        assert_eq!(result[key], value, "{key}, {context}: {result}");
    }
}

#[test]
fn nothing_is_lost_at_a_moderate_rate() {
    let bench = Bench::start(&[]);
    let common = ["--duration", "1", "--warm-up", "0.2", "--max-loss", "0"];
    for mode in [
        // So slow that the small buffer of a relay socket holds what comes while a busy machine does something else.
        &["rate", "--rate", "30"][..],
        &["rate", "--rate", "30", "--indications", "--clients", "3"],
        &[
            "rate",
            "--rate",
            "30",
            "--backend",
            "single",
            "--size",
            "1200",
        ],
        &[
            "rate",
            "--rate",
            "30",
            "--backend",
            "mmsg",
            "--sender-threads",
            "2",
            "--clients",
            "5",
        ],
        &["mix", "--clients", "20", "--rate", "20"],
        &["hold", "--clients", "50", "--listener-threads", "2"],
    ] {
        let (result, is_success) = bench.load(&[mode, &common].concat());
        assert!(is_success, "{mode:?}: {result}");
        assert_all_came_back(&result, &format!("{mode:?}"));
    }
    bench.finish();
}

#[test]
fn a_flood_says_what_came_through() {
    let bench = Bench::start(&[]);
    // On a busy machine the flood may leave the relay no time at all, but not each time.
    let result = (0..10)
        .map(|_| {
            bench
                .load(&["packet", "--duration", "2", "--clients", "2"])
                .0
        })
        .find(|result| result["received_datagrams"] != 0)
        .expect("something comes through");
    let number = |key: &str| result[key].as_u64().unwrap();
    assert_eq!(
        number("sent_datagrams"),
        number("received_datagrams") + number("lost"),
        "{result}"
    );
    assert_eq!(result["corrupted"], 0, "{result}");
    bench.finish();
}

#[test]
fn allocations_are_made_and_given_back() {
    let bench = Bench::start(&[]);
    let (result, _) = bench.load(&[
        "alloc",
        "--clients",
        "8",
        "--packets",
        "20",
        "--duration",
        "60",
    ]);
    let allocations = &result["allocations"];
    assert!(allocations["succeeded"].as_u64().unwrap() > 8, "{result}");
    assert_eq!(allocations["failed"], 0, "{result}");
    // Nothing is left: the whole quota of a user is there again.
    bench.finish();
    let bench = Bench::start(&["--user-quota", "4"]);
    for _ in 0..2 {
        let (result, is_success) = bench.load(&["hold", "--clients", "6", "--duration", "0.2"]);
        assert!(!is_success, "six clients were asked for: {result}");
        assert_eq!(result["allocations"]["succeeded"], 4, "{result}");
        assert_eq!(result["allocations"]["errors"]["486"], 2, "{result}");
        assert_eq!(result["clients_failed"], 2, "{result}");
    }
    bench.finish();
}

#[test]
fn junk_gets_answers_but_no_allocation() {
    let bench = Bench::start(&[]);
    let arguments = [
        "invalid",
        "--rate",
        "2000",
        "--duration",
        "3",
        "--clients",
        "3",
    ];
    let (result, is_success) = bench.load(&arguments);
    assert!(is_success);
    assert!(
        result["sent_datagrams"].as_u64().unwrap() > 1_000,
        "{result}"
    );
    // Challenges.
    assert!(
        result["received_datagrams"].as_u64().unwrap() > 0,
        "{result}"
    );
    assert_eq!(result["allocations"], Value::Null);
    assert_eq!(result["lost"], Value::Null);
    bench.finish();
}

#[test]
fn without_a_relay_packets_go_straight_to_the_peer() {
    let mut peer = Program::start(&["peer", "--listen", "127.0.0.1:0", "--json"]);
    let address = peer.event("ready")["listen"][0]
        .as_str()
        .unwrap()
        .to_owned();
    let arguments = [
        "rate",
        "--direct",
        "--peer",
        &address,
        "--rate",
        "2000",
        "--duration",
        "0.5",
        "--max-loss",
        "0",
    ];
    let (result, is_success) = load(&arguments);
    assert!(is_success, "{result}");
    assert_eq!(result["allocations"], Value::Null);
    peer.signal(Signal::SIGINT);
    assert_eq!(peer.event("result")["send_failed_datagrams"], 0);
}

#[test]
fn packets_that_the_kernel_does_not_take_are_an_error() {
    // Everybody, for which a socket has to ask (EACCES), if there is a way at all.
    let output = run(&[
        "load",
        "mix",
        "--direct",
        "--peer",
        "255.255.255.255:9",
        "--warm-up",
        "0",
        "--duration",
        "0.2",
    ]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(error.contains("nothing was sent"), "{error}");
}

#[test]
fn a_server_that_refuses_everyone_is_an_error() {
    let bench = Bench::start(&[]);
    let server = bench.to_server[1].clone();
    let output = run(&[
        "load",
        "packet",
        "--server",
        &server,
        "--peer",
        "192.0.2.1:1",
        "--user",
        "u:wrong",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("none of 1 clients got an allocation: 401 (1 time)"),
        "{error}"
    );
    let output = run(&[
        "load",
        "alloc",
        "--server",
        &server,
        "--user",
        "u:wrong",
        "--warm-up",
        "0",
        "--duration",
        "0.5",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("not one allocation was made: 401"),
        "{error}"
    );
    bench.finish();
}

#[test]
fn wrong_lines_are_refused_with_what_is_allowed() {
    for (line, expected) in [
        (
            "packet --direct --peer 192.0.2.1:1 --sender-threads 0",
            "1 to 64",
        ),
        (
            "packet --direct --peer 192.0.2.1:1 --listener-threads 65",
            "1 to 64",
        ),
        ("packet --direct --peer 192.0.2.1:1 --size 10", "24"),
        ("rate --direct --peer 192.0.2.1:1", "needs a --rate"),
        ("walk", "packet"),
    ] {
        let words: Vec<_> = std::iter::once("load").chain(line.split(' ')).collect();
        assert_refused(&words, expected);
    }
}
