//! A hierarchical timer wheel: at most one timer per key, insertion and removal in constant time, no scans.
//!
//! Seven levels of 64 slots; a slot of level n spans 64^n ticks. A timer sits at the lowest level at which its tick and the
//! wheel's tick differ, so every timer moves down at most six times. Timers never fire early, and at most one tick
//! (134 ms) late.

use crate::time::Time;

const TICK_SHIFT: u32 = 27; // 2^27 ns = 134 ms
const LEVELS: usize = 7; // 7 * 6 + 27 bits cover all of `Time`
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const NIL: u32 = u32::MAX;
const NO_SLOT: u16 = u16::MAX;

const _: () = assert!(LEVELS * SLOT_BITS as usize + TICK_SHIFT as usize >= u64::BITS as usize);

/// Timers by key; keys are small numbers.
#[derive(Debug)]
pub struct Wheel {
    tick: u64,
    occupied: [u64; LEVELS],
    heads: Box<[u32; LEVELS * SLOTS]>,
    nodes: Vec<Node>,
}

#[derive(Clone, Debug)]
struct Node {
    tick: u64,
    previous: u32,
    next: u32,
    slot: u16,
}

const IDLE: Node = Node {
    tick: 0,
    previous: NIL,
    next: NIL,
    slot: NO_SLOT,
};

impl Wheel {
    /// Makes a wheel without timers.
    pub fn new(now: Time) -> Self {
        Self {
            tick: now.as_nanos() >> TICK_SHIFT,
            occupied: [0; LEVELS],
            heads: Box::new([NIL; LEVELS * SLOTS]),
            nodes: Vec::new(),
        }
    }

    /// Sets the timer of `key`, in place of the one it may have.
    pub fn schedule(&mut self, key: u32, at: Time) {
        if self.nodes.len() <= key as usize {
            self.nodes.resize(key as usize + 1, IDLE);
        }
        self.unlink(key);
        // mutant: timer-a-tick-early
        self.nodes[key as usize].tick = at.as_nanos().div_ceil(1 << TICK_SHIFT);
        self.link(key);
    }

    /// Removes the timer of `key`, if it has one.
    pub fn cancel(&mut self, key: u32) {
        // mutant: timer-not-cancelled
        if (key as usize) < self.nodes.len() {
            self.unlink(key);
        }
    }

    /// Returns a time no later than the first timer. It is in the past exactly when something is left to do.
    pub fn next_timeout(&self) -> Option<Time> {
        let (_, tick) = self.next_slot()?;
        Some(Time::from_nanos(tick.saturating_mul(1 << TICK_SHIFT)))
    }

    /// Takes one timer that is due. Every step costs one of `budget`; at zero it stops, and what is left stays due.
    pub fn pop_due(&mut self, now: Time, budget: &mut u32) -> Option<u32> {
        let now_tick = now.as_nanos() >> TICK_SHIFT;
        while *budget > 0 {
            match self.next_slot() {
                Some((slot, tick)) if tick <= now_tick => {
                    // mutant: timers-without-budget
                    *budget -= 1;
                    self.tick = self.tick.max(tick);
                    let key = self.heads[slot];
                    self.unlink(key);
                    if slot < SLOTS {
                        return Some(key);
                    }
                    self.link(key); // one level down, or more
                }
                _ => {
                    self.tick = self.tick.max(now_tick); // every slot left starts later than this
                    return None;
                }
            }
        }
        None
    }

    /// Returns the slot that starts first, and its first tick. Of slots that start together the highest level comes first, so
    /// that its timers are below before the wheel moves on.
    fn next_slot(&self) -> Option<(usize, u64)> {
        let mut first: Option<(usize, u64)> = None;
        for (level, &occupied) in self.occupied.iter().enumerate() {
            if occupied == 0 {
                continue;
            }
            // All timers of a level lie in slots from the current one on: they share the wheel's higher digits.
            let index = occupied.trailing_zeros();
            let shift = SLOT_BITS * u32::try_from(level).unwrap_or(0);
            let above = self.tick.checked_shr(shift + SLOT_BITS).unwrap_or(0);
            let start = ((above << SLOT_BITS) | u64::from(index)) << shift;
            if first.is_none_or(|(_, earliest)| start <= earliest) {
                first = Some((level * SLOTS + index as usize, start));
            }
        }
        first
    }

    fn link(&mut self, key: u32) {
        let tick = self.nodes[key as usize].tick.max(self.tick);
        let differing = (tick ^ self.tick) | (SLOTS as u64 - 1);
        let level = differing.ilog2() / SLOT_BITS;
        let index = (tick >> (level * SLOT_BITS)) & (SLOTS as u64 - 1);
        self.occupied[level as usize] |= 1 << index;
        let slot = level as usize * SLOTS + usize::try_from(index).unwrap_or(0);
        let head = self.heads[slot];
        if head != NIL {
            self.nodes[head as usize].previous = key;
        }
        let node = &mut self.nodes[key as usize];
        node.previous = NIL;
        node.next = head;
        node.slot = u16::try_from(slot).unwrap_or(NO_SLOT);
        self.heads[slot] = key;
    }

