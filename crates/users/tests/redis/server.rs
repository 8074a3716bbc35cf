//! A Redis server of a test's own.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::not_run::not_run;
use crate::ports::free_ports;
use crate::{certificates, clients};

/// A server that runs until this is dropped.
pub(crate) struct Server {
    process: Child,
    port: u16,
    directory: TempDir,
    has_tls: bool,
}

impl Server {
    /// Starts a server on a free port of the loopback interface. Returns nothing, and says so, where none is installed.
    pub(crate) fn start(options: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let port = free_ports();
        let options = options.iter().map(|&option| option.to_owned());
        let options = ["--port".to_owned(), port.to_string()]
            .into_iter()
            .chain(options);
        Self::spawn(directory, port, options, false)
    }

    /// Starts a server that takes TLS alone, of this version, and proves with `ca.pem` that it is called `name`. `clients` is whether those must
    /// prove themselves too, yes or no; certificates of theirs are beside its own.
    pub(crate) fn start_with_tls(name: &str, clients: &str, version: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str| directory.path().join(name).display().to_string();
        let (authority, issuer) = certificates::authority();
        certificates::write(directory.path(), &issuer, name);
        clients::write(directory.path(), &issuer);
        std::fs::write(file("ca.pem"), authority).expect("written");
        let port = free_ports();
        let options = [
            ("--port", "0".to_owned()),
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", file("cert.pem")),
            ("--tls-key-file", file("key.pem")),
            ("--tls-ca-cert-file", file("ca.pem")),
            ("--tls-auth-clients", clients.to_owned()),
            ("--tls-protocols", version.to_owned()),
        ];
        let options = options
            .into_iter()
            .flat_map(|(key, value)| [key.to_owned(), value]);
        Self::spawn(directory, port, options, true)
    }

    fn spawn(
        directory: TempDir,
        port: u16,
        options: impl Iterator<Item = String>,
        has_tls: bool,
    ) -> Option<Self> {
        let spawned = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--databases", "16"])
            .arg("--dir")
            .arg(directory.path())
            .args(options)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(process) = spawned else {
            not_run("redis-server is not installed");
            return None;
        };
        let server = Self {
            process,
            port,
            directory,
            has_tls,
        };
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "redis-server");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(server)
    }

    /// Returns the words that name the server.
    pub(crate) fn words(&self) -> String {
        format!("ip=127.0.0.1 port={}", self.port)
    }

    /// Returns the path of a file beside the server's.
    pub(crate) fn path(&self, name: &str) -> String {
        let path: PathBuf = self.directory.path().join(name);
        path.display().to_string()
    }

    /// Carries out commands, one a line.
    pub(crate) fn command(&self, commands: &str) {
        let reply = self.reply(commands);
        let is_refused = reply.lines().any(|line| line.starts_with("ERR"));
        assert!(!is_refused, "{commands}: {reply}");
    }

    /// Carries out commands, one a line, and returns what the server answers.
    pub(crate) fn reply(&self, commands: &str) -> String {
        assert!(!self.has_tls, "a server in the clear");
        let mut cli = Command::new("redis-cli")
            .args(["-p", &self.port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-cli, which the server's package brings");
        let mut input = cli.stdin.take().expect("a pipe");
        writeln!(input, "{commands}").expect("written");
        drop(input);
        let output = cli.wait_with_output().expect("output");
        String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned()
    }

    /// Stops the server's process without ending it.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
    }

    /// Has the server's process go on.
    pub(crate) fn go_on(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([format!("-{signal}"), self.process.id().to_string()])
            .status();
        assert!(sent.expect("kill").success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
