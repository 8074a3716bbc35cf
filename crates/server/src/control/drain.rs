//! Ends the relay when few enough allocations and tunnels are left.

use std::io::Write;
use std::time::{Duration, Instant};

use super::shards::Shards;

/// Time between two counts of what is left.
const INTERVAL: Duration = Duration::from_secs(1);

/// Holds whether the server drains.
pub(super) struct Drain {
    /// Number of allocations and tunnels that may be left when the server ends.
    allocations_left: u32,
    /// When they are counted next. `None` unless the server drains.
    next_count: Option<Instant>,
}

impl Drain {
    pub(super) fn new(allocations_left: u32) -> Self {
        Self {
            allocations_left,
            next_count: None,
        }
    }

    /// Lets another number of allocations be left.
    pub(super) fn set_allocations_left(&mut self, allocations_left: u32) {
        self.allocations_left = allocations_left;
    }

    /// Returns when [`Self::is_over`] is due, if the server drains.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next_count
    }

    /// Makes every shard refuse new allocations. Does nothing if the server drains already.
    pub(super) fn begin(&mut self, shards: &mut Shards, out: &mut impl Write) {
        if self.next_count.is_some() {
            return;
        }
        shards.drain();
        let _ = writeln!(
            out,
            "draining: no new allocations; ends when {} of {} are left",
            self.allocations_left,
            shards.sessions()
        );
        self.next_count = Some(Instant::now());
    }

    /// Makes every shard take new allocations again. Does nothing if the server does not drain.
    pub(super) fn end(&mut self, shards: &mut Shards, out: &mut impl Write) {
        if self.next_count.take().is_some() {
            shards.undrain();
            let _ = writeln!(out, "draining no more: new allocations are taken again");
        }
    }

    /// Returns whether few enough allocations and tunnels are left. They are counted only when it is due.
    pub(super) fn is_over(&mut self, now: Instant, shards: &Shards, out: &mut impl Write) -> bool {
        if self.next_count.is_none_or(|next_count| now < next_count) {
            return false;
        }
        if shards.sessions() <= u64::from(self.allocations_left) {
            let _ = writeln!(
                out,
                "drained, {} allocations and tunnels left",
                shards.sessions()
            );
            return true;
        }
        self.next_count = Some(now + INTERVAL);
        false
    }
}
