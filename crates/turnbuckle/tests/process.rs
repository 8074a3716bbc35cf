//! What `turnserver` is to the system: its log files, its user, its interface, its key.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use openssl::nid::Nid;
use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode};

mod not_run;
mod ports;

use not_run::not_run;
use ports::free_ports;

/// How long anything may take that has to come about; how long it does take is not judged.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A directory with a link to the binary, in which it is started.
struct Site {
    folder: tempfile::TempDir,
    port: u16,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let link = folder.path().join("turnserver");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_turnbuckle"), link).expect("linked");
        Self {
            folder,
            port: free_ports(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(self.path("turnserver"));
        let port = self.port.to_string();
        command
            .args(["-n", "-L", "127.0.0.1", "-m", "1", "-u", "a:b", "-p", &port])
            .args(words.split_whitespace())
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &str) -> Output {
        self.command(words).output().expect("it runs")
    }

    /// Returns the command as the user and group `nobody` and `nogroup`, who may become nobody else.
    fn command_of_nobody(&self, words: &str) -> Command {
        fs::set_permissions(self.folder.path(), fs::Permissions::from_mode(0o755))
            .expect("root's own");
        // Whose eyes do not reach where the link leads.
        let (binary, link) = (env!("CARGO_BIN_EXE_turnbuckle"), self.path("turnserver"));
        if link.is_symlink() {
            fs::remove_file(&link).expect("removed");
            fs::hard_link(binary, &link)
                .or_else(|_| fs::copy(binary, &link).map(drop))
                .expect("there");
        }
        let own = self.command(words);
        let mut command = Command::new("setpriv");
        command
            .args("--reuid nobody --regid nogroup --clear-groups".split(' '))
            .arg(own.get_program())
            .args(own.get_args())
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    /// Starts it with its output in a file, and waits until it answers.
    fn start(&self, words: &str) -> Server {
        self.start_by(self.command(words))
    }

    fn start_by(&self, mut command: Command) -> Server {
        let out = fs::File::create(self.path("out")).expect("a file");
        let child = command.stdout(out).stderr(Stdio::null()).spawn();
        let server = Server(child.expect("it starts"));
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
        let moment = Duration::from_millis(1);
        socket.set_read_timeout(Some(moment)).expect("set");
        socket.connect(("127.0.0.1", self.port)).expect("connected");
        let binding = [&[0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42][..], &[7; 12]].concat();
        // Refused as long as nobody listens. Asked again and again, so that what is looked at next is a server that has just begun to answer.
        let deadline = Instant::now() + TIMEOUT;
        while socket.send(&binding).is_err() || socket.recv(&mut [0; 100]).is_err() {
            assert!(Instant::now() < deadline, "no answer");
            std::thread::sleep(moment);
        }
        server
    }

    fn content(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Returns the files whose names begin so.
    fn files(&self, beginning: &str) -> Vec<String> {
        let found = fs::read_dir(self.folder.path()).expect("a directory");
        let names = found.map(|entry| entry.expect("an entry").file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        names.filter(|name| name.starts_with(beginning)).collect()
    }
}

struct Server(Child);

impl Server {
    fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(self.0.id().try_into().expect("a process"));
        kill(process, signal).expect("signalled");
    }

    fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        assert!(self.0.wait().expect("ended").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ended already unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn await_condition(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_log_file_has_the_day_in_its_name_as_coturns_has() {
    let site = Site::new();
    site.start("--no-tls --pidfile= --log-file turn.log").stop();
    let files = site.files("turn_");
    assert_eq!(files.len(), 1, "{files:?}");
    let day = files[0]
        .strip_prefix("turn_")
        .and_then(|rest| rest.strip_suffix(".log"));
    let day = day.unwrap_or_else(|| panic!("{files:?}"));
    assert!(day.len() == 10 && day.starts_with("20"), "{day}");
    assert!(site.content(&files[0]).contains(" INFO ready\n"));
    // Standard output has a copy.
    assert_eq!(site.content("out"), site.content(&files[0]));
    // Debian's names its file so too.
    let coturn = "/usr/bin/turnserver";
    if !Path::new(coturn).exists() {
        not_run(&format!("not compared: {coturn} is not installed"));
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let port = free_ports().to_string();
    let child = Command::new(coturn)
        .args([
            "-n",
            "-L",
            "127.0.0.1",
            "-m",
            "1",
            "-p",
            &port,
            "--no-cli",
            "--no-tls",
            "--no-dtls",
        ])
        .args(["--log-file", "turn.log", "--pidfile", "turn.pid"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _coturns = Server(child.expect("it starts"));
    await_condition("its file", || folder.path().join(&files[0]).exists());
}

/// As root files would be emptied or written to that belong to somebody else.
#[test]
fn links_of_another_user_are_not_followed_and_own_ones_are() {
    if !geteuid().is_root() {
        not_run("needs root, to make links of another user");
        return;
    }
    for (owner, is_followed) in [(65_534, false), (0, true)] {
        let site = Site::new();
        for name in ["pid", "log", "accounting"] {
            fs::write(site.path(&format!("{name}.victim")), "precious").expect("written");
            let link = site.path(name);
            std::os::unix::fs::symlink(format!("{name}.victim"), &link).expect("linked");
            std::os::unix::fs::lchown(&link, Some(owner), None).expect("given away");
        }
        let server = site.start(
            "--no-tls --pidfile pid --log-file log --simple-log --statistics-file accounting",
        );
        server.signal(Signal::SIGTERM);
        let mut server = server;
        let _ = server.0.wait().expect("ended");
        for name in ["pid", "log", "accounting"] {
            let content = site.content(&format!("{name}.victim"));
            let is_untouched = content == "precious";
            assert_eq!(is_untouched, !is_followed, "{name} of {owner}: {content}");
        }
    }
}

#[test]
fn simple_log_keeps_the_name_and_no_stdout_log_keeps_quiet() {
    let site = Site::new();
    let server = site.start("--no-tls --pidfile= --log-file turn.log --simple-log --no-stdout-log --new-log-timestamp=false");
    await_condition("a line", || {
        site.content("turn.log").contains(": INFO ready\n")
    });
    server.stop();
    let log = site.content("turn.log");
    assert!(
        log.lines()
            .all(|line| line.starts_with(|first: char| first.is_ascii_digit())),
        "{log}"
    );
    assert_eq!(site.content("out"), "");
}

#[test]
fn what_is_to_be_noted_about_a_configuration_is_in_the_log_file() {
    let folder = tempfile::tempdir().expect("a directory");
    let log = || fs::read_to_string(folder.path().join("relay.log")).unwrap_or_default();
    let content = format!(
        "cli-password=unused\nlistening-ip=127.0.0.1\nlistening-port={}\nuser=a:b\nlog-file=relay.log\nno-tls\nsimple-log",
        free_ports()
    );
    fs::write(folder.path().join("relay.conf"), content).expect("written");
    let child = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
        .args(["serve", "-c", "relay.conf"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let server = Server(child.expect("it starts"));
    await_condition("its start", || log().contains("ready\n"));
    server.stop();
    let note = "note: relay.conf:1: `cli-password`: has no effect without `cli`";
    assert!(log().contains(note), "{}", log());
}

#[test]
fn a_log_that_was_moved_away_is_begun_anew_on_sighup() {
    let site = Site::new();
    let server = site.start("--no-tls --pidfile= --log-file turn.log --simple-log --no-stdout-log");
    await_condition("a line", || site.content("turn.log").contains(" ready\n"));
    fs::rename(site.path("turn.log"), site.path("turn.log.1")).expect("moved");
    server.signal(Signal::SIGHUP);
    await_condition("a new file", || {
        site.content("turn.log")
            .ends_with(" INFO log file reopened\n")
    });
    server.stop();
    assert!(!site.content("turn.log.1").contains("reopened"));
}

/// As a user who may not make files there.
#[test]
fn a_log_that_cannot_be_begun_anew_goes_on_in_the_old_file_and_says_so() {
    if !geteuid().is_root() {
        not_run("only root can become somebody else");
        return;
    }
    let site = Site::new();
    let open_to_all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(site.folder.path(), open_to_all).expect("root's own");
    let words = "--no-tls --pidfile= --log-file turn.log --simple-log --proc-user nobody --proc-group nogroup";
    let server = site.start(words);
    await_condition("a line", || site.content("turn.log").contains(" ready\n"));
    let owner = fs::metadata(site.path("turn.log")).expect("there").uid();
    assert_eq!(owner, 65534, "the user that it has become");
    fs::rename(site.path("turn.log"), site.path("turn.log.1")).expect("moved");
    for _ in 0..2 {
        let lines = site.content("turn.log.1").lines().count();
        server.signal(Signal::SIGHUP);
        await_condition("another line", || {
            site.content("turn.log.1").lines().count() > lines
        });
    }
    await_condition("both", || {
        site.content("turn.log.1").matches("reopened").count() == 2
    });
    let told = "WARNING Cannot open log file for writing: turn.log: Permission denied (os error 13); lines go on";
    assert_eq!(site.content("turn.log.1").matches(told).count(), 1);
    assert!(!site.path("turn.log").exists());
    await_condition("the same on standard output", || {
        site.content("out").contains(told)
    });
    // As soon as it may, it begins anew.
    std::os::unix::fs::chown(site.folder.path(), Some(65534), None).expect("given");
    server.signal(Signal::SIGHUP);
    await_condition("a new file", || {
        site.content("turn.log").contains(" log file reopened\n")
    });
    server.stop();
}

#[test]
fn a_full_pipe_as_standard_output_stops_neither_relaying_nor_the_file_nor_the_end() {
    let site = Site::new();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("set");
    while (&writer).write(&[b'x'; 4096]).is_ok() {}
    while (&writer).write(b"x").is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).expect("set");
    let words = "--no-tls --pidfile= --log-file turn.log --simple-log -v --allow-loopback-peers -r example.org -a";
    let child = site
        .command(words)
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn();
    let mut server = Server(child.expect("it starts"));
    await_condition("the file has it", || {
        site.content("turn.log").contains(" ready\n")
    });
    let link = site.path("turnutils_uclient");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_turnbuckle"), &link).expect("linked");
    let out = Command::new(link)
        .args("-y -c -u a -w b -n 5 -m 2 -l 100 127.0.0.1 -p".split(' '))
        .arg(site.port.to_string())
        .output()
        .expect("it runs");
    let out = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.contains("Total lost packets 0 "), "{out}");
    await_condition("the file has the sessions", || {
        site.content("turn.log").contains(" delete: realm=")
    });
    server.signal(Signal::SIGTERM);
    let mut status = None;
    await_condition("the end", || {
        status = server.0.try_wait().expect("waited");
        status.is_some()
    });
    assert!(status.is_some_and(|status| status.success()));
    drop(reader);
}

/// Writes a key and a certificate for `name`, which signs itself.
fn certify(site: &Site, name: &str) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    let certificate = params.self_signed(&key).expect("signed");
    fs::write(site.path("key.pem"), key.serialize_pem()).expect("written");
    fs::write(site.path("chain.pem"), certificate.pem()).expect("written");
}

/// Returns the name that a server's certificate has.
fn name_at(port: u16) -> String {
    let mut connector = SslConnector::builder(SslMethod::tls_client()).expect("a connector");
    connector.set_verify(SslVerifyMode::NONE);
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    let stream = connector.build().connect("localhost", stream);
    let certificate = stream.expect("a handshake").ssl().peer_certificate();
    let certificate = certificate.expect("a certificate");
    let mut names = certificate.subject_name().entries_by_nid(Nid::COMMONNAME);
    let name = names.next().expect("a name").data();
    String::from_utf8_lossy(name.as_slice()).into_owned()
}

#[test]
fn a_reader_that_is_stopped_stops_no_call_no_certificate_and_no_drain_and_its_lines_are_counted() {
    let site = Site::new();
    certify(&site, "before");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let cat = Command::new("cat")
        .stdin(reader)
        .stdout(Stdio::null())
        .spawn();
    let cat = Server(cat.expect("it starts"));
    cat.signal(Signal::SIGSTOP);
    let tls_port = free_ports();
    let words = format!(
        "--tls-listening-port {tls_port} --cert chain.pem --pkey key.pem --pidfile= --log-file turn.log --simple-log -v \
         --allow-loopback-peers -r example.org -a --statistics-file statistics.json"
    );
    let child = site
        .command(&words)
        .stdout(writer)
        .stderr(Stdio::null())
        .spawn();
    let mut server = Server(child.expect("it starts"));
    let lines = || site.content("turn.log").lines().count();
    await_condition("the file has it", || {
        site.content("turn.log").contains(" ready\n")
    });
    // More lines than the pipe and the queue take together.
    await_condition("enough lines", || {
        for _ in 0..100 {
            server.signal(Signal::SIGHUP);
            std::thread::sleep(Duration::from_micros(100));
        }
        lines() > 4_000
    });
    let link = site.path("turnutils_uclient");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_turnbuckle"), &link).expect("linked");
    let out = Command::new(link)
        .args("-y -c -u a -w b -n 5 -m 2 -l 100 127.0.0.1 -p".split(' '))
        .arg(site.port.to_string())
        .output()
        .expect("it runs");
    let out = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.contains("Total lost packets 0 "), "{out}");
    assert_eq!(name_at(tls_port), "before");
    certify(&site, "after");
    server.signal(Signal::SIGUSR2);
    await_condition("the new certificate", || name_at(tls_port) == "after");
    server.signal(Signal::SIGUSR1);
    let mut status = None;
    await_condition("the end of the drain", || {
        status = server.0.try_wait().expect("waited");
        status.is_some()
    });
    assert!(status.is_some_and(|status| status.success()));
    let text = site.content("statistics.json");
    let statistics: serde_json::Value = serde_json::from_str(&text).expect("an object");
    let lost = statistics["log_lost"].as_u64().expect("a number");
    assert!(lost > 1_000, "{lost} of {} lines", lines());
    let end = format!("lines of the log lost {lost}");
    assert!(site.content("turn.log").contains(&end), "{end}");
}

#[test]
fn a_log_file_that_cannot_be_opened_leaves_standard_output() {
    let site = Site::new();
    site.start("--no-tls --pidfile= --log-file /nonexistent/turn.log --log-min-level error")
        .stop();
    let out = site.content("out");
    assert!(
        out.contains("ERROR Cannot open log file for writing: /nonexistent/turn.log"),
        "{out}"
    );
    assert!(!out.contains(" INFO "), "{out}");
}

/// Before it answers anybody.
#[test]
fn it_becomes_the_user_and_group_that_are_named() {
    if !geteuid().is_root() {
        not_run("only root can become somebody else");
        return;
    }
    let site = Site::new();
    let server = site.start(
        "--no-tls --pidfile turn.pid --log-file stdout --proc-user nobody --proc-group nogroup",
    );
    let status = fs::read_to_string(format!("/proc/{}/status", server.0.id())).expect("it runs");
    let ids = |key: &str| {
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix(key)).expect(key);
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert!(ids("Uid:").iter().all(|id| id == "65534"), "{status}");
    assert!(ids("Gid:").iter().all(|id| id == "65534"), "{status}");
    assert!(ids("Groups:").is_empty(), "{status}");
    server.stop();
    let refused = site.run("--no-tls --pidfile= --log-file stdout --proc-user nobody-at-all");
    assert_eq!(refused.status.code(), Some(255));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("proc-user"));
}

/// As under a service manager that has started it as that user.
#[test]
fn it_starts_as_the_user_and_group_that_it_is_to_become_and_as_nobody_else() {
    if !geteuid().is_root() {
        not_run("only root can start it as somebody else");
        return;
    }
    let site = Site::new();
    let quiet = "--no-tls --pidfile= --log-file stdout";
    for same in [
        "--proc-user nobody --proc-group nogroup",
        "--proc-user nobody",
        "--proc-group nogroup",
    ] {
        site.start_by(site.command_of_nobody(&format!("{quiet} {same}")))
            .stop();
    }
    for (other, key) in [
        ("--proc-user daemon --proc-group nogroup", "proc-group"),
        ("--proc-user nobody --proc-group daemon", "proc-group"),
        ("--proc-user daemon", "proc-group"),
        ("--proc-group daemon", "proc-group"),
    ] {
        let mut command = site.command_of_nobody(&format!("{quiet} {other}"));
        let refused = command.output().expect("it runs");
        assert_eq!(refused.status.code(), Some(255), "{other}");
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(why.contains(&format!("{key}: EPERM")), "{other}: {why}");
    }
}

#[test]
fn it_listens_on_the_interface_that_is_named_and_says_when_there_is_none() {
    let site = Site::new();
    site.start("--no-tls --pidfile= --log-file stdout -d lo -i lo")
        .stop();
    for option in ["--listening-device", "--relay-device"] {
        let refused = site.run(&format!(
            "--no-tls --pidfile= --log-file stdout {option} tb-none"
        ));
        assert_eq!(refused.status.code(), Some(255));
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            why.contains("tb-none") && why.contains(&option[2..]),
            "{why}"
        );
    }
}

/// The handshake is OpenSSL's own client's.
#[test]
fn an_encrypted_key_is_used_with_its_password_and_with_no_other() {
    let site = Site::new();
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("signed");
    fs::write(site.path("chain.pem"), certificate.pem()).expect("written");
    let key = openssl::pkey::PKey::private_key_from_pem(key.serialize_pem().as_bytes());
    let cipher = openssl::symm::Cipher::aes_256_cbc();
    let pem = key.and_then(|key| key.private_key_to_pem_pkcs8_passphrase(cipher, b"hush"));
    fs::write(site.path("key.pem"), pem.expect("encrypted")).expect("written");
    let tls_port = free_ports();
    let common = format!(
        "--tls-listening-port {tls_port} --dtls --cert chain.pem --pkey key.pem --pidfile= --log-file stdout"
    );
    let server = site.start(&format!("{common} --pkey-pwd hush"));
    for protocol in ["-tls1_2", "-tls1_3", "-dtls1_2"] {
        let mut client = Command::new("openssl")
            .args([
                "s_client",
                protocol,
                "-connect",
                &format!("127.0.0.1:{tls_port}"),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl runs");
        let lines = BufReader::new(client.stdout.take().expect("piped")).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line.contains("Cipher is ")), "{protocol}");
        let _ = client.kill();
        let _ = client.wait();
    }
    server.stop();
    assert!(!site.content("out").contains("hush"));
    for words in [format!("{common} --pkey-pwd other"), common] {
        site.start(&words).stop();
        let why = site.content("out");
        let line = "TLS, DTLS and QUIC are not served until a restart: pkey ";
        assert!(why.contains(line) && why.contains("encrypted"), "{why}");
        assert!(!why.contains("hush") && !why.contains("other\n"), "{why}");
    }
}
