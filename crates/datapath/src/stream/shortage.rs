//! Handling of connections that arrive while no descriptor is free.
//!
//! They wait in the kernel, which has completed their handshakes: nothing is lost if a descriptor becomes free soon. A listener with waiting
//! connections is ready all the time, so the shard ignores its listeners for a short while. If the shortage lasts so long that clients may
//! have given up, the waiting connections are accepted and reset. Clients see the reset and may try another server. Accepting
//! takes a descriptor, which is why one is held in reserve.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How long listeners are ignored after a failure.
// guard: V-47-descriptors-busy
const RETRY_NS: u64 = 20_000_000;
/// How long connections may wait for a descriptor. Clients give up after tens of seconds; some, after ten.
// guard: V-47-descriptors
const SHORTAGE_MAX_NS: u64 = 5_000_000_000;
/// So long without a failure, the next one begins a shortage of its own.
const FORGET_NS: u64 = 1_000_000_000;

/// Whether descriptors are short, since when, and the one in reserve.
#[derive(Debug, Default)]
pub(crate) struct Shortage {
    spare: Option<OwnedFd>,
    began_ns: Option<u64>,
    /// When descriptors were missing last.
    failed_ns: u64,
    retry_ns: Option<u64>,
}

impl Shortage {
    /// Takes the descriptor in reserve, unless it is there.
    pub(crate) fn prepare(&mut self) {
        if self.spare.is_none() {
            // What is opened does not matter. Without one nobody is turned away, and connections wait for longer.
            self.spare = File::open("/dev/null").ok().map(Into::into);
        }
    }

    /// Notes that no descriptor was free at `now_ns`. Listeners are ignored from now on, until [`is_over`](Self::is_over).
    pub(crate) fn noticed(&mut self, now_ns: u64) {
        if self.began_ns.is_none() || now_ns - self.failed_ns > FORGET_NS {
            self.began_ns = Some(now_ns);
        }
        self.failed_ns = now_ns;
        self.retry_ns = Some(now_ns.saturating_add(RETRY_NS));
    }

    /// Notes that a connection was accepted, or that none waits.
    pub(crate) fn relieved(&mut self) {
        self.began_ns = None;
    }

    /// Returns how long listeners are still ignored; `None` when they are not.
    pub(crate) fn wait(&self, now_ns: u64) -> Option<Duration> {
        let retry_ns = self.retry_ns?;
        Some(Duration::from_nanos(retry_ns.saturating_sub(now_ns)))
    }

    /// Returns whether the time during which listeners were ignored has just ended.
    pub(crate) fn is_over(&mut self, now_ns: u64) -> bool {
        self.retry_ns
            .take_if(|retry_ns| *retry_ns <= now_ns)
            .is_some()
    }

    /// Returns whether listeners are ignored.
    pub(crate) fn is_on(&self) -> bool {
        self.retry_ns.is_some()
    }

    /// Releases the descriptor in reserve if connections have waited for too long.
    pub(crate) fn take_spare(&mut self, now_ns: u64) -> bool {
        let began_ns = self.began_ns.unwrap_or(now_ns);
        now_ns - began_ns >= SHORTAGE_MAX_NS && self.spare.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn listeners_are_left_alone_for_a_short_while_after_each_failure() {
        let mut shortage = Shortage::default();
        assert_eq!(shortage.wait(7), None);
        assert!(!shortage.is_over(7));
        shortage.noticed(1000);
        assert_eq!(shortage.wait(1000), Some(Duration::from_millis(20)));
        assert!(!shortage.is_over(1000 + RETRY_NS - 1));
        assert!(shortage.is_on());
        assert!(shortage.is_over(1000 + RETRY_NS));
        assert!(!shortage.is_on());
        assert_eq!(shortage.wait(1000 + RETRY_NS), None);
    }

    #[test]
    fn nobody_is_turned_away_before_five_seconds_without_a_descriptor() {
        let mut shortage = Shortage::default();
        shortage.prepare();
        let last = |shortage: &mut Shortage, seconds: std::ops::RangeInclusive<u64>| {
            let failures = seconds.clone().map(|second| second * SECOND);
            failures.for_each(|now_ns| shortage.noticed(now_ns));
            seconds.end() * SECOND
        };
        let now_ns = last(&mut shortage, 1..=5);
        assert!(!shortage.take_spare(now_ns));
        // One that was accepted shows that the limit was lifted meanwhile.
        shortage.relieved();
        let now_ns = last(&mut shortage, 6..=10);
        assert!(!shortage.take_spare(now_ns));
        // So does a while without failures.
        let now_ns = last(&mut shortage, 13..=18);
        assert!(!shortage.take_spare(now_ns - 1));
        assert!(shortage.take_spare(now_ns));
        // It is given away once.
        assert!(!shortage.take_spare(now_ns));
        shortage.prepare();
        assert!(shortage.take_spare(now_ns));
    }
}
