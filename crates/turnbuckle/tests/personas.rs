//! The binary under coturn's names: `turnserver` and `turnadmin`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

mod ports;

use ports::free_ports;

/// A directory with links of coturn's names to the binary.
struct Site(tempfile::TempDir);

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        for name in ["turnserver", "turnadmin"] {
            let binary = env!("CARGO_BIN_EXE_turnbuckle");
            std::os::unix::fs::symlink(binary, folder.path().join(name)).expect("linked");
        }
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::create_dir_all(self.path(name).parent().expect("a directory")).expect("made");
        std::fs::write(self.path(name), content).expect("written");
    }

    fn command(&self, name: &str, arguments: &str) -> Command {
        let mut command = Command::new(self.path(name));
        command
            .args(arguments.split_whitespace())
            .current_dir(self.0.path());
        command
    }

    fn run(&self, name: &str, arguments: &str) -> Output {
        self.command(name, arguments).output().expect("it runs")
    }

    /// Starts the server and waits until it serves; returns what it has printed by then.
    fn start(&self, arguments: &str) -> (Server, String) {
        let mut child = self
            .command("turnserver", arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        let mut text = String::new();
        while !text.ends_with("ready\n") {
            assert_ne!(lines.read_line(&mut text).expect("read"), 0, "{text}");
        }
        (Server { child, lines }, text)
    }
}

