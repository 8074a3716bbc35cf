//! The binary under test: started, waited for, measured, stopped, and asked for its accounts.
//!
//! Invariant: no test ends without `in = out + dropped` having been compared, exactly, and without the process being the one
//! that was started. [`Server`] does both when it goes out of scope, or earlier in [`Server::stop`].

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{PipeReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};
use rustix::time::Timespec;

/// The user most tests are.
pub(crate) const USER: &str = "alice";
/// That user's password.
pub(crate) const PASSWORD: &str = "wonderland-7";
/// Another user, with the same password, so that only the name tells them apart.
pub(crate) const OTHER_USER: &str = "mallory";
/// The realm of both.
pub(crate) const REALM: &str = "example.org";

const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

static NEXT_FILE: AtomicU32 = AtomicU32::new(0);

/// A running `turnbuckle serve`.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    statistics: PathBuf,
    lines: Receiver<String>,
    /// Held by who reads its output, each time that there is some.
    reading: Arc<Mutex<()>>,
    greeting: Vec<String>,
    is_stopped: bool,
}

impl Server {
    /// Starts the relay with its listener at `address`, in the calling thread's network namespace, and waits for `ready`.
    pub(crate) fn start(address: SocketAddr, options: &[&str]) -> Self {
        Self::start_in(address, options, &[])
    }

    /// Starts the relay as [`Self::start`] does, by coturn's name.
    pub(crate) fn start_turnserver(address: SocketAddr, options: &[&str]) -> Self {
        let command = ["bash", "-c", "exec -a turnserver \"$@\"", "bash"];
        let quiet = ["--no-tls", "--pidfile=", "--log-file=stdout"];
        Self::start_by(&command, address, &[&quiet[..], options].concat(), &[])
    }

    /// Starts the relay as [`Self::start`] does, with variables of the environment.
    pub(crate) fn start_in(
        address: SocketAddr,
        options: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_by(&[], address, options, environment)
    }

    /// Starts the relay as [`Self::start_in`] does, by a command that becomes the relay, which it is given as its last words.
    pub(crate) fn start_by(
        command: &[&str],
        address: SocketAddr,
        options: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let users = [USER, OTHER_USER].map(|user| format!("--user={user}:{PASSWORD}"));
        Self::start_with(&users, command, address, options, environment)
    }

    /// Starts the relay as [`Self::start`] does, without users, so that it makes one up.
    pub(crate) fn start_without_users(address: SocketAddr, options: &[&str]) -> Self {
        Self::start_with(&[], &[], address, options, &[])
    }

    fn start_with(
        users: &[String],
        command: &[&str],
        address: SocketAddr,
        options: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let number = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
        let statistics = std::env::temp_dir().join(format!(
            "turnbuckle-threats-{}-{number}.json",
            std::process::id()
        ));
        // Two, so that what belongs to the whole server is seen from more than one side.
        let is_chosen = options
            .iter()
            .any(|option| option.starts_with("--relay-threads"));
        let shards = (!is_chosen).then_some("--relay-threads=2");
        let program = [env!("CARGO_BIN_EXE_turnbuckle")];
        let words = [command, &program].concat();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .arg("serve")
            .arg(format!("--listening-ip={}", address.ip()))
            .arg(format!("--listening-port={}", address.port()))
            .args(users)
            .arg(format!("--realm={REALM}"))
            .arg(format!("--statistics-file={}", statistics.display()))
            .arg("--pin-threads=false")
            .args(options)
            .args(shards)
            .envs(environment.iter().copied())
            .stdin(Stdio::null());
        // One pipe for both, so that lines come in the order in which they were printed: warnings before `ready`.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.stdout(writer.try_clone().expect("dup"));
        command.stderr(writer);
        let child = command.spawn().expect("the binary starts");
        // It holds the other ends, and only the relay should.
        drop(command);
        let (sender, lines) = channel();
        let reading = Arc::default();
        read_lines(reader, sender, Arc::clone(&reading));
        let mut server = Self {
            child,
            address,
            statistics,
            lines,
            reading,
            greeting: Vec::new(),
            is_stopped: false,
        };
        server.wait_until_ready();
        server
    }

    fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                // As `turnserver` there are time and level before it.
                Ok(line) if line.split(' ').next_back() == Some("ready") => return,
                Ok(line) => self.greeting.push(line),
                Err(error) => panic!("no `ready` line ({error}); printed: {:#?}", self.greeting),
            }
        }
    }

    /// Fills the pipe that all of its processes print to, and has nobody read that while the result is held.
    pub(crate) fn block_output(&self) -> MutexGuard<'_, ()> {
        let held = self.reading.lock().expect("nobody panics who holds it");
        let place = format!("/proc/{}/fd/2", self.child.id());
        let mut full = OpenOptions::new().write(true).open(place);
        let full = full.as_mut().expect("its standard error");
        // There is room for a page, or there is none.
        while poll(&mut [PollFd::new(full, PollFlags::OUT)], Some(&NOW)).expect("poll") > 0 {
            full.write_all(&[b'.'; 4096]).expect("room in a pipe");
        }
        held
    }

    /// Returns the process that was started.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns where clients send to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns what was printed before `ready`.
    pub(crate) fn greeting(&self) -> String {
        self.greeting.join("\n")
    }

    /// Returns the anonymous resident memory in bytes: what the process holds beyond its mapped files (proc_pid_status(5), `RssAnon`).
    pub(crate) fn user_memory(&self) -> u64 {
        let status = self.proc_file("status");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib: u64 = kib
            .and_then(|kib| kib.trim().parse().ok())
            .expect("an RssAnon line");
        kib * 1024
    }

    /// Returns how many descriptors stay open. The relay opens one for a moment whenever it looks at the host's addresses, so the lowest of several counts is
    /// meant.
    pub(crate) fn descriptors(&self) -> usize {
        let counts = (0..10).map(|_| {
            thread::sleep(Duration::from_millis(10));
            let open = fs::read_dir(format!("/proc/{}/fd", self.child.id()));
            open.expect("the process is alive").count()
        });
        counts.min().expect("ten counts")
    }

    /// Fails unless so many descriptors stay open, before long.
    #[track_caller]
    pub(crate) fn assert_descriptors(&self, expected: usize) {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let open = self.descriptors();
            if open == expected {
                return;
            }
            assert!(Instant::now() < deadline, "{open}, not {expected}");
        }
    }

    /// Lets the relay have so many descriptors, or as many as at its start; those that are open stay open.
    pub(crate) fn limit_descriptors(&self, limit: Option<usize>) {
        let pid = rustix::process::Pid::from_raw(self.child.id().try_into().expect("a pid"));
        let maximum = getrlimit(Resource::Nofile).maximum;
        let current = match limit {
            Some(limit) => Some(limit.try_into().expect("a number")),
            None => maximum,
        };
        prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).expect("it is our child");
    }

    /// Returns how many connections to the relay are established, as its kernel sees them.
    pub(crate) fn descriptors_of_tcp(&self) -> usize {
        let SocketAddr::V4(address) = self.address else {
            panic!("IPv4 only")
        };
        let local = format!(
            "{:08X}:{:04X} ",
            u32::from_ne_bytes(address.ip().octets()),
            address.port()
        );
        // proc_pid_net(5): the second column is the local address, the fourth the state, 01 for established.
        let table = self.proc_file("net/tcp");
        let columns = table.lines().map(|line| {
            let mut columns = line.split_whitespace();
            let local = columns.nth(1).unwrap_or_default();
            (local.to_owned() + " ", columns.nth(1) == Some("01"))
        });
        columns
            .filter(|(from, is_open)| *from == local && *is_open)
            .count()
    }

    /// Has the relay take no new allocations and end with the last one.
    pub(crate) fn drain(&self) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid"));
        kill(pid, Signal::SIGUSR1).expect("the relay is there");
    }

    /// Has the relay read its certificates again.
    pub(crate) fn reload_certificates(&self) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid"));
        kill(pid, Signal::SIGUSR2).expect("the relay is there");
    }

    /// Keeps the relay from running while `act` does something. What is sent to it meanwhile is there at once afterwards.
    pub(crate) fn while_stopped(&self, act: impl FnOnce()) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid"));
        kill(pid, Signal::SIGSTOP).expect("the relay is there");
        act();
        kill(pid, Signal::SIGCONT).expect("the relay is there");
    }

    /// Waits for a line with `text`.
    pub(crate) fn wait_for_line(&self, text: &str) {
        self.lines_until(text);
    }

    /// Returns what is printed up to a line with `text`, which is awaited.
    pub(crate) fn lines_until(&self, text: &str) -> String {
        let deadline = Instant::now() + START_TIMEOUT;
        let mut lines = String::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).expect("the line comes");
            lines.push_str(&line);
            if line.contains(text) {
                return lines;
            }
            lines.push('\n');
        }
    }

    /// Returns what has been printed since it was asked for last.
    pub(crate) fn lines_so_far(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    fn proc_file(&self, name: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{name}", self.child.id()))
            .expect("the process is alive")
    }

    /// Ends the relay with SIGTERM, checks its exit and its accounts, and returns them.
    pub(crate) fn stop(mut self) -> Accounting {
        self.finish()
    }

    fn finish(&mut self) -> Accounting {
        self.is_stopped = true;
        let early = self.child.try_wait().expect("wait4");
        assert!(early.is_none(), "the relay ended by itself: {early:?}");
        let pid = Pid::from_raw(self.child.id().try_into().expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("the relay is there to be stopped");
        self.check_end()
    }

    /// Ends a relay whose keeper this is, with SIGTERM, and checks its accounts. The process that was started may have been killed.
    pub(crate) fn stop_kept(mut self, keeper: i32) -> Accounting {
        let started = self.child.id();
        if u32::try_from(keeper) == Ok(started) {
            return self.finish();
        }
        self.is_stopped = true;
        kill(Pid::from_raw(keeper), Signal::SIGTERM).expect("the keeper is there");
        self.child.wait().expect("wait4");
        // Their output ends with the last of them.
        while self.lines.recv_timeout(STOP_TIMEOUT).is_ok() {}
        self.accounts()
    }

    /// Waits for the end of a relay that ends by itself, and checks its exit and its accounts.
    pub(crate) fn assert_ends(mut self) -> Accounting {
        self.is_stopped = true;
        self.check_end()
    }

    /// Waits for the end of a relay that has crashed. Returns the exit code, and what was printed since it was asked for last.
    pub(crate) fn crashed(mut self) -> (Option<i32>, Vec<String>) {
        self.is_stopped = true;
        let status = self.await_end();
        let mut lines = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(STOP_TIMEOUT) {
            lines.push(line);
        }
        let _ = fs::remove_file(&self.statistics);
        (status.code(), lines)
    }

    fn check_end(&mut self) -> Accounting {
        let status = self.await_end();
        assert!(status.success(), "the relay ended with {status}");
        self.accounts()
    }

    fn await_end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().expect("wait4") {
                return status;
            }
            assert!(Instant::now() < deadline, "the relay does not stop");
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn accounts(&self) -> Accounting {
        let text = fs::read_to_string(&self.statistics).expect("the statistics file");
        let accounting = Accounting::parse(&text);
        accounting.assert_balanced();
        let _ = fs::remove_file(&self.statistics);
        accounting
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.is_stopped && !thread::panicking() {
            self.finish();
        } else if !self.is_stopped || thread::panicking() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            let _ = fs::remove_file(&self.statistics);
        }
    }
}

