//! When clients move, and how moves ended.

/// When clients move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    /// Each before it sends, and never again.
    Once,
    /// Each after so many nanoseconds again, the first ones spread evenly.
    Every(u64),
}

/// How moves ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    /// The server took the ticket.
    pub(super) done: u64,
    /// It did not, or did not answer; the client stayed where it was.
    pub(super) failed: u64,
    /// Tickets that were used up already, and were refused.
    pub(super) stale_refused: u64,
    /// Such that were taken.
    pub(super) stale_taken: u64,
}

impl Moved {
    pub(super) fn add(&mut self, other: Self) {
        self.done += other.done;
        self.failed += other.failed;
        self.stale_refused += other.stale_refused;
        self.stale_taken += other.stale_taken;
    }
}
