//! A budget for bytes sent to sources that proved nothing, so that a forged source address gets little out of this server.
//!
//! The invariant: the table has its full size from the start and never grows, whatever arrives (V-21, V-40). Sources share
//! buckets by a keyed hash; who does not know the key cannot choose whose bucket to empty (V-53). All engines of a server share
//! one table, so that a limit is that of the server and not of each engine.
//!
//! Three limits are kept side by side for each bucket: bytes answered beyond bytes received (amplification), bytes answered,
//! and answers. All three must have room, or nothing is sent and nothing is charged. Each is one atomic word, and nothing waits: where
//! two engines ask for the same bucket at once, one may be refused what the other gives back, and never is more given than the limit.

use core::hash::Hasher as _;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;

use siphasher::sip::SipHasher13;

use crate::address::canonical_ip;
use crate::random::Random;
use crate::time::Time;

/// How many bytes a source that proved nothing may be sent.
///
/// A source is an IPv4 address or an IPv6 /64, whatever the port. One bucket takes 32 bytes, so the default table takes 2 MiB,
/// once for all engines, all of it touched when the server starts.
#[derive(Clone, Debug)]
pub struct UnverifiedLimits {
    /// Buckets of the table, rounded up to a power of two; 1 to 2^24. More buckets, fewer strangers that share one.
    pub buckets: u32,
    /// Bytes sent beyond the bytes that came from the source: what an attacker gains by forging its address.
    pub excess: Rate,
    /// All bytes sent.
    pub bytes: Rate,
    /// Answers per second (coturn's `unauthorized-ratelimit-rps`), `None` for no such limit.
    pub answers_per_s: Option<u32>,
}

impl Default for UnverifiedLimits {
    fn default() -> Self {
        Self {
            buckets: 1 << 16,
            // A first contact costs about 60 bytes beyond its request: 1,000 clients behind one address at once, then 130 a second.
            excess: Rate {
                burst: 64 * 1024,
                per_s: 8 * 1024,
            },
            bytes: Rate {
                burst: 128 * 1024,
                per_s: 32 * 1024,
            },
            answers_per_s: None,
        }
    }
}

/// A leaky bucket: what fits at once, and what drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units that may be used at once.
    pub burst: u32,
    /// Units that become free again each second.
    pub per_s: u32,
}

/// Buckets drain by steps of a tenth of a second, counted modulo 2^32: 13.6 years.
const STEP_MS: u32 = 100;
/// An engine's clock is behind another's by less than this many steps; what looks older has wrapped.
const STEPS_BEHIND_MAX: u32 = 600;

/// The table of what was sent to sources that proved nothing.
#[derive(Debug)]
pub struct UnverifiedBudget {
    key: OnceLock<[u8; 16]>,
    buckets: Box<[Bucket]>,
    excess: SharedRate,
    bytes: SharedRate,
    answers: SharedRate,
}

/// A rate that may change while others read it: what fits at once in the high half, and what drains in a second in the low one.
#[derive(Debug)]
struct SharedRate(AtomicU64);

impl SharedRate {
    fn new(rate: Rate) -> Self {
        Self(AtomicU64::new(pack(rate.burst, rate.per_s)))
    }

    fn get(&self) -> Rate {
        let (burst, per_s) = unpack(self.0.load(Relaxed));
        Rate { burst, per_s }
    }

    fn set(&self, rate: Rate) {
        self.0.store(pack(rate.burst, rate.per_s), Relaxed);
    }
}

/// What still has to drain.
#[derive(Debug)]
struct Bucket {
    excess: Level,
    bytes: Level,
    /// In thousandths, so that a rate of a few answers per second drains evenly.
    answers_milli: Level,
    /// One more than the step in which an answer was refused last.
    refused: AtomicU64,
}

const _: () = assert!(size_of::<Bucket>() == 32, "the documented size");

/// A leaky bucket: up to which step it is drained in the high half, and what is in it in the low one.
#[derive(Debug)]
struct Level(AtomicU64);

impl Level {
    /// Adds `amount` if it fits after draining.
    fn take(&self, step: u32, rate: Rate, amount: u32) -> bool {
        let taken = self.0.fetch_update(Relaxed, Relaxed, |packed| {
            let (at, level) = unpack(packed);
            let (at, level) = match step.wrapping_sub(at) {
                behind if behind.wrapping_neg() < STEPS_BEHIND_MAX => (at, level),
                steps => (step, drain(level, rate, steps)),
            };
            let after = level.saturating_add(amount);
            // guard: V-40-budget
            let fits = after <= rate.burst;
            // mutant: no-budget
            fits.then(|| pack(at, after))
        });
        taken.is_ok()
    }

    /// Returns what is in it after draining.
    fn left(&self, step: u32, rate: Rate) -> u32 {
        let (at, level) = unpack(self.0.load(Relaxed));
        match step.wrapping_sub(at) {
            behind if behind.wrapping_neg() < STEPS_BEHIND_MAX => level,
            steps => drain(level, rate, steps),
        }
    }

    /// Takes `amount` out again.
    fn give_back(&self, amount: u32) {
        let _ = self.0.fetch_update(Relaxed, Relaxed, |packed| {
            let (at, level) = unpack(packed);
            Some(pack(at, level.saturating_sub(amount)))
        });
    }
}

fn pack(at: u32, level: u32) -> u64 {
    u64::from(at) << 32 | u64::from(level)
}

