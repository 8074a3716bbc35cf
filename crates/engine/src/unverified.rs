//! A budget for bytes sent to sources that proved nothing, so that a forged source address gets little out of this server.
//!
//! The invariant: the table has its full size from the start and never grows, whatever arrives (V-21, V-40). Sources share
//! buckets by a keyed hash; who does not know the key cannot choose whose bucket to empty (V-53).
//!
//! Three limits are kept side by side for each bucket: bytes answered beyond bytes received (amplification), bytes answered,
//! and answers. All three must have room, or nothing is sent and nothing is charged.

use core::hash::Hasher as _;
use core::net::IpAddr;

use siphasher::sip::SipHasher13;

use crate::address::canonical_ip;
use crate::random::Random;
use crate::time::Time;

/// How many bytes a source that proved nothing may be sent.
///
/// A source is an IPv4 address or an IPv6 /64, whatever the port. One bucket takes 16 bytes, so the default table takes 1 MiB
/// in each engine, all of it touched when the engine starts.
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
            // A first contact costs about 80 bytes beyond its request: 800 clients behind one address at once, then 100 a second.
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

/// Buckets drain by steps of a tenth of a second.
const STEP_MS: u32 = 100;
/// Steps are counted modulo this, 6.8 years.
const STEPS: u32 = 1 << 31;

/// The table of what was sent to sources that proved nothing.
pub struct UnverifiedBudget {
    key: [u8; 16],
    buckets: Box<[Bucket]>,
    excess: Rate,
    bytes: Rate,
    answers: Rate,
}

/// What still has to drain.
#[derive(Clone, Copy)]
struct Bucket {
    /// Up to which step the bucket is drained, modulo [`STEPS`]; beyond that bit, whether an answer was refused in this step.
    step: u32,
    excess: u32,
    bytes: u32,
    /// In thousandths, so that a rate of a few answers per second drains evenly.
    answers_milli: u32,
}

const _: () = assert!(size_of::<Bucket>() == 16, "the documented size");

impl UnverifiedBudget {
    /// Takes the whole table's memory, and a hash key from `random`.
    pub fn new(limits: &UnverifiedLimits, random: &mut impl Random) -> Self {
        let mut key = [0; 16];
        // guard: V-53-budget
        random.fill(&mut key);
        let count = limits.buckets.clamp(1, 1 << 24).next_power_of_two();
        // Not all-zero, because an all-zero table is memory that the kernel hands out page by page while an attack runs.
        let bucket = Bucket {
            step: 1,
            excess: 0,
            bytes: 0,
            answers_milli: 0,
        };
        let answers = limits
            .answers_per_s
            .map_or(u32::MAX, |rate| rate.saturating_mul(1000));
        Self {
            key,
            buckets: vec![bucket; usize::try_from(count).unwrap_or(1)].into_boxed_slice(),
            excess: limits.excess,
            bytes: limits.bytes,
            answers: Rate {
                burst: answers,
                per_s: answers,
            },
        }
    }

    /// Whether `response_len` bytes may go to `source` for its `request_len` bytes; charges them when they may.
    pub fn admit(
        &mut self,
        now: Time,
        source: IpAddr,
        request_len: usize,
        response_len: usize,
    ) -> bool {
        let index = self.index(source);
        let (excess, bytes, answers) = (self.excess, self.bytes, self.answers);
        let Some(bucket) = self.buckets.get_mut(index) else {
            return false;
        };
        let step = step_of(now);
        let steps = step.wrapping_sub(bucket.step) % STEPS;
        let drained = Bucket {
            // Remembers a refusal until it drains.
            step: if steps == 0 { bucket.step } else { step },
            excess: drain(bucket.excess, excess, steps),
            bytes: drain(bucket.bytes, bytes, steps),
            answers_milli: drain(bucket.answers_milli, answers, steps),
        };
        let response_len = u32::try_from(response_len).unwrap_or(u32::MAX);
        let request_len = u32::try_from(request_len).unwrap_or(u32::MAX);
        let after = Bucket {
            step: drained.step,
            excess: drained
                .excess
                .saturating_add(response_len.saturating_sub(request_len)),
            bytes: drained.bytes.saturating_add(response_len),
            answers_milli: drained.answers_milli.saturating_add(1000),
        };
        // guard: V-40-budget
        let fits = after.excess <= excess.burst
            && after.bytes <= bytes.burst
            && after.answers_milli <= answers.burst;
        *bucket = if fits { after } else { drained };
        if !fits {
            // guard: V-54-refusals
            bucket.step |= STEPS;
        }
        // mutant: no-budget
        fits
    }

    /// Whether `source` was refused an answer and its bucket did not drain since: the next answer need not be made, because it
    /// would hardly fit. Under a flood this is what keeps a refusal cheaper than an answer.
    pub fn is_exhausted(&self, now: Time, source: IpAddr) -> bool {
        self.buckets
            .get(self.index(source))
            .is_some_and(|bucket| bucket.step == step_of(now) | STEPS)
    }

    /// How many buckets the table has.
    pub fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    fn index(&self, source: IpAddr) -> usize {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        match canonical_ip(source) {
            IpAddr::V4(v4) => hasher.write_u32(v4.to_bits()),
            // A host has a /64 at its disposal.
            IpAddr::V6(v6) => hasher.write_u128(v6.to_bits() >> 64),
        }
        let hash = hasher.finish();
        // A power of two, at most 2^24.
        let mask = self.buckets.len().saturating_sub(1);
        usize::try_from(hash & 0xff_ffff).unwrap_or(0) & mask
    }
}

/// What is left of `level` after `steps` steps; a rate that is no multiple of ten is rounded up to one.
fn drain(level: u32, rate: Rate, steps: u32) -> u32 {
    let drained = u64::from(rate.per_s.div_ceil(1000 / STEP_MS)).saturating_mul(steps.into());
    level.saturating_sub(u32::try_from(drained).unwrap_or(u32::MAX))
}

/// The step that `now` is in.
fn step_of(now: Time) -> u32 {
    let step = now.as_nanos() / (u64::from(STEP_MS) * 1_000_000);
    // Cannot fail: it is below STEPS.
    u32::try_from(step % u64::from(STEPS)).unwrap_or(0)
}

#[cfg(test)]
mod tests;