struct Server {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Server {
    /// Ends it; returns what it has printed since.
    fn stop(mut self) -> String {
        signal(self.child.id(), Signal::SIGTERM);
        let mut text = String::new();
        self.lines.read_to_string(&mut text).expect("read");
        assert!(self.child.wait().expect("ended").success(), "{text}");
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ended already unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(process.try_into().expect("a process"));
    kill(process, signal).expect("signalled");
}

fn complaints(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Options by which a server of a test stands in nobody's way.
const QUIET: &str = "--relay-threads 1 --no-tls --log-file stdout --pidfile turn.pid";

#[test]
fn a_file_of_coturns_is_found_and_read_as_coturn_reads_it() {
    let site = Site::new();
    let port = free_ports();
    site.write(
        "etc/turnserver.conf",
        &format!(
            "# Coturn TURN SERVER configuration file\n  listening-ip=127.0.0.1\nlistening-port {port}\nlt-cred-mech\nuser=alice:hush\n\
             user=alice:other\nrealm=\"example.org\"\nstale-nonce=0\nuser-quota=12 # twelve\nno-multicast-peers=no\nno-loopback-peers\nweb-admin\n\
             max-allocate-timeout=60s\nverbose=2;\nrealm=example.net\nserver-relay\nmin-port=50000\n"
        ),
    );
    let (server, text) = site.start(QUIET);
    for expected in [
        &*format!("IPv4. UDP listener opened on: 127.0.0.1:{port}\n"),
        &*format!("IPv4. TCP listener opened on : 127.0.0.1:{port}\n"),
        "INFO Total General servers: 1\n",
        "INFO pid file created: turn.pid\n",
        "WARNING ./etc/turnserver.conf:8: `stale-nonce`: `0` is taken as 3600\n",
        "`user-quota`: `12 # twelve` is taken as 12\n",
        "`no-multicast-peers`: passed over: `false` is refused: multicast peers are always refused",
        "`no-loopback-peers`: Bad configuration format: is a key of old coturn versions",
        "`web-admin`: passed over: ",
        "`max-allocate-timeout`: `60s` is taken as 60\n",
        "`verbose`: the line ends with `;`, which belongs to the value\n",
        "`server-relay`: passed over: `true` is refused: without permissions anyone could send",
        "`denied-peer-ip`: clients can reach private networks",
        "user `alice`: two users have this name",
    ] {
        assert!(text.contains(expected), "{expected:?} is missing:\n{text}");
    }
    assert!(
        !text.contains("hush") && !text.contains("other\n"),
        "{text}"
    );
    let is_stamped = |line: &str| line.starts_with("20") && line.as_bytes().get(10) == Some(&b'T');
    assert!(text.lines().all(is_stamped), "{text}");
    let pid = std::fs::read_to_string(site.path("turn.pid")).expect("a pid file");
    assert_eq!(pid.trim(), server.child.id().to_string());
    assert!(server.stop().contains("stopped; datagrams: in 0"));
    assert!(!site.path("turn.pid").exists());
}

#[test]
fn the_command_line_comes_after_the_file_and_what_coturn_does_not_know_either_is_refused() {
    let site = Site::new();
    site.write(
        "turnserver.conf",
        "listening-port=1\nlistening-ip=127.0.0.1\nrealm=of-the-file\n",
    );
    let port = free_ports();
    let passed_over = "-L nonsense.invalid --external-ip= --min-port 60000 --max-port 50000";
    let (server, text) = site.start(&format!("-p {port} {QUIET} --user a:b stray {passed_over}"));
    assert!(
        text.contains(&format!("opened on: 127.0.0.1:{port}\n")),
        "{text}"
    );
    for warning in [
        "does not belong to an option",
        "`listening-ip`: host name `nonsense.invalid` is not known",
        "`--external-ip`: passed over",
        "taken the other way round",
    ] {
        assert!(text.contains(warning), "{warning}: {text}");
    }
    server.stop();
    for (arguments, expected) in [
        ("--no-such-option", "is not a known key"),
        ("-p 65536", "1 to 65535"),
        ("--denied-peer-ip 10.0.0", "not an address"),
        ("--fingerprint=perhaps", "true or false"),
    ] {
        let output = site.run("turnserver", &format!("-n {arguments}"));
        let text = complaints(&output);
        assert_eq!(output.status.code(), Some(255), "{arguments}: {text}");
        assert!(text.contains(expected), "{arguments}: {text}");
    }
}

#[test]
fn without_a_file_and_without_credentials_it_serves_binding_requests_and_says_why_no_more() {
    let site = Site::new();
    let port = free_ports();
    let (server, text) = site.start(&format!(
        "-c nowhere.conf -L 127.0.0.1 -X 198.51.100.9 -p {port} -z {QUIET}"
    ));
    for expected in [
        "cannot find configuration file nowhere.conf",
        "`no-auth`: authentication is required",
        "there are no credentials: coturn would let anyone relay",
        "`no-tcp-relay`: clients can connect to TCP services",
    ] {
        assert!(text.contains(expected), "{expected:?} is missing:\n{text}");
    }
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bound");
    socket
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("set");
    socket.connect(("127.0.0.1", port)).expect("connected");
    let ask = |method: u8, length: u8, rest: &[u8]| {
        let mut message = vec![0, method, 0, length, 0x21, 0x12, 0xA4, 0x42];
        message.extend([7; 12]);
        message.extend(rest);
        socket.send(&message).expect("sent");
        let mut answer = [0; 1500];
        let len = socket.recv(&mut answer).expect("an answer");
        answer[..len].to_vec()
    };
    assert_eq!(ask(1, 0, &[])[..2], [1, 1], "Binding is answered");
    let refused = ask(3, 8, &[0, 0x19, 0, 4, 17, 0, 0, 0]);
    assert_eq!(refused[..2], [1, 0x13], "Allocate is not");
    server.stop();
}

/// As coturn does, and with a warning; `turnbuckle serve` wants to be told who the proxies are.
#[test]
fn on_the_port_for_proxies_it_believes_everybody_unless_told_otherwise() {
    let site = Site::new();
    let (port, proxies) = (free_ports(), free_ports());
    let (server, text) = site.start(&format!(
        "-L 127.0.0.1 -p {port} --tcp-proxy-port {proxies} -u alice:secret -r example.org {QUIET}"
    ));
    assert!(text.contains("can claim any address"), "{text}");
    let address = SocketAddr::from(([127, 0, 0, 1], proxies));
    let mut connection = TcpStream::connect(address).expect("somebody listens");
    let binding = [&[0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42][..], &[7; 12]].concat();
    let header = b"PROXY TCP4 198.51.100.7 192.0.2.1 4660 3478\r\n";
    connection
        .write_all(&[&header[..], &binding].concat())
        .expect("sent");
    let mut answer = [0; 32];
    connection.read_exact(&mut answer).expect("an answer");
    // XOR-MAPPED-ADDRESS: 198.51.100.7 under the magic cookie (RFC 8489 §14.2).
    assert_eq!(answer[28..], [198 ^ 0x21, 51 ^ 0x12, 100 ^ 0xA4, 7 ^ 0x42]);
    server.stop();
}

#[test]
fn as_a_daemon_it_returns_when_it_serves_and_writes_to_its_file() {
    let site = Site::new();
    let port = free_ports();
    let arguments = format!(
        "-n -o -L 127.0.0.1 -p {port} --user a:b --relay-threads 1 --no-tls --pidfile turn.pid --log-file turn.log --simple-log"
    );
    let output = site.run("turnserver", &arguments);
    assert!(output.status.success(), "{}", complaints(&output));
    let pid: u32 = std::fs::read_to_string(site.path("turn.pid"))
        .expect("a pid file")
        .trim()
        .parse()
        .expect("a number");
    let log = std::fs::read_to_string(site.path("turn.log")).expect("a log");
    assert!(log.contains("UDP listener opened on"), "{log}");
    let session = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = session
        .rsplit(") ")
        .next()
        .expect("fields")
        .split(' ')
        .collect();
    assert_eq!(fields[3], pid.to_string(), "it leads a session of its own");
    signal(pid, Signal::SIGTERM);
    await_condition("its end", || {
        !Path::new(&format!("/proc/{pid}")).exists() || is_zombie(pid)
    });
    let log = std::fs::read_to_string(site.path("turn.log")).expect("a log");
    assert!(log.contains("ready") && log.contains("stopped; "), "{log}");
    // What fails before it serves is seen.
    let taken = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let port = taken.local_addr().expect("bound").port();
    let output = site.run(
        "turnserver",
        &format!(
            "-n -o -L 127.0.0.1 -p {port} --user a:b --no-tls --pidfile turn.pid --log-file stdout"
        ),
    );
    assert!(!output.status.success());
    assert!(
        complaints(&output).contains("another process listens there"),
        "{}",
        complaints(&output)
    );
}

/// Returns whether a process has ended, and was not collected by whoever adopted it.
fn is_zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

fn await_condition(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn systemd_is_told_when_it_serves_and_when_it_ends() {
    let site = Site::new();
    let manager = UnixDatagram::bind(site.path("notify")).expect("bound");
    manager
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("set");
    let port = free_ports();
    let mut child = site
        .command(
            "turnserver",
            &format!("-n -L 127.0.0.1 -p {port} --user a:b {QUIET}"),
        )
        .env("NOTIFY_SOCKET", site.path("notify"))
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut state = [0; 64];
    let len = manager.recv(&mut state).expect("told");
    assert_eq!(&state[..len], b"READY=1");
    signal(child.id(), Signal::SIGTERM);
    let len = manager.recv(&mut state).expect("told");
    assert_eq!(&state[..len], b"STOPPING=1");
    assert!(child.wait().expect("ended").success());
}

#[test]
fn the_watchdog_of_systemd_is_fed_while_the_relay_serves() {
    let site = Site::new();
    let manager = UnixDatagram::bind(site.path("notify")).expect("bound");
    manager
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("set");
    let port = free_ports();
    let mut child = site
        .command(
            "turnserver",
            &format!("-n -L 127.0.0.1 -p {port} --user a:b {QUIET}"),
        )
        .env("NOTIFY_SOCKET", site.path("notify"))
        .env("WATCHDOG_USEC", "200000")
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    for expected in ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"] {
        let mut state = [0; 64];
        let len = manager.recv(&mut state).expect("told");
        assert_eq!(&state[..len], expected.as_bytes());
    }
    signal(child.id(), Signal::SIGTERM);
    assert!(child.wait().expect("ended").success());
}

#[test]
fn the_watchdog_is_fed_by_relays_that_survive_before_an_upgrade_and_after_it() {
    let site = Site::new();
    let manager = UnixDatagram::bind(site.path("notify")).expect("bound");
    manager
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("set");
    let told = || {
        let mut state = [0; 64];
        let len = manager.recv(&mut state).expect("told");
        String::from_utf8_lossy(&state[..len]).into_owned()
    };
    let port = free_ports();
    let socket = site.path("control.sock");
    // As systemd does it: the number is that of the process which becomes the server.
    let child = Command::new("sh")
        .args(["-c", "export WATCHDOG_PID=$$; exec \"$@\"", "sh"])
        .arg(site.path("turnserver"))
        .args(format!("-n -L 127.0.0.1 -p {port} --user a:b {QUIET} --survive=on").split(' '))
        .arg(format!("--control-socket={}", socket.display()))
        .current_dir(site.0.path())
        .env("NOTIFY_SOCKET", site.path("notify"))
        .env("WATCHDOG_USEC", "600000")
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut server = Asked(child);
    for expected in ["READY=1", "WATCHDOG=1", "WATCHDOG=1"] {
        assert_eq!(told(), expected);
    }
    let mut upgrade = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
        .args(["ctl", "--socket"])
        .arg(&socket)
        .arg("upgrade")
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    loop {
        match told().as_str() {
            "WATCHDOG=1" => {} // by the relay before
            next => break assert_eq!(next, "READY=1"),
        }
    }
    for _ in 0..3 {
        assert_eq!(told(), "WATCHDOG=1");
    }
    assert!(upgrade.wait().expect("ended").success());
    signal(server.0.id(), Signal::SIGTERM);
    while told() != "STOPPING=1" {}
    assert!(server.0.wait().expect("ended").success());
}

/// A server that is asked to end when this is dropped: others would go on in the place of a process that is killed.
struct Asked(Child);

impl Drop for Asked {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal(self.0.id(), Signal::SIGTERM);
            let _ = self.0.wait();
        }
    }
}

#[test]
fn sessions_are_logged_by_coturns_lines() {
    let site = Site::new();
    assert!(
        site.run(
            "turnadmin",
            "-b turndb -a -u alice -r example.org -p wonderland"
        )
        .status
        .success()
    );
    let port = free_ports();
    let arguments = format!("-n -L 127.0.0.1 -p {port} --userdb turndb -r example.org -v {QUIET}");
    let (mut server, _) = site.start(&arguments);
    let mut load = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
        .args([
            "load",
            "alloc",
            "--server",
            &format!("127.0.0.1:{port}"),
            "--user",
            "alice:wonderland",
            "--duration",
            "1",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut seen = String::new();
    while !seen.contains("delete: realm") {
        assert_ne!(
            server.lines.read_line(&mut seen).expect("read"),
            0,
            "{seen}"
        );
    }
    let text = server.stop();
    // Its server is gone; how it ends is its own affair.
    let _ = load.wait();
    assert!(text.contains("stopped; "), "{text}");
    for expected in [
        ": new, realm=<example.org>, username=<alice>, lifetime=600",
        ": realm <example.org> user <alice>: incoming packet ALLOCATE processed, success",
        ": usage: realm=<example.org>, username=<alice>, rp=0, rb=0, sp=0, sb=0",
        ": closed (2nd stage), user <alice> realm <example.org> origin <>, local 127.0.0.1:",
    ] {
        assert!(seen.contains(expected), "{expected:?} is missing:\n{seen}");
    }
    let id = seen
        .split("session ")
        .nth(1)
        .and_then(|rest| rest.split(':').next())
        .expect("a session");
    assert!(
        id.len() == 18 && id.bytes().all(|digit| digit.is_ascii_digit()),
        "{id}"
    );
}

#[test]
fn turnserver_serves_the_rest_when_a_certificate_cannot_be_used() {
    let site = Site::new();
    site.write("cert.pem", "not a certificate");
    site.write("key.pem", "not a key");
    let port = free_ports();
    let arguments = format!(
        "-n --no-cli --lt-cred-mech --user a:b --realm r -L 127.0.0.1 -p {port} --cert cert.pem --pkey key.pem \
         --log-file stdout --pidfile turn.pid"
    );
    let (server, text) = site.start(&arguments);
    let line = "TLS, DTLS and QUIC are not served until a restart: cert ";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("cert.pem: no certificate in it; "), "{text}");
    assert!(!text.contains("turns:"), "{text}");
    server.stop();
}
