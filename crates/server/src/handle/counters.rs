//! Counters of a relay that runs, read where they are written.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use turnbuckle_counters::{Group, Sample};
use turnbuckle_datapath::Counters as DataPathCounters;
use turnbuckle_engine::{Commons, PortCounts, RelayAddress, Time};

use crate::Accounting;
use crate::binding;
use crate::clock;
use crate::counters::ShardCounters;

/// The counters of one shard. Those of the data path are others after the shard was started anew.
struct Counted {
    shard: Arc<ShardCounters>,
    data_path: RwLock<Arc<DataPathCounters>>,
}

/// How it stands with the user database. Written by the thread that follows it.
#[derive(Debug, Default)]
pub(crate) struct DatabaseState(Mutex<DatabaseSeen>);

#[derive(Clone, Copy, Debug, Default)]
struct DatabaseSeen {
    is_up: bool,
    read: Option<SeenReading>,
    /// Whether rows deny peers; `None` before the first reading.
    denies: Option<bool>,
}

#[derive(Clone, Copy, Debug)]
struct SeenReading {
    /// When it was over.
    ended: Time,
    /// How long before that it began: the rows are as they were then.
    took: Duration,
}

/// How it stands with the user database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseStatus {
    /// Whether it could be read when it was looked at last.
    pub is_up: bool,
    /// How long ago the last reading began, or the last look that found nothing changed; `None` before the first time.
    pub age: Option<Duration>,
}

impl DatabaseState {
    /// Takes note of a reading that is over, at `now`, and began before that as long as it `took`.
    pub(crate) fn was_read(&self, took: Duration, now: Time) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.is_up = true;
        seen.read = Some(SeenReading { ended: now, took });
    }

    /// Takes note of a reading that has failed.
    pub(crate) fn has_failed(&self) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.is_up = false;
    }

    /// Takes note of whether rows deny peers, as far as that is known.
    pub(crate) fn set_denies(&self, denies: Option<bool>) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.denies = denies;
    }

    /// Returns whether rows deny peers; `None` before the first reading.
    pub(crate) fn denies(&self) -> Option<bool> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.denies
    }

    fn status(&self, now: Time) -> DatabaseStatus {
        let seen = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        DatabaseStatus {
            is_up: seen.is_up,
            age: seen.read.map(|read| now.since(read.ended) + read.took),
        }
    }
}

/// The counters of all shards as they are now. Reading them costs the shards nothing.
#[derive(Clone)]
pub struct LiveCounters {
    shards: Arc<[Counted]>,
    commons: Arc<Commons>,
    is_draining: Arc<AtomicBool>,
    /// `None` where no database is configured.
    database: Option<Arc<DatabaseState>>,
    /// Keys with a value that holds after a restart.
    restart_pending: Arc<RwLock<Vec<&'static str>>>,
}

impl LiveCounters {
    pub(crate) fn new(
        shards: impl Iterator<Item = (Arc<ShardCounters>, Arc<DataPathCounters>)>,
        commons: Arc<Commons>,
        database: Option<Arc<DatabaseState>>,
    ) -> Self {
        let shards = shards.map(|(shard, data_path)| Counted {
            shard,
            data_path: RwLock::new(data_path),
        });
        Self {
            shards: shards.collect(),
            commons,
            is_draining: Arc::default(),
            database,
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

    /// Returns how it stands with the user database, if there is one.
    pub fn database(&self) -> Option<DatabaseStatus> {
        let database = self.database.as_ref();
        database.map(|database| database.status(clock::time()))
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

    /// Returns why no relay socket can be opened at any of the relay addresses, in a line for each; none if one can be opened.
    pub fn relay_faults(&self) -> Vec<String> {
        let relays: Vec<_> = self.commons.relays().collect();
        let faults = binding::why_none(relays.iter().copied());
        match faults.len() == relays.len() {
            true => faults,
            false => Vec::new(),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_goes_away_keeps_the_time_at_which_its_last_reading_began() {
        let at = Time::from_secs;
        let state = DatabaseState::default();
        let status = |now| {
            let DatabaseStatus { is_up, age } = state.status(now);
            (is_up, age.map(|age| age.as_secs()))
        };
        assert_eq!(status(at(1)), (false, None));
        state.has_failed();
        assert_eq!(status(at(3)), (false, None));
        state.was_read(Duration::from_secs(2), at(4));
        assert_eq!(status(at(5)), (true, Some(3)));
        state.has_failed();
        assert_eq!(status(at(9)), (false, Some(7)));
    }
}
