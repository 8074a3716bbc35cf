//! Ends the relay when few enough allocations and tunnels are left.

use std::io::Write;
use std::time::{Duration, Instant};

use super::shards::Shards;
use crate::survive::DrainingMark;

/// Time between two counts of what is left.
const INTERVAL: Duration = Duration::from_secs(1);

/// Holds whether the server drains.
pub(super) struct Drain {
    /// Number of allocations and tunnels that may be left when the server ends.
    allocations_left: u32,
    /// When they are counted next. `None` unless the server drains.
    next_count: Option<Instant>,
    /// Tells the next relay, if there may be one.
    mark: Option<DrainingMark>,
}

impl Drain {
    /// Begins without draining. With a `mark` the next relay drains if this one does.
    pub(super) fn new(allocations_left: u32, mark: Option<DrainingMark>) -> Self {
        Self {
            allocations_left,
            next_count: None,
            mark,
        }
    }

    /// Returns whether the relay before drained, and has not come to the end of it.
    pub(super) fn is_left_over(&self) -> bool {
        let is_marked = self.mark.as_ref().is_some_and(DrainingMark::is_set);
        is_marked && self.next_count.is_none()
    }

    /// Returns how many allocations and tunnels may be left when the server ends.
    pub(super) fn allocations_left(&self) -> u32 {
        self.allocations_left
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
        // Before who asked is answered: it is not asked for again.
        self.tell_next(true);
        shards.drain();
        let _ = writeln!(
            out,
            "draining: no new allocations; ends when {} of {} are left",
            self.allocations_left,
            shards.sessions()
        );
        // Not at once: the caller who asked for it has its answer first.
        self.next_count = Some(Instant::now() + INTERVAL);
    }

    /// Makes every shard take new allocations again. Does nothing if the server does not drain.
    pub(super) fn end(&mut self, shards: &mut Shards, out: &mut impl Write) {
        if self.next_count.take().is_some() {
            self.tell_next(false);
            shards.undrain();
            let _ = writeln!(out, "draining no more: new allocations are taken again");
        }
    }

    fn tell_next(&self, is_draining: bool) {
        if let Some(mark) = &self.mark {
            mark.set(is_draining);
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
