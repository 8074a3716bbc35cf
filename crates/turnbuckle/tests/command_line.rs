//! The binary as an operator meets it: exit codes, and what is printed where.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

mod ports;

use ports::free_ports;

fn turnbuckle(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
        .args(arguments)
        .output()
        .expect("the binary runs")
}

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn complained(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// A file that is gone when the test is.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: &str) -> Self {
        let path = std::env::temp_dir().join(format!("turnbuckle-{}-{name}", std::process::id()));
        std::fs::write(&path, content).expect("written");
        Self(path)
    }

    fn name(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left over in the temporary directory at worst.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn check_accepts_a_good_file_with_exit_code_0() {
    let file = Scratch::new(
        "good.conf",
        "realm=example.org\nuser=alice:hush\nmin-port=50000\n",
    );
    let output = turnbuckle(&["check", file.name(), "--max-port", "50100", "--all"]);
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains("user=alice:********") && text.contains(&format!("{}:3", file.name())),
        "{text}"
    );
    assert!(
        text.contains("max-port=50100") && text.contains("command line"),
        "{text}"
    );
    assert!(text.contains("no-auth: here false, coturn true"), "{text}");
    assert!(!text.contains("hush"), "{text}");
}

#[test]
fn check_refuses_a_bad_file_with_exit_code_1_and_every_line_that_is_wrong() {
    let file = Scratch::new(
        "bad.conf",
        "listning-port=3478\nmax-port=65536\nuser=alice:hush\nno-auth\n",
    );
    let output = turnbuckle(&["check", file.name()]);
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for (line, expected) in [
        (1, "did you mean `listening-port`?"),
        (2, "allowed: 1 to 65535"),
        (4, "authentication is required"),
    ] {
        let place = format!("{}:{line}: ", file.name());
        assert!(
            text.lines()
                .any(|found| found.starts_with(&place) && found.contains(expected)),
            "{text}"
        );
    }
    assert!(
        text.contains("refused: 3 problems") && !text.contains("hush"),
        "{text}"
    );
}

