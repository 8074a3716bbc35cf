//! Limits how often a shard may fail, and decides when it is started again.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of failures within [`WINDOW`] that end the process, so that a service manager notices repeated failures.
const FAILURES_MAX: usize = 5;
const WINDOW: Duration = Duration::from_secs(60);
/// The pause before the second start within the window; each later one is twice as long.
const PAUSE: Duration = Duration::from_millis(100);

/// The failures of one shard.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// When it failed, within the window.
    recent: VecDeque<Instant>,
    /// When it is to be started anew.
    due: Option<Instant>,
}

impl Failures {
    /// Notes a failure. Returns whether the shard may be started anew.
    pub(crate) fn note(&mut self, now: Instant) -> bool {
        while self
            .recent
            .front()
            .is_some_and(|&first| now.saturating_duration_since(first) >= WINDOW)
        {
            self.recent.pop_front();
        }
        let earlier = self.recent.len();
        self.recent.push_back(now);
        let pause = match earlier {
            0 => Duration::ZERO,
            _ => PAUSE * (1 << (earlier - 1).min(8)),
        };
        // guard: V-63-again
        let may_start = self.recent.len() < FAILURES_MAX;
        self.due = may_start.then_some(now + pause);
        may_start
    }

    /// Returns whether one more failure now would end the process.
    pub(crate) fn is_next_the_last(&self) -> bool {
        self.recent.len() + 1 >= FAILURES_MAX
    }

    /// Returns when the shard is to be started again, if it has failed.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Notes that it was started.
    pub(crate) fn started(&mut self) {
        self.due = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_fails_now_and_then_is_started_anew_at_once_and_one_that_fails_again_and_again_is_not()
     {
        let mut failures = Failures::default();
        let begin = Instant::now();
        for hour in 0..10 {
            let now = begin + Duration::from_secs(3600 * hour);
            assert!(failures.note(now));
            assert_eq!(failures.due(), Some(now));
            failures.started();
            assert_eq!(failures.due(), None);
        }
        let now = begin + Duration::from_secs(360_000);
        for pause_ms in [0, 100, 200, 400] {
            assert!(failures.note(now));
            assert_eq!(failures.due(), Some(now + Duration::from_millis(pause_ms)));
            failures.started();
        }
        assert!(!failures.note(now + Duration::from_secs(59)));
        assert_eq!(failures.due(), None);
    }
}
