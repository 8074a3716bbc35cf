//! The loop of the keeper, and the wait of the spare.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::process;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, kill_process, waitpid};
use rustix::time::Timespec;
use turnbuckle_sys::keeper::{Inherited, Keeper, Side};

use super::deaths::Deaths;
use super::{Estate, Heritage, Kept, Word, await_end};
use crate::config::{Config, Survive};
use crate::control::limits::raise_descriptor_limit;
use crate::process::write_pid_file;

/// Signals that the keeper passes on to the relay.
const PASSED_ON: [Signal; 5] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Exit code of a relay that was ended by a signal, as shells count.
const SIGNALLED: u8 = 128;

/// How long a new keeper waits for a relay that was being made when the keeper before it ended.
const BEING_MADE: Duration = Duration::from_secs(1);

/// Time between two looks at whether a relay serves by now.
const MOMENT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Runs a relay, and returns the code to exit with. With `survive` it is run by another process, again and again until it ends by itself;
/// the estate is that of the process. To be called before this process has a second thread.
///
/// # Errors
///
/// The relay cannot be run so: the kernel or a sandbox does not allow it.
pub fn survive(config: &Config, relay: impl FnOnce(Option<Estate>) -> u8 + Send) -> io::Result<u8> {
    let wanted = config.process.survive;
    if wanted == Survive::Off {
        return Ok(relay(None));
    }
    let signals = SigSet::from_iter(PASSED_ON.into_iter().chain([Signal::SIGCHLD]));
    let mut keeping = match Keeping::begin(config, &signals) {
        Ok(keeping) => keeping,
        Err(error) if wanted == Survive::Auto => {
            signals.thread_unblock()?;
            say(&format!("survive: off, because {error}"));
            return Ok(relay(None));
        }
        Err(error) => return Err(error),
    };
    loop {
        if keeping.relay == RelayProcess::None {
            // Before the relay takes over what is open: then nobody else opens anything.
            keeping.have_spare()?;
            if keeping.relay != RelayProcess::None {
                continue; // this is the spare of before, and there is a relay
            }
            keeping.prepare();
            match keeping.keeper.clone_process()? {
                Side::Child(inherited) => be_relay(keeping.kept, inherited, relay),
                Side::Parent(pid) => keeping.relay = RelayProcess::Child(pid),
            }
        }
        if let Some(code) = keeping.keep()? {
            return Ok(code);
        }
    }
}

/// The relay, as the keeper sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RelayProcess {
    None,
    /// A process that this one has made.
    Child(Pid),
    /// The process that the descriptor of the relay names; the keeper that made it has ended.
    Foreign(Pid),
}

/// What the keeper knows of the others.
struct Keeping<'a> {
    kept: &'static Kept,
    keeper: Keeper,
    config: &'a Config,
    relay: RelayProcess,
    spare: Option<Pid>,
    deaths: Deaths,
    /// The number in the file is to be this process's, which was not the keeper when it was written.
    has_pid_file_due: bool,
}

impl<'a> Keeping<'a> {
    /// Makes this process the keeper of a relay that there is not yet, with a spare.
    fn begin(config: &'a Config, signals: &SigSet) -> io::Result<Self> {
        // Before the table is full of sockets: what reads its list needs a descriptor too.
        raise_descriptor_limit(0);
        signals.thread_block()?;
        let kept = Kept::new(config, signals)?;
        let mut keeping = Self {
            kept,
            keeper: Keeper::new()?,
            config,
            relay: RelayProcess::None,
            spare: None,
            deaths: Deaths::default(),
            has_pid_file_due: false,
        };
        keeping.have_spare()?;
        Ok(keeping)
    }

