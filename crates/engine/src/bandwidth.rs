//! The rate at which an allocation may relay, and the rate of all of them together (RFC 8656 §5, §21.3.1).
//!
//! An allocation reserves a rate when it begins, as much as is left of the server's capacity, and gives it back when it ends. Data beyond
//! the rate is dropped at once, never queued (RFC 8656 §5), each direction by itself: a bucket of one second's worth. A stream of
//! a TCP relay is held back instead. What
//! is counted is payload: what peers sent, or are to be sent.
//!
//! A bucket is one atomic word. A host that has data relayed elsewhere too keeps it where both reach it ([`Meters`]), so that an allocation has one
//! rate, whoever relays.

use core::fmt;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::config::Config;
use crate::time::Time;

/// The largest burst, as the time that it takes at the allocation's rate.
// mutant: burst-of-an-hour
const BURST: Duration = Duration::from_secs(1);
const NANOS_PER_S: u64 = 1_000_000_000;

/// Buckets that are charged by others too: the host gives them to allocations that begin.
///
/// A bucket is the time, in nanoseconds of [`Time`], at which it will be empty. Each datagram moves that on by what it takes at the allocation's
/// rate, from now on if it has passed. It is dropped if the bucket would hold more than a second's worth.
pub trait Meters: fmt::Debug + Send + Sync {
    /// Takes two empty buckets for an allocation with `bytes_per_s`. Returns `None` if none are left; the allocation then has its own.
    fn claim(&self, bytes_per_s: NonZeroU32) -> Option<NonZeroU32>;

    /// Returns the bucket of one direction.
    fn bucket(&self, meter: NonZeroU32, direction: Direction) -> &AtomicU64;

    /// Gives both buckets back.
    fn release(&self, meter: NonZeroU32);
}

/// Reserved rates of a whole server.
#[derive(Debug)]
pub(crate) struct BandwidthLedger {
    /// Where buckets are, if not with their allocations.
    meters: OnceLock<Arc<dyn Meters>>,
    rates: Mutex<Rates>,
    /// Bytes per second that are reserved.
    reserved: Mutex<u64>,
}

/// [`crate::Bandwidth`] as it is now.
#[derive(Debug)]
struct Rates {
    capacity: Option<NonZeroU32>,
    usual: Option<NonZeroU32>,
    /// Of realms that have a rate of their own, or none.
    by_realm: BTreeMap<Box<str>, Option<NonZeroU32>>,
}

impl Rates {
    fn of(config: &Config) -> Self {
        let own = config.realms.limits.iter();
        Self {
            capacity: config.limits.bandwidth.capacity_bytes_per_s,
            usual: config.limits.bandwidth.bytes_per_s,
            by_realm: own
                .map(|(realm, own)| (realm.clone(), own.bytes_per_s))
                .collect(),
        }
    }
}

impl BandwidthLedger {
    pub(crate) fn new(config: &Config) -> Arc<Self> {
        Arc::new(Self {
            meters: OnceLock::new(),
            rates: Mutex::new(Rates::of(config)),
            reserved: Mutex::default(),
        })
    }

    /// Takes the buckets of allocations to come from `meters`. What was set first stays.
    pub(crate) fn set_meters(&self, meters: Arc<dyn Meters>) {
        self.meters.get_or_init(|| meters);
    }

    /// Sets other rates and another capacity for allocations to come.
    pub(crate) fn set_rates(&self, config: &Config) {
        let rates = Rates::of(config);
        *self.rates.lock().unwrap_or_else(PoisonError::into_inner) = rates;
    }

    /// Reserves a rate for a new allocation in `realm`. Returns its bounds, if there are any.
    ///
    /// # Errors
    ///
    /// The capacity is used up.
    pub(crate) fn reserve(self: &Arc<Self>, realm: &str) -> Result<Option<Shaper>, Exhausted> {
        let (wanted, capacity) = {
            let rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
            let own = rates.by_realm.get(realm);
            (own.copied().unwrap_or(rates.usual), rates.capacity)
        };
        let Some(wanted) = wanted else {
            return Ok(None);
        };
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        let left = capacity.map_or(u64::MAX, |capacity| {
            u64::from(capacity.get()).saturating_sub(*reserved)
        });
        let rate = u32::try_from(left).unwrap_or(u32::MAX).min(wanted.get());
        let rate = NonZeroU32::new(rate).ok_or(Exhausted)?;
        // mutant: capacity-promised-twice
        *reserved += u64::from(rate.get());
        drop(reserved);
        Ok(Some(self.shaper(rate)))
    }

