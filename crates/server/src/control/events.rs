//! Defines the events that wake the main thread, and the one place where it waits.
//!
//! Signals, shards, interfaces and the user database each have a thread that sends an [`Event`]. [`Inbox::next`] waits until the next timer is due
//! at the longest. Nothing else on the control side blocks, except on a shard.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Instant;

use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use turnbuckle_engine::{Config as EngineConfig, InterfaceAddress};

use crate::asking::Answered;
use crate::handle::Command;
use crate::log::Summary;
use crate::survive::upgrade::Tried;

/// The signals that are turned into events.
const WATCHED: [i32; 5] = [SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2];

/// Number of events that may wait. Further log lines are lost. The sender of any other event waits for room.
pub(crate) const EVENTS_MAX: usize = 1024;

/// An event that wakes the main thread.
pub(crate) enum Event {
    /// A shard's thread has ended: after a request to stop, or by the error.
    ShardEnded { shard: usize, error: Option<String> },
    /// The addresses of this machine's interfaces may have changed and are these now, in their order.
    Interfaces(Vec<InterfaceAddress>),
    /// A change of the configuration has been read, and waits to be applied.
    ConfigurationRead,
    /// What a holder of the relay's handle asks for.
    Command(Box<Command>),
    /// The user database has answered a question of this shard.
    Answered { shard: usize, answer: Answered },
    /// A line for the log.
    Line(String),
    /// The summary of a session, for the log.
    SessionEnded(Box<Summary>),
    /// Have this shard fail.
    #[cfg(test)]
    Fail(usize),
    /// What the keeper says to a wish for an upgrade.
    Tried(Result<Tried, String>),
    /// A test makes a shard fail when it has handled the next datagram of a client.
    #[cfg(test)]
    FailWithNext(usize),
    /// SIGUSR1: take no new allocations, and stop when there are few enough.
    Drain,
    /// SIGUSR2: read the certificates again.
    ReloadCertificates,
    /// The thread that follows the user database has added its rows to the settings of a configuration that was read again, and said so before.
    Assembled,
    /// The user database has changed: users, peer rules and quotas are these from now on.
    Users(Arc<EngineConfig>),
    /// SIGHUP: log files are begun anew, and the configuration is read again where that is wanted.
    HangUp,
    /// SIGINT or SIGTERM.
    Stop,
}

/// The reason why a wait ended.
pub(crate) enum Wake {
    Event(Event),
    /// The moment that was waited for has come.
    Due,
    /// All senders of events are gone.
    Closed,
}

/// The receiving end of all events.
pub(crate) struct Inbox(Receiver<Event>);

/// Makes the channel for events.
pub(crate) fn channel() -> (SyncSender<Event>, Inbox) {
    let (events, inbox) = sync_channel(EVENTS_MAX);
    (events, Inbox(inbox))
}

impl Inbox {
    /// Waits for an event, until `due` at the longest.
    pub(super) fn next(&self, due: Instant) -> Wake {
        match self
            .0
            .recv_timeout(due.saturating_duration_since(Instant::now()))
        {
            Ok(event) => Wake::Event(event),
            Err(RecvTimeoutError::Timeout) => Wake::Due,
            Err(RecvTimeoutError::Disconnected) => Wake::Closed,
        }
    }
}

/// Starts the thread that turns signals into events.
///
/// # Errors
///
/// The signals cannot be caught, or the thread cannot be started.
pub(super) fn watch_signals(events: SyncSender<Event>) -> io::Result<()> {
    let mut signals = Signals::new(WATCHED)?;
    // A keeper blocks them, and what it makes has them blocked too until here.
    let watched = WATCHED
        .map(Signal::try_from)
        .into_iter()
        .collect::<Result<SigSet, _>>()?;
    watched.thread_unblock()?;
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(move || {
        for signal in signals.forever() {
            let event = match signal {
                SIGHUP => Event::HangUp,
                SIGUSR1 => Event::Drain,
                SIGUSR2 => Event::ReloadCertificates,
                _ => Event::Stop,
            };
            if events.send(event).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}
