//! Prints coturn's occupancy lines at regular intervals, and writes the accounting at the end.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use turnbuckle_datapath::{Snapshot, receive_log_line, send_log_line};

use super::error::ServeError;
use crate::config::Config;
use crate::counters::Accounting;
use crate::links;
use crate::shard::Shard;

/// Holds when the occupancy lines are due, and the counters at the time of the last ones.
pub(super) struct Statistics {
    next_print: Instant,
    /// The counters of each shard at that time.
    printed: Vec<Snapshot>,
}

impl Statistics {
    pub(super) fn new(config: &Config, shards: &[Shard]) -> Self {
        let printed = shards.iter().map(|shard| shard.batches.snapshot());
        Self {
            next_print: Instant::now() + config.log.statistics_interval,
            printed: printed.collect(),
        }
    }

    /// Returns when [`Self::print`] is due.
    pub(super) fn due(&self) -> Instant {
        self.next_print
    }

    /// Resets the record of a restarted shard, whose counters are new.
    pub(super) fn restarted(&mut self, index: usize, shard: &Shard) {
        self.printed[index] = shard.batches.snapshot();
    }

    /// Writes coturn's occupancy lines for each shard, if they are due. They cover the time since the last ones.
    pub(super) fn print(
        &mut self,
        config: &Config,
        now: Instant,
        shards: &[Shard],
        out: &mut impl Write,
    ) {
        if now < self.next_print {
            return;
        }
        self.next_print = now + config.log.statistics_interval;
        for (shard, printed) in shards.iter().zip(&mut self.printed) {
            let now = shard.batches.snapshot();
            let delta = now.since(printed);
            *printed = now;
            if config.datapath.log_receive {
                let _ = writeln!(out, "{}", receive_log_line(&shard.name, &delta));
            }
            if config.datapath.log_send {
                let _ = writeln!(out, "{}", send_log_line(&shard.name, &delta));
            }
        }
    }
}

/// Writes the accounting to a file for scripts.
///
/// # Errors
///
/// The file cannot be written.
pub(super) fn leave_behind(path: &Path, accounting: &Accounting) -> Result<(), ServeError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let opened = links::open(&options, path);
    let written = opened.and_then(|mut file| writeln!(file, "{}", accounting.json()));
    written.map_err(|error| {
        ServeError::new(format!(
            "cannot write statistics-file {}: {error}",
            path.display()
        ))
    })
}
