//! An upgrade, by the keeper: it tries the program, has the relay end its last turn, and starts the program with all that is open. Until that program's
//! relay is about to hear the first client, this keeper has everything too, and puts a relay of its own program back if the other one ends or is late.
//!
//! Invariant: of two keepers that have the same sockets one has a relay that hears clients. They agree on which by one word ([`Offer`]).

use std::env;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper,
    waitpgid, waitpid,
};
use rustix::time::Timespec;
use turnbuckle_sys::keeper::{beside_standard, hand_on};

use super::handed::{self, Handed, Offer};
use super::keeper::{Keeping, RelayProcess, say};
use super::kept::{Word, await_end};
use super::staying::code_of;
use super::trial::{Program, Trial};
use super::upgrade::{Upgrade, Upgraded, refusal};

/// Time between two looks at whether the other program has taken over.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// The variable of the environment that holds the number of the process whose watchdog it is.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// How far an upgrade is.
pub(super) enum Plan {
    None,
    Trying(Box<Trial>),
    /// The relay has been told that the program can take over. It is to end its last turn.
    Agreed(Agreed),
}

/// A program that can take over.
pub(super) struct Agreed {
    program: Program,
    number: u64,
    within: Duration,
}

/// What a keeper knows of upgrades.
pub(super) struct Upgrades {
    /// What another program has handed over, until its relay has ended.
    pub(super) handed: Option<Handed>,
    /// What the last upgrade has come to.
    pub(super) last: Option<Upgraded>,
    /// Where this program was found.
    program: PathBuf,
    pub(super) plan: Plan,
    /// The last wish of a relay that was looked at.
    pub(super) wished: u64,
}

impl Upgrades {
    /// Begins with what another program has handed over, if one has.
    pub(super) fn new(handed: Option<Handed>) -> io::Result<Self> {
        Ok(Self {
            last: handed.as_ref().map(|handed| Upgraded {
                number: handed.number,
                from: handed.version.clone(),
                put_back: None,
            }),
            handed,
            program: env::current_exe()?,
            plan: Plan::None,
            wished: 0,
        })
    }
}

