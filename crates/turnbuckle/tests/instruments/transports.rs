//! The load generator by every transport, against the relay and the reflector.

use std::fs;

use nix::sys::signal::Signal;
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use crate::load::{Bench, assert_all_came_back, load};
use crate::program::{Program, assert_refused, result, run};

const TRANSPORTS: [&str; 3] = ["tcp", "tls", "dtls"];

/// A certificate for 127.0.0.1 and relay.example.org that vouches for itself, in a folder of its own.
pub(crate) struct Certificate {
    folder: TempDir,
}

impl Certificate {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let names = ["127.0.0.1", "relay.example.org"].map(str::to_owned);
        let params = CertificateParams::new(names).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("cert.pem"), certificate.pem()).unwrap();
        fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        Self { folder }
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Starts the relay and a reflector; the relay listens on `::1` besides.
    fn bench(&self) -> Bench {
        Bench::start(&[
            "--dtls",
            "--listening-ip",
            "::1",
            "--cert",
            &self.file("cert.pem"),
            "--pkey",
            &self.file("key.pem"),
        ])
    }
}

#[test]
fn nothing_is_lost_by_any_transport() {
    let certificate = Certificate::new();
    let bench = certificate.bench();
    let common = ["--duration", "1", "--warm-up", "0.2", "--max-loss", "0"];
    for transport in TRANSPORTS {
        for mode in [
            // So slow that the small buffer of a relay socket holds what comes while a busy machine does something else.
            &["rate", "--rate", "30"][..],
            // Not a multiple of four: padded.
            &["rate", "--rate", "30", "--size", "1201", "--clients", "3"],
            &["rate", "--rate", "30", "--indications", "--clients", "3"],
            &[
                "mix",
                "--clients",
                "20",
                "--rate",
                "20",
                "--listener-threads",
                "2",
            ],
            &["mix", "--clients", "20", "--rate", "20", "--pairs"],
            &["hold", "--clients", "10"],
        ] {
            let arguments = [mode, &["--transport", transport], &common].concat();
            let (result, is_success) = bench.load(&arguments);
            let context = format!("{transport}, {mode:?}");
            assert!(is_success, "{context}: {result}");
            assert_eq!(result["transport"], transport);
            assert_all_came_back(&result, &context);
        }
    }
    bench.finish();
}

#[test]
fn the_server_is_reached_by_ipv6_as_well() {
    let certificate = Certificate::new();
    let bench = certificate.bench();
    let server = bench.to_server[1].replace("127.0.0.1", "[::1]");
    for transport in TRANSPORTS {
        let (result, is_success) = load(&[
            "rate",
            "--rate",
            "300",
            "--duration",
            "0.5",
            "--warm-up",
            "0.2",
            "--max-loss",
            "0",
            "--transport",
            transport,
            "--server",
            &server,
            "--user",
            "u:p",
            "--peer",
            &bench.to_peer[1],
        ]);
        assert!(is_success, "{transport}: {result}");
        assert_all_came_back(&result, transport);
    }
    bench.finish();
}

#[test]
fn a_flood_over_connections_says_what_came_through() {
    let certificate = Certificate::new();
    let bench = certificate.bench();
    for transport in TRANSPORTS {
        let arguments = ["packet", "--duration", "1", "--clients", "2", "--transport"];
        // On a busy machine the flood may leave the relay no time at all, but not each time.
        let result = (0..10)
            .map(|_| bench.load(&[&arguments[..], &[transport]].concat()).0)
            .find(|result| result["received_datagrams"] != 0)
            .expect("something comes through");
        let number = |key: &str| result[key].as_u64().unwrap();
        assert_eq!(
            number("sent_datagrams"),
            number("received_datagrams") + number("lost"),
            "{result}"
        );
        assert_eq!(result["corrupted"], 0, "{result}");
        assert_eq!(result["clients_failed"], 0, "{result}");
        // Many messages a system call, or the generator would be what is measured. For datagrams the kernel has to be able to.
        assert!(
            transport == "dtls" || number("send_calls") * 8 < number("sent_datagrams"),
            "{result}"
        );
    }
    bench.finish();
}

#[test]
fn allocations_are_made_and_given_back_by_every_transport() {
    let certificate = Certificate::new();
    let bench = certificate.bench();
    for transport in TRANSPORTS {
        let (result, _) = bench.load(&[
            "alloc",
            "--clients",
            "4",
            "--packets",
            "10",
            "--duration",
            "60",
            "--transport",
            transport,
        ]);
        let allocations = &result["allocations"];
        assert!(allocations["succeeded"].as_u64().unwrap() > 4, "{result}");
        assert_eq!(allocations["failed"], 0, "{result}");
    }
    bench.finish();
}

