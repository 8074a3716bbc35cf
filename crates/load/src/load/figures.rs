//! Figures that each thread counts and that are added up at the end.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use turnbuckle_client::Failure;

/// Makes a histogram from 1 ns to a minute, three digits.
pub(super) fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

/// How much one packet's delay differs from that of the one before it (RFC 3550 §6.4.1, not smoothed), nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jitter {
    pub(super) samples: u64,
    pub(super) sum: u64,
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Default for Jitter {
    fn default() -> Self {
        Self {
            samples: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }
}

impl Jitter {
    #[inline]
    pub(super) fn record(&mut self, difference: u64) {
        self.samples += 1;
        self.sum += difference;
        self.min = self.min.min(difference);
        self.max = self.max.max(difference);
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

/// The shortest silence that is noted, nanoseconds: two datagrams of a call that has 50 a second.
const SILENCE_MIN: u64 = 40_000_000;

/// How long packets took, and how long none came.
#[derive(Debug)]
pub(super) struct Delays {
    /// Round trips, nanoseconds.
    pub(super) latency: Histogram<u64>,
    pub(super) jitter: Jitter,
    /// Times between two packets of one client, nanoseconds, of at least [`SILENCE_MIN`].
    pub(super) silences: Histogram<u64>,
}

/// The packet of a client before the present one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    /// When it came, nanoseconds.
    at: u64,
    /// How long it took, nanoseconds.
    latency: u64,
}

impl Delays {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            latency: histogram()?,
            jitter: Jitter::default(),
            silences: histogram()?,
        })
    }

    /// Counts a packet that came `now` and was sent at `sent`.
    #[inline]
    pub(super) fn record(&mut self, now: u64, sent: u64, before: &mut Option<Before>) {
        let latency = now.saturating_sub(sent);
        self.latency.saturating_record(latency.max(1));
        if let Some(before) = before.replace(Before { at: now, latency }) {
            self.jitter.record(latency.abs_diff(before.latency));
            let silence = now.saturating_sub(before.at);
            if silence >= SILENCE_MIN {
                self.silences.saturating_record(silence);
            }
        }
    }

    pub(super) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.latency.add(&other.latency)?;
        self.jitter.add(&other.jitter);
        self.silences.add(&other.silences)?;
        Ok(())
    }
}

/// What became of allocations.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocations {
    pub(super) attempted: u64,
    pub(super) allocated: u64,
    pub(super) released: u64,
    pub(super) failures: BTreeMap<Failure, u64>,
}

impl Allocations {
    /// Counts a client that has none.
    pub(super) fn failed(&mut self, failure: Failure) {
        *self.failures.entry(failure).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.attempted += other.attempted;
        self.allocated += other.allocated;
        self.released += other.released;
        for (failure, count) in &other.failures {
            *self.failures.entry(*failure).or_default() += count;
        }
    }
}
