//! The process-wide limit on the receive buffers of relay sockets.

use std::sync::atomic::{AtomicU64, Ordering};

/// The divisor of what is left that gives the most one socket may hold, so that some is left for later sockets.
const PART: u64 = 16;
/// The same for a socket that has just been opened, of which there may be thousands.
const START_PART: u64 = 32;
/// The divisor of the limit below which what is left is short: idle sockets then give back their parts.
const SHORT_PART: u64 = 4;

/// Bytes that the relay sockets of all shards may add to the receive buffers that are free to each of them.
#[derive(Debug)]
pub struct BufferBudget {
    limit: u64,
    /// `used <= limit`
    used: AtomicU64,
}

impl BufferBudget {
    /// Returns a budget of `limit` bytes of `SO_RCVBUF`.
    pub const fn new(limit: u64) -> Self {
        Self {
            limit,
            used: AtomicU64::new(0),
        }
    }

    /// Returns how many bytes are taken at present.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns whether so little is left that idle sockets are to give back what they hold.
    pub(crate) fn is_short(&self) -> bool {
        self.limit - self.used() < self.limit / SHORT_PART
    }

    /// Takes up to `bytes` for a socket that has just been opened: all of them as long as they are a small part of what is left. Returns how many.
    pub(crate) fn take_start(&self, bytes: u64) -> u64 {
        // guard: V-43-starts
        let part = |used: u64| bytes.min((self.limit - used) / START_PART);
        let before = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                Some(used + part(used))
            });
        before.map_or(0, part)
    }

    /// Takes `bytes` for a socket that holds `held` already, or nothing when both together are more than its part.
    pub(crate) fn take(&self, bytes: u64, held: u64) -> bool {
        let fits = |used: u64| {
            let left = self.limit - used;
            // guard: V-43-buffers
            let fits = bytes.saturating_add(held) <= left / PART;
            fits.then(|| used + bytes)
        };
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .is_ok()
    }

    /// Gives back `bytes` taken before.
    pub(crate) fn give_back(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "more given back than taken");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_takes_its_part_of_what_is_left_and_no_more() {
        let budget = BufferBudget::new(1600);
        assert!(!budget.take(101, 0));
        assert!(budget.take(60, 0));
        // 96 are a part of what is left now.
        assert!(!budget.take(37, 60));
        assert!(budget.take(36, 60));
        assert!(!budget.take(u64::MAX, 96));
        assert!(!budget.take(1, u64::MAX));
        budget.give_back(96);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn later_sockets_start_smaller_and_all_stay_within_the_limit() {
        const FULL: u64 = 576 << 10;
        let budget = BufferBudget::new(1 << 30);
        let starts: Vec<u64> = (0..10_000).map(|_| budget.take_start(FULL)).collect();
        assert_eq!(starts[..1_700], [FULL; 1_700]);
        assert!(starts.is_sorted_by(|earlier, later| earlier >= later));
        assert!(starts[9_999] < 1024, "the last one gets {}", starts[9_999]);
        assert_eq!(starts.iter().sum::<u64>(), budget.used());
        assert!(budget.used() <= 1 << 30);
    }

    #[test]
    fn seventy_sockets_that_take_what_they_can_leave_a_megabyte_to_each_of_ten_more() {
        let budget = BufferBudget::new(256 << 20);
        for _ in 0..70 {
            let mut held = 0;
            for wanted in [192 << 10, 960 << 10, 4032 << 10] {
                if budget.take(wanted - held, held) {
                    held = wanted;
                }
            }
        }
        for _ in 0..10 {
            assert!(budget.take(960 << 10, 0), "{} taken", budget.used());
        }
    }
}
