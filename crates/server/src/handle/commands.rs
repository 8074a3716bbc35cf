//! Commands to a running relay. They go to the main thread, which alone knows the shards, and from there to a shard.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use turnbuckle_config::{Edit, Effective, Level};

use super::sessions::{Page, PageRequest, Purpose, SESSIONS_PER_PAGE_MAX, SessionFilter};
use super::trace::Trace;
use crate::control::events::Event;
use crate::survive::upgrade::{Tried, Upgrade};

/// What takes the answer to a command, on the thread that has it. It must not block. If it is dropped without a call, the command was not carried
/// out: a queue was full, or the shard has failed.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// A command.
pub(crate) enum Command {
    /// List or end sessions of a shard.
    Page { shard: usize, wish: PageRequest },
    /// Answer from within the loop of a shard.
    Ping { shard: usize, reply: Reply<()> },
    /// Take no new allocations, and end when few enough are left.
    Drain(Reply<u32>),
    /// Take new allocations again.
    Undrain(Reply<()>),
    /// End the relay.
    Stop,
    /// Read the certificates again.
    ReloadCertificates(Reply<Result<(), String>>),
    /// Read the configuration again, or only say what that would change.
    Reload {
        is_dry_run: bool,
        reply: Reply<Reloading>,
    },
    /// Change one key of the configuration that holds.
    Change(Edit, Reply<Reloading>),
    /// Show the configuration.
    Configuration(Reply<Vec<Effective>>),
    /// Show what one user asks for and is answered.
    Trace(Trace, Reply<()>),
    /// Leave out lines of the log below a level.
    SetLogLevel(Level, Reply<()>),
    /// Try another program.
    Upgrade(Upgrade, Reply<Result<Tried, String>>),
    /// Hand over to the program that was tried.
    HandOver,
}

/// What a reload has come to; an error is what is wrong, one problem a line, and means that nothing has changed.
pub type Reloading = Result<ReloadReport, String>;

/// What a reload changes.
#[derive(Clone, Debug, Default)]
pub struct ReloadReport {
    /// Keys with a new value that holds.
    pub changed: Vec<&'static str>,
    /// Keys with a value that holds when the server is started anew.
    pub restart_pending: Vec<&'static str>,
    /// What the operator should know about the configuration.
    pub notes: Vec<String>,
}

/// The relay has ended, or too much waits for its main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the relay takes no command now")
    }
}

impl std::error::Error for Refused {}

/// Sends commands to the relay.
#[derive(Clone)]
pub struct Commands {
    events: SyncSender<Event>,
    shards: usize,
}

impl Commands {
    pub(crate) fn new(events: SyncSender<Event>, shards: usize) -> Self {
        Self { events, shards }
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Asks for a page of the sessions of `shard` that pass `filter`, at most `max` and at most [`SESSIONS_PER_PAGE_MAX`], beginning at place `from`
    /// of its table. A page ends early after 8,192 places. At most two pages of one shard are under way at a time; a further one is not answered.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn sessions(
        &self,
        shard: usize,
        from: u32,
        filter: SessionFilter,
        max: usize,
        reply: Reply<Page>,
    ) -> Result<(), Refused> {
        self.page(shard, Purpose::List, from, filter, max, reply)
    }

    /// Ends sessions as [`Self::sessions`] lists them, and answers with them as they were before. Their clients get 437 for their next request.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn end(
        &self,
        shard: usize,
        from: u32,
        filter: SessionFilter,
        max: usize,
        reply: Reply<Page>,
    ) -> Result<(), Refused> {
        self.page(shard, Purpose::End, from, filter, max, reply)
    }

    /// Has a shard answer from within its loop.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn ping(&self, shard: usize, reply: Reply<()>) -> Result<(), Refused> {
        self.send(Command::Ping { shard, reply })
    }

    /// Refuses new allocations from now on, and ends the relay when few enough are left. The reply says how many that is (`drain-min-allocations`), and is
    /// there before the relay ends.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn drain(&self, reply: Reply<u32>) -> Result<(), Refused> {
        self.send(Command::Drain(reply))
    }

    /// Takes new allocations again after [`Self::drain`].
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn undrain(&self, reply: Reply<()>) -> Result<(), Refused> {
        self.send(Command::Undrain(reply))
    }

    /// Ends the relay.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn stop(&self) -> Result<(), Refused> {
        self.send(Command::Stop)
    }

    /// Reads the certificates again. The answer is why the old ones stay, if they do.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn reload_certificates(&self, reply: Reply<Result<(), String>>) -> Result<(), Refused> {
        self.send(Command::ReloadCertificates(reply))
    }

    /// Reads the configuration again, and applies what may change while the relay runs. With `is_dry_run` nothing changes.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn reload(&self, is_dry_run: bool, reply: Reply<Reloading>) -> Result<(), Refused> {
        self.send(Command::Reload { is_dry_run, reply })
    }

    /// Changes one key, until the configuration is read again or the relay is started anew.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn change(&self, edit: Edit, reply: Reply<Reloading>) -> Result<(), Refused> {
        self.send(Command::Change(edit, reply))
    }

    /// Has a program tried that is to take over. After [`Self::hand_over`] it does, unless it was only to be tried.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn upgrade(
        &self,
        upgrade: Upgrade,
        reply: Reply<Result<Tried, String>>,
    ) -> Result<(), Refused> {
        self.send(Command::Upgrade(upgrade, reply))
    }

    /// Ends this process, and leaves all to the program that was tried last. Does nothing if none was.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn hand_over(&self) -> Result<(), Refused> {
        self.send(Command::HandOver)
    }

    /// Asks for the configuration that holds, secrets masked.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn configuration(&self, reply: Reply<Vec<Effective>>) -> Result<(), Refused> {
        self.send(Command::Configuration(reply))
    }

    /// Begins a trace of one user at all shards. A shard that is started anew has it no more.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn trace(&self, trace: Trace, reply: Reply<()>) -> Result<(), Refused> {
        self.send(Command::Trace(trace, reply))
    }

    /// Leaves out lines of the log below `level`, until the configuration is read again with another level or the relay is started anew.
    ///
    /// # Errors
    ///
    /// The main thread takes no command now.
    pub fn set_log_level(&self, level: Level, reply: Reply<()>) -> Result<(), Refused> {
        self.send(Command::SetLogLevel(level, reply))
    }

    /// Writes a line to the log. What is not ours in it has to be escaped.
    ///
    /// # Errors
    ///
    /// The main thread takes nothing now, and the line is lost.
    pub fn say(&self, line: String) -> Result<(), Refused> {
        let event = Event::Line(line);
        self.events.try_send(event).map_err(|_| Refused)
    }

    fn page(
        &self,
        shard: usize,
        purpose: Purpose,
        from: u32,
        filter: SessionFilter,
        max: usize,
        reply: Reply<Page>,
    ) -> Result<(), Refused> {
        let wish = PageRequest {
            purpose,
            from,
            filter,
            max: max.min(SESSIONS_PER_PAGE_MAX),
            reply,
            under_way: Arc::default(),
        };
        self.send(Command::Page { shard, wish })
    }

    fn send(&self, command: Command) -> Result<(), Refused> {
        let event = Event::Command(Box::new(command));
        self.events.try_send(event).map_err(|_| Refused)
    }
}