impl Keeping<'_> {
    /// Looks at whether the relay wants an upgrade, and whether the trial of a program is over.
    pub(super) fn see_to_upgrade(&mut self) {
        let mut rings = [0; 8];
        // It has nothing to read where nobody has rung.
        let _ = rustix::io::read(&self.kept.bell, &mut rings);
        let wished = self.kept.get(Word::Wished);
        if wished != self.upgrades.wished {
            self.upgrades.wished = wished;
            if let Err(why) = self.begin_trial(wished) {
                self.answer(&refusal(&why));
            }
        }
        let Plan::Trying(trial) = &mut self.upgrades.plan else {
            return;
        };
        let Some(outcome) = trial.outcome() else {
            return;
        };
        let Plan::Trying(trial) = std::mem::replace(&mut self.upgrades.plan, Plan::None) else {
            return;
        };
        match outcome {
            Ok(tried) => {
                if !trial.upgrade.is_dry_run {
                    let trial = *trial;
                    self.upgrades.plan = Plan::Agreed(Agreed {
                        program: trial.program,
                        number: trial.number,
                        within: trial.upgrade.within,
                    });
                }
                self.answer(&tried.to_json());
            }
            Err(why) => self.answer(&refusal(&why)),
        }
    }

    fn begin_trial(&mut self, wished: u64) -> Result<(), String> {
        let wish = self.kept.note(Word::Wished, wished);
        let wish = wish.as_ref().and_then(Upgrade::of_json);
        let wish = wish.ok_or("the relay wants something strange")?;
        // The one before is over, if there is one.
        self.upgrades.plan = Plan::None;
        let program = Program::open(&wish, &self.upgrades.program, self.config)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let number = since.map_or(0, |since| since.as_millis());
        let number = u64::try_from(number).unwrap_or(0);
        let trial = Trial::begin(self.kept, self.config, program, wish, number)?;
        self.upgrades.plan = Plan::Trying(Box::new(trial));
        Ok(())
    }

    fn answer(&self, answer: &serde_json::Value) {
        if let Err(error) = self.kept.write_note(Word::Answered, answer) {
            say(&format!("error: the relay cannot be answered: {error}"));
        }
    }

    /// Starts the other program on all that the relay has left, and waits until it has taken over. Returns the code to exit with, unless this keeper
    /// is to make a relay itself.
    pub(super) fn hand_over(&mut self) -> io::Result<Option<u8>> {
        // What this keeper was handed itself is long taken.
        self.upgrades.handed = None;
        let Plan::Agreed(agreed) = std::mem::replace(&mut self.upgrades.plan, Plan::None) else {
            // Nobody has asked it to: it is put back.
            self.await_end_of_relay();
            return Ok(None);
        };
        if self.was_asked {
            self.await_end_of_relay();
            return Ok(Some(0));
        }
        let (number, program) = (agreed.number, agreed.program.path.clone());
        let offer = Offer::begin(self.kept, number);
        let why = match self.start(agreed.program, number) {
            Ok(successor) => {
                self.await_end_of_relay();
                self.relay = RelayProcess::Child(successor);
                let failed = self.await_taken(&offer, successor, agreed.within)?;
                let Some(why) = failed else {
                    return self.leave_to(successor).map(Some);
                };
                end_all(successor);
                why
            }
            Err(error) => {
                offer.withdraw();
                self.await_end_of_relay();
                format!("cannot be started: {error}")
            }
        };
        self.relay = RelayProcess::None;
        let why = format!("{} {why}", program.display());
        self.lines.push(format!(
            "warning: {why}; the program before goes on, and takes over the calls"
        ));
        self.upgrades.last = Some(Upgraded {
            number,
            from: env!("CARGO_PKG_VERSION").to_owned(),
            put_back: Some(why),
        });
        // The relay has ended in order, so this is an end as well.
        Ok(self.was_asked.then_some(0))
    }

    /// Starts the program as this one was started, in a group of processes of its own.
    fn start(&self, program: Program, number: u64) -> io::Result<Pid> {
        if self.kept.main.is_this_process() {
            // Whoever is left when a keeper ends becomes this process's child.
            set_child_subreaper(Some(getpid()))?;
        }
        let list = handed::write(self.kept, number, Some(&self.kept.keys))?;
        let mut words = env::args_os();
        let mut command: Command = program.command(words.next().unwrap_or_default())?;
        command.args(words);
        command.env(handed::VARIABLE, list.as_raw_fd().to_string());
        // The service manager names the process that was started, and the next relays come from another one. The watchdog is still theirs to feed
        // (`sd_watchdog_enabled(3)`).
        // guard: V-63-watchdog
        if env::var(WATCHDOG_PID).is_ok_and(|pid| pid == self.kept.main.process().to_string()) {
            command.env_remove(WATCHDOG_PID);
        }
        command.process_group(0);
        hand_on(&mut command, beside_standard()?);
        let child = command.spawn()?;
        let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        number.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn await_end_of_relay(&mut self) {
        await_end(&self.kept.relay);
        if let RelayProcess::Child(relay) = self.relay {
            let _ = waitpid(Some(relay), WaitOptions::empty());
        }
        self.relay = RelayProcess::None;
    }

    /// Waits until the program has taken over. Returns why it has not and does not any more.
    fn await_taken(
        &mut self,
        offer: &Offer,
        successor: Pid,
        within: Duration,
    ) -> io::Result<Option<String>> {
        let deadline = Instant::now() + within;
        loop {
            let mut signals = [PollFd::new(&self.kept.signals, PollFlags::IN)];
            // It ends early at a signal, which is seen next.
            let _ = poll(&mut signals, Some(&LOOK));
            self.pass_signals_on()?;
            if offer.is_taken() {
                return Ok(None);
            }
            let ended = waitpid(Some(successor), WaitOptions::NOHANG)?;
            let why = match ended {
                Some((_, status)) => {
                    let code = code_of(status);
                    format!("has ended with code {code} before it had taken over")
                }
                None if Instant::now() >= deadline => {
                    format!("has not taken over within {} s", within.as_secs_f32())
                }
                None => continue,
            };
            return Ok(offer.withdraw().then_some(why));
        }
    }

    /// Lets go of all sockets, which are the other program's alone then. Returns the code to exit with.
    fn leave_to(&mut self, successor: Pid) -> io::Result<u8> {
        let kept = self.kept;
        let main = &kept.main;
        main.set_keeper(u64::from(successor.as_raw_nonzero().get().unsigned_abs()));
        if !main.is_this_process() {
            // What came for this process before the other one was named, which nobody reads once it has ended. One that stays reads its own.
            self.pass_signals_on()?;
        }
        if let Some(spare) = self.spare.take() {
            let _ = kill_process(spare, Signal::KILL);
            let _ = waitpid(Some(spare), WaitOptions::empty());
        }
        let left = self.keeper.inherit().take();
        if let Err(error) = left {
            say(&format!(
                "error: the sockets stay open in this process too: {error}"
            ));
        }
        for journal in &kept.journals {
            for file in journal.files() {
                // Its memory is lost until this process ends.
                let _ = file.set_len(0);
            }
        }
        self.relay = RelayProcess::None;
        match main.is_this_process() {
            true => main.stay(&self.kept.signals),
            false => Ok(0),
        }
    }
}

/// Ends a keeper that has not taken over, with all processes that it has made.
fn end_all(successor: Pid) {
    let _ = kill_process_group(successor, Signal::KILL);
    let _ = waitpid(Some(successor), WaitOptions::empty());
    // What it has made is this process's now, or that of the one that was started.
    while waitpgid(successor, WaitOptions::empty()).is_ok() {}
}