#[test]
fn packets_that_are_due_after_the_relay_died_are_lost() {
    let certificate = Certificate::new();
    for transport in TRANSPORTS {
        // All of five hundred are due, although there is no way for them; a busy machine may have no time for some, but not each time.
        let mut all = (0..10).map(|_| sent_while_the_relay_dies(&certificate, transport));
        assert!(all.any(|sent| sent > 400), "{transport}");
    }
}

fn sent_while_the_relay_dies(certificate: &Certificate, transport: &str) -> u64 {
    let bench = certificate.bench();
    let mut words = vec!["load", "rate", "--rate", "500", "--clients", "2"];
    words.extend(["--duration", "1", "--warm-up", "0.2", "--max-loss", "1"]);
    words.extend(["--transport", transport, "--json"]);
    words.extend(bench.to_server.iter().map(String::as_str));
    words.extend(bench.to_peer.iter().map(String::as_str));
    let mut load = Program::start(&words);
    load.event("measuring");
    bench.server.signal(Signal::SIGKILL);
    let result = load.event("result");
    assert!(!load.succeeds(), "{transport}: {result}");
    let number = |key: &str| result[key].as_u64().unwrap();
    let lost = number("lost");
    assert!(lost > 0, "{result}");
    assert_eq!(
        number("sent_datagrams"),
        number("received_datagrams") + lost
    );
    if transport != "dtls" {
        assert_eq!(result["allocations"]["errors"]["disconnected"], 2);
        assert_eq!(result["clients_failed"], 2);
    }
    number("sent_datagrams")
}

#[test]
fn certificates_are_checked_where_authorities_are_given() {
    let (certificate, other) = (Certificate::new(), Certificate::new());
    let bench = certificate.bench();
    let (good, wrong) = (certificate.file("cert.pem"), other.file("cert.pem"));
    for transport in TRANSPORTS.into_iter().filter(|&it| it != "tcp") {
        for (file, name, is_trusted) in [
            (&good, "127.0.0.1", true),
            (&good, "relay.example.org", true),
            (&good, "other.example.org", false),
            (&wrong, "127.0.0.1", false),
        ] {
            let mut words = vec!["load", "hold", "--duration", "0.1", "--warm-up", "0"];
            words.extend(["--transport", transport, "--json"]);
            words.extend(["--ca-file", file, "--tls-name", name]);
            words.extend(bench.to_server.iter().map(String::as_str));
            words.extend(bench.to_peer.iter().map(String::as_str));
            let output = run(&words);
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), is_trusted, "{name}: {error}");
            if is_trusted {
                assert_eq!(result(&output)["clients_failed"], 0);
            } else {
                let reason = "none of 1 clients got an allocation: handshake (1 time)";
                assert!(error.contains(reason), "{transport}, {name}: {error}");
            }
        }
    }
    bench.finish();
}

#[test]
fn a_server_that_is_not_there_is_an_error_at_once() {
    for transport in ["tcp", "tls"] {
        let port = crate::ports::free_ports();
        let server = format!("127.0.0.1:{port}");
        let mut words = vec!["load", "hold", "--server", &server, "--user", "a:b"];
        words.extend(["--peer", "127.0.0.1:9", "--transport", transport]);
        let output = run(&words);
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("disconnected (1 time)"), "{error}");
    }
}

#[test]
fn wrong_values_are_refused_with_what_is_allowed() {
    for (line, expected) in [
        (
            "hold --server 127.0.0.1 --user a:b --peer 127.0.0.1:9 --transport sctp",
            "possible values: udp, tcp, tls, dtls, masque",
        ),
        (
            "invalid --server 127.0.0.1 --transport tcp",
            "no use for tcp",
        ),
        (
            "hold --server 127.0.0.1 --user a:b --peer 127.0.0.1:9 --ca-file a.pem",
            "about certificates",
        ),
    ] {
        let words: Vec<_> = std::iter::once("load").chain(line.split(' ')).collect();
        assert_refused(&words, expected);
    }
    // What is wrong with a file or a name is found when it is used.
    for (option, value, expected) in [
        (
            "--ca-file",
            "/nonexistent.pem",
            "--ca-file /nonexistent.pem",
        ),
        ("--tls-name", "..", "--tls-name ..: allowed"),
    ] {
        let mut words = vec!["load", "hold", "--server", "127.0.0.1", "--user", "a:b"];
        words.extend(["--peer", "127.0.0.1:9", "--transport", "tls", option, value]);
        let output = run(&words);
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(expected), "{error}");
    }
}