/// Reads what the child prints on a thread, so that it never blocks on a full pipe, unless somebody else holds `reading`.
fn read_lines(mut pipe: PipeReader, sender: Sender<String>, reading: Arc<Mutex<()>>) {
    thread::spawn(move || {
        let (mut text, mut chunk) = (Vec::new(), [0; 4096]);
        loop {
            let mut any = [PollFd::new(&pipe, PollFlags::IN)];
            let _ = poll(&mut any, None);
            let count = {
                let _reads = reading.lock().expect("nobody panics who holds it");
                pipe.read(&mut chunk).unwrap_or(0)
            };
            if count == 0 {
                return;
            }
            text.extend_from_slice(&chunk[..count]);
            while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
                let line = text.drain(..=end).collect::<Vec<_>>();
                let line = String::from_utf8_lossy(&line[..end]).into_owned();
                // Nobody listens after `ready`; the pipe is read all the same.
                let _ = sender.send(line);
            }
        }
    });
}

/// What the relay says it did with every datagram.
#[derive(Clone, Debug)]
pub(crate) struct Accounting {
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
    /// Messages that one shard handed to another.
    pub(crate) handed_over: u64,
    drops: BTreeMap<String, u64>,
    /// What the kernel dropped at sockets, by what they are for.
    pub(crate) socket_drops: BTreeMap<String, u64>,
    /// Connections that ended, by reason.
    closes: BTreeMap<String, u64>,
    asks: BTreeMap<String, u64>,
    /// Connections of TCP relays that were tried or came.
    peer_connections: u64,
    /// How they ended, by reason.
    peer_ends: BTreeMap<String, u64>,
}

