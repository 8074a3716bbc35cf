//! What the relay did in the last ten minutes: whoever opens the status page sees what was before.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};
use turnbuckle_server::handle::LiveCounters;

/// Time between two samples.
pub(crate) const EVERY: Duration = Duration::from_secs(5);

/// Samples that are kept: ten minutes and one to count from.
const SAMPLES_MAX: usize = 121;

/// Counts since the start, at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    at_ms: u64,
    client_in: u64,
    peer_in: u64,
    dropped: u64,
}

impl Sample {
    /// Reads the counters of a relay that has run for `uptime`.
    pub(crate) fn take(counters: &LiveCounters, uptime: Duration) -> Self {
        let accounting = counters.accounting();
        Self {
            at_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
            client_in: accounting.get("client_in", None),
            peer_in: accounting.get("peer_in", None),
            dropped: accounting.total_drops(),
        }
    }
}

/// The last samples, the newest at the end.
#[derive(Default)]
pub(crate) struct History(VecDeque<Sample>);

impl History {
    /// Adds a sample, and forgets the oldest beyond ten minutes.
    pub(crate) fn add(&mut self, sample: Sample) {
        if self.0.len() == SAMPLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// Returns a list for each member, all equally long.
    pub(crate) fn show(&self) -> Value {
        let all = |of: fn(&Sample) -> u64| self.0.iter().map(of).collect::<Vec<_>>();
        json!({
            "at_ms": all(|it| it.at_ms),
            "client_in": all(|it| it.client_in),
            "peer_in": all(|it| it.peer_in),
            "dropped": all(|it| it.dropped),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_ten_minutes() {
        let mut history = History::default();
        for number in 0..200 {
            history.add(Sample {
                at_ms: number * 5000,
                client_in: number,
                peer_in: 2 * number,
                dropped: 0,
            });
        }
        let shown = history.show();
        let times = shown["at_ms"].as_array().unwrap();
        assert_eq!((times[0].as_u64(), times.len()), (Some(79 * 5000), 121));
        assert_eq!(times[120].as_u64().unwrap() - 79 * 5000, 600_000);
        assert_eq!(shown["peer_in"][120], 398);
    }
}
