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
        let expected = self
            .unix_s
            .saturating_add(now.time.since(self.seen_at).as_secs());
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
