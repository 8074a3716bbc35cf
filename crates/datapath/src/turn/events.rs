//! The events of a turn.

use rustix::event::Timespec;

use crate::names::EndpointId;

/// Readiness events taken per turn.
pub(super) const EVENTS: usize = 256;
pub(super) const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Events of strangers taken per turn: as many as a turn may reach within its slice when each does little.
pub(super) const NEWCOMERS: usize = 64;
/// Strangers and listeners, which are served after the others.
#[derive(Clone, Copy, Default)]
pub(super) struct Newcomers {
    /// Connections that have proven nothing.
    pub(super) strangers: bool,
    /// Connections of strangers whose work the last turn cut short.
    pub(super) cut: bool,
    /// Listeners.
    pub(super) listeners: bool,
    /// How many events, from the first one on, are of listeners that the shard waits for by themselves.
    pub(super) exclusive: usize,
}

impl Newcomers {
    #[inline]
    pub(super) fn are_there(self) -> bool {
        self.strangers || self.cut || self.listeners || self.exclusive > 0
    }
}

/// Returns the lower half of event data: the number of an endpoint, a connection or a listener.
pub(super) fn low(name: u64) -> u32 {
    EndpointId::from_u64(name).to_u32()
}
