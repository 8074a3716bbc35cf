//! When to pause before reading.
//!
//! A sleep and a wake-up cost many times what one datagram costs, so a shard that is short of CPU time reads at a steady
//! tick instead of at every arrival. A pause is delay, though, and a shard that has CPU time left gains nothing by it that
//! a caller would notice. So by default ([`CoalescePolicy::Latency`]) the pause follows how busy the shard is: there is
//! none below [`BUSY_NO_PAUSE`], the whole above [`BUSY_WHOLE_PAUSE`], and a part in between. As pauses make a shard less
//! busy, a load between the two settles at a part, without switching to and fro.
//!
//! Busy is the time from reading to the next wait, as a part of all time, by the clock that a turn reads anyway. A shard
//! that is kept from its CPU during a turn looks busy by that, and rightly: it has no time left. [`WAIT_COST_NS`] of each wait
//! count as busy, because waiting and waking take that, so that waits which end at once do not look like rest.
//!
//! What the kernel does for datagrams that arrive it does in interrupts, which look like rest if they fall into a wait. So from
//! [`RATE_NO_PAUSE`] on the rate counts too, whatever the thread sees of the load.
//!
//! The pause pays only when it gathers enough, and must not come in the way of a shard that has more to do than time: it
//! depends on the rate, is skipped after a full batch or a long turn, and ends in blocking when nothing comes. Time is an
//! argument here, in nanoseconds of any monotonic clock.

use std::time::Duration;

/// Datagrams that a pause is to gather; once it does, a longer one only adds delay.
const GATHERED_GOAL: f64 = 32.0;
/// Datagrams that a pause must be expected to gather. Below, the timer costs more than the wake-ups it saves.
const GATHERED_MIN: f64 = 6.0;
/// Whole pauses are not shorter than this, unless the setting is: trains of one hot flow form within it.
const TICK_MIN_NS: f64 = 200e3;
/// Time over which the rate and the business are averaged: longer than the 20 ms period at which voice flows repeat.
const AVERAGE_NS: f64 = 50e6;
/// Pauses in a row that found nothing, after which the shard blocks.
const EMPTY_TICKS_MAX: u8 = 8;
/// Shorter rests of a pause are not slept: the call itself takes that long.
const PAUSE_MIN_NS: u64 = 20_000;
/// Part of its time up to which a shard does not pause for [`CoalescePolicy::Latency`].
const BUSY_NO_PAUSE: f64 = 0.6;
/// Part of its time from which on it makes whole pauses.
const BUSY_WHOLE_PAUSE: f64 = 0.8;
/// Datagrams per second up to which the rate says nothing about how busy the CPU is: at 1.5 us of the kernel's work for each
/// (docs/decisions/0022), three eighths of the CPU.
const RATE_NO_PAUSE: f64 = 250e3;
/// Datagrams per second from which on pauses are whole: the kernel's work alone is three quarters of the CPU.
const RATE_WHOLE_PAUSE: f64 = 500e3;
/// Time of each wait that is work: the call, going to sleep and waking up.
const WAIT_COST_NS: u64 = 2_000;

/// What pauses before reading are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CoalescePolicy {
    /// They save CPU time whenever they can, also where there is plenty of it.
    Cpu,
    /// They save CPU time where it is short; a shard that has time left reads at once.
    #[default]
    Latency,
}

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
    policy: CoalescePolicy,
    /// Longest pause, 0 for never.
    delay_ns: u64,
    /// Datagrams, decaying with `AVERAGE_NS`.
    weight: f64,
    /// Time that was not spent waiting, decaying with `AVERAGE_NS`, nanoseconds.
    busy_ns: f64,
    /// When the last turn began to read.
    read_ns: u64,
    /// When the shard began to wait for the next one.
    wait_ns: u64,
    /// The last turn left more to read than it took.
    full: bool,
    empty_ticks: u8,
}

impl Pace {
    pub(crate) fn new(policy: CoalescePolicy, delay: Duration) -> Self {
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        Self {
            policy,
            delay_ns,
            weight: 0.0,
            busy_ns: 0.0,
            read_ns: 0,
            wait_ns: 0,
            full: false,
            empty_ticks: 0,
        }
    }

