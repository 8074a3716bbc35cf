//! What sources that proved nothing have been sent, by all shards together.

use std::collections::BTreeMap;
use std::net::IpAddr;

use turnbuckle_engine::Rate;

use crate::queue::{MS, SECOND};
use crate::violation::{Violation, ensure};

/// The budget drains by steps of a tenth of a second, and time is rounded to them.
const STEP: u64 = 100 * MS;

/// A bucket for each source.
#[derive(Debug)]
pub(super) struct Meter {
    rate: Rate,
    /// Bytes, scaled by the nanoseconds of a second, and when they were counted.
    buckets: BTreeMap<IpAddr, (u128, u64)>,
}

impl Meter {
    pub(super) fn new(rate: Rate) -> Self {
        Self {
            rate,
            buckets: BTreeMap::new(),
        }
    }

    /// Counts an answer to a source.
    pub(super) fn sent(&mut self, now: u64, source: IpAddr, len: usize) -> Result<(), Violation> {
        let per_s = u128::from(self.rate.per_s);
        let second = u128::from(SECOND);
        let (level, at) = self.buckets.entry(source).or_insert((0, now));
        *level = level.saturating_sub(u128::from(now - *at) * per_s);
        *level += len as u128 * second;
        *at = now;
        let most = u128::from(self.rate.burst) * second + 2 * u128::from(STEP) * per_s;
        ensure(*level <= most, "fairness", || {
            format!(
                "{source} proved nothing and was sent {} bytes at once by all shards, where {} are allowed",
                *level / second,
                self.rate.burst
            )
        })
    }
}
