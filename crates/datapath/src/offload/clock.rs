//! The clock of the program: a cheap one, and how far the engine's may be ahead of it.
//!
//! Routes end by `CLOCK_BOOTTIME`, which the program reads for a route that may have ended. Whether it may, a clock tells that takes a third of the time,
//! `CLOCK_MONOTONIC_COARSE`: it stands still between two ticks, and while the machine sleeps.

use std::sync::atomic::Ordering;

use rustix::time::{ClockId, clock_gettime};
use turnbuckle_sys::mapped::Mapped;

/// How long before its end a route may have ended, in nanoseconds. A tick is 10 ms at most; the processor that counts ticks for all may be held up by the
/// host of a virtual machine.
const MARGIN_NS: u64 = 100_000_000;

/// The clock of the program.
#[derive(Debug)]
pub(super) struct Clock(Mapped);

impl Clock {
    /// Words in memory (`struct clock`).
    pub(super) const WORDS: usize = 1;
    /// How far the engine's clock may be ahead.
    pub(super) const AHEAD_NS: usize = 0;

    /// Takes memory for it and sets it.
    pub(super) fn new(memory: Mapped) -> Self {
        let clock = Self(memory);
        clock.follow();
        clock
    }

    /// Follows what the machine has slept.
    pub(super) fn follow(&self) {
        // In this order: what passes between both readings makes it more.
        let awake = nanoseconds(ClockId::Monotonic);
        let slept = nanoseconds(ClockId::Boottime).saturating_sub(awake);
        // guard: offload-clock
        let ahead = slept + MARGIN_NS;
        self.0.words()[Self::AHEAD_NS].store(ahead, Ordering::Relaxed);
    }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
