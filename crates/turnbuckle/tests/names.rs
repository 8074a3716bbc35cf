//! `turnbuckle install-links`, and what the binary is by the names that it gives.

use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

mod ports;

use ports::free_ports;

const NAMES: [&str; 6] = [
    "turnserver",
    "turnadmin",
    "turnutils_uclient",
    "turnutils_peer",
    "turnutils_stunclient",
    "turnutils_natdiscovery",
];

fn install(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
        .arg("install-links")
        .args(words)
        .output()
        .expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(program: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(program).args(words).output().expect("it runs");
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn each_of_coturns_names_is_a_link_that_is_that_program() {
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path().to_str().expect("UTF-8");
    for _ in 0..2 {
        let installed = install(&[directory]);
        assert!(installed.status.success(), "{}", text(&installed.stderr));
        assert_eq!(text(&installed.stdout).lines().count(), NAMES.len());
    }
    let found = std::fs::read_dir(folder.path()).expect("a directory");
    assert_eq!(found.count(), NAMES.len());
    let named = |name: &str| folder.path().join(name);
    let version = run(&named("turnserver"), &["--version"]).1;
    assert!(version.starts_with("4.17.1 (turnbuckle "), "{version}");
    for (name, words, code, expected) in [
        ("turnserver", &["-h"][..], 0, "Usage: turnserver [options]"),
        ("turnserver", &["--nonsense"], 255, "--nonsense"),
        ("turnserver", &["-?"], 255, "turnserver -h"),
        ("turnadmin", &["--help"], 0, "Usage: turnadmin"),
        ("turnadmin", &[], 255, "Usage: turnadmin"),
        ("turnutils_uclient", &[], 255, "Usage: turnutils_uclient"),
        ("turnutils_peer", &["-x"], 1, "Usage: turnutils_peer"),
        (
            "turnutils_stunclient",
            &[],
            255,
            "Usage: turnutils_stunclient",
        ),
        (
            "turnutils_stunclient",
            &["-x"],
            1,
            "Usage: turnutils_stunclient",
        ),
        (
            "turnutils_natdiscovery",
            &[],
            255,
            "Usage: turnutils_natdiscovery",
        ),
        (
            "turnutils_natdiscovery",
            &["-x"],
            1,
            "Usage: turnutils_natdiscovery",
        ),
    ] {
        let (found, out, err) = run(&named(name), words);
        assert_eq!(found, Some(code), "{name} {words:?}: {out}{err}");
        let place = if code == 0 { out } else { err };
        assert!(place.contains(expected), "{name} {words:?}: {place}");
    }
}

#[test]
fn what_has_such_a_name_already_stays_unless_it_is_to_go() {
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path().to_str().expect("UTF-8");
    let theirs = folder.path().join("turnutils_peer");
    std::fs::write(&theirs, "another program").expect("written");
    let refused = install(&[directory]);
    assert!(!refused.status.success());
    assert!(text(&refused.stderr).contains("--force"));
    assert!(
        !folder.path().join("turnserver").exists(),
        "nothing is done"
    );
    assert!(install(&["--force", directory]).status.success());
    assert!(theirs.is_symlink());
    assert!(!install(&["/nonexistent"]).status.success());
}

#[test]
fn turnutils_peer_reflects_on_two_ports() {
    let folder = tempfile::tempdir().expect("a directory");
    let directory = folder.path().to_str().expect("UTF-8");
    assert!(install(&[directory]).status.success());
    let port = free_ports();
    let mut peer = Command::new(folder.path().join("turnutils_peer"))
        .args(["-v", "-L", "127.0.0.1", "-p", &port.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let mut out = BufReader::new(peer.stdout.take().expect("piped"));
    out.read_line(&mut line).expect("read");
    assert!(line.contains("reflect on 127.0.0.1"), "{line}");
    for port in [port, port + 1] {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("set");
        socket.connect(("127.0.0.1", port)).expect("connected");
        socket.send(b"there and back").expect("sent");
        let mut answer = [0; 64];
        let len = socket.recv(&mut answer).expect("reflected");
        assert_eq!(&answer[..len], b"there and back");
    }
    peer.kill().expect("ended");
    peer.wait().expect("ended");
}