    /// Makes a spare, if there is none. It returns in the spare too: once the keeper has ended, and with a spare of its own.
    fn have_spare(&mut self) -> io::Result<()> {
        while self.spare.is_none() {
            match self.keeper.clone_process()? {
                Side::Parent(pid) => self.spare = Some(pid),
                Side::Child(_) => {
                    await_end(&self.kept.keeper);
                    if let Err(error) = self.take_over() {
                        say(&format!(
                            "error: the keeper has ended, and cannot be replaced: {error}"
                        ));
                        process::exit(1);
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes this process the keeper, because the one that made it has ended.
    fn take_over(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        while self.kept.get(Word::Relays) > 0
            && self.kept.get(Word::Relay) == 0
            && begun.elapsed() < BEING_MADE
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let relay = i32::try_from(self.kept.get(Word::Relay)).ok();
        let relay = relay.filter(|&number| number > 0).and_then(Pid::from_raw);
        self.relay = relay.map_or(RelayProcess::None, RelayProcess::Foreign);
        self.kept.be(Word::Keeper)?;
        self.has_pid_file_due = self.config.process.pid_file.is_some();
        say(&format!(
            "the keeper has ended; process {} is the keeper now",
            process::id()
        ));
        Ok(())
    }

    /// Notes that a relay is about to begin.
    fn prepare(&self) {
        for word in [Word::Relay, Word::Served, Word::Ended] {
            self.kept.set(word, 0);
        }
        self.kept.set(Word::Relays, self.kept.get(Word::Relays) + 1);
    }

    /// Waits until the relay has ended. Returns the code to exit with, unless there is to be another relay.
    fn keep(&mut self) -> io::Result<Option<u8>> {
        let mut was_asked = false;
        let (signal, code) = loop {
            self.see_to_pid_file();
            self.await_something();
            while let Some(signal) = self.kept.signals.read_signal()? {
                let number = i32::try_from(signal.ssi_signo).unwrap_or(0);
                let signal = Signal::try_from(number)?;
                was_asked |= matches!(signal, Signal::SIGINT | Signal::SIGTERM);
                if signal != Signal::SIGCHLD {
                    self.pass_on(signal);
                }
            }
            if let Some(end) = self.end_of_relay()? {
                break end;
            }
            self.see_to_spare()?;
        };
        self.relay = RelayProcess::None;
        let own = self.kept.get(Word::Ended).checked_sub(1);
        if let Some(code) = own.map(|code| u8::try_from(code).unwrap_or(1)).or(code) {
            return Ok(Some(code));
        }
        let had_served = self.kept.get(Word::Served) == 1;
        let killed = signal.is_none_or(|signal| signal == Signal::SIGKILL as i32);
        let pause = self.deaths.note(had_served && killed, Instant::now());
        let how = match signal {
            Some(signal) => format!("the relay was ended by signal {signal}"),
            None => "the relay has ended".to_owned(),
        };
        let Some(pause) = pause.filter(|_| !was_asked) else {
            say(&how);
            let signal = signal.and_then(|signal| u8::try_from(signal).ok());
            return Ok(Some(SIGNALLED.saturating_add(signal.unwrap_or(0))));
        };
        say(&format!("{how}; the next one takes over its calls"));
        std::thread::sleep(pause);
        Ok(None)
    }

    /// Waits for a signal, the end of a relay that is not this process's child, or a moment if there is something to do then.
    fn await_something(&self) {
        let signals = self.kept.signals.as_fd();
        let relay = match self.relay {
            RelayProcess::Foreign(_) => self.kept.relay.as_fd(),
            _ => signals,
        };
        let mut either = [
            PollFd::from_borrowed_fd(signals, PollFlags::IN),
            PollFd::from_borrowed_fd(relay, PollFlags::IN),
        ];
        let moment = self.has_pid_file_due.then_some(MOMENT);
        while let Err(Errno::INTR) = poll(&mut either, moment.as_ref()) {}
    }

    fn pass_on(&self, signal: Signal) {
        let (RelayProcess::Child(relay) | RelayProcess::Foreign(relay)) = self.relay else {
            return;
        };
        let signal = rustix::process::Signal::from_named_raw(signal as i32);
        // It may have ended meanwhile, which is seen next.
        let _ = signal.map(|signal| kill_process(relay, signal));
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

    /// Makes another spare if the present one has ended.
    fn see_to_spare(&mut self) -> io::Result<()> {
        if let Some(spare) = self.spare
            && waitpid(Some(spare), WaitOptions::NOHANG)?.is_some()
        {
            self.spare = None;
            self.have_spare()?;
        }
        Ok(())
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

/// Runs the relay on a thread of its own, and ends the process.
fn be_relay(
    kept: &'static Kept,
    inherited: Inherited,
    relay: impl FnOnce(Option<Estate>) -> u8 + Send,
) -> ! {
    // First of all: what the relay before had open is in hand then, or closed.
    let claimed = kept
        .be(Word::Relay)
        .and_then(|()| Heritage::claim(kept, inherited));
    let heritage = match claimed {
        Ok(heritage) => heritage,
        Err(error) => {
            say(&format!("error: what was left open is not known: {error}"));
            process::exit(1);
        }
    };
    let estate = Estate { kept, heritage };
    let code = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("main".into());
        thread
            .spawn_scoped(scope, || relay(Some(estate)))
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

/// Says something on standard error: the keeper has no log.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "survive: {line}");
}
