//! The clocks of a shard, read once per loop turn.
//!
//! Invariant: [`Time`] comes from `CLOCK_BOOTTIME`, which every process of one boot shares, goes on while the
//! machine sleeps and never steps. Lifetimes therefore survive a restart of the process and a step of the wall
//! clock; only the expiry of time-limited credentials looks at the wall clock.

use std::sync::{Arc, Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use turnbuckle_engine::{Now, Time};

/// What a shard reads the time from.
#[derive(Clone)]
pub(crate) enum Clock {
    /// The clocks of the machine.
    Machine,
    /// The time that a simulation says it is.
    Given(Arc<Mutex<Now>>),
}

impl Clock {
    /// Reads both clocks.
    pub(crate) fn now(&self) -> Now {
        match self {
            Self::Machine => now(),
            Self::Given(now) => *now.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// Reads both clocks of the machine.
fn now() -> Now {
    Now {
        time: time(),
        // Seconds of a clock that is a few milliseconds late, and costs a quarter of the other.
        unix_s: u64::try_from(clock_gettime(ClockId::RealtimeCoarse).tv_sec).unwrap_or(0),
    }
}

/// Reads `CLOCK_BOOTTIME` (`clock_gettime(2)`).
pub(crate) fn time() -> Time {
    let spec = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(spec.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(spec.tv_nsec).unwrap_or(0);
    Time::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back() {
        let first = now();
        let second = now();
        assert!(second.time >= first.time);
        assert!(first.unix_s > 1_700_000_000);
    }
}
