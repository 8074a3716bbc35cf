//! The process-wide limit on grown receive buffers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that the relay sockets of all shards may add to their first receive buffers.
#[derive(Debug)]
pub struct BufferBudget {
    limit: u64,
    /// `used <= limit`
    used: AtomicU64,
}

impl BufferBudget {
    /// A budget of `limit` bytes of `SO_RCVBUF`.
    pub const fn new(limit: u64) -> Self {
        Self {
            limit,
            used: AtomicU64::new(0),
        }
    }

    /// Bytes taken at present.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, or nothing when they do not fit.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
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
    fn takes_up_to_the_limit_and_no_further() {
        let budget = BufferBudget::new(100);
        assert!(budget.take(60));
        assert!(!budget.take(41));
        assert!(!budget.take(u64::MAX));
        assert!(budget.take(40));
        budget.give_back(60);
        assert_eq!(budget.used(), 40);
    }
}
