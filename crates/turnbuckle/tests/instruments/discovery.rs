//! `turnutils_stunclient` and `turnutils_natdiscovery`: the lines that scripts know, at our server and at coturn's, on two loopback addresses.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use turnbuckle_wire::{ChangeRequest, Class, MessageWriter, Method, TransactionId};

use crate::not_run::not_run;
use crate::ports::free_ports;
use crate::program::Program;
use crate::uclient::wait_for;

/// A server of coturn's, ended when dropped.
struct Coturn(Child);

impl Drop for Coturn {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const ADDRESSES: [&str; 2] = ["--listening-ip=127.0.0.1", "--listening-ip=127.0.0.2"];

fn ours(port: u16, options: &[&str]) -> Program {
    let port = format!("--listening-port={port}");
    let fixed = ["serve", "--stun-only", "--pin-threads=false", &port];
    let mut server = Program::start(&[&fixed[..], &ADDRESSES, options].concat());
    server.wait_for_line("ready");
    server
}

/// Starts coturn. Returns `None`, with a word about it, where it is not installed.
fn coturn(port: u16) -> Option<Coturn> {
    let child = Command::new("turnserver")
        .args(["-n", "--stun-only", "--no-cli", "--no-tls", "--no-dtls"])
        .args(["--log-file=stdout", "--pidfile=/dev/null"])
        .args(ADDRESSES)
        .arg(format!("--listening-port={port}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    match child {
        Ok(child) => Some(Coturn(child)),
        Err(error) => {
            not_run(&format!("turnserver cannot be started: {error}"));
            None
        }
    }
}

fn command(name: &str, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnbuckle"));
    command.arg0(name).args(words).stdin(Stdio::null());
    command
}

/// Runs a program at the server on `port`: its exit code and its lines, without the seconds in front of some.
fn run(name: &str, port: u16, words: &[&str]) -> (Option<i32>, Vec<String>) {
    let port = port.to_string();
    let line = [words, &["-p", &port, "127.0.0.1"]].concat();
    let output = command(name, &line).output().unwrap();
    (output.status.code(), lines(&output))
}

fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let text = text.lines().filter(|line| !line.is_empty());
    text.map(|line| match line.split_once(": : ") {
        Some((seconds, rest)) if seconds.parse::<u32>().is_ok() => rest.to_owned(),
        _ => line.to_owned(),
    })
    .collect()
}

fn has(lines: &[String], beginning: &str) -> bool {
    lines.iter().any(|line| line.starts_with(beginning))
}

fn calls(port: u16) {
    wait_for(port);
    let next = port + 1;
    let (code, lines) = run("turnutils_stunclient", port, &[]);
    assert_eq!(code, Some(0), "{lines:#?}");
    let origins: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("IPv4. Response origin: : "))
        .collect();
    let other = format!("127.0.0.2:{next}");
    assert_eq!(origins, [&format!("127.0.0.1:{port}"), &other, &other]);
    assert!(has(&lines, "RFC 5780 response 3"), "{lines:#?}");
    assert!(
        has(&lines, &format!("IPv4. Other addr: : {other}")),
        "{lines:#?}"
    );
    assert!(
        has(&lines, "IPv4. UDP reflexive addr: 127.0.0.1:"),
        "{lines:#?}"
    );

    for padding in [None, Some("-P")] {
        let flags: Vec<&str> = ["-m", "-f"].into_iter().chain(padding).collect();
        let (code, lines) = run("turnutils_natdiscovery", port, &flags);
        assert_eq!(code, Some(0), "{lines:#?}");
        for expected in [
            "-= Mapping Behavior Discovery =-",
            "No ALG: Mapped == XOR-Mapped",
            "No NAT! (Endpoint Independent Mapping)",
            "-= Filtering Behavior Discovery =-",
            "NAT with Endpoint Independent Filtering!",
            "IPv4. Local addr: : 127.0.0.1:",
        ] {
            assert!(has(&lines, expected), "no {expected:?} in {lines:#?}");
        }
    }
    let flags = ["-H", "-c", "-A", "127.0.0.3", "-t", "-T", "1"];
    let (code, lines) = run("turnutils_natdiscovery", port, &flags);
    assert_eq!(code, Some(0), "{lines:#?}");
    for expected in [
        "Received a request (maybe a successful hairpinning)",
        "-= Collision Behavior Discovery =-",
        "IPv4. UDP reflexive addr: 127.0.0.3:",
        "-= Mapping Lifetime Behavior Discovery =-",
        "RFC 5780 response 5",
    ] {
        assert!(has(&lines, expected), "no {expected:?} in {lines:#?}");
    }
    assert!(!has(&lines, "STUN receive timeout.."), "{lines:#?}");
}

//= NAT-01
//= NAT-05
//= NAT-09
//= NAT-11
//= NAT-12
//= NAT-13
//= NAT-18
#[test]
fn scripts_find_their_lines_at_our_server() {
    let port = free_ports();
    let _server = ours(port, &["--rfc5780"]);
    calls(port);
}

#[test]
fn scripts_find_their_lines_at_coturns_server() {
    let port = free_ports();
    let Some(_server) = coturn(port) else { return };
    calls(port);
}

