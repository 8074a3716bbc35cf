//! What a listener thread leaves.

use crate::load::figures::{Allocations, Delays};
use crate::load::moves::Moved;
use crate::load::track::Counts;

/// What a listener thread leaves.
#[derive(Debug)]
pub(in crate::load) struct Outcome {
    pub(in crate::load) received: Received,
    pub(in crate::load) delays: Delays,
    pub(in crate::load) allocations: Allocations,
    pub(in crate::load) moved: Moved,
}

/// What arrived.
#[derive(Debug, Default)]
pub(in crate::load) struct Received {
    pub(in crate::load) counts: Counts,
    /// What peers sent by themselves, and what of it was lost.
    pub(in crate::load) by_itself: Option<(Counts, u64)>,
    pub(in crate::load) bytes: u64,
    pub(in crate::load) corrupted: u64,
    /// Messages of any kind.
    pub(in crate::load) arrived: u64,
}

impl Outcome {
    pub(in crate::load) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            received: Received::default(),
            delays: Delays::new()?,
            allocations: Allocations::default(),
            moved: Moved::default(),
        })
    }

    pub(in crate::load) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        let (sum, more) = (&mut self.received, &other.received);
        sum.counts.add(more.counts);
        if let Some((counts, lost)) = more.by_itself {
            sum.add_by_itself(counts, lost);
        }
        sum.bytes += more.bytes;
        sum.corrupted += more.corrupted;
        sum.arrived += more.arrived;
        self.delays.add(&other.delays)?;
        self.allocations.add(&other.allocations);
        self.moved.add(other.moved);
        Ok(())
    }
}

impl Received {
    pub(super) fn add_by_itself(&mut self, counts: Counts, lost: u64) {
        let (sum, sum_of_lost) = self.by_itself.get_or_insert_default();
        sum.add(counts);
        *sum_of_lost += lost;
    }
}