    fn shaper(self: &Arc<Self>, rate: NonZeroU32) -> Shaper {
        let shared = self.meters.get().and_then(|meters| {
            let meter = meters.claim(rate)?;
            let meters = Arc::clone(meters);
            Some(Buckets::Shared { meters, meter })
        });
        Shaper {
            rate,
            ledger: Arc::clone(self),
            buckets: shared.unwrap_or_default(),
        }
    }

    /// Reserves again the rate of an allocation that has it already, from this process or the one before it, whatever is left.
    pub(crate) fn reserve_again(self: &Arc<Self>, rate: NonZeroU32) -> Shaper {
        // mutant: capacity-forgotten-by-rebuild
        *self.reserved.lock().unwrap_or_else(PoisonError::into_inner) += u64::from(rate.get());
        self.shaper(rate)
    }

    /// Returns how many bytes per second are reserved.
    pub(crate) fn reserved(&self) -> u64 {
        *self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self, rate: NonZeroU32) {
        // mutant: capacity-never-given-back
        *self.reserved.lock().unwrap_or_else(PoisonError::into_inner) -= u64::from(rate.get());
    }
}

/// Returns how many of `bytes` bytes are in the first `admitted` of `datagrams` datagrams, when all have one size. If the last is
/// shorter, the result is too small, by less than the difference.
#[inline]
pub(crate) fn share(bytes: u64, datagrams: u32, admitted: u32) -> u64 {
    if admitted == datagrams {
        bytes
    } else {
        bytes.div_ceil(u64::from(datagrams).max(1)) * u64::from(admitted)
    }
}

/// All of the capacity is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

/// The bounds of one allocation; gives the rate back on drop.
pub(crate) struct Shaper {
    rate: NonZeroU32,
    /// Where the rate is reserved.
    ledger: Arc<BandwidthLedger>,
    buckets: Buckets,
}

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From a peer to the client.
    ToClient,
    /// From the client to a peer.
    ToPeers,
}

/// Where the buckets of both directions are.
enum Buckets {
    Own {
        to_peers: AtomicU64,
        to_client: AtomicU64,
    },
    Shared {
        meters: Arc<dyn Meters>,
        meter: NonZeroU32,
    },
}

impl Default for Buckets {
    fn default() -> Self {
        Self::Own {
            to_peers: AtomicU64::default(),
            to_client: AtomicU64::default(),
        }
    }
}

impl Shaper {
    /// Returns the reserved rate, in bytes per second.
    pub(crate) fn rate(&self) -> NonZeroU32 {
        self.rate
    }

    /// Returns the name of the buckets, if others may charge them.
    pub(crate) fn meter(&self) -> Option<NonZeroU32> {
        match &self.buckets {
            Buckets::Own { .. } => None,
            Buckets::Shared { meter, .. } => Some(*meter),
        }
    }

    fn bucket(&self, direction: Direction) -> Bucket<'_> {
        let empty_at_ns = match (&self.buckets, direction) {
            // mutant: directions-share-a-rate
            (Buckets::Own { to_client, .. }, Direction::ToClient) => to_client,
            (Buckets::Own { to_peers, .. }, Direction::ToPeers) => to_peers,
            (Buckets::Shared { meters, meter }, _) => meters.bucket(*meter, direction),
        };
        Bucket {
            empty_at_ns,
            rate: u64::from(self.rate.get()),
        }
    }

    /// Charges bytes of a stream, of which nothing may be dropped, whatever is available. Returns until when no more may come of it.
    pub(crate) fn charge_stream(
        &self,
        direction: Direction,
        now: Time,
        bytes: u64,
    ) -> Option<Time> {
        let empty_at_ns = self.bucket(direction).charge(now, |_| bytes).1;
        let burst_ns = u64::try_from(BURST.as_nanos()).unwrap_or(u64::MAX);
        let until = Time::from_nanos(empty_at_ns.saturating_sub(burst_ns));
        (until > now).then_some(until)
    }

    /// Returns how many of `datagrams` datagrams with `bytes` bytes in all may go now, in their order, and charges them. All have
    /// one size; the last may be shorter.
    pub(crate) fn admit(&self, direction: Direction, now: Time, datagrams: u32, bytes: u64) -> u32 {
        // No datagram is longer: all but the last are equal. One that is alone fits whole or not at all.
        let longest = bytes.checked_div(u64::from(datagrams.saturating_sub(1)));
        let fitting = |available: u64| match longest {
            _ if bytes <= available => u64::from(datagrams),
            Some(longest) => (available / longest.max(1)).min(u64::from(datagrams) - 1),
            None => 0,
        };
        let cost = |available: u64| match fitting(available) {
            count if count == u64::from(datagrams) => bytes,
            count => count * longest.unwrap_or(0),
        };
        let (available, _) = self.bucket(direction).charge(now, cost);
        u32::try_from(fitting(available)).unwrap_or(u32::MAX)
    }
}

