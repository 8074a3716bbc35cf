//! Crashes of relays: after which of them there is no next relay.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many crashes within [`WITHIN`] are the last.
const MAX: usize = 3;

/// The time that crashes are counted in.
const WITHIN: Duration = Duration::from_secs(60);

/// The pause after the first crash that counts; each further one takes twice as long.
const PAUSE: Duration = Duration::from_millis(200);

/// So many kills within [`KILLS_WITHIN`] are followed by no pause: an operator's, or what the kernel does when memory is short for a moment.
const KILLS_MAX: usize = 30;

/// The time that kills are counted in.
const KILLS_WITHIN: Duration = Duration::from_secs(10);

/// The pause after each further one.
const KILL_PAUSE: Duration = Duration::from_secs(1);

/// The crashes that count: of relays that had not served yet, and those that nobody wished for. A SIGKILL of one that served is somebody's wish.
#[derive(Debug, Default)]
pub(super) struct Crashes {
    crashes: Vec<Instant>,
    kills: VecDeque<Instant>,
}

impl Crashes {
    /// Notes that a relay has ended. Returns the pause before the next one, or `None` if there is to be none.
    pub(super) fn note(&mut self, was_wished: bool, now: Instant) -> Option<Duration> {
        if was_wished {
            return Some(self.pause_after_kill(now));
        }
        self.crashes
            .retain(|&crash| now.saturating_duration_since(crash) < WITHIN);
        self.crashes.push(now);
        let doublings = u32::try_from(self.crashes.len() - 1).ok()?;
        (self.crashes.len() < MAX).then(|| PAUSE * 2_u32.pow(doublings))
    }

    /// Notes that a relay was killed that served. Where that happens again and again (the kernel wants memory back, and a script ends what it finds) the
    /// next ones do not take the machine.
    fn pause_after_kill(&mut self, now: Instant) -> Duration {
        let old = |kill: &mut Instant| now.saturating_duration_since(*kill) >= KILLS_WITHIN;
        while self.kills.pop_front_if(old).is_some() {}
        if self.kills.len() < KILLS_MAX {
            self.kills.push_back(now);
            return Duration::ZERO;
        }
        KILL_PAUSE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_death_within_a_minute_is_the_last() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut crashes = Crashes::default();
        assert_eq!(crashes.note(false, at(0)), Some(PAUSE));
        assert_eq!(crashes.note(false, at(10)), Some(PAUSE * 2));
        assert_eq!(crashes.note(false, at(61)), Some(PAUSE * 2));
        assert_eq!(crashes.note(false, at(62)), None);
    }

    #[test]
    fn who_kills_a_relay_that_serves_wants_the_next_one() {
        let mut crashes = Crashes::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        // As many as one likes, if each has time to serve.
        for kill in 0..100 {
            assert_eq!(crashes.note(true, at(400 * kill)), Some(Duration::ZERO));
        }
        // In a loop they are followed by pauses, until it has ended.
        for _ in 0..KILLS_MAX {
            crashes.note(true, at(60_000));
        }
        assert_eq!(crashes.note(true, at(60_001)), Some(KILL_PAUSE));
        assert_eq!(crashes.note(true, at(75_000)), Some(Duration::ZERO));
    }
}
