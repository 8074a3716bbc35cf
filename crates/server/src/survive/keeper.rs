//! The loop of the keeper, and the wait of the spare.

use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, waitpid,
};
use rustix::time::Timespec;
use turnbuckle_sys::keeper::{Inherited, Keeper, Side, apart, beside_standard};

use super::adopts::fits;
use super::crashes::Crashes;
use super::handed::{self, Handed, Open};
use super::kept::{Kept, SEALED, SEALING, Word, await_end};
use super::staying::{Main, SIGNALLED, number_of_this_process};
use super::upgrading::{Plan, Upgrades};
use super::{Survival, Takeover};
use crate::config::{Config, Survive};
use crate::control::keys::KeyRing;
use crate::control::limits::raise_descriptor_limit;
use crate::process::{owner, say_at_once, write_pid_file};

/// Signals that the keeper passes on to the relay.
const PASSED_ON: [Signal; 5] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// How long a new keeper waits for a relay that was being made when the keeper before it ended.
const BEING_MADE: Duration = Duration::from_secs(1);

/// How long a relay may take to end its last turn.
const SEALING_MAX: Duration = Duration::from_secs(10);

/// The pause before a process that could not be made is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// The code that a relay ends with that cannot have its threads, before it has taken anything over. No other end of a relay has it without saying so
/// in [`Word::Ended`].
const NO_THREADS: u8 = 75;

/// Threads of a relay beside its shards that it cannot do without.
const OTHER_THREADS: usize = 8;

/// Time between two looks at whether a relay serves by now.
const MOMENT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Runs a relay, and returns the code to exit with. With `survive` it is run by another process, again and again until it ends by itself;
/// the survival is that of the process. To be called before this process has a second thread.
///
/// # Errors
///
/// The relay cannot be run so: the kernel or a sandbox does not allow it.
pub fn survive(
    config: &Config,
    relay: impl FnOnce(Option<Survival>) -> u8 + Send,
) -> io::Result<u8> {
    let wanted = config.process.survive;
    let handed = Handed::of_environment().map_err(io::Error::other)?;
    if let Some(handed) = &handed {
        fits(handed, config).map_err(io::Error::other)?;
    }
    if wanted == Survive::Off {
        return Ok(relay(None));
    }
    let signals = SigSet::from_iter(PASSED_ON.into_iter().chain([Signal::SIGCHLD]));
    let is_handed = handed.is_some();
    let mut keeping = match Keeping::begin(config, &signals, handed) {
        Ok(keeping) => keeping,
        Err(error) if wanted == Survive::Auto && !is_handed => {
            signals.thread_unblock()?;
            say(&format!("off, because {error}"));
            return Ok(relay(None));
        }
        Err(error) => return Err(error),
    };
    loop {
        if keeping.relay == RelayProcess::None {
            // Before the relay takes over what is open: then nobody else opens anything.
            keeping.see_to_spare();
            if keeping.relay != RelayProcess::None {
                continue; // this is the spare of before, and there is a relay
            }
            keeping.prepare();
            match keeping.clone_relay()? {
                None => return Ok(0), // it was to end meanwhile
                Some(Side::Child(inherited)) => {
                    let shards = usize::from(config.datapath.shards.get());
                    if let Err(error) = try_threads(shards + OTHER_THREADS) {
                        say(&format!("the relay cannot have its threads: {error}"));
                        process::exit(NO_THREADS.into());
                    }
                    let handed = keeping.upgrades.handed.take();
                    let survival = Survival {
                        kept: keeping.kept,
                        takeover: claim(keeping.kept, handed.as_ref(), inherited),
                        handed,
                        upgraded: keeping.upgrades.last.take(),
                        keeper_known: keeping.kept.get(Word::Keeper),
                        lines: mem::take(&mut keeping.lines),
                    };
                    be_relay(survival, relay)
                }
                Some(Side::Parent(pid)) => {
                    keeping.relay = RelayProcess::Child(pid);
                    keeping.lines.clear();
                }
            }
        }
        if let Some(code) = keeping.keep()? {
            return Ok(code);
        }
    }
}

/// The relay, as the keeper sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelayProcess {
    None,
    /// A process that this one has made.
    Child(Pid),
    /// The process that the descriptor of the relay names; the keeper that made it has ended.
    Foreign(Pid),
}