//= NAT-06
#[test]
fn a_server_without_discovery_is_asked_no_more_than_it_can_answer() {
    let port = free_ports();
    let _server = ours(port, &[]);
    let (code, lines) = run("turnutils_stunclient", port, &[]);
    assert_eq!((code, lines.len()), (Some(0), 1), "{lines:#?}");
    assert!(
        has(&lines, "IPv4. UDP reflexive addr: 127.0.0.1:"),
        "{lines:#?}"
    );
    let (code, lines) = run("turnutils_stunclient", port, &["-f"]);
    assert_eq!(code, Some(1));
    let refused = "The response is an error 420 (Unknown Attribute)";
    assert!(has(&lines, refused), "{lines:#?}");
    let (code, lines) = run("turnutils_natdiscovery", port, &["-m", "-f"]);
    assert_eq!(code, Some(0));
    assert!(!has(&lines, "NAT with"), "{lines:#?}");
}

#[test]
fn an_auxiliary_listener_answers_without_discovery() {
    let (port, auxiliary) = (free_ports(), free_ports());
    let aux = format!("--aux-server=127.0.0.1:{auxiliary}");
    let _server = ours(port, &["--rfc5780", &aux]);
    let (code, lines) = run("turnutils_stunclient", auxiliary, &[]);
    assert_eq!((code, lines.len()), (Some(0), 1), "{lines:#?}");
}

#[test]
fn silence_ends_in_a_line_and_an_exit_code() {
    let port = free_ports();
    let (code, lines) = run("turnutils_stunclient", port, &["-t", "50"]);
    assert_eq!(code, Some(1));
    assert_eq!(lines, ["STUN receive timeout.."]);
    for (name, test) in [
        ("turnutils_stunclient", "-f"),
        ("turnutils_natdiscovery", "-m"),
    ] {
        let (code, _) = run(name, port, &[test, "-L", "192.0.2.1"]);
        assert_eq!(
            code,
            Some(255),
            "{name} from an address that is not the host's"
        );
    }
}

#[test]
fn a_continuous_run_ends_by_a_signal_and_says_how_long_answers_took() {
    let port = free_ports();
    let _server = ours(port, &[]);
    let port = port.to_string();
    let mut child = command(
        "turnutils_stunclient",
        &["-c", "-i", "10", "-p", &port, "127.0.0.1"],
    )
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    // From the first line on a signal is heard.
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    out.read_line(&mut text).unwrap();
    out.read_line(&mut text).unwrap();
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    out.read_to_string(&mut text).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{text}");
    for expected in [
        "\n1: time=",
        "\n--- A STUN latency statistics ---\n",
        " 0.0% packet loss\n",
        "\nround-trip min/avg/max = ",
    ] {
        assert!(text.contains(expected), "no {expected:?} in {text}");
    }
}

/// Returns a Binding request that `write` adds to.
fn request(write: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
    let mut bytes = vec![0; 65_000];
    let id = TransactionId::new(*b"reflect this");
    let mut writer = MessageWriter::new(&mut bytes, Class::Request, Method::BINDING, id);
    write(&mut writer);
    let len = writer.finish().unwrap();
    bytes.truncate(len);
    bytes
}

/// Returns how many bytes come until nothing comes any more.
fn heard(socket: &UdpSocket) -> usize {
    let wait = Some(Duration::from_millis(100));
    socket.set_read_timeout(wait).unwrap();
    let mut buffer = [0; 65_536];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok()).sum()
}

//= V-40
//= V-49
//= NAT-19
#[test]
fn a_source_that_proved_nothing_gets_little_more_than_it_sent_whatever_it_asks_for() {
    const EXCESS_PER_S: usize = 1_000;
    const BURST_S: usize = 8;
    let port = free_ports();
    let excess = format!("--unverified-excess-bytes-per-second={EXCESS_PER_S}");
    let _server = ours(port, &["--rfc5780", "--relay-threads=1", &excess]);
    let [asking, named] = [(); 2].map(|()| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let named_port = named.local_addr().unwrap().port();
    asking.connect((Ipv4Addr::LOCALHOST, port)).unwrap();

    // As long as the request and not longer, far below what was asked for.
    let long = request(|writer| {
        writer.padding(60_000);
    });
    asking.send(&long).unwrap();
    let timeout = Some(Duration::from_secs(20));
    asking.set_read_timeout(timeout).unwrap();
    let answer = asking.recv(&mut [0; 65_536]).unwrap();
    assert!((1_500..1_700).contains(&answer), "{answer}");

    let begin = Instant::now();
    let mut sent = 0;
    let mut received = 0;
    for _ in 0..5 {
        for number in 0_u16..100 {
            let bytes = request(|writer| {
                if number % 2 == 0 {
                    writer.response_port(named_port);
                } else {
                    writer.padding(usize::from(number));
                }
                writer.change_request(ChangeRequest::default());
            });
            sent += asking.send(&bytes).unwrap();
        }
        received += heard(&asking) + heard(&named);
    }
    let seconds = usize::try_from(begin.elapsed().as_secs()).unwrap() + 1;
    let allowed = sent + EXCESS_PER_S * (BURST_S + seconds);
    assert!(received > 0);
    assert!(received <= allowed, "{received} bytes for {sent}");
}
