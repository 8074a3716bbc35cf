//! Time as callers count it.

/// Nanoseconds of the caller's monotonic clock.
pub type Nanos = u64;

pub(crate) const SECOND: Nanos = 1_000_000_000;
