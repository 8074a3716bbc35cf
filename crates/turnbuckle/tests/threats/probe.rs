//! `turnbuckle probe`, which tries all that needs nothing but a server's address, against this relay and against one that is left open.

use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::{Authority, Key, OTHER_USER, PASSWORD, Server, Site, USER, World};

/// Where strangers come from, of whom there are many.
const STRANGERS: [&str; 4] = ["21.0.1.1", "21.0.1.2", "21.0.1.3", "21.0.1.4"];

/// Runs the probe of one way in, in the calling thread's namespace.
fn probe(door: &str, options: &[&str]) -> (Output, Value) {
    let port = World::SERVICE_PORT.to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
        .args(["probe", "20.0.0.1", "--json"])
        .args(["--door", door])
        .args(["--user", &format!("{USER}:{PASSWORD}")])
        .args(["--other-user", &format!("{OTHER_USER}:{PASSWORD}")])
        .args(["--canary", &port])
        .args(["--allowed", "21.0.0.9", "--allowed", "2a00:9::9"])
        .args(options)
        .output()
        .unwrap();
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output, report)
}

/// Returns the option that has one in `count` spellings tried, because all of them take minutes; TURNBUCKLE_TARGET_ONE_IN may ask for more of them, 1 for all.
fn one_in(count: u32) -> String {
    let count = std::env::var("TURNBUCKLE_TARGET_ONE_IN").unwrap_or_else(|_| count.to_string());
    format!("--target-one-in={count}")
}

/// Returns the verdicts on a row.
fn verdicts(report: &Value, id: &str) -> Vec<String> {
    let rows = report["rows"].as_array().unwrap();
    let of_id = rows.iter().filter(|row| row["row"] == id);
    of_id
        .map(|row| row["verdict"].as_str().unwrap().to_owned())
        .collect()
}

/// What 300,000 frames of a client may leave in the relay's memory, bytes.
const FLOOD_GROWTH_MAX: u64 = 4 << 20;

#[test]
fn the_rules_of_quic_hold_and_floods_of_frames_leave_little_behind() {
    let site = Site::new();
    let authority = Authority::new();
    let [certificate, key] = authority.options(Key::P256);
    let options = ["--quic", "--relay-threads=1", &certificate, &key];
    let server = Server::start(site.server(), &options);
    let probe = |options: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
            .args(["probe", "quic", &server.address().to_string(), "--json"])
            .args(options)
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        report["rows"].as_array().unwrap().clone()
    };
    let rows = probe(&["--frames=1000"]);
    let failed: Vec<_> = rows
        .iter()
        .filter(|row| row["verdict"] == "failed")
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    // h3spec's 34 transport cases are the first; early data is not taken.
    let held = rows[..34].iter().filter(|row| row["verdict"] == "held");
    assert_eq!(held.count(), 33);
    let untried: Vec<_> = rows
        .iter()
        .filter(|row| row["verdict"] == "not tried")
        .collect();
    assert_eq!(untried.len(), 1, "{untried:#?}");
    assert_eq!(untried[0]["what"], "CRYPTO in a 0-RTT packet");
    let memory = server.user_memory();
    for rule in ["RFC 9000 §21.9", "RFC 9000 §19.15"] {
        let rows = probe(&["--frames=100000", "--only", rule]);
        assert!(rows.iter().all(|row| row["verdict"] == "held"), "{rows:#?}");
    }
    let growth = server.user_memory().saturating_sub(memory);
    println!("floods of 100,000 frames: user memory +{growth} bytes");
    assert!(growth < FLOOD_GROWTH_MAX, "user memory grew by {growth}");
    server.stop();
}

/// The secret of time-limited users, and what each user may have.
const SECRET: &str = "north-by-northwest";
const QUOTA: &str = "90";

