//! A table of lines in memory that the kernel reads: buckets of four lines, two buckets to choose from for each key.
//!
//! All shards write one table. A line belongs to the shard that took it, until that shard gives it back. The program reads `seq` before and after the
//! rest and passes a packet if it has changed, so a line is never seen half written.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use turnbuckle_sys::mapped::Mapped;

use super::hash::{BUCKET, Seed};
use super::line::{FREE, Fields, LIVE, Layout, METER_SHIFT, NUMBER, STATE, TAKE, TAKEN};
use super::routes::Carried;

/// The lines of one family.
#[derive(Debug)]
pub struct Table {
    memory: Mapped,
    layout: Layout,
    seed: Seed,
    buckets: usize,
}

impl Table {
    /// Takes memory for `buckets` buckets, a power of two.
    pub(super) fn new(memory: Mapped, is_v6: bool, buckets: usize, seed: Seed) -> Self {
        let layout = Self::layout(is_v6);
        assert!(buckets.is_power_of_two() && memory.words().len() == buckets * BUCKET * layout.len);
        Self {
            memory,
            layout,
            seed,
            buckets,
        }
    }

    /// Returns how many words `buckets` buckets have.
    pub(super) fn words(is_v6: bool, buckets: usize) -> usize {
        buckets * BUCKET * Self::layout(is_v6).len
    }

    fn layout(is_v6: bool) -> Layout {
        if is_v6 { Layout::V6 } else { Layout::V4 }
    }

    /// Publishes a line that is charged to a meter and returns its place, or `None` if both of its buckets are full.
    pub(super) fn publish(
        &self,
        fields: &Fields,
        expires_ns: u64,
        meter: Option<NonZeroU32>,
    ) -> Option<u32> {
        let (index, seq) = self.take(fields)?;
        let (layout, line) = (self.layout, self.line(index));
        let store = |at: usize, value: u64| line[at].store(value, Ordering::Relaxed);
        store(Layout::PORTS, fields.ports);
        store(layout.new_ports(), fields.new_ports);
        for word in 0..layout.addresses_len {
            store(Layout::ADDRESSES + word, fields.addresses[word]);
            store(layout.new_addresses() + word, fields.new_addresses[word]);
        }
        store(layout.expires_ns(), expires_ns);
        store(layout.packets(), 0);
        store(layout.bytes(), 0);
        let meter = u64::from(meter.map_or(0, NonZeroU32::get)) << METER_SHIFT;
        line[Layout::SEQ].store(seq & !STATE | LIVE | meter, Ordering::Release);
        u32::try_from(index).ok()
    }

    /// Takes a free line of the emptier of both buckets. Returns its place and its `seq`.
    fn take(&self, fields: &Fields) -> Option<(usize, u64)> {
        let state = |index: usize| self.line(index)[Layout::SEQ].load(Ordering::Acquire) & STATE;
        let lines = |bucket: usize| bucket * BUCKET..(bucket + 1) * BUCKET;
        let taken = |bucket: usize| lines(bucket).filter(|&it| state(it) != FREE).count();
        let mut buckets = fields.buckets(self.seed, self.buckets);
        if taken(buckets[1]) < taken(buckets[0]) {
            buckets.reverse();
        }
        buckets.into_iter().flat_map(lines).find_map(|index| {
            let seq = &self.line(index)[Layout::SEQ];
            let old = seq.load(Ordering::Acquire);
            // The number alone goes on; the meter is the new owner's.
            let new = (old.wrapping_add(TAKE) & NUMBER) | TAKEN;
            // Another shard may take it in between. What is written next must not be seen before this.
            let is_ours = old & STATE == FREE
                && seq
                    .compare_exchange(old, new, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok();
            is_ours.then_some((index, new))
        })
    }

    /// Sets another time at which a line ends.
    pub(super) fn set_expiry(&self, index: u32, expires_ns: u64) {
        self.line_at(index)[self.layout.expires_ns()].store(expires_ns, Ordering::Release);
    }

    /// Ends a line; it stays taken.
    pub(super) fn revoke(&self, index: u32) {
        self.set_state(index, TAKEN);
    }

    /// Gives a line back.
    pub(super) fn free(&self, index: u32) {
        self.set_state(index, FREE);
    }

    fn set_state(&self, index: u32, state: u64) {
        let seq = &self.line_at(index)[Layout::SEQ];
        let old = seq.load(Ordering::Relaxed);
        seq.store(old & !STATE | state, Ordering::SeqCst);
    }

    /// Returns what a line has relayed.
    pub(super) fn carried(&self, index: u32) -> Carried {
        let line = self.line_at(index);
        Carried {
            datagrams: line[self.layout.packets()].load(Ordering::Relaxed),
            bytes: line[self.layout.bytes()].load(Ordering::Relaxed),
        }
    }

    /// Returns the next hop of a line.
    pub(super) fn hop(&self, index: u32) -> u16 {
        let word = self.line_at(index)[self.layout.new_ports()].load(Ordering::Relaxed);
        u16::try_from(word >> 48).unwrap_or(0)
    }

    /// Returns the meter that a line is charged to.
    pub(super) fn meter(&self, index: u32) -> Option<NonZeroU32> {
        let word = self.line_at(index)[Layout::SEQ].load(Ordering::Relaxed);
        NonZeroU32::new(u32::try_from(word >> METER_SHIFT).unwrap_or(0))
    }

    fn line_at(&self, index: u32) -> &[AtomicU64] {
        self.line(index as usize)
    }

    fn line(&self, index: usize) -> &[AtomicU64] {
        &self.memory.words()[index * self.layout.len..(index + 1) * self.layout.len]
    }
}
