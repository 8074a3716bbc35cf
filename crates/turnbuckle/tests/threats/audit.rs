//! Who changes something leaves a line in the log, and one alone: every way to do so by the socket for commands and at the console.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::console::Visitor;
use crate::harness::{Authority, Client, Key, Server, Site};

const TIMEOUT: Duration = Duration::from_secs(30);

const PASSWORD: &str = "open sesame";

/// Every path of the socket, with a query with which each of its methods is understood.
const PATHS: [&str; 15] = [
    "/v1/info",
    "/v1/health",
    "/v1/counters",
    "/v1/config",
    "/v1/sessions",
    "/v1/sessions/1",
    "/v1/top",
    "/v1/sessions:end?user=nobody",
    "/v1/drain",
    "/v1/reload",
    "/v1/log?level=info",
    "/v1/certificates",
    "/v1/trace?user=nobody&seconds=1",
    "/v1/upgrade?dry_run=true",
    "/v1/stop",
];

/// Says which paths there are.
const PAGE: &str = include_str!("../../../../docs/operating/control.md");

/// What changes something by the socket, and what the line says. A trace changes nothing, and shows what others do.
const CHANGES: [(&str, &str, &str); 9] = [
    (
        "GET",
        "/v1/trace?user=nobody&seconds=1",
        "trace of nobody for 1 s",
    ),
    ("DELETE", "/v1/sessions/1", "end session 000000000000000001"),
    (
        "POST",
        "/v1/sessions:end?user=nobody",
        "end sessions: user=nobody",
    ),
    ("PUT", "/v1/drain", "drain"),
    ("DELETE", "/v1/drain", "undrain"),
    ("POST", "/v1/reload", "reload"),
    ("PUT", "/v1/log?level=info", "log: level=info"),
    ("POST", "/v1/certificates", "certificates"),
    ("POST", "/v1/upgrade?dry_run=true", "upgrade: dry_run=true"),
];

/// What changes something at the console: what is typed, and what the line says.
const TYPED: [(&str, &str); 26] = [
    ("drain", "drain"),
    ("cs 1", "end session 000000000000000001"),
    ("lr", "log file reopened"),
    ("tc stun-only", "tc stun-only"),
    ("tc stun-only", "tc stun-only"),
    ("tc no-stun", "tc no-stun"),
    ("tc no-stun", "tc no-stun"),
    ("tc secure-stun", "tc secure-stun"),
    ("tc no-udp-relay", "tc no-udp-relay"),
    ("tc no-tcp-relay", "tc no-tcp-relay"),
    ("tc allow-loopback-peers", "tc allow-loopback-peers"),
    ("tc mobility", "tc mobility"),
    ("cc total-quota 7", "cc total-quota 7"),
    ("cc user-quota 7", "cc user-quota 7"),
    ("cc max-bps 7000", "cc max-bps 7000"),
    ("cc bps-capacity 7000", "cc bps-capacity 7000"),
    (
        "cc cli-max-output-sessions 7",
        "cc cli-max-output-sessions 7",
    ),
    ("cc user-quota many", ""),
    ("aas 203.0.113.9", "add alternate-server 203.0.113.9"),
    (
        "das 203.0.113.9:3478",
        "delete alternate-server 203.0.113.9:3478",
    ),
    ("atas 203.0.113.9", "add tls-alternate-server 203.0.113.9"),
    (
        "dtas 203.0.113.9",
        "delete tls-alternate-server 203.0.113.9",
    ),
    ("atcpas 203.0.113.9", "add tcp-alternate-server 203.0.113.9"),
    (
        "dtcpas 203.0.113.9",
        "delete tcp-alternate-server 203.0.113.9",
    ),
    ("audpas 203.0.113.9", "add udp-alternate-server 203.0.113.9"),
    (
        "dudpas 203.0.113.9",
        "delete udp-alternate-server 203.0.113.9",
    ),
];

/// What is typed and changes nothing.
const SHOWN: [&str; 17] = [
    "?",
    "h",
    "help",
    "pc",
    "sr here",
    "ur",
    "so here",
    "uo",
    "ps",
    "psp al",
    "pu udp",
    "tc",
    "cc",
    "tc realm",
    "cc realm x",
    "xyzzy",
    "psd file",
];

/// What ends a visit or the relay.
const LAST: [&str; 7] = ["quit", "q", "exit", "bye", "stop", "shutdown", "halt"];

/// A server with both, and the marks that were set in its log.
struct Audited {
    server: Server,
    socket: PathBuf,
    console: SocketAddr,
    marks: u64,
    _directory: TempDir,
}

