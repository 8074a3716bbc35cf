//! The generator as `turnutils_uclient`: the flags and the lines that scripts know, at our relay and at coturn's.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::not_run::not_run;
use crate::ports::free_ports;
use crate::program::{Program, relay_at};
use crate::stand_in::{Harm, StandIn};
use crate::transports::Certificate;

/// A server at a port of the loopback interface, ended when dropped.
enum Server {
    Ours(Program),
    Coturn(Child),
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Self::Coturn(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn ours(port: u16) -> Server {
    ours_with(port, &[])
}

fn ours_with(port: u16, options: &[&str]) -> Server {
    // The clients' relayed addresses are peers of each other.
    let server = relay_at(port, &[&["--allowed-peer-ip=127.0.0.1"], options].concat());
    Server::Ours(server)
}

/// Starts coturn. Returns `None`, with a word about it, where it is not installed.
fn coturn(port: u16) -> Option<Server> {
    let child = Command::new("turnserver")
        .args(["-n", "--lt-cred-mech", "--user=u:p", "--realm=r"])
        .args(["--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1"])
        .args([
            "--no-cli",
            "--no-tls",
            "--no-dtls",
            "--allow-loopback-peers",
        ])
        .args([
            "--log-file=stdout",
            "--pidfile=/dev/null",
            "--userdb=/dev/null",
        ])
        .arg(format!("--listening-port={port}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    match child {
        Ok(child) => Some(Server::Coturn(child)),
        Err(error) => {
            not_run(&format!("turnserver cannot be started: {error}"));
            None
        }
    }
}

fn uclient(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnbuckle"));
    command.arg0("turnutils_uclient").args(words);
    command.stdin(Stdio::null());
    command
}

/// Runs it at a server.
fn at(port: u16, words: &[&str]) -> Output {
    let port = port.to_string();
    let line = [&["-u", "u", "-w", "p", "-p", &port], words, &["127.0.0.1"]].concat();
    uclient(&line).output().unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until the server answers.
pub(crate) fn wait_for(port: u16) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let mut binding = [0; 20];
    binding[1] = 1;
    binding[4..8].copy_from_slice(&0x2112_a442_u32.to_be_bytes());
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        // Refused as long as nobody listens.
        let _ = socket.send(&binding);
        if socket.recv(&mut [0; 512]).is_ok() {
            return;
        }
    }
    panic!("no answer at port {port}");
}

/// Makes the calls that scripts make, and looks for the lines that they look for.
fn calls(port: u16) {
    wait_for(port);
    let peer_port = free_ports();
    let listen = [peer_port, peer_port + 1].map(|port| format!("127.0.0.1:{port}"));
    let mut peer = Program::start(&[
        "peer", "--listen", &listen[0], "--listen", &listen[1], "--json",
    ]);
    peer.event("ready");
    let peer_port = peer_port.to_string();
    for (flags, packets) in [
        (vec!["-e", "127.0.0.1", "-r", &peer_port], 10),
        (
            vec![
                "-s",
                "-c",
                "-m",
                "3",
                "-n",
                "20",
                "-e",
                "127.0.0.1",
                "-r",
                &peer_port,
            ],
            60,
        ),
        (vec!["-y", "-n", "20", "-z", "5"], 80),
        (
            vec!["-y", "-s", "-c", "-g", "-n", "10", "-l", "1000", "-m", "4"],
            40,
        ),
        (
            vec![
                "-Y",
                "packet",
                "-c",
                "-n",
                "100",
                "-z",
                "20",
                "-e",
                "127.0.0.1",
                "-r",
                &peer_port,
            ],
            100,
        ),
    ] {
        let output = at(port, &flags);
        let text = printed(&output);
        assert_eq!(output.status.code(), Some(0), "{flags:?}: {text}");
        for line in [
            ": : Total connect time is ",
            &format!(": : start_mclient: tot_send_msgs={packets}, tot_recv_msgs={packets}\n"),
            ": : Total transmit time is ",
            ": : Total lost packets 0 (0.000000%), total send dropped 0 (0.000000%)\n",
            ": : Average round trip delay ",
            ": : Average jitter ",
        ] {
            assert!(text.contains(line), "{flags:?}: no {line:?} in {text}");
        }
    }
    let output = at(port, &["-Y", "alloc", "-m", "5", "-n", "4"]);
    let text = printed(&output);
    // The last one: a run that takes longer than a second says in between how far it is.
    let line = text
        .lines()
        .rev()
        .find_map(|line| line.split_once("start_allocation_flood: total_allocations="));
    let allocations: u64 = line.unwrap().1.parse().unwrap();
    // The run is looked at fifty times a second; what is made until then comes on top.
    assert!(allocations >= 20, "{text}");
    assert!(text.contains("Total allocation flood time is "), "{text}");

    let output = at(port, &["-w", "wrong", "-e", "127.0.0.1"]);
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(255), "{text}");
    assert!(text.contains("error 401"), "{text}");
    assert!(text.contains("ERROR: Cannot complete Allocation"), "{text}");
}

#[test]
fn what_comes_after_a_long_silence_is_not_called_lost() {
    let stand_in = StandIn::start(Harm::Delay(Duration::from_millis(2_500)));
    let output = at(
        stand_in.address.port(),
        &["-c", "-m", "1", "-n", "3", "-z", "5", "-e", "127.0.0.1"],
    );
    let text = printed(&output);
    assert!(
        text.contains("tot_send_msgs=3, tot_recv_msgs=3\n"),
        "{text}"
    );
    stand_in.finish();
}

#[test]
fn scripts_find_their_lines_at_our_relay() {
    let port = free_ports();
    let server = ours(port);
    calls(port);
    if let Server::Ours(program) = &server {
        program.signal(Signal::SIGTERM);
    }
}

#[test]
fn scripts_find_their_lines_at_coturns_relay() {
    let port = free_ports();
    let Some(_server) = coturn(port) else { return };
    calls(port);
}

#[test]
fn a_flood_goes_on_until_a_signal_and_prints_rates_meanwhile() {
    let port = free_ports();
    let _server = ours(port);
    let port = port.to_string();
    let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let peer_port = peer.local_addr().unwrap().port().to_string();
    let mut child = uclient(&[
        "-Y",
        "packet",
        "-z",
        "1",
        "-c",
        "-u",
        "u",
        "-w",
        "p",
        "-e",
        "127.0.0.1",
        "-r",
        &peer_port,
        "-p",
        &port,
        "127.0.0.1",
    ])
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut rates = String::new();
    while !rates.contains("send_pps=") {
        rates.clear();
        let len = out.read_line(&mut rates).unwrap();
        assert!(len > 0, "it ended by itself");
    }
    kill(
        Pid::from_raw(child.id().try_into().unwrap()),
        Signal::SIGINT,
    )
    .unwrap();
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(rates.contains("start_mclient: send_pps="), "{rates}");
    // Nothing answers, and by the time of the line something had been sent.
    assert!(
        rates.contains(", recv_pps=0.00, total_sent=") && rates.ends_with(", total_recv=0\n"),
        "{rates}"
    );
    assert!(peer.recv(&mut [0; 200]).is_ok());
    assert!(
        text.contains("(100.000000%), total send dropped 0"),
        "{text}"
    );
}

#[test]
fn a_script_that_asks_for_what_is_not_there_is_told_so() {
    for (words, expected) in [
        (vec!["-b", "-y", "127.0.0.1"], "-b: SCTP cannot be had here"),
        (vec!["-a", "1", "-y", "127.0.0.1"], "-a: a bandwidth"),
        (vec!["127.0.0.1"], "either -e peer_address or -y"),
    ] {
        let output = uclient(&words).output().unwrap();
        assert_eq!(output.status.code(), Some(255));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("Usage: turnutils_uclient"), "{error}");
    }
}