impl Accounting {
    fn parse(text: &str) -> Self {
        let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let number = |name: &str| {
            value[name]
                .as_u64()
                .unwrap_or_else(|| panic!("{name} in {text}"))
        };
        let counts = |name: &str| {
            let object = value[name].as_object().expect("an object of counts");
            let counts = object.iter();
            counts
                .map(|(reason, count)| (reason.clone(), count.as_u64().expect("a count")))
                .collect()
        };
        Self {
            received: number("in"),
            sent: number("out"),
            dropped: number("dropped"),
            handed_over: number("handed_out"),
            drops: counts("drops"),
            socket_drops: counts("socket_drops"),
            closes: counts("closes"),
            asks: counts("asks"),
            peer_connections: number("peer_connections"),
            peer_ends: counts("peer_ends"),
        }
    }

    fn assert_balanced(&self) {
        let reasons: u64 = self.drops.values().sum();
        assert_eq!(
            self.dropped, reasons,
            "dropped = sum over the reasons: {self:#?}"
        );
        assert_eq!(
            self.received,
            self.sent + self.dropped,
            "in = out + dropped: {self:#?}"
        );
        let ends: u64 = self.peer_ends.values().sum();
        assert_eq!(
            self.peer_connections, ends,
            "every connection with a peer has ended under one reason: {self:#?}"
        );
    }

    /// Returns how many connections with peers ended, or never came to be, for `reason`.
    pub(crate) fn peers_ended_by(&self, reason: &str) -> u64 {
        *self
            .peer_ends
            .get(reason)
            .unwrap_or_else(|| panic!("no such reason, {reason}: {self:#?}"))
    }

    /// Returns how many connections ended for `reason`.
    pub(crate) fn closed_as(&self, reason: &str) -> u64 {
        *self
            .closes
            .get(reason)
            .unwrap_or_else(|| panic!("no such reason, {reason}: {self:#?}"))
    }

    /// Returns for how many requests the user database was asked, or not, with this result.
    pub(crate) fn asked_with(&self, result: &str) -> u64 {
        *self
            .asks
            .get(result)
            .unwrap_or_else(|| panic!("no such result, {result}: {self:#?}"))
    }

    /// Returns how many datagrams were dropped under `reason`.
    pub(crate) fn dropped_as(&self, reason: &str) -> u64 {
        *self
            .drops
            .get(reason)
            .unwrap_or_else(|| panic!("no drop reason {reason}: {self:#?}"))
    }
}