/// What the keeper knows of the others.
pub(super) struct Keeping<'a> {
    pub(super) kept: &'static Kept,
    pub(super) keeper: Keeper,
    pub(super) config: &'a Config,
    pub(super) relay: RelayProcess,
    pub(super) spare: Spare,
    crashes: Crashes,
    /// What the next relay says for this process, which has no log and waits for no reader of its output.
    pub(super) lines: Vec<String>,
    /// The number in the file is to be this process's, which was not the one that was started when it was written.
    has_pid_file_due: bool,
    /// Names the process that was started, if that is none of this program's keepers.
    main: Option<OwnedFd>,
    pub(super) upgrades: Upgrades,
    /// Whether a signal was passed on that ends the relay.
    pub(super) was_asked: bool,
    /// When the relay was seen to be about to end its last turn.
    sealing_since: Option<Instant>,
}

/// The process that takes over if the keeper ends.
pub(super) enum Spare {
    /// It is there.
    Runs(Pid),
    /// It has ended, or has not been made yet.
    Missing,
    /// It could not be made at this time.
    Failed(Instant),
}

impl Spare {
    /// Returns the process, to be ended.
    pub(super) fn take(&mut self) -> Option<Pid> {
        match mem::replace(self, Self::Missing) {
            Self::Runs(pid) => Some(pid),
            Self::Missing | Self::Failed(_) => None,
        }
    }
}

impl<'a> Keeping<'a> {
    /// Makes this process the keeper of a relay that there is not yet, with a spare.
    fn begin(config: &'a Config, signals: &SigSet, handed: Option<Handed>) -> io::Result<Self> {
        // Before the table is full of sockets: what reads its list needs a descriptor too.
        raise_descriptor_limit(0);
        signals.thread_block()?;
        let left = match &handed {
            Some(_) => beside_standard()?,
            None => Vec::new(),
        };
        let page = match &handed {
            Some(handed) => Main::of_other(handed.main)?,
            None => Main::new()?,
        };
        let keys = handed.as_ref().and_then(|handed| handed.keys.clone());
        let keys = keys.unwrap_or_else(|| KeyRing::new(config));
        let password = handed.as_ref().and_then(|it| it.made_up_password.clone());
        let password = password.or_else(|| config.authentication.made_up_password().cloned());
        let shards = usize::from(config.datapath.shards.get());
        let kept = Kept::new(shards, signals, page, (keys, password))?;
        if let Some(handed) = &handed {
            kept.set(Word::Draining, u64::from(handed.is_draining));
            kept.set(Word::PeerRows, handed.peer_rows);
        }
        let main = other_main(kept)?;
        let mut keeping = Self {
            kept,
            keeper: Keeper::new(&left)?,
            config,
            relay: RelayProcess::None,
            spare: Spare::Missing,
            crashes: Crashes::default(),
            lines: Vec::new(),
            has_pid_file_due: false,
            main,
            upgrades: Upgrades::new(handed)?,
            was_asked: false,
            sealing_since: None,
        };
        // Where no process can be made at all that is known before there are calls.
        keeping.make_spare()?;
        Ok(keeping)
    }

    /// Makes a spare. It returns in the spare too: once the keeper has ended, and with a spare of its own if it could be made.
    fn make_spare(&mut self) -> io::Result<()> {
        match self.keeper.clone_process()? {
            Side::Parent(pid) => {
                self.spare = Spare::Runs(pid);
            }
            Side::Child(_) => {
                await_end(&self.kept.keeper);
                let mut has_said = false;
                while let Err(error) = self.take_over() {
                    if !mem::replace(&mut has_said, true) {
                        say(&format!(
                            "error: the keeper has ended, and cannot be replaced yet: {error}; it is tried again"
                        ));
                    }
                    thread::sleep(PAUSE);
                }
                self.spare = Spare::Missing;
                self.see_to_spare();
            }
        }
        Ok(())
    }

    /// Makes the process of a relay. What the relay before has left stays open meanwhile, so where there can be no process now it is tried again, as
    /// long as nobody wants the server to end. Returns `None` if somebody does.
    fn clone_relay(&mut self) -> io::Result<Option<Side>> {
        let mut has_said = false;
        loop {
            let error = match self.keeper.clone_process() {
                Ok(side) => return Ok(Some(side)),
                Err(error) => error,
            };
            if !mem::replace(&mut has_said, true) {
                say(&format!(
                    "error: there can be no process for the relay now: {error}; calls wait, and it is tried \
                     again each second"
                ));
            }
            self.was_asked = false;
            self.await_signal(PAUSE);
            self.pass_signals_on()?;
            if self.was_asked {
                return Ok(None);
            }
        }
    }