#[test]
fn every_mode_that_scripts_ask_for_ends_with_its_lines() {
    let certificate = Certificate::new();
    let port = free_ports();
    let server = ours_with(
        port,
        &[
            "--no-tcp-relay=false",
            "--mobility",
            "--dtls",
            "--relay-ip=::1",
            "--cert",
            &certificate.file("cert.pem"),
            "--pkey",
            &certificate.file("key.pem"),
        ],
    );
    let peer_port = free_ports();
    let listen = [peer_port, peer_port + 1].map(|port| format!("127.0.0.1:{port}"));
    let mut peer = Program::start(&[
        "peer", "--listen", &listen[0], "--listen", &listen[1], "--json",
    ]);
    peer.event("ready");
    let peer = format!("-e 127.0.0.1 -r {peer_port}");
    for (flags, sent, received, line) in [
        (format!("-t {peer}"), 10, 10, ""),
        // TLS and DTLS are known by their first byte on the plain port as well.
        (format!("-S {peer}"), 10, 10, ""),
        (format!("-t -S -s {peer}"), 10, 10, ""),
        (
            format!("-t -S -E {} {peer}", certificate.file("cert.pem")),
            10,
            10,
            "",
        ),
        ("-t -S -y".to_owned(), 20, 20, ""),
        ("-T".to_owned(), 10, 10, "2 connections are completed"),
        (
            "-T -m 4 -z 0 -n 1000".to_owned(),
            4_000,
            4_000,
            "4 connections are completed",
        ),
        ("-P".to_owned(), 10, 10, "2 connections are completed"),
        ("-T -S".to_owned(), 10, 10, "2 connections are completed"),
        (
            format!("-M -n 20 {peer}"),
            40,
            40,
            "mobility: 2 clients moved, 0 did not",
        ),
        (
            "-M -y -s -n 20".to_owned(),
            80,
            80,
            "mobility: 4 clients moved, 0 did not",
        ),
        (format!("-Z {peer}"), 5, 5, ""),
        ("-Z -y".to_owned(), 10, 10, ""),
        (format!("-D -l 101 {peer}"), 10, 10, ""),
        (format!("-I -s {peer}"), 10, 0, ""),
        (format!("-G -n 20 {peer}"), 40, 40, ""),
        (format!("-o https://example.org {peer}"), 10, 10, ""),
        (
            format!("-N -R {peer}"),
            10,
            10,
            "negative test: 87 passed, 0 failed, 0 not tried",
        ),
    ] {
        let output = at(port, &words_of(&flags));
        let text = printed(&output);
        assert_eq!(output.status.code(), Some(0), "{flags}: {text}");
        let totals = format!(": start_mclient: tot_send_msgs={sent}, tot_recv_msgs={received}\n");
        assert!(text.contains(&totals), "{flags}: {text}");
        assert!(text.contains(line), "{flags}: {text}");
    }
    // Some send less than they are asked for, and all of it comes back.
    let output = at(port, &words_of(&format!("-B -m 16 -n 20 {peer}")));
    let text = printed(&output);
    let totals = text.split("tot_send_msgs=").last().unwrap();
    let (sent, rest) = totals.split_once(',').unwrap();
    assert!(sent.parse::<u32>().unwrap() < 16 * 20, "{text}");
    assert!(
        rest.starts_with(&format!(" tot_recv_msgs={sent}\n")),
        "{text}"
    );
    // Ends when all are there, and leaves what they have.
    let output = at(port, &words_of(&format!("-O {peer}")));
    let text = printed(&output);
    let last = text.lines().last().unwrap();
    assert!(last.contains(": : Total connect time is "), "{text}");
    if let Server::Ours(program) = &server {
        program.signal(Signal::SIGTERM);
    }
}

fn words_of(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn tokens_under_the_key_that_the_original_has_built_in_are_taken() {
    let port = free_ports();
    // The key has a line feed at its end, which the cipher has no room for.
    let key = "north:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEK:A256GCM";
    let server = ours_with(port, &["--oauth", "--oauth-key", key, "--mobility"]);
    for flags in ["-J -y -n 20", "-J -y -n 20 -t", "-J -y -n 20 -M"] {
        let output = at(port, &words_of(flags));
        let text = printed(&output);
        assert_eq!(output.status.code(), Some(0), "{flags}: {text}");
        let totals = ": start_mclient: tot_send_msgs=80, tot_recv_msgs=80\n";
        assert!(text.contains(totals), "{flags}: {text}");
    }
    drop(server);
    // Another key, and the server cannot read the token.
    let port = free_ports();
    let other = "north:AAAAMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDEK:A256GCM";
    let _server = ours_with(port, &["--oauth", "--oauth-key", other]);
    let output = at(port, &["-J", "-y"]);
    assert_eq!(output.status.code(), Some(255));
    let text = printed(&output);
    assert!(text.contains("error 401 (Unauthorized)"), "{text}");
}