    /// Decides how to wait at `now_ns`, before a turn.
    pub(crate) fn wait(&mut self, now_ns: u64) -> Wait {
        self.wait_ns = now_ns;
        let rate = self.weight / AVERAGE_NS;
        let delay = self.delay_ns as f64;
        let whole = (GATHERED_GOAL / rate).clamp(TICK_MIN_NS.min(delay), delay);
        let tick = whole * self.share();
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

    /// Returns the part of a whole pause that the shard makes.
    fn share(&self) -> f64 {
        match self.policy {
            CoalescePolicy::Cpu => 1.0,
            CoalescePolicy::Latency => {
                let busy = self.busy_ns / AVERAGE_NS;
                let per_second = self.weight / AVERAGE_NS * 1e9;
                let by_time = (busy - BUSY_NO_PAUSE) / (BUSY_WHOLE_PAUSE - BUSY_NO_PAUSE);
                let by_rate = (per_second - RATE_NO_PAUSE) / (RATE_WHOLE_PAUSE - RATE_NO_PAUSE);
                by_time.max(by_rate).clamp(0.0, 1.0)
            }
        }
    }

    /// Returns when the last turn began to read.
    pub(crate) fn read_ns(&self) -> u64 {
        self.read_ns
    }

    /// Notes that a turn begins to read at `now_ns`.
    pub(crate) fn reading(&mut self, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.read_ns);
        let waited_ns = now_ns.saturating_sub(self.wait_ns);
        let rested_ns = waited_ns.saturating_sub(WAIT_COST_NS);
        let decay = 1.0 + elapsed_ns as f64 / AVERAGE_NS;
        self.weight /= decay;
        self.busy_ns = (self.busy_ns + elapsed_ns.saturating_sub(rested_ns) as f64) / decay;
        self.read_ns = now_ns;
        self.empty_ticks = 0;
    }

    /// Notes that a pause found nothing to read at `now_ns`.
    pub(crate) fn found_nothing(&mut self, now_ns: u64) {
        let ticks = self.empty_ticks;
        self.reading(now_ns);
        self.empty_ticks = ticks + 1;
    }

    /// Notes that the turn took `datagrams`; `full` if a socket returned as many messages as a deep batch requested.
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

    /// Runs a shard under `rate` datagrams per second, read every `tick_ns`. Returns the pace and the time after one second.
    fn under_load(rate: u64, tick_ns: u64, full: bool) -> (Pace, u64) {
        let mut pace = Pace::new(CoalescePolicy::Cpu, DELAY);
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
        let (mut pace, now) = under_load(100_000, 200 * US, false);
        assert_eq!(
            pace.wait(now + 20 * US),
            Wait::Pause(Duration::from_micros(180))
        );
        let (mut pace, now) = under_load(10_000, 200 * US, false);
        assert_eq!(pace.wait(now + 20 * US), Wait::Block);
    }