    /// Waits for a signal, not longer than this.
    fn await_signal(&self, pause: Duration) {
        let mut signals = [PollFd::new(&self.kept.signals, PollFlags::IN)];
        let pause = Timespec {
            tv_sec: pause.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: pause.subsec_nanos().into(),
        };
        // It ends early at a signal, which is seen next.
        let _ = poll(&mut signals, Some(&pause));
    }

    /// Makes this process the keeper, because the one that made it has ended.
    fn take_over(&mut self) -> io::Result<()> {
        if handed::withdraw_any(self.kept) == Open::Theirs {
            process::exit(0); // another program has all of it
        }
        let begun = Instant::now();
        while self.kept.get(Word::Relays) > 0
            && self.kept.get(Word::Relay) == 0
            && begun.elapsed() < BEING_MADE
        {
            thread::sleep(Duration::from_millis(1));
        }
        let relay = i32::try_from(self.kept.get(Word::Relay)).ok();
        let relay = relay.filter(|&number| number > 0).and_then(Pid::from_raw);
        self.relay = relay.map_or(RelayProcess::None, RelayProcess::Foreign);
        let before = self.kept.keeper_number();
        self.kept.be(Word::Keeper)?;
        self.kept.main.set_keeper(number_of_this_process());
        if self.kept.main.process() == before {
            self.be_main();
        }
        self.upgrades.wished = self.kept.get(Word::Wished);
        // A relay that there is says so itself.
        if self.relay == RelayProcess::None {
            self.lines.push("the keeper has ended".to_owned());
        }
        Ok(())
    }

    /// Notes that a relay is about to begin.
    fn prepare(&self) {
        for word in [Word::Relay, Word::Served, Word::Ended, Word::Sealed] {
            self.kept.set(word, 0);
        }
        self.kept.set(Word::Relays, self.kept.get(Word::Relays) + 1);
    }

    /// Waits until the relay has ended. Returns the code to exit with, unless there is to be another relay.
    fn keep(&mut self) -> io::Result<Option<u8>> {
        self.was_asked = false;
        self.sealing_since = None;
        let (signal, code) = loop {
            self.see_to_pid_file();
            self.await_something();
            self.pass_signals_on()?;
            self.see_to_main();
            self.see_to_upgrade();
            if self.kept.get(Word::Sealed) == SEALED {
                return self.hand_over();
            }
            self.see_to_sealing();
            if let Some(end) = self.end_of_relay()? {
                break end;
            }
            self.see_to_spare();
        };
        self.relay = RelayProcess::None;
        self.upgrades.plan = Plan::None;
        if let Some(handed) = self.upgrades.handed.take()
            && !handed.offer.is_taken()
        {
            // The program before has it back.
            return Ok(Some(code.unwrap_or(1).max(1)));
        }
        let own = self.kept.get(Word::Ended).checked_sub(1);
        let had_predecessor = self.kept.get(Word::Listing) > 0;
        if own.is_none() && code == Some(NO_THREADS) && had_predecessor && !self.was_asked {
            // Nothing of what the one before has left is touched.
            self.await_signal(PAUSE);
            return Ok(None);
        }
        if let Some(code) = own.map(|code| u8::try_from(code).unwrap_or(1)).or(code) {
            return Ok(Some(code));
        }
        let had_served = self.kept.get(Word::Served) == 1;
        let killed = signal.is_none_or(|signal| signal == Signal::SIGKILL as i32);
        let pause = self.crashes.note(had_served && killed, Instant::now());
        let how = match signal {
            Some(signal) => format!("the relay was ended by signal {signal}"),
            None => "the relay has ended".to_owned(),
        };
        let Some(pause) = pause.filter(|_| !self.was_asked) else {
            say(&how);
            let signal = signal.and_then(|signal| u8::try_from(signal).ok());
            return Ok(Some(SIGNALLED.saturating_add(signal.unwrap_or(0))));
        };
        let said = format!("{how}; the next one takes over its calls");
        // guard: V-63-unread
        self.lines.push(said);
        thread::sleep(pause);
        Ok(None)
    }

    /// Waits for a signal, a word of the relay, the end of a process that is not this one's child, or a moment if there is something to do then.
    fn await_something(&self) {
        let signals = self.kept.signals.as_fd();
        let relay = match self.relay {
            RelayProcess::Foreign(_) => self.kept.relay.as_fd(),
            _ => signals,
        };
        let main = self.main.as_ref().map_or(signals, |main| main.as_fd());
        let mut any = [signals, relay, main, self.kept.bell.as_fd()]
            .map(|awaited| PollFd::from_borrowed_fd(awaited, PollFlags::IN));
        let is_soon = self.has_pid_file_due
            || matches!(self.spare, Spare::Failed(_))
            || self.sealing_since.is_some()
            || matches!(self.upgrades.plan, Plan::Trying(_));
        let moment = is_soon.then_some(MOMENT);
        while let Err(Errno::INTR) = poll(&mut any, moment.as_ref()) {}
    }