impl Audited {
    fn start(site: Site, authority: &Authority) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let [certificate, key] = authority.options(Key::P256);
        let options = [
            format!("--control-socket={}", socket.display()),
            "--cli".to_owned(),
            format!("--cli-ip={}", site.ip(1)),
            "--cli-port=5767".to_owned(),
            format!("--cli-password={PASSWORD}"),
            certificate,
            key,
        ];
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        Self {
            server: Server::start(site.server(), &options),
            socket,
            console: SocketAddr::new(site.ip(1), 5767),
            marks: 100,
            _directory: directory,
        }
    }

    /// Sends a request, and returns the status of its answer, which is read whole.
    fn ask(&self, method: &str, path: &str) -> u16 {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Returns the lines about commands since this was asked for last, without who gave them.
    fn lines(&mut self) -> Vec<String> {
        self.marks += 1;
        let number = format!("{:018}", self.marks);
        self.ask("DELETE", &format!("/v1/sessions/{number}"));
        let text = self.server.lines_until(&format!("end session {number}"));
        let lines = text.lines().filter_map(|line| {
            let by_socket = line.strip_prefix("control: user ");
            let by_socket = by_socket.and_then(|line| line.split_once(": "));
            let rest = || line.strip_prefix("console: ")?.split_once(": ");
            by_socket.or_else(rest).map(|(_, what)| what.to_owned())
        });
        let mut lines: Vec<_> = lines.collect();
        // That of this question.
        lines.pop();
        lines
    }
}

#[test]
fn every_change_by_the_socket_or_at_the_console_leaves_one_line_and_what_changes_nothing_none() {
    let site = Site::new();
    let authority = Authority::new();
    let mut audited = Audited::start(site, &authority);
    // A drain would end a relay without it.
    let mut client = Client::new(site.ip(2), &audited.server);
    client.allocate();
    audited.lines();
    for (method, path, what) in CHANGES {
        let status = audited.ask(method, path);
        assert!(
            ![404, 405].contains(&status) || path == "/v1/sessions/1",
            "{method} {path}: {status}"
        );
        assert_eq!(audited.lines(), [what], "{method} {path}");
    }
    let on_page = PAGE.split('`').filter(|text| text.starts_with("/v1/"));
    for path in on_page.map(|path| path.replace("NUMBER", "1")) {
        let is_tried = |tried: &str| tried.split('?').next() == Some(&path);
        assert!(PATHS.iter().any(|tried| is_tried(tried)), "{path}");
    }
    // What is none of these reads, or is refused: no path changes anything by another method.
    for path in PATHS {
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
            let is_change = CHANGES.iter().any(|it| (it.0, it.1) == (method, path));
            if is_change || (method, path) == ("POST", "/v1/stop") {
                continue;
            }
            let status = audited.ask(method, path);
            let is_read = method == "GET" && status != 405;
            assert!(is_read || status == 405, "{method} {path}: {status}");
            assert_eq!(audited.lines(), [""; 0], "{method} {path}");
        }
    }
    audited.ask("POST", "/v1/reload?dry_run=true");
    assert_eq!(audited.lines(), [""; 0]);
    let mut visitor = Visitor::enter(audited.console, PASSWORD);
    assert_eq!(audited.lines(), ["password right"]);
    for (typed, what) in TYPED {
        visitor.says(typed);
        let lines = audited.lines();
        match what {
            "" => assert_eq!(lines, [""; 0], "{typed}"),
            what => assert_eq!(lines, [what], "{typed}"),
        }
        if typed == "drain" {
            // The switches end the only allocation, and a drained relay without any ends.
            audited.ask("DELETE", "/v1/drain");
            audited.lines();
        }
    }
    for typed in SHOWN {
        visitor.says(typed);
        assert_eq!(audited.lines(), [""; 0], "{typed}");
    }
    // Nothing that the console has is left out here.
    let help = visitor.says("?");
    let commands = help
        .lines()
        .filter_map(|line| line.trim().split_once(" - "));
    let names = commands.flat_map(|(names, _)| names.split(", "));
    let names: BTreeSet<_> = names.filter_map(|name| name.split(' ').next()).collect();
    let tried = TYPED
        .iter()
        .map(|(typed, _)| *typed)
        .chain(SHOWN)
        .chain(LAST);
    let tried: BTreeSet<_> = tried.filter_map(|typed| typed.split(' ').next()).collect();
    let missing: Vec<_> = names.difference(&tried).collect();
    assert!(
        names.len() > 25 && missing.is_empty(),
        "{missing:?} of {names:?}"
    );
    audited.ask("POST", "/v1/stop");
    let server = audited.server;
    server.wait_for_line(": stop");
    server.assert_ends();
}
