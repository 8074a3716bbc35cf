//! Meters: the rates of allocations with the buckets that the program charges, in memory that both reach.
//!
//! A meter has a place as long as somebody holds it: whoever claimed it, and each line that is charged to it. So what the program charges is never
//! another's bucket.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use turnbuckle_sys::mapped::Mapped;

/// Words of a meter (`struct meter`), and where they are. Of each pair the first is for datagrams with a label, the second for those without.
pub(super) const METER_WORDS: usize = 8;
pub(super) const RATE: usize = 0;
pub(super) const EMPTY_AT_NS: usize = 1;
pub(super) const PACKETS: usize = 3;
pub(super) const BYTES: usize = 5;

/// A direction, by what its datagrams look like when they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// With a label.
    Labelled,
    /// Without one.
    Plain,
}

/// All meters.
#[derive(Debug)]
pub struct Meters {
    memory: Mapped,
    places: Mutex<Places>,
}

/// Place 0 is nobody's: it stands for no meter.
#[derive(Debug, Default)]
struct Places {
    /// How many hold each place that was ever used, but for place 0.
    holders: Vec<u32>,
    free: Vec<NonZeroU32>,
}

impl Meters {
    pub(super) fn new(memory: Mapped) -> Self {
        assert!(memory.words().len().is_multiple_of(METER_WORDS));
        Self {
            memory,
            places: Mutex::default(),
        }
    }

    /// Returns how many words `count` meters have.
    pub(super) fn words(count: u32) -> usize {
        (count as usize + 1) * METER_WORDS
    }

    /// Takes a meter with this rate and empty buckets. Returns `None` if none is left.
    pub fn claim(&self, bytes_per_s: NonZeroU32) -> Option<NonZeroU32> {
        let mut places = self.places();
        let meter = match places.free.pop() {
            Some(meter) => meter,
            None => {
                let meter = NonZeroU32::new(u32::try_from(places.holders.len()).ok()? + 1)?;
                if self.memory.words().len() <= meter.get() as usize * METER_WORDS {
                    return None;
                }
                places.holders.push(0);
                meter
            }
        };
        *places.holders_of(meter) = 1;
        let words = self.meter(meter);
        for word in words {
            word.store(0, Ordering::Relaxed);
        }
        words[RATE].store(bytes_per_s.get().into(), Ordering::Release);
        Some(meter)
    }

    /// Holds a meter that somebody holds, until [`Self::release`].
    pub(super) fn hold(&self, meter: NonZeroU32) {
        *self.places().holders_of(meter) += 1;
    }

    /// Lets a meter go. It is free when nobody holds it.
    pub fn release(&self, meter: NonZeroU32) {
        let mut places = self.places();
        let holders = places.holders_of(meter);
        *holders -= 1;
        if *holders == 0 {
            self.meter(meter)[RATE].store(0, Ordering::Relaxed);
            places.free.push(meter);
        }
    }

    /// Returns when a bucket will be empty, in nanoseconds of `CLOCK_BOOTTIME`.
    pub fn bucket(&self, meter: NonZeroU32, way: Way) -> &AtomicU64 {
        &self.meter(meter)[EMPTY_AT_NS + way as usize]
    }

    /// Takes the counts of what was dropped beyond the rate one way: datagrams, and bytes.
    pub(super) fn take_beyond(&self, meter: NonZeroU32, way: Way) -> (u64, u64) {
        let words = self.meter(meter);
        let take = |first: usize| words[first + way as usize].swap(0, Ordering::Relaxed);
        (take(PACKETS), take(BYTES))
    }

    fn meter(&self, meter: NonZeroU32) -> &[AtomicU64] {
        &self.memory.words()[meter.get() as usize * METER_WORDS..][..METER_WORDS]
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn holders_of(&mut self, meter: NonZeroU32) -> &mut u32 {
        &mut self.holders[meter.get() as usize - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meters(count: u32) -> Meters {
        let words = Meters::words(count);
        let file = rustix::fs::memfd_create("meters", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, words as u64 * 8).unwrap();
        Meters::new(Mapped::new(&file, words).unwrap())
    }

    #[test]
    fn a_meter_is_nobody_elses_until_its_last_line_is_given_back() {
        let meters = meters(2);
        let rate = NonZeroU32::new(1000).unwrap();
        let one = meters.claim(rate).unwrap();
        let other = meters.claim(rate).unwrap();
        assert_eq!(meters.claim(rate), None);
        meters.bucket(one, Way::Plain).store(7, Ordering::Relaxed);
        meters.hold(one);
        meters.release(one);
        assert_eq!(meters.claim(rate), None);
        meters.release(one);
        let again = meters.claim(rate).unwrap();
        assert_eq!(again, one);
        assert_eq!(meters.bucket(again, Way::Plain).load(Ordering::Relaxed), 0);
        assert_ne!(again, other);
    }
}