    /// Kills a relay that does not come to the end of its last turn. What is on record is whole, so the next one goes on with it.
    fn see_to_sealing(&mut self) {
        if self.kept.get(Word::Sealed) != SEALING {
            return;
        }
        let since = *self.sealing_since.get_or_insert_with(Instant::now);
        if since.elapsed() > SEALING_MAX {
            self.pass_on(Signal::SIGKILL);
        }
    }

    /// Passes signals on to the relay.
    pub(super) fn pass_signals_on(&mut self) -> io::Result<()> {
        while let Some(signal) = self.kept.signals.read_signal()? {
            let number = i32::try_from(signal.ssi_signo).unwrap_or(0);
            let signal = Signal::try_from(number)?;
            self.was_asked |= matches!(signal, Signal::SIGINT | Signal::SIGTERM);
            if signal != Signal::SIGCHLD {
                self.pass_on(signal);
            }
        }
        Ok(())
    }

    /// Takes the place of the process that was started once that one has ended.
    fn see_to_main(&mut self) {
        if let Some(main) = &self.main {
            let mut ended = [PollFd::new(main, PollFlags::IN)];
            if poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
                self.be_main();
                say(&format!(
                    "the process that was started has ended; signals go to process {} now",
                    process::id()
                ));
            }
        }
    }

    /// Has this process count as the one that was started.
    fn be_main(&mut self) {
        // The descriptor is the spare's too, which has the same number for it.
        mem::forget(self.main.take());
        self.kept.main.be_started();
        self.has_pid_file_due = self.config.process.pid_file.is_some();
    }

    fn pass_on(&self, signal: Signal) {
        let signal = signal as i32;
        let Some(signal) = rustix::process::Signal::from_named_raw(signal) else {
            return;
        };
        match self.relay {
            RelayProcess::None => {}
            RelayProcess::Child(relay) => {
                // It may have ended meanwhile, which is seen next.
                let _ = kill_process(relay, signal);
            }
            RelayProcess::Foreign(relay) => {
                let process = &self.config.process;
                let user = || owner(process).map(|(user, _)| user);
                if let Err(error) = apart(|| signal_one_of(user(), relay, signal))
                    && error.raw_os_error() != Some(Errno::SRCH.raw_os_error())
                {
                    say(&format!(
                        "error: the relay, process {}, cannot be signalled: {error}",
                        relay.as_raw_nonzero()
                    ));
                }
            }
        }
    }

    /// Returns the signal that has ended the relay or its exit code, as far as they are known, if it has ended.
    fn end_of_relay(&self) -> io::Result<Option<(Option<i32>, Option<u8>)>> {
        Ok(match self.relay {
            RelayProcess::None => Some((None, None)),
            RelayProcess::Child(relay) => {
                waitpid(Some(relay), WaitOptions::NOHANG)?.map(|(_, status)| {
                    let code = status
                        .exit_status()
                        .map(|code| u8::try_from(code).unwrap_or(1));
                    (status.terminating_signal(), code)
                })
            }
            RelayProcess::Foreign(_) => {
                let mut ended = [PollFd::new(&self.kept.relay, PollFlags::IN)];
                let is_over = poll(&mut ended, Some(&Timespec::default()))? > 0;
                is_over.then_some((None, None))
            }
        })
    }

    /// Makes a spare if there is none: the one before has ended, or could not be made a while ago. Without one the relay goes on.
    fn see_to_spare(&mut self) {
        let has_failed = match self.spare {
            Spare::Runs(pid) if matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)) => {
                return;
            }
            Spare::Failed(at) if at.elapsed() < PAUSE => return,
            Spare::Failed(_) => true,
            Spare::Runs(_) | Spare::Missing => false,
        };
        self.spare = Spare::Missing;
        let Err(error) = self.make_spare() else {
            return;
        };
        self.spare = Spare::Failed(Instant::now());
        if !has_failed {
            say(&format!(
                "warning: there can be no process now that takes over if this one ends: {error}; it is tried \
                 again each second"
            ));
        }
    }

    /// Writes this process's number into the file that has another one. A relay that does not serve yet reads the table's list of descriptors.
    fn see_to_pid_file(&mut self) {
        if let Some(path) = &self.config.process.pid_file
            && self.has_pid_file_due
            && self.kept.get(Word::Served) == 1
        {
            self.has_pid_file_due = false;
            let written = write_pid_file(path, process::id(), self.config.persona, &mut io::sink());
            if let Err(error) = written {
                say(&error);
            }
        }
    }
}