#[test]
fn check_judges_a_file_as_the_program_of_the_name_that_is_given() {
    let file = Scratch::new("coturns.conf", "user=alice:hush\nno-tlsv1\n");
    let check = |arguments: &[&str]| {
        let output = turnbuckle(&[&["check"], arguments].concat());
        let text = printed(&output) + &complained(&output);
        assert!(!text.contains("hush"), "{text}");
        (output.status.code(), text)
    };
    for arguments in [&[file.name()][..], &["--as", "turnbuckle", file.name()]] {
        let (code, text) = check(arguments);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains(":2: `no-tlsv1`: is a key of old"), "{text}");
    }
    for arguments in [
        &["--as", "turnserver", file.name()][..],
        &[file.name(), "--as=turnserver"],
        // With the options of that program.
        &["--listening-p=4000", "--as", "turnserver", file.name()],
        &["--as", "turnserver", "-c", file.name()],
    ] {
        let (code, text) = check(&[arguments, &["--all"]].concat());
        assert_eq!(code, Some(0), "{arguments:?}: {text}");
        for expected in [
            "effective configuration of turnserver\n",
            "`no-tlsv1`: Bad configuration format",
            "prometheus-address=any",
            "no-multicast-peers: here true, coturn false",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        // What `turnserver` does as coturn does is no difference.
        assert!(!text.contains("coturn (any)"), "{text}");
        assert!(!text.contains("private networks are open)"), "{text}");
    }
    for (arguments, expected) in [
        (&["--as", "coturn"][..], "turnbuckle and turnserver"),
        (&[file.name(), "--as"], "turnbuckle and turnserver"),
        (
            &["--as", "turnserver", "/nonexistent.conf"],
            "/nonexistent.conf: cannot be found",
        ),
    ] {
        let (code, text) = check(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn check_refuses_files_that_serve_could_not_open_with_the_line_that_names_them() {
    let file = Scratch::new(
        "files.conf",
        "user=a:b\nlistening-ip=127.0.0.1\ncert=/nonexistent/chain.pem\npkey=/nonexistent/key.pem\n\
         log-file=/nonexistent/turn.log\n",
    );
    let output = turnbuckle(&["check", file.name()]);
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for (line, expected) in [
        (3, "`cert`: /nonexistent/chain.pem"),
        (5, "`log-file`: /nonexistent/turn.log"),
    ] {
        let place = format!("{}:{line}: {expected}", file.name());
        assert!(text.contains(&place), "{place}: {text}");
    }
    // In the same words, one after the other.
    let port = free_ports().to_string();
    let served = turnbuckle(&["serve", "-p", &port, "-c", file.name(), "--log-file=stdout"]);
    let place = format!("{}:3: `cert`: /nonexistent/chain.pem", file.name());
    assert!(complained(&served).contains(&place), "{served:?}");
}

#[test]
fn check_prints_what_is_to_be_noted_first_and_defaults_if_asked() {
    let words = [
        "check",
        "-u",
        "a:b",
        "--listening-ip=127.0.0.1",
        "--no-auth-pings",
    ];
    let short = printed(&turnbuckle(&words));
    assert!(
        short.starts_with("notes\n") && short.ends_with("\naccepted\n"),
        "{short}"
    );
    assert!(
        short.contains("listening-ip=127.0.0.1") && !short.contains("max-port="),
        "{short}"
    );
    let long = printed(&turnbuckle(&[&words[..], &["--all"]].concat()));
    assert!(
        long.starts_with("notes\n") && long.contains("max-port="),
        "{long}"
    );
}

#[test]
fn check_prints_json_for_programs() {
    let good = turnbuckle(&["check", "--json", "--realm", "example.org"]);
    let report: serde_json::Value = serde_json::from_str(&printed(&good)).expect("JSON");
    assert_eq!(
        (good.status.code(), &report["accepted"]),
        (Some(0), &true.into())
    );
    assert!(
        report["differences"]
            .as_array()
            .is_some_and(|list| !list.is_empty())
    );
    let file = Scratch::new("json.conf", "\nrealm=\n");
    let bad = turnbuckle(&["check", file.name(), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&printed(&bad)).expect("JSON");
    assert_eq!(
        (bad.status.code(), &report["accepted"]),
        (Some(1), &false.into())
    );
    let problem = &report["problems"][0];
    assert_eq!(
        (problem["line"].as_u64(), problem["key"].as_str()),
        (Some(2), Some("realm"))
    );
    assert_eq!(problem["file"].as_str(), Some(file.name()));
}

#[test]
fn doctor_says_what_it_has_looked_at_in_words_and_for_programs_and_refuses_what_serve_would() {
    let options = ["--user=a:b", "--listening-ip=127.0.0.1", "--xdp=off"];
    let output = turnbuckle(&[&["doctor"], &options[..]].concat());
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for topic in [
        "kernel",
        "JIT",
        "capabilities",
        "XDP program",
        "relay ports",
        "descriptors",
    ] {
        let is_its = |line: &str| line.get(8..).is_some_and(|it| it.starts_with(topic));
        assert_eq!(
            text.lines().filter(|line| is_its(line)).count(),
            1,
            "{text}"
        );
    }
    assert!(text.ends_with("could be better\n"), "{text}");
    let output = turnbuckle(&[&["doctor", "--json"], &options[..]].concat());
    let report: serde_json::Value = serde_json::from_str(&printed(&output)).expect("JSON");
    assert_eq!(report["good"], true);
    assert_eq!(report["facts"]["architecture"], std::env::consts::ARCH);
    // There is no device with Ethernet frames, which `on` needs.
    let on = [
        "doctor",
        "--user=a:b",
        "--listening-ip=127.0.0.1",
        "--relay-ip=127.0.0.1",
        "--xdp=on",
    ];
    assert_eq!(turnbuckle(&on).status.code(), Some(1));
    let refused = turnbuckle(&["doctor", "--xdp=sometimes"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(complained(&refused).contains("xdp"));
}

#[test]
fn serve_refuses_on_standard_error_with_exit_code_1_and_opens_nothing() {
    for (arguments, expected) in [
        (
            &["serve", "-z"][..],
            "`no-auth`: authentication is required",
        ),
        (
            &[
                "serve",
                "--cert=/nonexistent.pem",
                "--pkey=/nonexistent.pem",
            ],
            "command line: `cert`: /nonexistent.pem: ",
        ),
        (&["serve", "--relm", "x"], "did you mean `realm`?"),
        (
            &["serve", "-c", "/nonexistent/turnserver.conf"],
            "/nonexistent/turnserver.conf: cannot be read: No such file",
        ),
        (
            &["serve", "--user", "hush"],
            "no `:` between name and password",
        ),
    ] {
        let output = turnbuckle(arguments);
        let text = complained(&output);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
        // The log begins with what is to be noted about the configuration.
        let log = String::from_utf8_lossy(&output.stdout);
        let is_note = |line: &str| line.starts_with("note: ");
        assert!(log.lines().all(is_note), "{arguments:?}: {log}");
        assert!(!text.contains("hush"), "{arguments:?}: {text}");
    }
}

#[test]
fn help_and_version_are_printed_on_standard_output() {
    for (arguments, expected) in [
        (&["--help"][..], "Usage: turnbuckle <COMMAND>"),
        (&["--version"], "turnbuckle 0."),
        (&["serve", "--help"], "Usage: turnbuckle serve [options]"),
        (&["serve", "-h"], "-p, --listening-port PORT"),
        (&["serve", "--version"], "turnbuckle 0."),
        (
            &["check", "--help"],
            "Usage: turnbuckle check [FILE] [options] [--as NAME] [--all] [--json]",
        ),
        (&["options"], "-p, --listening-port PORT"),
        (&["options", "cli-port"], "TCP port of the console"),
        (&["options", "no-sslv3"], "SSL 3 is never offered"),
        (&["options", "--man"], ".TH TURNBUCKLE 1"),
    ] {
        let output = turnbuckle(arguments);
        let text = printed(&output);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    }
}

#[test]
fn wrong_subcommands_and_unknown_keys_fail() {
    assert_eq!(turnbuckle(&["relay"]).status.code(), Some(2));
    assert_eq!(
        turnbuckle(&["options", "--markdown", "--man"])
            .status
            .code(),
        Some(2)
    );
    let output = turnbuckle(&["options", "listning-port"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(complained(&output).contains("did you mean `listening-port`?"));
}

#[test]
fn options_prints_the_committed_texts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (argument, file) in [
        ("--counters", "docs/counters.md"),
        ("--markdown", "docs/options.md"),
        ("--sample", "deploy/turnserver.conf.sample"),
    ] {
        let committed = std::fs::read_to_string(root.join(file)).expect("committed");
        assert!(
            printed(&turnbuckle(&["options", argument])) == committed,
            "run `turnbuckle options {argument} > {file}`"
        );
    }
}

#[test]
fn check_accepts_the_sample_file() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/turnserver.conf.sample");
    let output = turnbuckle(&["check", sample.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output));
}

#[test]
fn serve_without_credentials_prints_how_to_connect_and_ends_with_exit_code_0_on_sigterm() {
    let port = free_ports().to_string();
    let mut child = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
        .args([
            "serve",
            "-L",
            "127.0.0.1",
            "-p",
            &port,
            "-m",
            "1",
            "--realm",
            "example.org",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"))
        .lines()
        .map_while(Result::ok);
    let start: Vec<String> = lines.by_ref().take_while(|line| line != "ready").collect();
    let start = start.join("\n");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("still there");
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().expect("ended").code(), Some(0), "{rest:?}");
    assert!(
        start.contains(&format!("turn:127.0.0.1:{port}?transport=udp")),
        "{start}"
    );
    assert!(
        start.contains("iceServers: [{") && start.contains("username: \"guest\""),
        "{start}"
    );
}

#[test]
fn serve_says_why_it_cannot_listen_with_exit_code_1() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = taken.local_addr().expect("an address").port().to_string();
    let output = turnbuckle(&["serve", "-L", "127.0.0.1", "-p", &port, "-m", "1"]);
    let text = complained(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
}