//= V-01
//= V-02
//= V-03
//= V-04
//= V-05
//= V-06
//= V-07
//= V-10
//= V-11
//= V-12
//= V-13
//= V-16
//= V-20
//= V-23
//= V-24
//= V-28
//= V-29
//= V-30
//= V-32
//= V-33
//= V-34
//= V-40
//= V-41
//= V-42
//= V-43
//= V-45
//= V-46
//= V-47
//= V-48
//= V-52
//= V-60
//= V-61
//= V-63
//= V-65
#[test]
fn nothing_that_any_server_can_be_tried_with_succeeds() {
    let Some(_world) = World::enter() else {
        return;
    };
    // With every way in that there is: TLS and DTLS, which take a certificate, TCP relays, clients that move, time-limited users.
    let authority = Authority::new();
    let [certificate, key] = authority.options(Key::P256);
    let (quota, secret) = (
        format!("--user-quota={QUOTA}"),
        format!("--static-auth-secret={SECRET}"),
    );
    let doors = [
        "--no-tcp-relay=false",
        "--mask-connect-errors",
        "--mobility",
        "--dtls",
        "--stream-deadline=4",
        &quota,
        &secret,
        &certificate,
        &key,
    ];
    let options = [&World::RELAYS[..], &doors].concat();
    let _server = Server::start(World::server(), &options);
    let sources = STRANGERS.map(|source| format!("--source={source}"));
    let sources = sources.each_ref().map(String::as_str);
    let (output, report) = probe(
        "turn",
        &[&["--quota", QUOTA, "--secret", SECRET], &sources[..]].concat(),
    );
    let rows = report["rows"].as_array().unwrap();
    let others: Vec<&Value> = rows.iter().filter(|row| row["verdict"] != "held").collect();
    assert!(others.is_empty() && output.status.success(), "{others:#?}");
    assert_eq!(report["canary_hits"], 0);
    let (probes, seconds) = (&report["probes"], &report["matrix_seconds"]);
    println!(
        "{probes} probes in {seconds} s, all in {} s",
        report["seconds"]
    );
    assert!(probes.as_u64().unwrap() >= 20_000, "{probes} probes");
    assert_eq!(verdicts(&report, "heard"), ["held", "held"]);
    assert_eq!(report["notes"], serde_json::json!([]), "all was tried");
    for (row, times) in [
        ("V-06", 1),
        ("V-13", 4),
        ("V-28", 4),
        ("V-30", 8),
        ("V-42", 4),
        ("V-47", 4),
    ] {
        assert_eq!(verdicts(&report, row).len(), times, "{row}");
    }
}

/// Many strangers at once, with a Binding request each, with hellos, with nothing at all, and few places for them: calls go on, new clients and
/// slow ones get in.
#[test]
fn many_strangers_keep_nobody_from_a_relay_with_few_places() {
    let Some(_world) = World::enter() else {
        return;
    };
    let authority = Authority::new();
    let [certificate, key] = authority.options(Key::P256);
    let few = [
        "--dtls",
        "--relay-threads=1",
        "--max-connections-without-allocation=50",
        "--max-dtls-sessions=50",
        &certificate,
        &key,
    ];
    let options = [&World::RELAYS[..], &few].concat();
    let server = Server::start(World::server(), &options);
    server.limit_descriptors(Some(server.descriptors() + 200));
    let sources = STRANGERS.map(|source| format!("--source={source}"));
    let sources = sources.each_ref().map(String::as_str);
    let many = ["--only-strangers", "--strangers=400", "--flood-rate=300"];
    let (output, report) = probe("turn", &[&many, &sources[..]].concat());
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        println!("{}: {}", row["what"], row["detail"]);
    }
    let others: Vec<&Value> = rows.iter().filter(|row| row["verdict"] != "held").collect();
    assert!(others.is_empty() && output.status.success(), "{others:#?}");
}

/// Each in a network of its own, at the same time, because most of a run is waiting.
#[test]
fn accuses_no_configuration_of_ours() {
    let folder = tempfile::tempdir().unwrap();
    let database = format!("--userdb={}", folder.path().join("turndb").display());
    let secret = format!("--static-auth-secret={SECRET}");
    let configurations: [&[&str]; 5] = [
        // Of the database's users only the MD5 keys are known, so that MD5 is all that is offered.
        &[&database],
        &[&secret],
        // Allocations share sockets, and so ports.
        &["--multiplex-peer"],
        &["--mobility", "--no-tcp-relay=false"],
        &["--user-quota=4", "--max-bps=1000000"],
    ];
    let try_with = |options: &[&str]| {
        let Some(_world) = World::enter() else {
            return;
        };
        let server = Server::start(World::server(), &[&World::RELAYS[..], options].concat());
        let quick = ["--quick", "--transports=udp", "--secret", SECRET];
        let (_, report) = probe("turn", &quick);
        let rows = report["rows"].as_array().unwrap();
        let failed: Vec<&Value> = rows
            .iter()
            .filter(|row| row["verdict"] == "failed")
            .collect();
        assert!(failed.is_empty(), "{options:?}: {failed:#?}");
        assert!(rows.iter().any(|row| row["verdict"] == "held"));
        server.stop();
    };
    std::thread::scope(|scope| {
        for options in configurations {
            scope.spawn(move || try_with(options));
        }
    });
}