/// A bucket by when it will be empty again.
struct Bucket<'a> {
    empty_at_ns: &'a AtomicU64,
    rate: u64,
}

impl Bucket<'_> {
    /// Charges what `cost` says of the bytes that fit at `now`. Returns these, and when the bucket will be empty.
    fn charge(&self, now: Time, cost: impl Fn(u64) -> u64) -> (u64, u64) {
        let mut old = self.empty_at_ns.load(Ordering::Relaxed);
        loop {
            let available = available(old, now, self.rate);
            let duration_ns = cost(available)
                .saturating_mul(NANOS_PER_S)
                .div_ceil(self.rate);
            let new = old.max(now.as_nanos()).saturating_add(duration_ns);
            // The word is all that is shared, so nothing has to be ordered around it.
            let exchanged = self.empty_at_ns.compare_exchange_weak(
                old,
                new,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match exchanged {
                Ok(_) => return (available, new),
                Err(other) => old = other,
            }
        }
    }
}

/// Returns the bytes that fit at `now` into a bucket that is empty at `empty_at_ns`.
fn available(empty_at_ns: u64, now: Time, rate: u64) -> u64 {
    let filled_ns = empty_at_ns.saturating_sub(now.as_nanos());
    let free_ns = BURST.as_secs() * NANOS_PER_S;
    free_ns.saturating_sub(filled_ns).saturating_mul(rate) / NANOS_PER_S
}

impl Drop for Shaper {
    fn drop(&mut self) {
        self.ledger.release(self.rate);
        if let Buckets::Shared { meters, meter } = &self.buckets {
            meters.release(*meter);
        }
    }
}

impl fmt::Debug for Shaper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shaper")
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shaper(rate: u32) -> Shaper {
        let ledger = BandwidthLedger::new(&Config::default());
        ledger.reserve_again(NonZeroU32::new(rate).unwrap())
    }

    #[test]
    fn the_rate_holds_over_any_time_and_a_second_of_it_may_go_at_once() {
        for rate in [1_000, 64_000, 12_500_000, u32::MAX] {
            let shaper = shaper(rate);
            let mut admitted = 0;
            let mut now = Time::from_secs(5);
            for _ in 0..100_000_u32 {
                let count = shaper.admit(Direction::ToPeers, now, 40, 40 * 200);
                admitted += u64::from(count) * 200;
                now = now + Duration::from_micros(100);
            }
            let most = u64::from(rate) * 11; // ten seconds, and one at the beginning
            assert!(admitted <= most, "{rate}: {admitted}");
            let offered = 100_000 * 40 * 200;
            let least = most.min(offered) / 100 * 95;
            assert!(admitted >= least, "{rate}: {admitted} of {least}");
        }
    }

    #[test]
    fn a_train_that_does_not_fit_is_cut_and_never_undercharged() {
        let shaper = shaper(10_000);
        let now = Time::from_secs(1);
        assert_eq!(shaper.admit(Direction::ToPeers, now, 20, 20 * 1_000), 9);
        assert_eq!(shaper.admit(Direction::ToPeers, now, 1, 1_400), 0);
        // the other direction has its own
        assert_eq!(shaper.admit(Direction::ToClient, now, 10, 10_000), 10);
        // one byte in a second datagram does not halve what the first costs
        let shaper = self::shaper(1_400);
        assert_eq!(shaper.admit(Direction::ToPeers, now, 2, 1_401), 0);
        assert_eq!(shaper.admit(Direction::ToPeers, now, 1, 1_400), 1);
        assert_eq!(shaper.admit(Direction::ToPeers, now, 1, 1), 0);
    }

    #[test]
    fn a_datagram_without_payload_always_fits() {
        let shaper = shaper(1);
        let now = Time::from_secs(1);
        assert_eq!(shaper.admit(Direction::ToPeers, now, 1, 1), 1);
        assert_eq!(shaper.admit(Direction::ToPeers, now, 7, 0), 7);
    }
}
