//! A calendar that never goes back, so that setting the clock back revives no expired credential (V-32).

use core::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::Arc;

use crate::time::Now;

const NANOS_PER_S: u64 = 1_000_000_000;

/// The latest calendar time seen, kept as nanoseconds from the monotonic clock's zero to it. Clones are one calendar.
///
/// All engines of a server have one: a nonce is good wherever its client's requests are handled, and a shard that is started anew goes back no more
/// than the others.
#[derive(Clone, Debug)]
pub(crate) struct Calendar {
    shared: Arc<AtomicI64>,
    /// The latest that this clone has seen.
    latest_ns: i64,
}

impl Default for Calendar {
    fn default() -> Self {
        Self {
            shared: Arc::new(AtomicI64::new(i64::MIN)),
            latest_ns: i64::MIN,
        }
    }
}

impl Calendar {
    /// Returns the seconds since 1970: the host's, or what they must be by now going by the monotonic clock, if that is more.
    ///
    /// A clock that was once set far ahead stays ahead here until the process is restarted.
    pub(super) fn advance(&mut self, now: Now) -> u64 {
        let time_ns = signed(now.time.as_nanos());
        let unix_ns = signed(now.unix_s.saturating_mul(NANOS_PER_S));
        let offset = unix_ns.saturating_sub(time_ns);
        self.latest_ns = self.latest_ns.max(self.shared.load(Relaxed));
        let latest = self.latest_ns;
        // mutant: calendar-remembers-nothing
        if offset > latest {
            self.shared.fetch_max(offset, Relaxed);
        }
        // mutant: calendar-stands-still
        let expected_ns = latest.saturating_add(time_ns);
        let expected = u64::try_from(expected_ns).unwrap_or(0) / NANOS_PER_S;
        // guard: V-32-clock
        expected.max(now.unix_s)
    }
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::time::Time;

    fn at(seconds: u64, unix_s: u64) -> Now {
        Now {
            time: Time::ZERO + Duration::from_secs(seconds),
            unix_s,
        }
    }

    #[test]
    fn it_goes_on_by_the_monotonic_clock_when_the_hosts_is_set_back() {
        let mut calendar = Calendar::default();
        assert_eq!(calendar.advance(at(5, 1_000)), 1_000);
        assert_eq!(calendar.advance(at(6, 400)), 1_001);
        assert_eq!(calendar.advance(at(105, 500)), 1_100);
        assert_eq!(calendar.advance(at(205, 1_200)), 1_200);
    }

    #[test]
    fn a_clock_that_is_set_ahead_and_back_again_stays_ahead() {
        let mut calendar = Calendar::default();
        assert_eq!(calendar.advance(at(5, 9_000)), 9_000);
        assert_eq!(calendar.advance(at(15, 1_010)), 9_010);
    }

    #[test]
    fn clones_are_one_calendar() {
        let mut calendar = Calendar::default();
        let mut other = calendar.clone();
        assert_eq!(calendar.advance(at(5, 9_000)), 9_000);
        assert_eq!(other.advance(at(15, 1_010)), 9_010);
    }
}
