//! The socket for commands, by the program that uses it and by others: who may connect, what each command does, what a bad caller costs.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{
    Authority, Client, Key, OTHER_USER, Server, Site, USER, channel, peer_receives, peer_socket,
};
use crate::not_run::not_run;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A server that takes commands.
pub(crate) struct Steered {
    pub(crate) server: Server,
    pub(crate) socket: PathBuf,
    pub(crate) _directory: TempDir,
}

/// What a run of the program has come to.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) error: String,
}

impl Ran {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code().unwrap(),
            out: text(&output.stdout),
            error: text(&output.stderr),
        }
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{}\n{}", self.out, self.error);
        self
    }

    /// Returns the objects of its lines.
    pub(crate) fn json(&self) -> Vec<Value> {
        let lines = self.out.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

pub(crate) fn ctl(socket: &Path, arguments: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnbuckle"));
    command.arg("ctl").arg("--socket").arg(socket);
    Ran::of(&command.args(arguments).output().unwrap())
}

impl Steered {
    pub(crate) fn start(site: Site, options: &[&str]) -> Self {
        Self::start_as("turnbuckle", site, options)
    }

    /// Starts the server under one of its names.
    pub(crate) fn start_as(name: &str, site: Site, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // The server may have become another user.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let socket = directory.path().join("control.sock");
        let key = format!("--control-socket={}", socket.display());
        let start = match name {
            "turnserver" => Server::start_turnserver,
            _ => Server::start,
        };
        let server = start(site.server(), &[&[&*key], options].concat());
        Self {
            server,
            socket,
            _directory: directory,
        }
    }

    pub(crate) fn ctl(&self, arguments: &[&str]) -> Ran {
        ctl(&self.socket, arguments)
    }

    /// Returns the sessions that pass a filter.
    pub(crate) fn sessions(&self, filter: &[&str]) -> Vec<Value> {
        let arguments = [&["sessions", "--json"], filter].concat();
        self.ctl(&arguments).expect(0).json()
    }

    /// Sends a request as it stands, and returns what comes back.
    fn raw(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        // The server may close before it has read everything.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }
}

fn number(session: &Value) -> String {
    session["session"].as_str().unwrap().to_owned()
}

#[test]
fn a_trace_shows_what_one_user_asks_for_and_is_answered_and_ends_by_itself() {
    let site = Site::new();
    let steered = Steered::start(site, &["--allow-loopback-peers"]);
    let server = &steered.server;
    let mut before = Client::new(site.ip(2), server);
    before.allocate();
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnbuckle"));
    command.arg("ctl").arg("--socket").arg(&steered.socket);
    command.args(["trace", USER, "--seconds=4", "--json"]);
    let mut traced = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(traced.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let there = next();
    assert_eq!(there["session"]["user"], USER);
    server.wait_for_line("trace of alice for 4 s");
    assert_eq!(next()["begun"], true);
    // Another user is not shown, and neither is what is relayed.
    Client::other(site.ip(3), server).allocate();
    let peer = peer_socket(site.ip(20));
    before
        .channel_bind(channel(0), peer.local_addr().unwrap())
        .expect(200);
    before.send_channel_data(channel(0), b"not to be shown");
    peer_receives(&peer);
    let denied = SocketAddr::new([224, 0, 0, 1].into(), 9);
    before.create_permission(&[denied]).expect(403);
    before.refresh(0).expect(200);
    let mut texts = Vec::new();
    loop {
        let line = next();
        if line["ended"] == true {
            assert_eq!(line["lost"], 0);
            break;
        }
        texts.push(line["text"].as_str().unwrap().to_owned());
    }
    assert_eq!(traced.wait().unwrap().code(), Some(0));
    let number = there["session"]["session"].as_str().unwrap();
    let client = before.local_address();
    let expected = [
        format!(
            "session {number}: peer {} lifetime updated: 300",
            peer.local_addr().unwrap().ip()
        ),
        format!(
            "session {number}: channel 0x4000 of peer {} lifetime updated: 600",
            peer.local_addr().unwrap()
        ),
        format!(
            "CHANNEL_BIND {} by UDP from {client}: success",
            peer.local_addr().unwrap()
        ),
        format!(
            "CREATE_PERMISSION {denied} by UDP from {client}: error 403: Forbidden, \
             peer {denied}: denied"
        ),
        format!("REFRESH by UDP from {client}: success"),
    ];
    for expected in expected {
        let is_there = texts.iter().any(|text| text.starts_with(&expected));
        assert!(is_there, "{expected}: {texts:#?}");
    }
    let last = texts.last().unwrap();
    assert!(
        last.starts_with(&format!("session {number}: closed, reason: released")),
        "{last}"
    );
    assert!(
        !texts
            .iter()
            .any(|text| text.contains("not to be shown") || text.contains("mallory"))
    );
    steered.ctl(&["trace", USER, "--seconds=601"]).expect(2);
}

#[test]
fn the_log_leaves_out_what_is_below_its_level_from_the_command_on() {
    let authority = Authority::new();
    let options = authority.options(Key::P256);
    let steered = Steered::start(Site::new(), &options.each_ref().map(String::as_str));
    let level = |level: &str| steered.ctl(&["log", "--level", level]).expect(0);
    // A command about a session that is not there is a line of the level info all the same.
    let command = |number: &str| steered.ctl(&["end", number]).expect(1);
    // Files that do not fit are worth a warning, whether they are found by the command or before it.
    let refused = || steered.ctl(&["certificates", "--reload"]).expect(1);
    let until = |text: &str| steered.server.lines_until(text);
    command("1");
    level("warning");
    command("2");
    authority.write("chain.pem", "half a file");
    refused();
    let lines = until("certificates not changed: cert ");
    assert!(lines.contains("end session 000000000000000001"), "{lines}");
    assert!(lines.contains("log: level=warning"), "{lines}");
    assert!(!lines.contains("end session 000000000000000002"), "{lines}");
    level("error");
    authority.options(Key::P256);
    authority.write("key.pem", "half a file");
    refused();
    level("info");
    command("3");
    let lines = until("end session 000000000000000003");
    assert!(!lines.contains("not changed: pkey"), "{lines}");
    assert!(!lines.contains("log: level"), "{lines}");
}

#[test]
fn sessions_are_listed_filtered_shown_and_ended_and_the_rest_goes_on() {
    let site = Site::new();
    let steered = Steered::start(site, &["--allow-loopback-peers"]);
    let server = &steered.server;
    let mut clients: Vec<_> = (2..6).map(|n| Client::new(site.ip(n), server)).collect();
    let mut other = Client::other(site.ip(9), server);
    let relayed: Vec<_> = clients.iter_mut().map(Client::allocate).collect();
    other.allocate();
    let peer = peer_socket(site.ip(20));
    let address = peer.local_addr().unwrap();
    clients[1].channel_bind(channel(0), address).expect(200);
    clients[1].send_channel_data(channel(0), &[7; 1000]);
    peer_receives(&peer);
    assert_eq!(steered.sessions(&[]).len(), 5);
    let named = format!("--user={OTHER_USER}");
    let found = steered.sessions(&[&named]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["user"], OTHER_USER);
    assert_eq!(steered.sessions(&["--user-like=ali"]).len(), 4);
    assert_eq!(steered.sessions(&["--transport=tcp"]).len(), 0);
    assert_eq!(steered.sessions(&["--min-age=3600"]).len(), 0);
    let by_peer = format!("--peer={}", address.ip());
    let found = steered.sessions(&[&by_peer]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["relays"][0]["external"], relayed[1].to_string());
    assert_eq!(found[0]["usage"]["client_received"]["bytes"], 1004);
    assert_eq!(found[0]["usage"]["peer_sent"]["bytes"], 1000);
    // The same session by its number, as the largest, and in the table for people.
    let busy = number(&found[0]);
    let shown = steered.ctl(&["session", &busy, "--json"]).expect(0).json();
    assert_eq!(shown[0]["client"], clients[1].local_address().to_string());
    let top = steered.ctl(&["top", "--max=1", "--json"]).expect(0).json();
    assert_eq!(number(&top[0]["sessions"][0]), busy);
    let table = steered.ctl(&["top", "--by=datagrams"]).expect(0).out;
    assert!(
        table.starts_with("SESSION ") && table.lines().count() == 6,
        "{table}"
    );
    assert!(table.lines().nth(1).unwrap().starts_with(&busy), "{table}");
    // One ends, its client is told with its next request, and no other one ends.
    steered.ctl(&["end", &busy]).expect(0);
    clients[1].refresh(600).expect(437);
    assert!(
        steered
            .ctl(&["session", &busy])
            .expect(1)
            .error
            .contains("no session")
    );
    steered.ctl(&["end", &busy]).expect(1);
    for client in [0, 2, 3] {
        clients[client].refresh(600).expect(200);
    }
    let ended = steered.ctl(&["end", &format!("--user={USER}")]).expect(0);
    assert_eq!(ended.out, "ended 3 sessions\n");
    other.refresh(600).expect(200);
    let ended = steered.ctl(&["end", "--all", "--json"]).expect(0);
    assert_eq!(ended.json()[0]["ended"], 1);
    assert_eq!(steered.sessions(&[]).len(), 0);
    // Their ports and quota are free: the same clients begin anew.
    clients[0].allocate();
    let lines = steered.server.lines_so_far().join("\n");
    let me = format!(
        "control: user {}, process ",
        rustix::process::getuid().as_raw()
    );
    assert_eq!(lines.matches(&me).count(), 4, "{lines}");
    for what in [
        &*format!("end session {busy}"),
        &*format!("end sessions: user={USER}"),
        "end sessions: all=true",
    ] {
        assert!(lines.contains(what), "{what}: {lines}");
    }
}

#[test]
fn a_list_is_read_in_pages_that_a_cursor_joins_without_gap_or_repetition() {
    let site = Site::new();
    let steered = Steered::start(site, &[]);
    let mut clients: Vec<_> = (2..25)
        .map(|n| Client::new(site.ip(n), &steered.server))
        .collect();
    for client in &mut clients {
        client.allocate();
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let request = format!("GET /v1/sessions?max=4{cursor} HTTP/1.1\r\nHost: x\r\n\r\n");
        let answer = steered.raw(&request);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let page: Value = serde_json::from_str(body).unwrap();
        let sessions = page["sessions"].as_array().unwrap();
        assert!(sessions.len() <= 4);
        seen.extend(sessions.iter().map(number));
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 23);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 23);
}

#[test]
fn a_relay_is_drained_and_takes_clients_again_and_ends_when_it_is_told_to() {
    let site = Site::new();
    let steered = Steered::start(site, &[]);
    let mut client = Client::new(site.ip(2), &steered.server);
    client.allocate();
    steered.ctl(&["health"]).expect(0);
    let drained = steered.ctl(&["drain"]).expect(0);
    assert_eq!(drained.out, "draining; 1 allocations and 0 tunnels left\n");
    let health = steered.ctl(&["health", "--json"]).expect(1).json();
    assert_eq!(
        (&health[0]["live"], &health[0]["ready"]),
        (&true.into(), &false.into())
    );
    let mut late = Client::new(site.ip(3), &steered.server);
    late.allocate_with(|_| {}).expect(403);
    steered.ctl(&["undrain"]).expect(0);
    late.allocate();
    let info = steered.ctl(&["info", "--json"]).expect(0).json();
    assert_eq!(info[0]["allocations"], 2);
    assert_eq!(info[0]["draining"], false);
    let counters = steered.ctl(&["counters", "--json"]).expect(0).json();
    assert!(counters[0]["in"].as_u64().unwrap() >= 4);
    assert!(steered.ctl(&["counters"]).expect(0).out.contains("drops."));
    // It waits no longer than it was told to, and until the end otherwise.
    let waited = steered.ctl(&["drain", "--wait", "--wait-max=1"]).expect(4);
    assert!(
        waited.error.contains("allocations are left"),
        "{}",
        waited.error
    );
    late.refresh(0).expect(200);
    client.refresh(0).expect(200);
    steered.ctl(&["drain", "--wait"]).expect(0);
    steered.server.assert_ends();
    assert!(!steered.socket.exists());
    let gone = ctl(&steered.socket, &["info"]).expect(3);
    assert!(gone.error.contains("no such file"), "{}", gone.error);
    let steered = Steered::start(site, &[]);
    steered.ctl(&["stop"]).expect(0);
    steered.server.assert_ends();
}

#[test]
fn an_idle_relay_that_drains_has_ended_when_the_command_returns() {
    let site = Site::new();
    for arguments in [&["drain"][..], &["drain", "--wait", "--wait-max=1"]] {
        let steered = Steered::start(site, &[]);
        let drained = steered.ctl(arguments).expect(0);
        assert_eq!(drained.out, "drained, ended\n");
        steered.server.assert_ends();
    }
}

#[test]
fn who_relays_now_is_listed_by_rate_and_by_user() {
    let site = Site::new();
    let steered = Steered::start(site, &["--allow-loopback-peers"]);
    let server = &steered.server;
    let peer = peer_socket(site.ip(20));
    let address = peer.local_addr().unwrap();
    let mut before = [2, 3].map(|host| Client::new(site.ip(host), server));
    let mut now = Client::other(site.ip(4), server);
    for client in before.iter_mut().chain([&mut now]) {
        client.allocate();
        client.channel_bind(channel(0), address).expect(200);
    }
    for client in &mut before {
        client.send_channel_data(channel(0), &[7; 1200]);
        peer_receives(&peer);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnbuckle"));
    command.arg("ctl").arg("--socket").arg(&steered.socket);
    command.args(["top", "--by=rate", "--users", "--json"]);
    let mut listing = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut ticks = 0;
    while listing.try_wait().unwrap().is_none() {
        // All of it together is less than what the others have relayed.
        if ticks < 200 {
            now.send_channel_data(channel(0), &[7; 4]);
            peer_receives(&peer);
            ticks += 1;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let listed = Ran::of(&listing.wait_with_output().unwrap()).json();
    let users = listed[0]["users"].as_array().unwrap();
    let names: Vec<_> = users.iter().map(|user| &user["user"]).collect();
    assert_eq!(names, [OTHER_USER, USER]);
    assert!(users[0]["bytes_per_s"]["client_received"].as_u64().unwrap() > 0);
    assert_eq!(users[1]["bytes_per_s"]["client_received"], 0);
    assert_eq!(users[1]["sessions"], 2);
    let by_bytes = steered.ctl(&["top", "--users"]).expect(0).out;
    let first = by_bytes.lines().nth(1).unwrap();
    assert!(
        first.ends_with("2.4 kB        0 B alice (example.org)"),
        "{by_bytes}"
    );
}

#[test]
fn one_session_is_shown_with_what_protects_it_and_ending_nobody_is_an_error() {
    let site = Site::new();
    let authority = Authority::new();
    let options = authority.options(Key::P256);
    let options = options.each_ref().map(String::as_str);
    let steered = Steered::start(site, &[&options[..], &["--dtls"]].concat());
    let server = &steered.server;
    let address = SocketAddr::new(site.ip(1), 5349);
    let mut tls = Client::on_stream(authority.client().link(address), server);
    tls.allocate();
    let session = authority
        .dtls_client()
        .connect(site.ip(2), address)
        .unwrap();
    Client::over_dtls(session, server).allocate();
    for (transport, version) in [
        ("tls", "TLSv1.3 with TLS_"),
        ("dtls", "DTLSv1.2 with ECDHE"),
    ] {
        let listed = steered.sessions(&[&format!("--transport={transport}")]);
        let shown = steered.ctl(&["session", &number(&listed[0])]).expect(0).out;
        let protected = format!(" by {}, {version}", transport.to_uppercase());
        assert!(shown.contains(&protected), "{shown}");
        assert!(
            shown.contains("\nuser         alice (example.org)\n"),
            "{shown}"
        );
    }
    let ended = steered.ctl(&["end", "--user=nobody"]).expect(1);
    assert!(ended.error.contains("nothing was ended"), "{}", ended.error);
    assert_eq!(steered.sessions(&[]).len(), 2);
}

#[test]
fn what_is_not_understood_changes_nothing_and_the_answer_says_what_is_allowed() {
    let site = Site::new();
    let steered = Steered::start(site, &[]);
    let mut client = Client::new(site.ip(2), &steered.server);
    client.allocate();
    let refused = |request: &str, status: &str, why: &str| {
        let answer = steered.raw(&format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{request}: {answer}"
        );
        assert!(answer.contains(why), "{request}: {answer}");
    };
    refused("GET /", "404", "no such path");
    refused("GET /v1/sessions?usr=a", "400", "allowed: user, user_like");
    refused("GET /v1/sessions?max=1001", "400", "1 to 1000");
    refused("GET /v1/sessions?cursor=here", "400", "cursor");
    refused("GET /v1/sessions/here", "400", "eighteen digits");
    refused("GET /v1/sessions/999999999999999999", "404", "no session");
    refused("GET /v1/sessions:end?all=true", "405", "POST");
    refused("POST /v1/sessions:end", "400", "all=true");
    refused(
        "POST /v1/sessions:end?all=true&user=alice",
        "400",
        "no room",
    );
    refused("POST /v1/sessions:end?user_=alice", "400", "no parameter");
    refused("DELETE /v1/sessions", "405", "GET");
    refused("POST /v1/drain", "405", "GET, PUT, DELETE");
    refused("POST /v1/stop?now=true", "400", "no parameter");
    steered.ctl(&["end"]).expect(2);
    steered.ctl(&["end", "--all", "--user=alice"]).expect(2);
    let wrong = steered.ctl(&["sessions", "--transport=quic"]).expect(1);
    assert!(
        wrong.error.contains("udp, tcp, tls, dtls"),
        "{}",
        wrong.error
    );
    client.refresh(600).expect(200);
    let lines = steered.server.lines_so_far().join("\n");
    assert!(!lines.contains("control: "), "{lines}");
}

#[test]
fn who_may_not_write_to_the_socket_has_no_say_and_the_program_says_so() {
    let site = Site::new();
    let steered = Steered::start(site, &[]);
    let mode = fs::symlink_metadata(&steered.socket)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
    if !rustix::process::getuid().is_root() {
        not_run("only root may run the program as somebody else");
        return;
    }
    let directory = steered.socket.parent().unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    // Where a build may be that others cannot read, the program is run from a copy.
    let copy = directory.join("turnbuckle");
    fs::copy(env!("CARGO_BIN_EXE_turnbuckle"), &copy).unwrap();
    let run = |user: u32, group: u32| {
        let mut command = Command::new(&copy);
        command
            .arg("ctl")
            .arg("--socket")
            .arg(&steered.socket)
            .arg("info");
        Ran::of(&command.uid(user).gid(group).output().unwrap())
    };
    let refused = run(65_534, 65_534).expect(3);
    assert!(
        refused.error.contains("permission denied"),
        "{}",
        refused.error
    );
    run(65_534, 0).expect(0); // of the relay's group
}

#[test]
fn no_socket_is_there_unless_it_is_asked_for_and_a_foreign_file_is_left_alone() {
    let site = Site::new();
    let directory = tempfile::tempdir().unwrap();
    let program = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_turnbuckle"));
        command
            .args(words)
            .env("RUNTIME_DIRECTORY", directory.path());
        command
    };
    let listening = format!("--listening-ip={}", site.ip(1));
    let serve = ["serve", "--user=a:b", "--realm=r", &listening];
    let path = directory.path().join("precious");
    fs::write(&path, "precious").unwrap();
    let key = format!("--control-socket={}", path.display());
    let refused = program(&[&serve[..], &[&key]].concat()).output().unwrap();
    let refused = Ran::of(&refused).expect(1);
    assert!(refused.error.contains("no socket"), "{}", refused.error);
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    // The directory of the service manager is where both sides look.
    let mut server = program(&serve).spawn().unwrap();
    let begin = Instant::now();
    while program(&["ctl", "stop"]).output().unwrap().status.code() == Some(3) {
        assert!(begin.elapsed() < TIMEOUT);
    }
    assert!(server.wait().unwrap().success());
    let off = "--control-socket=none";
    let mut server = program(&[&serve[..], &[off]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let greeting: Vec<_> = lines
        .map(Result::unwrap)
        .take_while(|line| line != "ready")
        .collect();
    assert!(
        !greeting.iter().any(|line| line.contains("commands at")),
        "{greeting:?}"
    );
    assert!(!directory.path().join("control.sock").exists());
    server.kill().unwrap();
    server.wait().unwrap();
    let server = Server::start(site.server(), &[]);
    assert!(
        !server.greeting().contains("commands at"),
        "{}",
        server.greeting()
    );
}

#[test]
fn certificates_are_shown_and_read_again_on_command_and_those_that_do_not_fit_stay_out() {
    let site = Site::new();
    let authority = Authority::new();
    let options = authority.options(Key::P256);
    let steered = Steered::start(site, &options.each_ref().map(String::as_str));
    let shown = steered.ctl(&["certificates", "--json"]).expect(0).json();
    let [certificate] = &shown[0]["certificates"].as_array().unwrap()[..] else {
        panic!("one file: {shown:?}");
    };
    assert!(certificate["file"].as_str().unwrap().ends_with("chain.pem"));
    assert!(certificate["days_left"].as_i64().unwrap() > 0);
    let line = steered.ctl(&["certificates"]).expect(0).out;
    assert!(
        line.contains("chain.pem: ") && line.contains(", good until "),
        "{line}"
    );
    let (chain, key) = authority.issue(Key::P384);
    authority.write("chain.pem", &chain);
    let refused = steered.ctl(&["certificates", "--reload"]).expect(1);
    assert!(refused.error.contains("cert "), "{}", refused.error);
    authority.write("key.pem", &key);
    steered.ctl(&["certificates", "--reload"]).expect(0);
    steered.server.wait_for_line("control: user ");
    let none = Steered::start(Site::new(), &[]);
    let refused = none.ctl(&["certificates", "--reload"]).expect(1);
    assert!(refused.error.contains("speaks no TLS"), "{}", refused.error);
}

#[test]
fn a_program_waits_for_a_relay_that_hangs_no_longer_than_it_was_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let begin = Instant::now();
    let late = ctl(&socket, &["--timeout=1", "info"]).expect(4);
    assert!(late.error.contains("within 1 s"), "{}", late.error);
    assert!(begin.elapsed() < TIMEOUT);
    // To close it is not enough: a program that another test is about to start has it open until then.
    let listener = UnixStream::from(OwnedFd::from(listener));
    listener.shutdown(Shutdown::Both).unwrap();
    let gone = ctl(&socket, &["info"]).expect(3);
    assert!(gone.error.contains("nobody listens"), "{}", gone.error);
}

#[test]
fn callers_that_stall_or_send_rubbish_cost_neither_calls_nor_the_next_command() {
    let site = Site::new();
    let steered = Steered::start(site, &[]);
    let mut client = Client::new(site.ip(2), &steered.server);
    client.allocate();
    let before = steered.server.descriptors();
    let mut stalled: Vec<_> = (0..60)
        .map(|_| UnixStream::connect(&steered.socket).unwrap())
        .collect();
    for stream in &mut stalled {
        // The server may have closed it already.
        let _ = stream.write_all(b"GET /v1/sessions HTT");
    }
    client.refresh(600).expect(200);
    // It is served after those that hold the places have been given up.
    steered.ctl(&["--timeout=30", "info"]).expect(0);
    drop(stalled);
    let long = format!("GET /v1/info HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(70_000));
    let answer = steered.raw(&long);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
        "{answer}"
    );
    let answer = steered.raw("\u{16}\u{3}\u{1} no request at all\r\n\r\n");
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 400 "),
        "{answer}"
    );
    let answer = steered.raw("POST /v1/stop HTTP/1.0\r\nContent-Length: 5\r\n\r\n\u{1b}[31m");
    assert!(
        answer.starts_with("HTTP/1.0 200 ") || answer.starts_with("HTTP/1.1 200 "),
        "{answer}"
    );
    assert!(before > 0);
    steered.server.assert_ends();
}