    fn unlink(&mut self, key: u32) {
        let Node {
            previous,
            next,
            slot,
            ..
        } = self.nodes[key as usize];
        if slot == NO_SLOT {
            return;
        }
        if next != NIL {
            self.nodes[next as usize].previous = previous;
        }
        if previous != NIL {
            self.nodes[previous as usize].next = next;
        } else {
            let slot = usize::from(slot);
            self.heads[slot] = next;
            if next == NIL {
                self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
            }
        }
        self.nodes[key as usize].slot = NO_SLOT;
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::collections::BTreeMap;

    use super::*;

    const TICK: Duration = Duration::from_nanos(1 << TICK_SHIFT);

    fn all_due(wheel: &mut Wheel, now: Time) -> Vec<u32> {
        let mut budget = u32::MAX;
        core::iter::from_fn(|| wheel.pop_due(now, &mut budget)).collect()
    }

    #[test]
    fn a_timer_never_fires_early_and_at_most_one_tick_late() {
        for seconds in [
            0,
            1,
            8,
            9,
            300,
            549,
            550,
            600,
            3_600,
            36_000,
            1_000_000,
            4_000_000_000,
        ] {
            let mut wheel = Wheel::new(Time::from_secs(77));
            let due = Time::from_secs(77 + seconds);
            wheel.schedule(3, due);
            let mut woken = 0;
            let fired = loop {
                let at = wheel.next_timeout().unwrap();
                woken += 1;
                if all_due(&mut wheel, at) == [3] {
                    break at;
                }
            };
            assert!(
                fired >= due && fired.since(due) <= TICK,
                "{seconds} s: {fired:?}"
            );
            assert!(woken <= LEVELS, "{seconds} s: woken {woken} times");
            assert_eq!(wheel.next_timeout(), None);
        }
    }

    #[test]
    fn a_timer_in_the_past_is_due_at_once() {
        let mut wheel = Wheel::new(Time::from_secs(100));
        wheel.schedule(0, Time::from_secs(5));
        assert!(wheel.next_timeout().unwrap() <= Time::from_secs(100));
        assert_eq!(all_due(&mut wheel, Time::from_secs(100)), [0]);
    }

    #[test]
    fn a_timer_can_be_moved_and_cancelled() {
        let mut wheel = Wheel::new(Time::ZERO);
        wheel.schedule(1, Time::from_secs(10));
        wheel.schedule(2, Time::from_secs(10));
        wheel.schedule(1, Time::from_secs(500));
        wheel.cancel(2);
        wheel.cancel(9);
        assert_eq!(all_due(&mut wheel, Time::from_secs(499)), [0_u32; 0]);
        assert_eq!(all_due(&mut wheel, Time::from_secs(501)), [1]);
    }

    #[test]
    fn the_work_of_one_call_is_bounded() {
        let mut wheel = Wheel::new(Time::ZERO);
        for key in 0..1_000 {
            wheel.schedule(key, Time::from_secs(300));
        }
        let now = Time::from_secs(301);
        let mut fired = 0;
        let mut calls = 0;
        while wheel.next_timeout().is_some_and(|at| at <= now) {
            let mut budget = 100;
            calls += 1;
            while wheel.pop_due(now, &mut budget).is_some() {
                fired += 1;
            }
        }
        assert_eq!(fired, 1_000);
        assert!(
            (20..=30).contains(&calls),
            "{calls} calls for 1000 timers that move once or twice"
        );
    }

    #[test]
    fn random_histories_agree_with_a_sorted_map() {
        let mut numbers = 1_u64;
        let mut below = |bound: u64| {
            numbers = numbers
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (numbers >> 33) % bound
        };
        let mut wheel = Wheel::new(Time::ZERO);
        let mut model: BTreeMap<u32, Time> = BTreeMap::new();
        let mut now = Time::ZERO;
        for _ in 0..200_000 {
            let key = u32::try_from(below(200)).unwrap();
            match below(4) {
                0 | 1 => {
                    let at = now
                        + Duration::from_millis(below(if key < 100 { 20_000 } else { 5_000_000 }));
                    wheel.schedule(key, at);
                    model.insert(key, at);
                }
                2 => {
                    wheel.cancel(key);
                    model.remove(&key);
                }
                _ => {
                    now = now + Duration::from_millis(below(3_000));
                    for key in all_due(&mut wheel, now) {
                        let at = model
                            .remove(&key)
                            .expect("fires once, and only if it is set");
                        assert!(at <= now, "never early");
                    }
                    let overdue = model.values().find(|at| now.since(**at) > TICK);
                    assert_eq!(overdue, None, "at most one tick late");
                }
            }
        }
    }
}
