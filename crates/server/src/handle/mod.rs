//! The handle of a running relay: live counters, commands, events. It is for whoever shows the relay or steers it, on threads of its own.
//!
//! Invariant: no shard waits for a holder of a handle. Counters are read where they are written. A command waits in a bounded queue until the end of
//! a turn, and its reply is a call that must not block. An event that finds its queue full is lost and counted.

mod commands;
pub(crate) mod counters;
mod events;
mod sessions;
mod trace;

use std::io::Write;

use turnbuckle_config::Config;
pub use turnbuckle_counters::{Description, Group, Kind, Label, Sample, Unit};
pub use turnbuckle_engine::{
    EndCause, PortCounts, RelayAddress, RelayProtocol, Relayed, Traffic, Transport, Usage,
};

pub(crate) use self::commands::Command;
pub use self::commands::{Commands, Refused, ReloadReport, Reloading, Reply};
pub(crate) use self::counters::DatabaseState;
pub use self::counters::{DatabaseStatus, LiveCounters};
pub(crate) use self::events::EventSender;
pub use self::events::{Event, EventKind, Events, Identity};
pub use self::sessions::{
    ClientSide, Page, SESSIONS_PER_PAGE_MAX, Session, SessionFilter, SessionNumbers, SessionPeers,
    SessionTime, shard_of,
};
pub(crate) use self::sessions::{PEERS_LISTED_MAX, PageRequest, Purpose, number_of_shard};
pub use self::trace::{Trace, TraceOutlet, Traced};
pub use crate::counters::SESSION_LIFETIME_BOUNDS_S;
pub use crate::survive::upgrade::{Tried, Upgrade, Upgraded};

/// What a running relay offers.
pub struct Handle {
    /// The counters as they are now.
    pub counters: LiveCounters,
    /// What can be asked for.
    pub commands: Commands,
    /// What happens to sessions, if there is a consumer ([`Attached::wants_events`]).
    pub events: Option<Events>,
    /// What the last upgrade has come to, if there has been one.
    pub upgraded: Option<Upgraded>,
}

/// What is attached to a relay that starts.
pub trait Control {
    /// What runs beside the relay. It is dropped when the relay has stopped.
    type Attached: Attached;

    /// Takes the handle of a relay that is about to serve, and says in the log what there is.
    ///
    /// # Errors
    ///
    /// Why the relay must not serve.
    fn attach(
        self,
        config: &Config,
        handle: Handle,
        log: &mut dyn Write,
    ) -> Result<Self::Attached, String>;
}

/// What runs beside a relay, and follows its configuration.
pub trait Attached {
    /// What a configuration asks for, ready to be used.
    type Next;

    /// Returns whether a configuration asks for events. Without a consumer they cost nothing.
    fn wants_events(config: &Config) -> bool;

    /// Opens and reads what a configuration asks for that was read again. Nothing changes by it.
    ///
    /// # Errors
    ///
    /// What cannot be opened or read.
    fn prepare(&self, config: &Config) -> Result<Self::Next, String>;

    /// Goes on with what was prepared, and says in the log what there is. `events` are given when shards begin to make them.
    fn take(&mut self, next: Self::Next, events: Option<Events>, log: &mut dyn Write);
}

/// Attaches nothing.
pub struct Uncontrolled;

impl Control for Uncontrolled {
    type Attached = ();

    fn attach(self, _: &Config, _: Handle, _: &mut dyn Write) -> Result<(), String> {
        Ok(())
    }
}

impl Attached for () {
    type Next = ();

    fn wants_events(_: &Config) -> bool {
        false
    }

    fn prepare(&self, _: &Config) -> Result<(), String> {
        Ok(())
    }

    fn take(&mut self, (): (), _: Option<Events>, _: &mut dyn Write) {}
}