impl Drop for Keeping<'_> {
    /// Ends the spare: this process ends in order.
    fn drop(&mut self) {
        if let Some(spare) = self.spare.take() {
            let _ = kill_process(spare, rustix::process::Signal::KILL);
            let _ = waitpid(Some(spare), WaitOptions::empty());
        }
    }
}

/// Signals a process, if it is one of a user. Its number is from memory that the relay writes too, which is not to choose whom a process with more rights
/// signals. To be called where the relay cannot have another descriptor be where the process's is.
fn signal_one_of(
    user: Option<u32>,
    number: Pid,
    signal: rustix::process::Signal,
) -> Result<(), Errno> {
    let process = pidfd_open(number, PidfdFlags::empty())?;
    // What has this number now is what was opened, or that has ended, and the signal is nobody's.
    let is_other = user.is_some_and(|user| !is_of(user, number));
    // guard: V-63-relay-signalled
    if is_other {
        return Err(Errno::PERM);
    }
    pidfd_send_signal(&process, signal)
}

/// Returns whether a process is one of this user and of no other one (proc_pid_status(5)).
fn is_of(user: u32, process: Pid) -> bool {
    let path = format!("/proc/{}/status", process.as_raw_nonzero());
    let status = fs::read_to_string(path).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    users.is_some_and(|users| users.split_whitespace().all(|it| it.parse() == Ok(user)))
}

/// Returns what names the process that was started, unless that is this one.
fn other_main(kept: &Kept) -> io::Result<Option<OwnedFd>> {
    let main = i32::try_from(kept.main.process()).ok();
    match main.and_then(Pid::from_raw) {
        Some(main) if !kept.main.is_this_process() => {
            Ok(Some(pidfd_open(main, PidfdFlags::empty())?))
        }
        _ => Ok(None),
    }
}

/// Finds out whether this process may have so many threads.
fn try_threads(count: usize) -> io::Result<()> {
    let gate = Mutex::new(());
    let closed = gate.lock();
    let wait = || drop(gate.lock());
    thread::scope(|scope| {
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, wait);
        let threads: io::Result<Vec<_>> = (0..count).map(spawn).collect();
        drop(closed);
        threads.map(drop)
    })
}

/// Makes this process the relay, and returns what the one before it had open. Without that it ends.
fn claim(kept: &'static Kept, handed: Option<&Handed>, inherited: Inherited) -> Takeover {
    // First of all: what the relay before had open is in hand then, or closed.
    let claimed = kept.be(Word::Relay).and_then(|()| match handed {
        Some(handed) => Takeover::claim_handed(handed, inherited),
        None => Takeover::claim(kept, inherited),
    });
    claimed.unwrap_or_else(|error| {
        say(&format!("error: what was left open is not known: {error}"));
        process::exit(1)
    })
}

/// Runs the relay on a thread of its own, and ends the process.
fn be_relay(survival: Survival, relay: impl FnOnce(Option<Survival>) -> u8 + Send) -> ! {
    let kept = survival.kept;
    let code = thread::scope(|scope| {
        let thread = thread::Builder::new().name("main".into());
        thread
            .spawn_scoped(scope, || relay(Some(survival)))
            .map(|thread| thread.join())
    });
    let code = match code {
        Ok(Ok(code)) => code,
        Ok(Err(_)) => process::abort(), // it panicked: the keeper is to know
        Err(error) => {
            say(&format!("error: the relay has no thread: {error}"));
            1
        }
    };
    kept.set(Word::Ended, u64::from(code) + 1);
    process::exit(code.into())
}

/// Says something on standard error, if nobody has to be waited for.
pub(super) fn say(line: &str) {
    say_at_once(&format!("survive: {line}\n"));
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_of_another_user_than_the_relays_is_not_signalled() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let own = rustix::process::geteuid().as_raw();
        let mut signal = |user| {
            let kill = rustix::process::Signal::KILL;
            (
                signal_one_of(Some(user), number.unwrap(), kill),
                child.try_wait().unwrap().is_some(),
            )
        };
        assert_eq!(signal(own + 1), (Err(Errno::PERM), false));
        assert_eq!(signal(own).0, Ok(()));
        child.wait().unwrap();
    }
}
