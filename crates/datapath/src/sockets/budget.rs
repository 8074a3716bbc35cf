//! The process-wide limit on grown receive buffers.

use std::sync::atomic::{AtomicU64, Ordering};

/// The divisor of what is left that gives the most one socket may hold, so that some is left for later sockets.
const PART: u64 = 16;

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