#[expect(clippy::cast_possible_truncation, reason = "the two halves are wanted")]
fn unpack(packed: u64) -> (u32, u32) {
    ((packed >> 32) as u32, packed as u32)
}

impl UnverifiedBudget {
    /// Takes the whole table's memory. Nothing is admitted before [`Self::set_key`].
    pub fn new(limits: &UnverifiedLimits) -> Self {
        let count = limits.buckets.clamp(1, 1 << 24).next_power_of_two();
        // Not all-zero. The kernel maps an all-zero table page by page only when it is used, which would be during an attack.
        let level = || Level(AtomicU64::new(pack(u32::MAX, 0)));
        let bucket = |_| Bucket {
            excess: level(),
            bytes: level(),
            answers_milli: level(),
            refused: AtomicU64::new(0),
        };
        Self {
            key: OnceLock::new(),
            buckets: (0..count).map(bucket).collect(),
            excess: SharedRate::new(limits.excess),
            bytes: SharedRate::new(limits.bytes),
            answers: SharedRate::new(answers(limits)),
        }
    }

    /// Sets other rates. What was sent before counts against them.
    pub fn set_rates(&self, limits: &UnverifiedLimits) {
        self.excess.set(limits.excess);
        self.bytes.set(limits.bytes);
        self.answers.set(answers(limits));
    }

    /// Draws the hash key from `random`, unless there is one.
    pub fn set_key(&self, random: &mut impl Random) {
        let mut key = [0; 16];
        // guard: V-53-budget
        random.fill(&mut key);
        let _ = self.key.set(key); // the first counts
    }

    /// Returns whether `response_len` bytes may go to `source` for its `request_len` bytes. Charges them if they may.
    pub fn admit(
        &self,
        now: Time,
        source: IpAddr,
        request_len: usize,
        response_len: usize,
    ) -> bool {
        let Some(bucket) = self.bucket(source) else {
            return false;
        };
        let step = step_of(now);
        let response_len = u32::try_from(response_len).unwrap_or(u32::MAX);
        let request_len = u32::try_from(request_len).unwrap_or(u32::MAX);
        let wanted = [
            (
                &bucket.excess,
                self.excess.get(),
                response_len.saturating_sub(request_len),
            ),
            (&bucket.bytes, self.bytes.get(), response_len),
            (&bucket.answers_milli, self.answers.get(), 1000),
        ];
        let refused = wanted
            .iter()
            .position(|(level, rate, amount)| !level.take(step, *rate, *amount));
        let Some(refused) = refused else {
            return true;
        };
        for (level, _, amount) in wanted.iter().take(refused) {
            level.give_back(*amount);
        }
        // guard: V-54-refusals
        bucket.refused.store(u64::from(step) + 1, Relaxed);
        false
    }

    /// Returns whether `source` was refused an answer and its bucket has not drained since. The next answer need not be made then,
    /// because it would hardly fit. Under a flood this keeps a refusal cheaper than an answer.
    pub fn is_exhausted(&self, now: Time, source: IpAddr) -> bool {
        // mutant: strangers-wait-for-each-other
        self.bucket(source)
            .is_some_and(|bucket| bucket.refused.load(Relaxed) == u64::from(step_of(now)) + 1)
    }

    /// Returns how many buckets hold bytes that have not drained. It looks at all of them.
    pub fn occupied(&self, now: Time) -> u64 {
        let (step, rate) = (step_of(now), self.bytes.get());
        let is_occupied = |bucket: &&Bucket| bucket.bytes.left(step, rate) > 0;
        self.buckets.iter().filter(is_occupied).count() as u64
    }

    /// Returns the number of buckets.
    pub fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    fn bucket(&self, source: IpAddr) -> Option<&Bucket> {
        self.buckets.get(self.index(source)?)
    }

    /// Returns the index of the bucket of `source`.
    pub(crate) fn index(&self, source: IpAddr) -> Option<usize> {
        let mut hasher = SipHasher13::new_with_key(self.key.get()?);
        match canonical_ip(source) {
            IpAddr::V4(v4) => hasher.write_u32(v4.to_bits()),
            // A host has a /64 at its disposal.
            IpAddr::V6(v6) => hasher.write_u128(v6.to_bits() >> 64),
        }
        let hash = hasher.finish();
        // A power of two, at most 2^24.
        let mask = self.buckets.len().saturating_sub(1);
        // mutant: strangers-share-one-bucket
        Some(usize::try_from(hash & 0xff_ffff).unwrap_or(0) & mask)
    }
}

/// Returns the rate of answers, in thousandths.
fn answers(limits: &UnverifiedLimits) -> Rate {
    let per_s = limits
        .answers_per_s
        .map_or(u32::MAX, |rate| rate.saturating_mul(1000));
    Rate {
        burst: per_s,
        per_s,
    }
}

/// Returns what is left of `level` after `steps` steps; a rate that is no multiple of ten is rounded up to one.
fn drain(level: u32, rate: Rate, steps: u32) -> u32 {
    let drained = u64::from(rate.per_s.div_ceil(1000 / STEP_MS)).saturating_mul(steps.into());
    level.saturating_sub(u32::try_from(drained).unwrap_or(u32::MAX))
}

/// Returns the step that `now` is in.
#[expect(clippy::cast_possible_truncation, reason = "steps wrap")]
fn step_of(now: Time) -> u32 {
    (now.as_nanos() / (u64::from(STEP_MS) * 1_000_000)) as u32
}

#[cfg(test)]
mod tests;
