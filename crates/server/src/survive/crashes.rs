//! Crashes of relays: after which of them there is no next relay.

use std::time::{Duration, Instant};

/// So many crashes within [`WITHIN`] are the last.
const MAX: usize = 3;

/// The time that crashes are counted in.
const WITHIN: Duration = Duration::from_secs(60);

/// The pause after the first crash that counts; each further one takes twice as long.
const PAUSE: Duration = Duration::from_millis(200);

/// The crashes that count: of relays that had not served yet, and those that nobody wished for. A SIGKILL of one that served is somebody's wish.
#[derive(Debug, Default)]
pub(super) struct Crashes(Vec<Instant>);

impl Crashes {
    /// Notes that a relay has ended. Returns the pause before the next one, or `None` if there is to be none.
    pub(super) fn note(&mut self, was_wished: bool, now: Instant) -> Option<Duration> {
        if was_wished {
            return Some(Duration::ZERO);
        }
        self.0
            .retain(|&crash| now.saturating_duration_since(crash) < WITHIN);
        self.0.push(now);
        let doublings = u32::try_from(self.0.len() - 1).ok()?;
        (self.0.len() < MAX).then(|| PAUSE * 2_u32.pow(doublings))
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
        for _ in 0..100 {
            assert_eq!(crashes.note(true, Instant::now()), Some(Duration::ZERO));
        }
    }
}
