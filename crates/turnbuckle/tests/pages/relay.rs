//! The binary, with a configuration or a command line of a page.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const PROGRAM: &str = env!("CARGO_BIN_EXE_turnbuckle");
/// Where certificates are on the pages.
const FOLDER: &str = "/etc/turnbuckle/";

/// A running relay; killed when dropped.
pub(crate) struct Relay {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Relay {
    /// Checks and serves a configuration. Files in /etc/turnbuckle are made in another folder.
    pub(crate) fn configured(configuration: &str) -> Self {
        Self::serve(None, configuration)
    }

    /// The same in a network namespace.
    pub(crate) fn configured_in(namespace: &str, configuration: &str) -> Self {
        Self::serve(Some(namespace), configuration)
    }

    /// Serves with the arguments of a command line.
    pub(crate) fn with_arguments(namespace: Option<&str>, arguments: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let words: Vec<&str> = arguments.split_whitespace().collect();
        Self::start(namespace, &words, folder)
    }

    fn serve(namespace: Option<&str>, configuration: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        write_certificate(folder.path());
        let own = format!("{}/", folder.path().display());
        let file = folder.path().join("turnserver.conf");
        fs::write(&file, configuration.replace(FOLDER, &own)).expect("written");
        let file = file.to_str().expect("UTF-8").to_owned();
        let check = command(namespace, &["check", &file])
            .output()
            .expect("it runs");
        assert!(check.status.success(), "{configuration}{check:?}");
        Self::start(namespace, &["-c", &file], folder)
    }

    fn start(namespace: Option<&str>, arguments: &[&str], folder: tempfile::TempDir) -> Self {
        let arguments = [&["serve"], arguments].concat();
        let mut child = command(namespace, &arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut lines = lines.map(|line| line.expect("UTF-8"));
        assert!(
            lines.any(|line| line.trim() == "ready"),
            "{arguments:?}: not ready"
        );
        // What it prints later is read as well, so that it never waits for that.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            child,
            _folder: folder,
        }
    }

    /// Ends it, in order.
    pub(crate) fn stop(mut self) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("it runs");
        let status = self.child.wait().expect("wait4");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the program with arguments; `ip netns exec` becomes it.
fn command(namespace: Option<&str>, arguments: &[&str]) -> Command {
    let mut command = match namespace {
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace, PROGRAM]);
            command
        }
        None => Command::new(PROGRAM),
    };
    command.args(arguments);
    command
}

fn write_certificate(folder: &Path) {
    let names = vec!["turn.example.org".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    fs::write(folder.join("chain.pem"), made.cert.pem()).expect("written");
    fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).expect("written");
}

/// Runs a command that has to succeed.
#[track_caller]
pub(crate) fn run(line: &str) {
    let mut words = line.split_whitespace();
    let program = words.next().expect("a program");
    let status = Command::new(program).args(words).status();
    let status = status.expect("scripts/setup installs it");
    assert!(status.success(), "{line}: {status}");
}
