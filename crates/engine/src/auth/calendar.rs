//! A calendar that never goes back, so that setting the clock back revives no expired credential (V-32).

use crate::time::{Now, Time};

/// The latest calendar time seen, and when it was.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calendar {
    seen_at: Time,
    unix_s: u64,
}

impl Calendar {
    /// Seconds since 1970: the host's, or what they must be by now going by the monotonic clock, if that is more.
    ///
    /// A clock that was once set far ahead stays ahead here until the process is restarted.
    pub(super) fn advance(&mut self, now: Now) -> u64 {
        // mutant: calendar-stands-still
        let expected = self
            .unix_s
            .saturating_add(now.time.since(self.seen_at).as_secs());
        // mutant: calendar-remembers-nothing
        if now.unix_s >= expected {
            *self = Self {
                seen_at: now.time,
                unix_s: now.unix_s,
            };
        }
        // guard: V-32-clock
        expected.max(now.unix_s)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

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
}
