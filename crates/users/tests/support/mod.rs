//! Servers from Debian's packages, each on a folder of its own, ended with the test.

#[path = "../../../turnbuckle/tests/ports/mod.rs"]
mod ports;
pub(crate) mod verbs;

use std::ffi::{OsStr, OsString};
use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use turnbuckle_users::{Connection, Source, Wanted};

use self::ports::free_ports;

/// Longer than a server takes to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// coturn's tables, as its own scripts make them.
pub(crate) const SCHEMA: &[&str] = &[
    "create table turnusers_lt (realm varchar(127) default '', name varchar(512), hmackey char(128), primary key (realm,name))",
    "create table turn_secret (realm varchar(127) default '', value varchar(256), primary key (realm,value))",
    "create table allowed_peer_ip (realm varchar(127) default '', ip_range varchar(256), primary key (realm,ip_range))",
    "create table denied_peer_ip (realm varchar(127) default '', ip_range varchar(256), primary key (realm,ip_range))",
    "create table turn_origin_to_realm (origin varchar(127), realm varchar(127), primary key (origin))",
    "create table turn_realm_option (realm varchar(127) default '', opt varchar(32), value varchar(128), primary key (realm,opt))",
    "create table oauth_key (kid varchar(128), ikm_key varchar(256), timestamp bigint default 0, lifetime integer default 0, \
     as_rs_alg varchar(64) default '', realm varchar(127), primary key (kid))",
    "create table admin_user (name varchar(32), realm varchar(127), password varchar(127), primary key (name))",
];

/// A running server.
pub(crate) struct Server {
    process: Child,
    /// The program with its options.
    words: Vec<OsString>,
    owner: Option<User>,
    folder: tempfile::TempDir,
    pub(crate) port: u16,
}

impl Server {
    /// Starts what `command` says with the folder and a free port, as a user that is not root, and waits until `source` can be opened.
    pub(crate) fn start(
        owner: &str,
        prepare: impl FnOnce(&Path) -> Command,
        command: impl FnOnce(&Path, u16) -> Command,
        source: impl Fn(u16) -> Source,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let user = geteuid().is_root().then(|| {
            User::from_name(owner)
                .expect("set up")
                .expect("the package makes it")
        });
        if let Some(user) = &user {
            chown(
                folder.path(),
                Some(user.uid.as_raw()),
                Some(user.gid.as_raw()),
            )
            .expect("set up");
        }
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("set up");
        let prepared = spawn(prepare(folder.path()), user.as_ref(), folder.path()).wait();
        let log = std::fs::read_to_string(log(folder.path()));
        assert!(
            prepared.expect("set up").success(),
            "{}",
            log.unwrap_or_default()
        );
        let port = free_ports();
        let command = command(folder.path(), port);
        let words = [command.get_program()]
            .into_iter()
            .chain(command.get_args());
        let server = Self {
            words: words.map(OsStr::to_owned).collect(),
            process: spawn(command, user.as_ref(), folder.path()),
            owner: user,
            folder,
            port,
        };
        server.await_open(&source(port));
        server
    }

    /// Ends the server. Nobody listens then.
    pub(crate) fn stop(&mut self) {
        let own = Pid::from_raw(i32::try_from(self.process.id()).expect("set up"));
        // PostgreSQL ends its sessions at SIGINT; MariaDB ends at SIGTERM alone.
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let _ = kill(own, signal);
        }
        let _ = self.process.wait();
    }

    /// Starts the server again that was stopped, and waits until `source` can be opened.
    pub(crate) fn start_again(&mut self, source: &Source) {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        self.process = spawn(command, self.owner.as_ref(), self.folder.path());
        self.await_open(source);
    }

    fn await_open(&self, source: &Source) {
        let end = Instant::now() + PATIENCE;
        while let Err(error) = Connection::open(source) {
            let log = std::fs::read_to_string(log(self.folder.path()));
            assert!(Instant::now() < end, "{error}\n{}", log.unwrap_or_default());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Lets the server answer nothing until [`Self::go_on`]. Returns when all of its threads have stopped, which is after the signal was sent.
    pub(crate) fn hang(&self) {
        for pid in self.signalled(Signal::SIGSTOP) {
            while !is_stopped(pid) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    pub(crate) fn go_on(&self) {
        self.signalled(Signal::SIGCONT);
    }

    /// Sends a signal to the server, and then to the processes that it has made. Returns those that are there.
    fn signalled(&self, signal: Signal) -> Vec<Pid> {
        let own = self.process.id();
        let mut pids = vec![Pid::from_raw(i32::try_from(own).expect("set up"))];
        // The one that makes others comes first.
        kill(pids[0], signal).expect("set up");
        let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
        let children = children.unwrap_or_default();
        let ids = children.split_whitespace().filter_map(|id| id.parse().ok());
        // One that has just ended answers nothing either.
        pids.extend(
            ids.map(Pid::from_raw)
                .filter(|&pid| kill(pid, signal).is_ok()),
        );
        pids
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test may have failed while nothing ran.
        if let Ok(None) = self.process.try_wait() {
            self.go_on();
            self.stop();
        }
        let _ = std::fs::remove_file(log(self.folder.path()));
    }
}

/// Starts a program as a user, with a log beside its folder.
fn spawn(mut command: Command, user: Option<&User>, folder: &Path) -> Child {
    if let Some(user) = user {
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log(folder))
        .expect("set up");
    command.current_dir("/").stdin(Stdio::null());
    // A server of MariaDB deletes the temporary files of others that share the folder.
    command.env("TMPDIR", folder);
    command.stdout(log.try_clone().expect("set up")).stderr(log);
    command.spawn().expect("started")
}

fn log(folder: &Path) -> PathBuf {
    folder.with_extension("log")
}

/// Returns whether every thread of a process is stopped.
fn is_stopped(pid: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    threads.into_iter().flatten().flatten().all(|thread| {
        // A thread that has ended meanwhile answers nothing either.
        let Ok(stat) = std::fs::read_to_string(thread.path().join("stat")) else {
            return true;
        };
        let state = stat.rsplit(") ").next().unwrap_or_default();
        state.starts_with(['T', 'Z', 'X'])
    })
}

/// Returns a request for everything of the realm `r`.
pub(crate) fn all() -> Wanted {
    Wanted {
        realm: "r".to_owned(),
        users: true,
        secrets: true,
        peers: true,
        realms: true,
        token_keys: true,
    }
}

/// Returns the newest program of this name below a folder of versions, or in the search path.
pub(crate) fn program(name: &str, versions: &str) -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(versions)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .collect();
    folders.sort_unstable();
    folders.reverse();
    folders.extend(["/usr/bin", "/usr/sbin"].map(PathBuf::from));
    let mut found = folders.into_iter().map(|folder| folder.join(name));
    found.find(|path| path.exists())
}
