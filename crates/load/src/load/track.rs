//! What became of the packets of one session, in bounded memory.
//!
//! * *Duplicate*: a sequence number that was seen before (RFC 5560).
//! * *Reordered*: a new packet with a lower sequence number than one seen before it (RFC 4737 §3.3).
//! * *Lost*: sent and not received; the difference of two counts, once nothing is under way.
//!
//! A window of sequence numbers behind the highest one is remembered. A packet from before the window counts as received and
//! reordered; should it be there for the second time, it is not told from the first.

/// Counts of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Different packets received intact.
    pub(super) received: u64,
    pub(super) duplicated: u64,
    pub(super) reordered: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.received += other.received;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
    }
}

/// Sequence numbers seen in one session.
#[derive(Debug)]
pub(super) struct Track {
    /// A bit for each number of the window, at its remainder.
    seen: Box<[u64]>,
    /// One more than the highest number seen.
    next: u64,
    counts: Counts,
}

impl Track {
    /// Remembers `window` sequence numbers, a power of two and at least 64.
    pub(super) fn new(window: usize) -> Self {
        Self {
            seen: vec![0; (window.next_power_of_two() / 64).max(1)].into(),
            next: 0,
            counts: Counts::default(),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    fn window(&self) -> u64 {
        self.seen.len() as u64 * 64
    }

    #[inline]
    fn bit(&mut self, sequence: u64) -> (&mut u64, u64) {
        let at = sequence & (self.window() - 1);
        // Within the box: its length is the window's 64th part.
        let word = &mut self.seen[usize::try_from(at / 64).unwrap_or(0)];
        (word, 1 << (at % 64))
    }

    /// Takes in a packet; `counts` says whether it is one of those that are counted.
    #[inline]
    pub(super) fn receive(&mut self, sequence: u64, counts: bool) -> bool {
        let is_late = sequence < self.next;
        if is_late && self.next - sequence > self.window() {
            if counts {
                self.counts.received += 1;
                self.counts.reordered += 1;
            }
            return true;
        }
        if !is_late {
            self.forget_until(sequence);
            self.next = sequence + 1;
        }
        let (word, bit) = self.bit(sequence);
        let is_duplicate = *word & bit != 0;
        *word |= bit;
        if counts {
            if is_duplicate {
                self.counts.duplicated += 1;
            } else {
                self.counts.received += 1;
                self.counts.reordered += u64::from(is_late);
            }
        }
        !is_duplicate
    }

    /// Makes room for the numbers from the highest seen to `sequence`.
    #[inline]
    fn forget_until(&mut self, sequence: u64) {
        if sequence - self.next >= self.window() {
            self.seen.fill(0);
            return;
        }
        for number in self.next..=sequence {
            let (word, bit) = self.bit(number);
            *word &= !bit;
        }
    }
}

/// Packets of the measured window that a peer sent by itself. How many it sent is known from the first that came to the first that came after
/// the window, or to the last within it.
#[derive(Debug)]
pub(super) struct ByItself {
    track: Track,
    /// Lowest number that counted, and the first that does not any more.
    span: Option<(u64, u64)>,
    is_over: bool,
}

impl ByItself {
    pub(super) fn new(window: usize) -> Self {
        Self {
            track: Track::new(window),
            span: None,
            is_over: false,
        }
    }

    /// Takes in a packet; `counts` says whether it came within the window.
    pub(super) fn receive(&mut self, sequence: u64, counts: bool) {
        self.track.receive(sequence, counts);
        let Some((low, end)) = self.span else {
            self.span = counts.then_some((sequence, sequence + 1));
            return;
        };
        if counts {
            self.span = Some((low.min(sequence), end.max(sequence + 1)));
        } else if !self.is_over {
            self.is_over = true;
            self.span = Some((low, end.max(sequence)));
        }
    }

    /// Returns what came, and how many numbers did not.
    pub(super) fn counts(&self) -> (Counts, u64) {
        let counts = self.track.counts();
        let sent = self.span.map_or(0, |(low, end)| end - low);
        (counts, sent.saturating_sub(counts.received))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(window: usize, sequences: impl IntoIterator<Item = u64>) -> Counts {
        let mut track = Track::new(window);
        for sequence in sequences {
            track.receive(sequence, true);
        }
        track.counts()
    }

    fn expected(received: u64, duplicated: u64, reordered: u64) -> Counts {
        Counts {
            received,
            duplicated,
            reordered,
        }
    }

    #[test]
    fn of_what_a_peer_sends_by_itself_gaps_are_lost_and_what_came_outside_the_window_is_nothing() {
        let mut by_itself = ByItself::new(64);
        by_itself.receive(3, false);
        for sequence in [10, 11, 13, 12, 13, 16] {
            by_itself.receive(sequence, true);
        }
        assert_eq!(by_itself.counts(), (expected(5, 1, 1), 2));
        // 17 and 18 were due before 19 came, after the window.
        by_itself.receive(19, false);
        by_itself.receive(30, false);
        assert_eq!(by_itself.counts(), (expected(5, 1, 1), 4));
        assert_eq!(ByItself::new(64).counts(), (expected(0, 0, 0), 0));
    }

    #[test]
    fn packets_in_order_are_received() {
        assert_eq!(counts(64, 0..1_000), expected(1_000, 0, 0));
    }

    #[test]
    fn gaps_duplicates_and_late_packets_are_told_apart() {
        assert_eq!(counts(64, [0, 1, 3, 4]), expected(4, 0, 0));
        assert_eq!(counts(64, [0, 1, 3, 2, 4]), expected(5, 0, 1));
        assert_eq!(counts(64, [0, 1, 1, 0, 2]), expected(3, 2, 0));
        assert_eq!(counts(64, [5, 4, 4, 3, 5]), expected(3, 2, 2));
    }

    #[test]
    fn the_place_of_an_old_number_is_free_for_a_new_one() {
        assert_eq!(counts(64, [0, 64, 128, 129, 64 * 100]), expected(5, 0, 0));
        // 1 and 65 share a place.
        assert_eq!(counts(64, [1, 64, 65, 65]), expected(3, 1, 0));
        assert_eq!(counts(64, [0, 63, 63, 0]), expected(2, 2, 0));
    }

    #[test]
    fn what_is_older_than_the_window_was_received_late() {
        assert_eq!(counts(64, [0, 1_000, 900, 900]), expected(4, 0, 2));
    }

    #[test]
    fn packets_outside_the_measurement_are_remembered_and_not_counted() {
        let mut track = Track::new(64);
        assert!(track.receive(0, false));
        assert!(!track.receive(0, true));
        assert_eq!(track.counts(), expected(0, 1, 0));
    }

    /// A model that forgets nothing, against every kind of disorder within the window.
    #[test]
    fn counts_agree_with_a_set_of_all_numbers() {
        use rand::rngs::SmallRng;
        use rand::{Rng as _, SeedableRng as _};
        use std::collections::BTreeSet;
        for seed in 0..50 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut track = Track::new(256);
            let mut seen = BTreeSet::new();
            let mut model = Counts::default();
            for step in 0_u64..2_000 {
                let sequence = (step + 100).saturating_sub(random.random_range(0..100));
                let highest = seen.last().copied();
                if seen.insert(sequence) {
                    model.received += 1;
                    model.reordered += u64::from(highest.is_some_and(|highest| sequence < highest));
                } else {
                    model.duplicated += 1;
                }
                track.receive(sequence, true);
            }
            assert_eq!(track.counts(), model, "seed {seed}");
        }
    }
}