    #[test]
    fn a_pause_is_as_long_as_it_takes_to_gather_enough_and_no_longer() {
        let pause_at = |rate: u64| {
            let mut pace = Pace::new(CoalescePolicy::Cpu, Duration::from_micros(500));
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
        let (mut pace, now) = under_load(1_000_000, 200 * US, true);
        assert_eq!(pace.wait(now), Wait::Block);
    }

    #[test]
    fn never_pauses_after_a_turn_as_long_as_the_pause() {
        let (mut pace, now) = under_load(1_000_000, 200 * US, false);
        assert_eq!(pace.wait(now + 200 * US), Wait::Block);
        assert_eq!(pace.wait(now + 195 * US), Wait::Block);
    }

    #[test]
    fn never_pauses_longer_than_the_setting() {
        let (mut pace, now) = under_load(1_000_000, 100 * US, false);
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
        for policy in [CoalescePolicy::Cpu, CoalescePolicy::Latency] {
            let mut pace = Pace::new(policy, Duration::ZERO);
            pace.reading(1);
            pace.turn_ended(u64::from(u32::MAX), false);
            assert_eq!(pace.wait(1), Wait::Block);
        }
    }

    /// What came of a second under an even load.
    struct Second {
        /// Pauses made in the last tenth of it.
        pauses: u32,
        /// Longest pause in the last tenth, nanoseconds.
        longest_ns: u64,
        /// Mean time from arrival to reading in the last tenth, nanoseconds.
        delay_ns: u64,
        /// Part of the last tenth that was not spent waiting.
        busy: f64,
    }

    /// Runs a shard whose turns take `turn_ns` and `datagram_ns` more for each of `rate` datagrams a second. After each turn another
    /// program has the CPU for `stolen_ns`, before the shard comes to wait.
    fn run(
        policy: CoalescePolicy,
        rate: u64,
        (turn_ns, datagram_ns): (u64, u64),
        stolen_ns: u64,
    ) -> Second {
        const SECOND: u64 = 1_000_000_000;
        const JUDGED: u64 = SECOND * 9 / 10;
        let mut pace = Pace::new(policy, Duration::from_micros(500));
        let arrives = |number: u64| number * SECOND / rate;
        let (mut now, mut next, mut worked_ns, mut read) = (0, 1, 0, 0_u64);
        let mut second = Second {
            pauses: 0,
            longest_ns: 0,
            delay_ns: 0,
            busy: 0.0,
        };
        while now < SECOND {
            let is_judged = now >= JUDGED;
            match pace.wait(now) {
                Wait::Block => now = now.max(arrives(next)),
                Wait::Pause(pause) => {
                    let pause_ns = u64::try_from(pause.as_nanos()).unwrap();
                    now += pause_ns;
                    if is_judged {
                        second.pauses += 1;
                        second.longest_ns = second.longest_ns.max(pause_ns);
                    }
                }
            }
            now += WAIT_COST_NS;
            let mut taken = 0;
            let mut delay_ns = 0;
            while arrives(next) <= now && taken < 64 {
                delay_ns += now - arrives(next);
                (next, taken) = (next + 1, taken + 1);
            }
            if taken == 0 {
                pace.found_nothing(now);
                continue;
            }
            pace.reading(now);
            pace.turn_ended(taken, taken == 64);
            let work_ns = turn_ns + taken * datagram_ns;
            now += work_ns + stolen_ns;
            if is_judged {
                worked_ns += work_ns + WAIT_COST_NS;
                second.delay_ns += delay_ns;
                read += taken;
            }
        }
        second.delay_ns /= read;
        second.busy = worked_ns as f64 / (now - JUDGED) as f64;
        second
    }

    /// 3 us for each turn, 3 us for each datagram.
    const COST: (u64, u64) = (3 * US, 3 * US);

    #[test]
    fn a_shard_that_has_time_left_reads_at_once_and_for_cpu_it_pauses() {
        for rate in [1_000, 10_000, 30_000, 60_000] {
            let second = run(CoalescePolicy::Latency, rate, COST, 0);
            assert!(second.busy < BUSY_NO_PAUSE, "{rate}: {}", second.busy);
            assert_eq!(second.pauses, 0, "{rate}");
            assert_eq!(second.delay_ns, WAIT_COST_NS, "{rate}");
        }
        assert!(run(CoalescePolicy::Cpu, 30_000, COST, 0).longest_ns > 400 * US);
    }

    #[test]
    fn pauses_grow_with_the_load_until_they_are_whole() {
        let delays_ns = [60_000, 120_000, 160_000, 200_000, 240_000]
            .map(|rate| run(CoalescePolicy::Latency, rate, COST, 0).delay_ns);
        assert!(delays_ns.is_sorted(), "{delays_ns:?}");
        let for_cpu = run(CoalescePolicy::Cpu, 260_000, COST, 0);
        let for_latency = run(CoalescePolicy::Latency, 260_000, COST, 0);
        assert!(for_latency.busy >= BUSY_WHOLE_PAUSE, "{}", for_latency.busy);
        assert_eq!(for_latency.longest_ns, for_cpu.longest_ns);
    }

    #[test]
    fn a_load_in_between_settles_at_a_part_of_a_pause() {
        let second = run(CoalescePolicy::Latency, 140_000, COST, 0);
        assert!(second.busy > BUSY_NO_PAUSE && second.busy < BUSY_WHOLE_PAUSE);
        let whole = run(CoalescePolicy::Cpu, 140_000, COST, 0);
        assert!(
            second.delay_ns < whole.delay_ns / 2,
            "{} {}",
            second.delay_ns,
            whole.delay_ns
        );
    }

    #[test]
    fn a_rate_that_keeps_the_kernel_busy_makes_pauses_though_the_thread_rests() {
        const LIGHT: (u64, u64) = (US, US / 10);
        let at = |rate| run(CoalescePolicy::Latency, rate, LIGHT, 0);
        assert_eq!(at(200_000).pauses, 0);
        let flood = at(600_000);
        assert!(flood.busy < BUSY_NO_PAUSE, "{}", flood.busy);
        let whole = run(CoalescePolicy::Cpu, 600_000, LIGHT, 0);
        assert_eq!(flood.longest_ns, whole.longest_ns);
    }

    #[test]
    fn a_shard_that_others_keep_from_its_cpu_is_busy() {
        assert_eq!(run(CoalescePolicy::Latency, 40_000, COST, 0).pauses, 0);
        assert!(run(CoalescePolicy::Latency, 40_000, COST, 17 * US).pauses > 0);
    }

    #[test]
    fn waits_that_end_at_once_are_no_rest() {
        let mut pace = Pace::new(CoalescePolicy::Latency, DELAY);
        let mut now = 0;
        while now < 1_000_000 * US {
            let _ = pace.wait(now);
            now += WAIT_COST_NS;
            pace.reading(now);
            pace.turn_ended(1, false);
            now += US;
        }
        assert!(pace.share() >= 1.0);
    }

    #[test]
    fn rest_is_noticed_within_a_tenth_of_a_second() {
        let mut pace = Pace::new(CoalescePolicy::Latency, DELAY);
        let _ = pace.wait(1_000_000 * US);
        pace.reading(1_000_000 * US);
        assert!(pace.share() >= 1.0);
        let _ = pace.wait(1_000_000 * US);
        pace.reading(1_100_000 * US);
        assert!(pace.share() <= 0.0);
    }
}
