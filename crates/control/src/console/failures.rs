//! Counts wrong passwords by source, and says who has to wait.
//!
//! Invariant: at most [`SOURCES_MAX`] sources are remembered. When there are more, those that have to wait no longer go first, and then the one
//! whose last failure is the longest ago.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Wrong passwords after which a source has to wait; coturn closes a connection after so many.
pub(super) const FAILURES_MAX: u32 = 5;

/// How long it has to.
const WAIT: Duration = Duration::from_secs(30);

/// Sources that are remembered.
const SOURCES_MAX: usize = 1024;

/// Wrong passwords of each source within the last half minute.
#[derive(Default)]
pub(super) struct Failures(HashMap<IpAddr, (u32, Instant)>);

impl Failures {
    /// Returns whether `source` has to wait.
    pub(super) fn are_too_many(&self, source: IpAddr, now: Instant) -> bool {
        let found = self.0.get(&source);
        found.is_some_and(|(count, last)| *count >= FAILURES_MAX && now < *last + WAIT)
    }

    /// Notes a wrong password. Returns whether it is one too many.
    pub(super) fn note(&mut self, source: IpAddr, now: Instant) -> bool {
        self.0.retain(|_, (_, last)| now < *last + WAIT);
        if !self.0.contains_key(&source) && self.0.len() >= SOURCES_MAX {
            let oldest = self.0.iter().min_by_key(|(_, (_, last))| *last);
            if let Some((&oldest, _)) = oldest {
                self.0.remove(&oldest);
            }
        }
        let (count, last) = self.0.entry(source).or_insert((0, now));
        *count += 1;
        *last = now;
        *count >= FAILURES_MAX
    }

    /// Forgets the wrong passwords of a source that has given the right one.
    pub(super) fn forgive(&mut self, source: IpAddr) {
        self.0.remove(&source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_wrong_passwords_lock_their_source_for_half_a_minute_and_nobody_else() {
        let mut failures = Failures::default();
        let (now, source) = (Instant::now(), IpAddr::from([192, 0, 2, 1]));
        let too_many: Vec<_> = (0..5).map(|_| failures.note(source, now)).collect();
        assert_eq!(too_many, [false, false, false, false, true]);
        assert!(failures.are_too_many(source, now + Duration::from_secs(29)));
        assert!(!failures.are_too_many(source, now + Duration::from_secs(30)));
        assert!(!failures.are_too_many(IpAddr::from([192, 0, 2, 2]), now));
        // The right one in between begins anew, and so does time.
        failures.forgive(source);
        assert!(!failures.note(source, now));
        assert!(!failures.note(source, now + Duration::from_secs(31)));
        for n in 0..5000_u32 {
            failures.note(IpAddr::from(n.to_be_bytes()), now + Duration::from_secs(32));
        }
        assert_eq!(failures.0.len(), SOURCES_MAX);
    }
}
