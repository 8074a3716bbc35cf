//! The load generator by tunnels of UDP in HTTP/3, against the relay and the reflector.

use nix::sys::signal::Signal;

use crate::load::{Bench, assert_intact, load};
use crate::program::{Program, assert_refused, result, run};
use crate::transports::Certificate;

/// Starts the relay, which opens tunnels, and a reflector.
fn bench(certificate: &Certificate, options: &[&str]) -> Bench {
    let (cert, key) = (certificate.file("cert.pem"), certificate.file("key.pem"));
    let own = ["--quic", "--masque=tls", "--cert", &cert, "--pkey", &key];
    Bench::start(&[&own, options].concat())
}

#[test]
fn nothing_is_lost_through_tunnels() {
    let certificate = Certificate::new();
    let bench = bench(&certificate, &["--listening-ip", "::1"]);
    let by_ipv6 = bench.to_server[1].replace("127.0.0.1", "[::1]");
    let common = ["--duration", "0.5", "--warm-up", "0.2", "--max-loss", "0"];
    for mode in [
        // So slow that the small buffer of a relay socket holds what comes while a busy machine does something else.
        &["rate", "--rate", "30"][..],
        &["rate", "--rate", "30", "--size", "1150", "--clients", "3"],
        &["rate", "--rate", "30", "--backend", "single"],
        &[
            "mix",
            "--clients",
            "10",
            "--rate",
            "20",
            "--listener-threads",
            "2",
        ],
        // More than the eight streams that a connection has before its user is known.
        &["mix", "--clients", "50", "--tunnels", "20", "--rate", "5"],
        &["hold", "--clients", "70", "--rate", "2"],
    ] {
        let mut words = [mode, &["--transport", "masque"], &common].concat();
        words.extend(bench.to_peer.iter().map(String::as_str));
        let server = if mode[0] == "hold" {
            &by_ipv6
        } else {
            &bench.to_server[1]
        };
        words.extend(["--server", server, "--user", "u:p"]);
        let (result, is_success) = load(&words);
        let context = format!("{mode:?}");
        assert!(is_success, "{context}: {result}");
        assert_eq!(result["transport"], "masque");
        let allocations = &result["allocations"];
        assert_eq!(allocations["attempted"], result["clients"], "{result}");
        assert_eq!(allocations["succeeded"], result["clients"], "{result}");
        assert_intact(&result, &context);
    }
    bench.finish();
}

#[test]
fn tunnels_go_on_from_another_port() {
    let certificate = Certificate::new();
    let bench = bench(&certificate, &["--relay-threads", "2"]);
    let mut words = vec!["mix", "--clients", "20", "--tunnels", "2", "--rate", "20"];
    words.extend(["--duration", "1.5", "--warm-up", "0.2", "--max-loss", "0"]);
    words.extend(["--transport", "masque", "--move-every", "0.5"]);
    let (result, is_success) = bench.load(&words);
    assert!(is_success, "{result}");
    assert_intact(&result, "moving");
    let moves = &result["moves"];
    // Ten connections, each at least at two more ports.
    assert!(moves["done"].as_u64().unwrap() >= 20, "{result}");
    assert_eq!(moves["failed"], 0, "{result}");
    bench.finish();
}

#[test]
fn what_is_long_on_its_way_to_a_port_that_was_left_still_arrives() {
    let certificate = Certificate::new();
    let mut bench = bench(&certificate, &[]);
    let there = ["--listen", "127.0.0.1:0", "--to", &bench.to_server[1]];
    // There and back it is more than the second that a port is kept after packets have come to the next one.
    let mut path = Program::start(&[&["link", "--json", "--delay", "700"], &there[..]].concat());
    path.event("ready")["listen"]
        .as_str()
        .unwrap()
        .clone_into(&mut bench.to_server[1]);
    let mut words = vec!["mix", "--clients", "4", "--tunnels", "2", "--rate", "20"];
    words.extend(["--duration", "3", "--warm-up", "0.2", "--max-loss", "0"]);
    words.extend(["--transport", "masque", "--move-every", "1"]);
    let (result, is_success) = bench.load(&words);
    assert!(is_success, "{result}");
    assert_intact(&result, "moving");
    // Two connections, each at least at two more ports.
    assert!(result["moves"]["done"].as_u64().unwrap() >= 4, "{result}");
    path.signal(Signal::SIGINT);
    path.event("result");
    bench.finish();
}

