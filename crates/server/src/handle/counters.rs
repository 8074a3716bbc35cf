//! Counters of a relay that runs, read where they are written.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use turnbuckle_counters::{Group, Sample};
use turnbuckle_datapath::Counters as DataPathCounters;
use turnbuckle_engine::{Commons, PortCounts, RelayAddress};

use crate::Accounting;
use crate::clock;
use crate::counters::ShardCounters;

/// The counters of one shard. Those of the data path are others after the shard was started anew.
struct Counted {
    shard: Arc<ShardCounters>,
    data_path: RwLock<Arc<DataPathCounters>>,
}

/// The counters of all shards as they are now. Reading them costs the shards nothing.
#[derive(Clone)]
pub struct LiveCounters {
    shards: Arc<[Counted]>,
    commons: Arc<Commons>,
    is_draining: Arc<AtomicBool>,
    /// Keys with a value that holds after a restart.
    restart_pending: Arc<RwLock<Vec<&'static str>>>,
}

impl LiveCounters {
    pub(crate) fn new(
        shards: impl Iterator<Item = (Arc<ShardCounters>, Arc<DataPathCounters>)>,
        commons: Arc<Commons>,
    ) -> Self {
        let shards = shards.map(|(shard, data_path)| Counted {
            shard,
            data_path: RwLock::new(data_path),
        });
        Self {
            shards: shards.collect(),
            commons,
            is_draining: Arc::default(),
            restart_pending: Arc::default(),
        }
    }

    /// Takes note of the counters of a data path that was made anew.
    pub(crate) fn restarted(&self, shard: usize, data_path: Arc<DataPathCounters>) {
        let mut current = self.shards[shard]
            .data_path
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *current = data_path;
    }

    /// Takes note of whether new allocations are refused.
    pub(crate) fn set_draining(&self, is_draining: bool) {
        self.is_draining.store(is_draining, Relaxed);
    }

    /// Returns whether new allocations are refused because the relay drains.
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    /// Takes note of keys whose value in the configuration that was read last holds after a restart.
    pub(crate) fn set_restart_pending(&self, keys: Vec<&'static str>) {
        let mut pending = self
            .restart_pending
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *pending = keys;
    }

    /// Returns the keys whose value in the configuration that was read last holds after a restart.
    pub fn restart_pending(&self) -> Vec<&'static str> {
        let pending = self
            .restart_pending
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        pending.clone()
    }

    /// Returns how many buckets of the budget for strangers are in use, and how many there are. It looks at all of them.
    pub fn unverified_buckets(&self) -> (u64, u64) {
        self.commons.unverified_buckets(clock::time())
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Adds up the counters of all shards. What has gone out or was dropped is read before what has come in, so that never more is gone than has
    /// come: the difference is what is being handled.
    pub fn accounting(&self) -> Accounting {
        Accounting::of_running(self.shards.iter().map(|counted| &*counted.shard))
    }

    /// Adds up the counters of one shard, in the same order.
    pub fn accounting_of(&self, shard: usize) -> Accounting {
        let counted = self.shards.get(shard);
        Accounting::of_running(counted.map(|counted| &*counted.shard))
    }

    /// Shows the counters of the data path of `shard`.
    pub fn visit_data_path(&self, shard: usize, show: &mut dyn FnMut(&'static Group, Sample)) {
        if let Some(counted) = self.shards.get(shard) {
            let data_path = counted
                .data_path
                .read()
                .unwrap_or_else(PoisonError::into_inner);
            let data_path = Arc::clone(&data_path);
            data_path.visit(show);
        }
    }

    /// Returns how many ports of each relay address there are and are taken.
    pub fn ports(&self) -> Vec<(RelayAddress, PortCounts)> {
        self.commons.ports().collect()
    }

    /// Returns the ports that are reserved and wait for their token.
    pub fn reserved_ports(&self) -> usize {
        self.commons.reserved_ports()
    }

    /// Returns the bytes per second that are reserved for allocations, of those that a capacity bounds.
    pub fn bandwidth_reserved(&self) -> u64 {
        self.commons.bandwidth_reserved()
    }
}