/// Every row of the list, and what cannot be tried from outside with the reason.
#[test]
fn all_rows_of_the_threat_list_are_listed() {
    let output = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
        .args(["probe", "--list"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("V-"));
    assert_eq!(
        rows.count(),
        56 + 16,
        "sections 1.1 to 1.4, and V-80 to V-95"
    );
    assert!(
        text.contains(
            "V-15  names that resolve to another address the second time: does not apply: "
        )
    );
    assert!(text.contains("V-66  forged ICMP: not seen from outside: "));
    assert!(text.contains("      tries mobility tickets used again (UDP, TCP, TLS, DTLS)"));
}

#[test]
fn what_is_left_open_is_found_and_heard() {
    let Some(_world) = World::enter() else {
        return;
    };
    let open = [
        "--allowed-peer-ip=10.0.0.0/8",
        "--max-permissions=10000",
        "--unverified-excess-bytes-per-second=100000000",
        "--unverified-bytes-per-second=100000000",
    ];
    let _server = Server::start(World::server(), &[&World::RELAYS[..], &open].concat());
    let (output, report) = probe("turn", &["--quick"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(report["canary_hits"].as_u64().unwrap() > 0);
    for row in ["V-06", "V-40", "V-45"] {
        assert_eq!(verdicts(&report, row)[0], "failed", "{row}: {report:#}");
    }
    assert_eq!(verdicts(&report, "V-01"), ["held"]);
}

/// Returns the options of a relay that opens tunnels by HTTP/1.1 and HTTP/3.
fn with_tunnels(authority: &Authority, more: &[&str]) -> Vec<String> {
    let own = [&World::RELAYS[..], &["--quic", "--masque=tls"], more].concat();
    let own = own.into_iter().map(str::to_owned);
    own.chain(authority.options(Key::P256)).collect()
}

//= V-89
//= UDPX-23
#[test]
fn no_spelling_of_a_forbidden_peer_is_the_target_of_a_tunnel() {
    let Some(_world) = World::enter() else {
        return;
    };
    let authority = Authority::new();
    let options = with_tunnels(&authority, &[]);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let server = Server::start(World::server(), &options);
    for door in ["http1", "http3"] {
        // One in 53, so that each spelling has its turn.
        let few = one_in(53);
        let (output, report) = probe(door, &["--only=V-89", "--transports=tls", &few]);
        assert_eq!(verdicts(&report, "V-89"), ["held"], "{report:#}");
        assert_eq!(verdicts(&report, "heard"), ["held", "held"]);
        assert_eq!(report["canary_hits"], 0);
        assert_eq!(report["notes"], serde_json::json!([]), "all was tried");
        assert!(output.status.success());
        assert!(report["probes"].as_u64().unwrap() >= 400);
        println!("{door}: {} probes, 0 canaries", report["probes"]);
    }
    server.stop();
}

//= V-89
#[test]
fn no_forbidden_peer_is_reached_by_a_bound_tunnel_and_one_that_is_left_open_is_found() {
    let Some(_world) = World::enter() else {
        return;
    };
    let authority = Authority::new();
    let open = ["--allowed-peer-ip=10.0.0.0/8", "--allowed-peer-ip=fc00::/7"];
    for (more, verdict) in [(&[][..], "held"), (&open, "failed")] {
        let options = with_tunnels(&authority, &[&["--masque-bind"], more].concat());
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let server = Server::start(World::server(), &options);
        // One in 7, which comes by all ranges and all forms of addresses.
        let few = one_in(7);
        let (output, report) = probe("bind", &["--only=V-89", "--transports=tls", &few]);
        assert_eq!(verdicts(&report, "V-89"), [verdict; 2], "{report:#}");
        let is_held = verdict == "held";
        assert_eq!(report["canary_hits"] == 0, is_held, "{report:#}");
        assert_eq!(output.status.success(), is_held);
        if is_held {
            assert_eq!(verdicts(&report, "heard"), ["held"; 4], "{report:#}");
            assert_eq!(report["notes"], serde_json::json!([]), "all was tried");
        }
        assert!(report["probes"].as_u64().unwrap() >= 3_000, "{report:#}");
        let (probes, hits) = (&report["probes"], &report["canary_hits"]);
        println!("bind, {verdict}: {probes} probes, {hits} canaries");
        server.stop();
    }
}

#[test]
fn a_door_for_tunnels_that_is_left_open_is_found_and_heard() {
    let Some(_world) = World::enter() else {
        return;
    };
    let authority = Authority::new();
    let open = ["--allowed-peer-ip=10.0.0.0/8", "--allowed-peer-ip=fc00::/7"];
    let options = with_tunnels(&authority, &open);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let server = Server::start(World::server(), &options);
    for door in ["http1", "http3"] {
        let (output, report) = probe(
            door,
            &["--only=V-89", "--transports=tls", "--target-one-in=17"],
        );
        assert_eq!(verdicts(&report, "V-89"), ["failed"], "{report:#}");
        assert!(report["canary_hits"].as_u64().unwrap() > 0, "{report:#}");
        assert_eq!(output.status.code(), Some(1));
    }
    server.stop();
}