#[test]
fn a_flood_through_tunnels_says_what_came_through() {
    let certificate = Certificate::new();
    let bench = bench(&certificate, &[]);
    let arguments = ["packet", "--duration", "1", "--clients", "2"];
    let arguments = [&arguments[..], &["--transport", "masque"]].concat();
    // On a busy machine the flood may leave the relay no time at all, but not each time.
    let result = (0..10)
        .map(|_| bench.load(&arguments).0)
        .find(|result| result["received_datagrams"] != 0)
        .expect("something comes through");
    let number = |key: &str| result[key].as_u64().unwrap();
    let (sent, received) = (number("sent_datagrams"), number("received_datagrams"));
    assert_eq!(sent, received + number("lost"), "{result}");
    assert_eq!(result["corrupted"], 0, "{result}");
    assert_eq!(result["clients_failed"], 0, "{result}");
    // Several share a packet of QUIC.
    assert!(number("send_calls") * 8 < sent, "{result}");
    bench.finish();
}

#[test]
fn packets_that_are_due_after_the_proxy_died_are_lost() {
    let certificate = Certificate::new();
    let bench = bench(&certificate, &[]);
    let mut words = vec!["load", "rate", "--rate", "100", "--clients", "2"];
    words.extend(["--duration", "1", "--warm-up", "0.2", "--max-loss", "1"]);
    words.extend(["--transport", "masque", "--json"]);
    words.extend(bench.to_server.iter().map(String::as_str));
    words.extend(bench.to_peer.iter().map(String::as_str));
    let mut load = Program::start(&words);
    load.event("measuring");
    bench.server.signal(Signal::SIGKILL);
    let result = load.event("result");
    assert!(!load.succeeds(), "{result}");
    let number = |key: &str| result[key].as_u64().unwrap();
    let lost = number("lost");
    assert!(lost > 0, "{result}");
    assert_eq!(
        number("sent_datagrams"),
        number("received_datagrams") + lost,
        "{result}"
    );
}

/// Returns why no client gets a tunnel.
fn refusal(bench: &Bench, user: &str, words: &[&str]) -> String {
    let fixed = ["load", "hold", "--duration", "0.1", "--warm-up", "0"];
    let mut all = [&fixed[..], words].concat();
    all.extend(["--transport", "masque", "--json", "--user", user]);
    all.extend(bench.to_server[..2].iter().map(String::as_str));
    if !words.contains(&"--peer") {
        all.extend(bench.to_peer.iter().map(String::as_str));
    }
    let output = run(&all);
    if output.status.success() {
        assert_eq!(result(&output)["clients_failed"], 0);
    }
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn refused_tunnels_are_failures_with_their_status() {
    let (certificate, other) = (Certificate::new(), Certificate::new());
    let relay = bench(&certificate, &[]);
    let (good, wrong) = (certificate.file("cert.pem"), other.file("cert.pem"));
    for (user, words, reason) in [
        ("u:p", &["--ca-file", &good][..], None),
        ("u:p", &["--ca-file", &wrong], Some("handshake (1 time)")),
        ("u:wrong", &[], Some("407 (1 time)")),
        // The relay's own port is no target.
        (
            "u:p",
            &["--peer", &relay.to_server[1]],
            Some("403 (1 time)"),
        ),
    ] {
        let error = refusal(&relay, user, words);
        let Some(reason) = reason else {
            assert_eq!(error, "", "{words:?}");
            continue;
        };
        let expected = format!("none of 1 clients got a tunnel: {reason}");
        assert!(error.contains(&expected), "{user} {words:?}: {error}");
    }
    relay.finish();
    let cert = [certificate.file("cert.pem"), certificate.file("key.pem")];
    let without = Bench::start(&["--quic", "--cert", &cert[0], "--pkey", &cert[1]]);
    let error = refusal(&without, "u:p", &[]);
    assert!(error.contains("none of 1 clients got a tunnel"), "{error}");
    without.finish();
}

#[test]
fn what_tunnels_do_not_have_is_refused() {
    for (line, expected) in [
        ("alloc", "by masque there are packet, rate, mix and hold"),
        ("mix --pairs --clients 2", "does not know where"),
        ("mix --indications --peer 127.0.0.1:9", "no indications"),
        ("mix --dual --peer 127.0.0.1:9 --peer [::1]:9", "one target"),
        (
            "hold --sender-threads 2 --peer 127.0.0.1:9",
            "--sender-threads",
        ),
    ] {
        let line = format!("load {line} --server 127.0.0.1 --user a:b --transport masque");
        assert_refused(&line.split(' ').collect::<Vec<_>>(), expected);
    }
    let line = "load hold --server 127.0.0.1 --user a:b --peer 127.0.0.1:9 --tunnels 2";
    let expected = "--tunnels is for --transport masque";
    assert_refused(&line.split(' ').collect::<Vec<_>>(), expected);
}
