//! When to pause before reading.
//!
//! A sleep and a wake-up cost many times what one datagram costs, so at high rates the shard reads at a steady tick
//! instead of at every arrival. The pause pays only when it gathers enough, and must not come in the way of a
//! shard that has more to do than time: so it depends on the rate, is skipped after a full batch or a long turn, and ends
//! in blocking when nothing comes. Time is an argument here, in nanoseconds of any monotonic clock.

use std::time::Duration;

/// Datagrams that a pause is to gather; once it does, a longer one only adds delay.
const GATHERED_GOAL: f64 = 32.0;
/// Datagrams that a pause must be expected to gather. Below, the timer costs more than the wake-ups it saves.
const GATHERED_MIN: f64 = 6.0;
/// Pauses are not shorter than this, unless the setting is: trains of one hot flow form within it.
const TICK_MIN_NS: f64 = 200e3;
/// Time over which the rate is averaged: longer than the 20 ms period at which voice flows repeat.
const AVERAGE_NS: f64 = 50e6;
/// Pauses in a row that found nothing, after which the shard blocks.
const EMPTY_TICKS_MAX: u8 = 8;
/// Shorter rests of a pause are not slept: the call itself takes that long.
const PAUSE_MIN_NS: u64 = 20_000;

/// How to wait for the next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Until something is ready.
    Block,
    /// So long, then look without waiting.
    Pause(Duration),
}

/// The moving average and what the last turn was like.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Longest pause, 0 for never.
    delay_ns: u64,
    /// Datagrams, decaying with `AVERAGE_NS`.
    weight: f64,
    /// When the last turn began to read.
    read_ns: u64,
    /// The last turn left more to read than it took.
    full: bool,
    empty_ticks: u8,
}

impl Pace {
    pub(crate) fn new(delay: Duration) -> Self {
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        Self {
            delay_ns,
            weight: 0.0,
            read_ns: 0,
            full: false,
            empty_ticks: 0,
        }
    }

    /// Decides how to wait at `now_ns`, before a turn.
    pub(crate) fn wait(&self, now_ns: u64) -> Wait {
        let rate = self.weight / AVERAGE_NS;
        let delay = self.delay_ns as f64;
        let tick = (GATHERED_GOAL / rate).clamp(TICK_MIN_NS.min(delay), delay);
        // The time since the last reading began counts as part of the pause: reading happens at a steady tick, and a turn
        // that took longer is followed by the next at once.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and at most the delay"
        )]
        let tick_ns = tick as u64;
        let rest_ns = tick_ns.saturating_sub(now_ns.saturating_sub(self.read_ns));
        let pause = !self.full
            && rate * tick >= GATHERED_MIN
            && self.empty_ticks < EMPTY_TICKS_MAX
            && rest_ns >= PAUSE_MIN_NS;
        if pause {
            Wait::Pause(Duration::from_nanos(rest_ns))
        } else {
            Wait::Block
        }
    }

    /// A turn begins to read at `now_ns`.
    pub(crate) fn reading(&mut self, now_ns: u64) {
        let elapsed = now_ns.saturating_sub(self.read_ns) as f64;
        self.weight /= 1.0 + elapsed / AVERAGE_NS;
        self.read_ns = now_ns;
        self.empty_ticks = 0;
    }

    /// A pause found nothing to read at `now_ns`.
    pub(crate) fn found_nothing(&mut self, now_ns: u64) {
        let ticks = self.empty_ticks;
        self.reading(now_ns);
        self.empty_ticks = ticks + 1;
    }

    /// The turn took `datagrams`; `full` if a socket gave as many messages as were asked of it in a deep batch.
    pub(crate) fn turn_ended(&mut self, datagrams: u64, full: bool) {
        self.weight += datagrams as f64;
        self.full = full;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const DELAY: Duration = Duration::from_micros(200);

    /// A shard under `rate` datagrams per second, read every `tick_ns`; returns the pace and the time after one second.
    fn under_load(rate: u64, tick_ns: u64, full: bool) -> (Pace, u64) {
        let mut pace = Pace::new(DELAY);
        let mut now = 0;
        while now < 1_000_000 * US {
            now += tick_ns;
            pace.reading(now);
            pace.turn_ended(rate * tick_ns / 1_000_000_000, full);
        }
        (pace, now)
    }

    #[test]
    fn pauses_only_when_the_rate_fills_the_pause() {
        let (pace, now) = under_load(100_000, 200 * US, false);
        assert_eq!(
            pace.wait(now + 20 * US),
            Wait::Pause(Duration::from_micros(180))
        );
        let (pace, now) = under_load(10_000, 200 * US, false);
        assert_eq!(pace.wait(now + 20 * US), Wait::Block);
    }

    #[test]
    fn a_pause_is_as_long_as_it_takes_to_gather_enough_and_no_longer() {
        let pause_at = |rate: u64| {
            let mut pace = Pace::new(Duration::from_micros(500));
            let mut now = 0;
            while now < 1_000_000 * US {
                now += 500 * US;
                pace.reading(now);
                pace.turn_ended(rate * 500 / 1_000_000, false);
            }
            pace.wait(now)
        };
        let Wait::Pause(pause) = pause_at(100_000) else {
            panic!("32 of 100,000 a second");
        };
        assert!((315..=325).contains(&pause.as_micros()), "{pause:?}");
        for (rate, pause_us) in [(1_000_000, 200), (20_000, 500)] {
            assert_eq!(pause_at(rate), Wait::Pause(Duration::from_micros(pause_us)));
        }
        assert_eq!(pause_at(10_000), Wait::Block);
    }

    #[test]
    fn never_pauses_after_a_full_batch() {
        let (pace, now) = under_load(1_000_000, 200 * US, true);
        assert_eq!(pace.wait(now), Wait::Block);
    }

    #[test]
    fn never_pauses_after_a_turn_as_long_as_the_pause() {
        let (pace, now) = under_load(1_000_000, 200 * US, false);
        assert_eq!(pace.wait(now + 200 * US), Wait::Block);
        assert_eq!(pace.wait(now + 195 * US), Wait::Block);
    }

    #[test]
    fn never_pauses_longer_than_the_setting() {
        let (pace, now) = under_load(1_000_000, 100 * US, false);
        // Even with a clock that went back.
        for at in [now, now - 1, 0] {
            assert!(matches!(pace.wait(at), Wait::Pause(pause) if pause <= DELAY));
        }
    }

    #[test]
    fn blocks_after_eight_empty_pauses_and_pauses_again_when_traffic_returns() {
        let (mut pace, mut now) = under_load(1_000_000, 200 * US, false);
        for _ in 0..EMPTY_TICKS_MAX {
            assert!(matches!(pace.wait(now), Wait::Pause(_)));
            now += 200 * US;
            pace.found_nothing(now);
        }
        assert_eq!(pace.wait(now), Wait::Block);
        pace.reading(now + US);
        pace.turn_ended(10, false);
        assert!(matches!(pace.wait(now + US), Wait::Pause(_)));
    }

    #[test]
    fn forgets_a_rate_that_has_ended() {
        let (mut pace, now) = under_load(200_000, 200 * US, false);
        let later = now + 1_000_000 * US;
        pace.reading(later);
        pace.turn_ended(1, false);
        assert_eq!(pace.wait(later), Wait::Block);
    }

    #[test]
    fn zero_turns_it_off() {
        let mut pace = Pace::new(Duration::ZERO);
        pace.reading(1);
        pace.turn_ended(u64::from(u32::MAX), false);
        assert_eq!(pace.wait(1), Wait::Block);
    }
}
