//! What `turnserver` logs, beside what Debian's coturn logs about the same clients.
//!
//! The clients are coturn's own. Each pattern has to fit a line of both logs: one that does not fit coturn's is a mistake of this file.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use turnbuckle_client::blocking::{Session, Target, code};
use turnbuckle_client::{Credentials, UDP};
use turnbuckle_wire::{
    ChannelNumber, Class, IntegrityKey, Message, MessageWriter, Method, TransactionId,
};

mod not_run;
mod ports;

use not_run::not_run;
use ports::free_ports;

const COTURN: &str = "/usr/bin/turnserver";
const CLIENT: &str = "/usr/bin/turnutils_uclient";

/// A server, and every line that it has printed. It is ended when dropped.
struct Server {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Server {
    fn start(program: &Path, folder: &Path, arguments: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            seen: Vec::new(),
        }
    }

    /// Waits for a line that fits, among all so far and those to come.
    fn awaits(&mut self, pattern: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.has(pattern) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.seen.push(line),
                Err(_) => panic!("no line like {pattern:?} in:\n{}", self.seen.join("\n")),
            }
        }
    }

    /// Ends it and reads what is left.
    fn stop(&mut self) {
        let process = Pid::from_raw(self.child.id().try_into().expect("a process"));
        kill(process, Signal::SIGTERM).expect("signalled");
        self.child.wait().expect("ended");
        self.seen.extend(self.lines.iter());
    }

    fn has(&self, pattern: &str) -> bool {
        self.seen.iter().any(|line| fits(line, pattern))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let process = Pid::from_raw(self.child.id().try_into().expect("a process"));
        let _ = kill(process, Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Returns whether a line ends as `pattern` says, where `#` stands for digits, `@` for eighteen of them, and `*` for anything.
fn fits(line: &str, pattern: &str) -> bool {
    let line = line.trim_end();
    (0..=line.len())
        .filter(|&start| line.is_char_boundary(start))
        .any(|start| matches(&line[start..], pattern))
}

fn matches(text: &str, pattern: &str) -> bool {
    let Some(first) = pattern.chars().next() else {
        return text.is_empty();
    };
    let rest = &pattern[first.len_utf8()..];
    match first {
        '*' => (0..=text.len())
            .filter(|&end| text.is_char_boundary(end))
            .any(|end| matches(&text[end..], rest)),
        '#' => {
            let digits = text.bytes().take_while(u8::is_ascii_digit).count();
            digits > 0 && matches(&text[digits..], rest)
        }
        '@' => {
            let digits = text.bytes().take_while(u8::is_ascii_digit).count();
            digits == 18 && matches(&text[digits..], rest)
        }
        _ => text
            .strip_prefix(first)
            .is_some_and(|text| matches(text, rest)),
    }
}

fn client(port: u16, words: &[&str]) {
    let status = Command::new("timeout")
        .args(["20", CLIENT, "-p", &port.to_string()])
        .args(words)
        .arg("127.0.0.1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    // How it ends is not what this is about: some of what it does is refused.
    status.expect("it runs");
}

/// Starts a reflector of datagrams on loopback, which serves when this returns.
fn reflector(port: u16) -> Server {
    let listen = format!("127.0.0.1:{port}");
    let words = ["peer", "--threads", "1", "--listen", &listen];
    let turnbuckle = Path::new(env!("CARGO_BIN_EXE_turnbuckle"));
    let mut server = Server::start(turnbuckle, Path::new("."), &words);
    server.awaits(&format!("reflect on {listen} with *"));
    server
}

/// What both are started with.
const OPTIONS: &str = "-n -v -a -L 127.0.0.1 -m 1 -u alice:secret -r example.org -q 12 --cert chain.pem --pkey key.pem --log-file stdout --pidfile turn.pid --no-cli \
    --allow-loopback-peers --allowed-peer-ip 127.0.0.1 --denied-peer-ip 10.0.0.0-10.255.255.255";

/// What both print when they serve.
const START: [&str; 12] = [
    "TLS cipher suite: *",
    "DTLS cipher suite: *",
    "Listener address to use: 127.0.0.1",
    "Relay address to use: 127.0.0.1",
    "Default realm: example.org",
    "pid file created: *turn.pid",
    "  relay 127.0.0.1 initialization done",
    "Relay ports initialization done",
    "turn server id=0 created",
    "IPv4. TLS/TCP listener opened on : 127.0.0.1:#",
    "IPv4. DTLS/UDP listener opened on: 127.0.0.1:#",
    "Total General servers: 1",
];

/// What clients do, with what both print about it.
const ACTIONS: [(&[&str], &[&str]); 6] = [
    (
        &["-y", "-u", "alice", "-w", "secret", "-n", "2", "-m", "1"],
        &[
            "session @: realm <example.org> user <>: incoming packet message processed, error 401: Unauthorized",
            "IPv4. Local relay addr: 127.0.0.1:#",
            "session @: new, realm=<example.org>, username=<alice>, lifetime=777",
            "session @: realm <example.org> user <alice>: incoming packet ALLOCATE processed, success",
            "session @: refreshed, realm=<example.org>, username=<alice>, lifetime=777",
            "session @: realm <example.org> user <alice>: incoming packet REFRESH processed, success",
            "session @: realm <example.org> user <alice>: incoming packet CHANNEL_BIND processed, success",
            "session @: refreshed, realm=<example.org>, username=<alice>, lifetime=0",
            "session @: usage: realm=<example.org>, username=<alice>, rp=#, rb=#, sp=#, sb=#",
            "session @: peer usage: realm=<example.org>, username=<alice>, rp=2, rb=200, sp=2, sb=200",
            "session @: closed (2nd stage), user <alice> realm <example.org> origin <>, local 127.0.0.1:#, remote 127.0.0.1:#, reason: allocation timeout",
            "session @: delete: realm=<example.org>, username=<alice>",
            "session @: peer 127.0.0.1* deleted",
        ],
    ),
    (
        &[
            "-t", "-c", "-u", "alice", "-w", "secret", "-n", "2", "-m", "1",
        ],
        &[
            "IPv4. tcp or tls connected to: 127.0.0.1:#",
            "session @: peer 127.0.0.1* lifetime updated: 300",
            "session @: realm <example.org> user <alice>: incoming packet CREATE_PERMISSION processed, success",
            "session @: TCP socket * 127.0.0.1:#",
            "session @: closed (2nd stage), user <alice> realm <example.org> origin <>, local 127.0.0.1:#, remote 127.0.0.1:#, reason: TCP *(callback)",
        ],
    ),
    (
        &[
            "-t", "-S", "-c", "-u", "alice", "-w", "secret", "-n", "2", "-m", "1",
        ],
        &[
            "session @: new, realm=<example.org>, username=<alice>, lifetime=777, cipher=*, method=TLSv1.#",
            "session @: closed (2nd stage), user <alice> realm <example.org> origin <>, local 127.0.0.1:#, remote 127.0.0.1:#, reason: TLS/TCP *(callback)",
        ],
    ),
    (
        &["-u", "alice", "-w", "wrong", "-n", "2", "-m", "1"],
        &[
            "check_stun_auth: user alice credentials are incorrect",
            "session @: realm <example.org> user <alice>: incoming packet message processed, error 401: Unauthorized",
        ],
    ),
    (
        &[
            "-e", "10.1.2.3", "-u", "alice", "-w", "secret", "-n", "2", "-m", "1",
        ],
        &[
            "A peer IP 10.1.2.3 denied in the range: 10.0.0.0-10.255.255.255*",
            "session @: realm <example.org> user <alice>: incoming packet CHANNEL_BIND processed, error 403: Forbidden IP",
            "session @: realm <example.org> user <alice>: incoming packet message processed, error 403: Forbidden IP",
        ],
    ),
    (
        &["-u", "alice", "-w", "secret", "-n", "2", "-m", "8"],
        &[
            "session @: realm <example.org> user <alice>: incoming packet ALLOCATE processed, error 486: Allocation Quota Reached",
            "session @: realm <example.org> user <alice>: incoming packet message processed, error 486: Allocation Quota Reached",
        ],
    ),
];

//= TURN-116
#[test]
fn the_same_clients_leave_the_same_lines_as_in_coturns_log() {
    for program in [COTURN, CLIENT] {
        if !Path::new(program).exists() {
            not_run(&format!("{program} is not installed"));
            return;
        }
    }
    let folder = tempfile::tempdir().expect("a directory");
    let link = folder.path().join("turnserver");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_turnbuckle"), &link).expect("linked");
    std::thread::scope(|scope| {
        for program in [Path::new(COTURN), &link] {
            let folder = folder.path().join(match program == link {
                true => "ours",
                false => "coturns",
            });
            std::fs::create_dir(&folder).expect("a directory");
            certificate(&folder);
            let is_ours = program == link;
            scope.spawn(move || act(program, &folder, is_ours));
        }
    });
}

/// The words of coturn's newer versions, which Debian's does not have.
#[test]
fn scripts_find_the_lines_at_the_start_that_they_wait_for() {
    let hint = "DTLS listeners are not started; use --dtls to start them";
    let derived = "Stateless nonce key derived from the configured secret";
    let secret = "--stateless-nonce-secret=a-secret-of-all-relays";
    let suites = "DTLS cipher suite: ECDHE-*";
    let old = "WARNING *no-dtls is deprecated*";
    let old_and_on = "WARNING *no-dtls=false is deprecated*";
    let cases: [(&[&str], &[&str], &[&str]); 4] = [
        (&[], &[hint], &[suites, derived, old, old_and_on]),
        (
            &["--dtls", secret],
            &[suites, derived],
            &[hint, old, old_and_on],
        ),
        (&["--no-dtls"], &[old], &[suites, old_and_on]),
        (&["--no-dtls=false"], &[old_and_on, suites], &[hint, old]),
    ];
    let site = Site::new();
    for (words, wanted, unwanted) in cases {
        let mut server = site.start(words);
        server.awaits("Total auth threads: 1");
        // Who has waited for that line is answered at once.
        let socket = socket(site.port);
        socket.send(&request(Method::BINDING, None)).expect("sent");
        assert!(socket.recv(&mut [0; 1500]).is_ok(), "{words:?}");
        for pattern in wanted {
            assert!(server.has(pattern), "{words:?}: {pattern:?} is missing");
        }
        for pattern in unwanted {
            assert!(!server.has(pattern), "{words:?}: {pattern:?} is there");
        }
    }
}

#[test]
fn a_source_that_gets_no_more_answers_is_named_once_in_a_while_and_only_where_answers_are_limited()
{
    let site = Site::new();
    let limit = ["--unauthorized-ratelimit", "--unauthorized-ratelimit-rps=3"];
    let bare = "401 rate-limit exceeded from 127.0.0.1, suppressing responses for this window";
    let proving = "unauthorized-response rate-limit exceeded from 127.0.0.1 (error 438), suppressing responses for this window";
    for (words, is_limited) in [(&limit[..], true), (&[], false)] {
        let mut server = site.start(words);
        server.awaits("Total auth threads: 1");
        let socket = socket(site.port);
        for user in [None, Some("mallory")] {
            for _ in 0..40 {
                let request = request(Method::ALLOCATE, user);
                socket.send(&request).expect("sent");
            }
        }
        server.awaits("stateless-nonce: listener fast-path challenge active");
        if is_limited {
            server.awaits(bare);
            server.awaits(proving);
        }
        server.stop();
        let count = |pattern: &str| {
            server
                .seen
                .iter()
                .filter(|line| fits(line, pattern))
                .count()
        };
        assert_eq!(count("stateless-nonce: *"), 1);
        for pattern in [bare, proving] {
            // All requests came within a moment; one more window may have begun.
            assert!(
                count(pattern) <= if is_limited { 20 } else { 0 },
                "{pattern}"
            );
        }
    }
}

//= V-22
//= V-26
#[test]
fn what_proves_nothing_gets_coturns_answers() {
    let site = Site::new();
    let mut server = site.start(&[]);
    server.awaits("Total auth threads: 1");
    let socket = socket(site.port);
    let ask = |request: &[u8]| {
        socket.send(request).expect("sent");
        let mut answer = vec![0; 1500];
        let len = socket.recv(&mut answer).expect("answered");
        answer.truncate(len);
        let message = Message::parse(&answer).expect("a message");
        let code = message.error_code().expect("whole").expect("an error").code;
        let nonce = message.nonce().expect("whole").unwrap_or_default();
        (code, nonce.to_vec())
    };
    let (code, issued) = ask(&request(Method::ALLOCATE, None));
    assert_eq!(code, 401);
    let (forged, realm) = (&b"deadbeefdeadbeefdeadbeef"[..], "example.org");
    let allocate = |user, realm, nonce| forged_request(Method::ALLOCATE, user, realm, nonce);
    let [alice, nobody] = ["alice", "nobody"].map(Some);
    let refresh = forged_request(Method::REFRESH, alice, "elsewhere.org", Some(&issued));
    let cases = [
        (allocate(alice, realm, Some(forged)), 438),
        (allocate(nobody, realm, Some(forged)), 438),
        (allocate(alice, realm, Some(&issued)), 401),
        (allocate(nobody, realm, Some(&issued)), 401),
        (allocate(alice, "elsewhere.org", Some(&issued)), 437),
        (refresh, 441),
        (allocate(alice, realm, None), 400),
        (allocate(None, realm, Some(&issued)), 400),
        (request(Method::CONNECTION_BIND, None), 400),
    ];
    for (number, (request, expected)) in cases.iter().enumerate() {
        assert_eq!(ask(request).0, *expected, "case {number}");
    }
}

#[test]
fn nonces_have_16_characters_where_coturn_would_store_them() {
    let site = Site::new();
    let mut server = site.start(&["--stateless-nonce=false"]);
    server.awaits("Total auth threads: 1");
    let socket = socket(site.port);
    socket.send(&request(Method::ALLOCATE, None)).expect("sent");
    let mut answer = vec![0; 1500];
    let len = socket.recv(&mut answer).expect("answered");
    let message = Message::parse(&answer[..len]).expect("a message");
    let nonce = message.nonce().expect("whole").expect("there");
    assert_eq!(nonce.len(), 16);
    assert!(message.password_algorithms().expect("whole").is_none());
    let other = "stateless-nonce: listener fast-path challenge active";
    assert!(!server.has(other));
}

#[test]
fn what_became_of_the_metrics_is_said_where_none_are_asked_for_too() {
    let site = Site::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = free.local_addr().expect("bound").port();
    drop(free);
    let port = format!("--prometheus-port={port}");
    let address = "--prometheus-address=127.0.0.1";
    let nowhere = "--prometheus-cert=/nonexistent/cert.pem";
    let cases: [(&[&str], &str); 3] = [
        (&[], "prometheus collector disabled, not started"),
        (
            &["--prometheus", address, &port],
            "prometheus collector started successfully",
        ),
        (
            &[
                "--prometheus-tls",
                nowhere,
                "--prometheus-key=/nonexistent/key.pem",
            ],
            "*prometheus TLS: could not read certificate*",
        ),
    ];
    for (words, line) in cases {
        let mut server = site.start(words);
        server.awaits(line);
        server.awaits("Total auth threads: 1");
    }
}

#[test]
fn a_client_that_has_moved_is_told_of() {
    if !Path::new(CLIENT).exists() {
        not_run(&format!("{CLIENT} is not installed"));
        return;
    }
    let site = Site::new();
    let mut server = site.start(&["--mobility", "--rfc5766-channel-numbers"]);
    server.awaits("Total auth threads: 1");
    let words = "-M -y -u alice -w secret -n 3 -m 1";
    client(site.port, &words.split(' ').collect::<Vec<_>>());
    server.awaits("session @: mobility handoff completed, remote 127.0.0.1:#");
}

/// coturn's client over a relay socket that allocations share: what is refused to it has the words that scripts look for. Debian's coturn
/// has no such sockets.
#[test]
fn shared_relay_sockets_are_told_of_as_coturns_newer_versions_do() {
    if !Path::new(CLIENT).exists() {
        not_run(&format!("{CLIENT} is not installed"));
        return;
    }
    let site = Site::new();
    let (shared, peer) = (free_ports(), free_ports());
    let _peer = reflector(peer);
    let (shared_text, peer_text) = (shared.to_string(), peer.to_string());
    let words = [
        "-v",
        "--rfc5766-channel-numbers",
        "--multiplex-peer",
        "--multiplex-peer-port",
        &shared_text,
    ];
    let mut server = site.start(&words);
    server.awaits("Total auth threads: 1");
    server.awaits(&format!(
        "multiplex-peer: 1 thread(s), port range {shared}-{} (IPv4+IPv6 per thread)",
        shared + 1
    ));
    server.awaits(&format!(
        "multiplex-peer: thread 0 IPv4 socket bound to 127.0.0.1:{shared}"
    ));
    let user = ["-u", "alice", "-w", "secret", "-n", "2"];
    let to_peer = ["-e", "127.0.0.1", "-r", &peer_text];
    let common = [&user[..], &to_peer].concat();
    // Without -c the client asks for a pair of ports.
    client(site.port, &[&common[..], &["-m", "1"]].concat());
    server.awaits("incoming packet ALLOCATE processed, error 508: EVEN-PORT is not supported with multiplex-peer");
    // Even with -c coturn's client asks for an even port half of the time, so what follows is done by clients of our own: two of one
    // shard, with one peer.
    let address = SocketAddr::from(([127, 0, 0, 1], site.port));
    let credentials = Credentials::user("alice", "secret");
    let target = Arc::new(Target::new(address, site.port, credentials).expect("memory"));
    let open = || {
        let mut session = Session::udp(&target).expect("a socket");
        assert!(session.allocate(UDP, |_| {}).is_ok(), "a relayed address");
        let answer = session.request(Method::CHANNEL_BIND, |writer| {
            writer.channel_number(ChannelNumber::MIN);
            writer.xor_peer_address(SocketAddr::from(([127, 0, 0, 1], peer)));
        });
        (session, code(answer.as_ref()))
    };
    let (mut owner, bound) = open();
    assert_eq!(bound, 200);
    server.awaits(&format!("IPv4. Local relay addr: 127.0.0.1:{shared}"));
    let (_other, taken) = open();
    assert_eq!(taken, 400);
    server.awaits(
        "processed, error 400: Peer address already used by another multiplex-peer allocation",
    );
    let message = [&[0x40, 0, 0, 100][..], &[7; 100]].concat();
    for _ in 0..2 {
        owner.send(&message);
        assert_eq!(
            owner.receive(Duration::from_secs(10)).as_deref(),
            Some(&message[..])
        );
    }
    assert_eq!(code(owner.refresh(0).as_ref()), 200);
    server.awaits(
        "session @: peer usage: realm=<example.org>, username=<alice>, rp=2, rb=200, sp=2, sb=200",
    );
}

/// A folder with a link to the binary and a certificate, in which it is started as `turnserver`.
struct Site {
    folder: tempfile::TempDir,
    port: u16,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let link = folder.path().join("turnserver");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_turnbuckle"), link).expect("linked");
        certificate(folder.path());
        let port = free_ports();
        Self { folder, port }
    }

    fn start(&self, words: &[&str]) -> Server {
        let [port, tls_port] = [self.port, free_ports()].map(|port| port.to_string());
        let common = "-n -a -L 127.0.0.1 -m 1 -u alice:secret -r example.org --cert chain.pem --pkey key.pem --log-file stdout --pidfile= \
            --allow-loopback-peers --allowed-peer-ip 127.0.0.1";
        let mut arguments: Vec<&str> = common.split_whitespace().collect();
        arguments.extend(["-p", &port, "--tls-listening-port", &tls_port]);
        arguments.extend(words);
        Server::start(
            &self.folder.path().join("turnserver"),
            self.folder.path(),
            &arguments,
        )
    }
}

fn socket(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let timeout = Duration::from_secs(30);
    socket.set_read_timeout(Some(timeout)).expect("set");
    socket.connect(("127.0.0.1", port)).expect("connected");
    socket
}

/// Returns a request that proves nothing: without credentials, or with wrong ones of a `user`.
fn request(method: Method, user: Option<&str>) -> Vec<u8> {
    if user.is_some() {
        return forged_request(method, user, "example.org", Some(b"made up"));
    }
    let mut bytes = vec![0; 1232];
    let transaction = TransactionId::new([7; 12]);
    let mut writer = MessageWriter::new(&mut bytes, Class::Request, method, transaction);
    if method != Method::BINDING {
        // What is shorter than any first request gets no challenge.
        writer.lifetime(600);
    }
    let len = writer.finish().expect("it fits");
    bytes.truncate(len);
    bytes
}

/// Returns a request with an integrity attribute that no key makes.
fn forged_request(
    method: Method,
    user: Option<&str>,
    realm: &str,
    nonce: Option<&[u8]>,
) -> Vec<u8> {
    let mut bytes = vec![0; 1232];
    let transaction = TransactionId::new([7; 12]);
    let mut writer = MessageWriter::new(&mut bytes, Class::Request, method, transaction);
    writer.lifetime(600);
    if let Some(user) = user {
        writer.username(user.as_bytes());
    }
    writer.realm(realm.as_bytes());
    if let Some(nonce) = nonce {
        writer.nonce(nonce);
    }
    writer.integrity(&IntegrityKey::sha1(&[0; 16]));
    let len = writer.finish().expect("it fits");
    bytes.truncate(len);
    bytes
}

/// Has clients do everything with one server, and looks for the lines about it.
fn act(program: &Path, folder: &Path, is_ours: bool) {
    let (port, tls_port, peer_port) = (free_ports(), free_ports(), free_ports());
    let _peer = reflector(peer_port);
    let [port_text, tls_text, peer_text] = [port, tls_port, peer_port].map(|it| it.to_string());
    let mut arguments: Vec<&str> = OPTIONS.split_whitespace().collect();
    arguments.extend(["-p", &port_text, "--tls-listening-port", &tls_text]);
    if is_ours {
        // What Debian's does unless told otherwise, and has no keys for.
        arguments.extend(["--dtls", "--rfc5766-channel-numbers"]);
        // The client asks again at once when its password is wrong, without end.
        arguments.extend(["--unverified-excess-bytes-per-second", "1000000000"]);
        arguments.extend(["--unverified-bytes-per-second", "1000000000"]);
    }
    let mut server = Server::start(program, folder, &arguments);
    for pattern in START {
        server.awaits(pattern);
    }
    for (words, patterns) in ACTIONS {
        server.seen.clear();
        let is_tls = words.contains(&"-S");
        let mut words = words.to_vec();
        if !words.contains(&"-y") && !words.contains(&"-e") {
            words.extend(["-e", "127.0.0.1"]);
        }
        words.extend(["-r", &peer_text]);
        client(if is_tls { tls_port } else { port }, &words);
        for pattern in patterns {
            server.awaits(pattern);
        }
    }
}

fn certificate(folder: &Path) {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).expect("a key");
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("signed");
    std::fs::write(folder.join("chain.pem"), certificate.pem()).expect("written");
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).expect("written");
}
