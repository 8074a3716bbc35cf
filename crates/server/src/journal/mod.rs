//! The journal of a shard: its engine's changes, written before the answers that announce them leave.
//!
//! It lies in memory that the next process of the same server finds again (two files without a name, [`Segments`]), so that an engine is built from it
//! that has the same allocations ([`turnbuckle_engine::Engine::restore`]). How many bytes of which segment count stands in one word of shared memory,
//! and is changed by one store when they are written. What a process was writing when it ended is cut; anything else that is not as it was written has
//! the whole shard refused ([`segment::decode`]).
//!
//! No journal of another boot of the machine can be found: its memory has no name, and ends with the last process that has it open. So no record names
//! the boot, and its times are of the clock that goes on.
//!
//! A segment grows with each change. When it has twice the size that it began with, the state of the engine is written to the other one, some places of
//! the table at each flush, together with the changes that come meanwhile ([`turnbuckle_engine::Engine::snapshot`]); then the word names that one.
//!
//! Nothing here runs for relayed data. A record is made in memory that is kept, and all records of a flush are written by one call.

mod record;
pub mod segment;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use crc32fast::Hasher;
use rustix::fs::{MemfdFlags, memfd_create};
use turnbuckle_engine::{AllocationId, Change, Engine, Random, Time};
use turnbuckle_sys::mapped::Mapped;

use self::segment::{Encoder, Recorded, Refused};

/// Number of the layout of records. It is another one when any of them changes.
const LAYOUT: u64 = 2;

/// In the word of a journal: the second segment counts.
const SECOND: u64 = 1 << 63;

/// How many of the word's lowest bits are the length of that segment in bytes. Those between are a checksum of the others and of [`LAYOUT`].
const LEN_BITS: u32 = 48;

/// The word of a journal that is not to be used.
const GIVEN_UP: u64 = u64::MAX;

/// Returns the word that says that so many bytes of a segment count, in the layout of this program.
fn word_of(is_second: bool, len: u64) -> u64 {
    word_in(LAYOUT, is_second, len)
}

fn word_in(layout: u64, is_second: bool, len: u64) -> u64 {
    let said = if is_second { len | SECOND } else { len };
    let mut hasher = Hasher::new();
    // guard: V-63-layout
    hasher.update(&layout.to_le_bytes());
    hasher.update(&said.to_le_bytes());
    // Bits 48 to 62.
    let checksum = u64::from(hasher.finalize() >> 17) << LEN_BITS;
    said | checksum
}

/// The two segments of a shard's journal, and the word that says what of them counts.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    files: Arc<[File; 2]>,
    words: Arc<Mapped>,
    /// Which of the words.
    index: usize,
}

impl Segments {
    /// Makes empty segments; their word is number `index` of `words`.
    ///
    /// # Errors
    ///
    /// What `memfd_create` returns.
    pub(crate) fn new(words: Arc<Mapped>, index: usize) -> io::Result<Self> {
        let file = || -> io::Result<File> {
            Ok(memfd_create("turnbuckle-journal", MemfdFlags::CLOEXEC)?.into())
        };
        let segments = Self {
            files: Arc::new([file()?, file()?]),
            words,
            index,
        };
        segments.set_word(word_of(false, 0));
        Ok(segments)
    }

    /// Returns the segments that another process has made.
    pub(crate) fn of_other(files: [File; 2], words: Arc<Mapped>, index: usize) -> Self {
        Self {
            files: Arc::new(files),
            words,
            index,
        }
    }

    /// Returns the files of both segments.
    pub(crate) fn files(&self) -> &[File; 2] {
        &self.files
    }

    /// Returns what is on record.
    ///
    /// # Errors
    ///
    /// The journal is not to be used, and why.
    pub(crate) fn read(&self) -> Result<Recorded, String> {
        let word = self.word();
        if word == GIVEN_UP {
            return Err("it could not be written".into());
        }
        let (is_second, len) = (word & SECOND != 0, word & ((1 << LEN_BITS) - 1));
        // guard: V-63-word
        if word != word_of(is_second, len) {
            return Err("the word that says where it ends is not one of this program".into());
        }
        let file = &self.files[usize::from(is_second)];
        // By places, because other processes may read by the same descriptor.
        let read = || {
            let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|error: io::Error| error.to_string())?;
        let committed = usize::try_from(len).unwrap_or(usize::MAX);
        segment::decode(&bytes, committed).map_err(|refused: Refused| refused.to_string())
    }

    /// Returns whether the segment that does not count has something: it was being written when its process ended.
    pub(crate) fn is_begun_anew(&self) -> bool {
        let other = &self.files[usize::from(self.word() & SECOND == 0)];
        other.metadata().is_ok_and(|file| file.len() > 0)
    }

    /// Has nothing of it be used again.
    pub(crate) fn give_up(&self) {
        self.set_word(GIVEN_UP);
    }

    fn word(&self) -> u64 {
        self.words.words()[self.index].load(Acquire)
    }

    fn set_word(&self, word: u64) {
        self.words.words()[self.index].store(word, Release);
    }
}

/// Time between two notes of what allocations have relayed: so much of it is forgotten when a relay is killed.
const USAGE_INTERVAL: Duration = Duration::from_secs(10);

/// Writes the changes of one shard.
#[derive(Debug)]
pub(crate) struct Journal {
    segments: Segments,
    current: Segment,
    /// What `current` was long when it began to count.
    begun_len: u64,
    /// The next segment, as far as it is written.
    next: Option<Next>,
    ends: Ends,
    relayed: Relayed,
    /// The session with the highest number, which each segment has, also when it has ended.
    highest: Option<(AllocationId, u64)>,
}

/// What of the usage of allocations is on record, which changes without a change.
#[derive(Debug, Default)]
struct Relayed {
    /// When it is looked at next, and from which place of the table on.
    due: Time,
    slot: u32,
    /// Datagrams on record, by place.
    noted: Vec<u64>,
}

/// How much is kept of what has ended, and of what is there how much is written anew at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Ends at most.
    pub(crate) count_max: usize,
    /// How long a request that made something can be repeated.
    pub(crate) replay: Duration,
    pub(crate) slices: Slices,
}

/// When a segment is begun anew, and in which slices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slices {
    /// Bytes that a segment may always have before.
    pub(crate) segment_min: u64,
    /// Places of the table that one flush writes.
    pub(crate) places: u32,
    /// Ends that one flush writes.
    pub(crate) ends: usize,
}

impl Slices {
    /// Those of a relay that serves.
    pub(crate) const SERVING: Self = Self {
        segment_min: 1 << 20,
        places: 64,
        ends: 256,
    };
}

/// What has ended not long ago, of earlier segments too: its transactions and its token are not to work again. The old is forgotten when a segment
/// begins.
#[derive(Debug)]
struct Ends {
    /// Of allocations, in their order.
    allocations: VecDeque<Change>,
    /// Of single families, in their order.
    families: VecDeque<Change>,
    memory: Memory,
}

impl Ends {
    fn new(memory: Memory) -> Self {
        Self {
            allocations: VecDeque::new(),
            families: VecDeque::new(),
            memory,
        }
    }

    fn note(&mut self, change: &Change) {
        match change {
            Change::Ended(_) => self.allocations.push_back(change.clone()),
            Change::FamilyEnded { .. } => self.families.push_back(change.clone()),
            _ => {}
        }
    }

    fn forget_old(&mut self, now: Time) {
        for ends in [&mut self.allocations, &mut self.families] {
            while let Some(oldest) = ends.front()
                && (ends.len() > self.memory.count_max
                    || now.since(time_of(oldest)) >= self.memory.replay)
            {
                ends.pop_front();
            }
        }
    }
}

/// Returns when something ended.
fn time_of(end: &Change) -> Time {
    match end {
        Change::Ended(ended) => ended.time,
        Change::FamilyEnded { time, .. } => *time,
        _ => Time::ZERO,
    }
}

/// One segment that is written.
#[derive(Debug)]
struct Segment {
    is_second: bool,
    /// Bytes in the file.
    len: u64,
    encoder: Encoder,
    /// Records that are not in the file yet.
    bytes: Vec<u8>,
}

/// The segment that is to count next. What changes meanwhile is appended to it too.
#[derive(Debug)]
struct Next {
    segment: Segment,
    /// Which ends of allocations, and of families, that were there when it began are not in it yet. Until it counts none is forgotten.
    ends: [Range<usize>; 2],
    /// The next place of the table.
    slot: u32,
}

impl Journal {
    /// Begins with the present state of `engine`, which was restored from `before`. Until then what was on record counts.
    ///
    /// # Errors
    ///
    /// The state could not be written.
    pub(crate) fn begin<R: Random>(
        segments: Segments,
        memory: Memory,
        before: &Recorded,
        now: Time,
        engine: &Engine<R>,
        number: impl Fn(AllocationId) -> u64,
    ) -> io::Result<Self> {
        let mut ends = Ends::new(memory);
        for change in &before.changes {
            ends.note(change);
        }
        let mut journal = Self {
            begun_len: 0,
            current: Segment::begin(&segments, segments.word() & SECOND == 0)?,
            segments,
            next: None,
            ends,
            relayed: Relayed {
                due: now + USAGE_INTERVAL,
                ..Relayed::default()
            },
            highest: before.numbers.highest,
        };
        let mut next = journal.next(now)?;
        while !next.write(&journal.segments, &journal.ends, now, engine, &number)? {}
        journal.turn_to(next.segment)?;
        Ok(journal)
    }

    /// Notes a change. It is written by the next [`Self::commit`], or never if one has failed.
    pub(crate) fn append(&mut self, change: &Change) {
        if self.segments.word() == GIVEN_UP {
            return; // Nothing would take it out again.
        }
        self.current.append(change);
        // mutant: journal-slices-miss-changes
        if let Some(next) = &mut self.next {
            next.segment.append(change);
        }
        self.ends.note(change);
    }

    /// Notes the number of a session that begins, which is written likewise.
    pub(crate) fn append_number(&mut self, allocation: AllocationId, number: u64) {
        if self.segments.word() == GIVEN_UP {
            return;
        }
        let numbered = (allocation, number);
        self.current.append_number(numbered);
        if let Some(next) = &mut self.next {
            next.segment.append_number(numbered);
        }
        if self.highest.is_none_or(|(_, highest)| highest < number) {
            self.highest = Some(numbered);
        }
    }

    /// Writes what was noted, and begins the next segment or goes on with it if that is due. Nothing that the changes allow or forbid may be
    /// announced earlier. `number` is asked for the number of a session. After an error nothing is written any more, and what is on record is not used again.
    ///
    /// # Errors
    ///
    /// What could not be written, once.
    #[inline]
    pub(crate) fn commit<R: Random>(
        &mut self,
        now: Time,
        engine: &Engine<R>,
        number: impl Fn(AllocationId) -> u64,
    ) -> io::Result<()> {
        if self.current.bytes.is_empty() && self.next.is_none() && now < self.relayed.due {
            return Ok(());
        }
        self.commit_changes(now, engine, &number)
    }

    /// Writes for the last time, because the next relay goes on from here: what allocations have relayed by now.
    ///
    /// # Errors
    ///
    /// What could not be written. What was on record is good all the same.
    pub(crate) fn seal<R: Random>(mut self, now: Time, engine: &Engine<R>) -> io::Result<()> {
        if self.segments.word() == GIVEN_UP {
            return Ok(());
        }
        self.note_usage(0, u32::MAX, now, engine);
        self.current.write(&self.segments)?;
        self.count();
        Ok(())
    }

    /// Notes what some allocations have relayed, if it is time.
    fn note_some_usage<R: Random>(&mut self, now: Time, engine: &Engine<R>) {
        if now < self.relayed.due {
            return;
        }
        let from = self.relayed.slot;
        self.relayed.slot = self.note_usage(from, self.slices().places, now, engine);
        if self.relayed.slot == 0 {
            self.relayed.due = now + USAGE_INTERVAL;
        }
    }

    /// Notes what allocations in so many places have relayed, if that is not on record. Returns the next place; 0 at the end.
    fn note_usage<R: Random>(
        &mut self,
        from: u32,
        places: u32,
        now: Time,
        engine: &Engine<R>,
    ) -> u32 {
        let slots = engine.session_slots();
        let until = from.saturating_add(places).min(slots);
        self.relayed.noted.resize(slots as usize, 0);
        for slot in from..until {
            let datagrams = engine.session_at(slot).map(|it| it.usage().datagrams());
            let noted = &mut self.relayed.noted[slot as usize];
            if datagrams.is_none_or(|count| count == std::mem::replace(noted, count)) {
                continue;
            }
            engine.snapshot(now, slot, |change| {
                if matches!(change, Change::Refreshed { .. }) {
                    self.append(change);
                }
            });
        }
        if until == slots { 0 } else { until }
    }

    fn commit_changes<R: Random>(
        &mut self,
        now: Time,
        engine: &Engine<R>,
        number: &impl Fn(AllocationId) -> u64,
    ) -> io::Result<()> {
        if self.segments.word() == GIVEN_UP {
            self.forget();
            return Ok(());
        }
        self.note_some_usage(now, engine);
        let written = self.write(now, engine, number);
        if written.is_err() {
            self.forget();
            // guard: V-63-unwritten
            self.segments.give_up();
        }
        written
    }

    fn write<R: Random>(
        &mut self,
        now: Time,
        engine: &Engine<R>,
        number: &impl Fn(AllocationId) -> u64,
    ) -> io::Result<()> {
        if !self.current.bytes.is_empty() {
            self.current.write(&self.segments)?;
            self.count();
        }
        let mut next = match self.next.take() {
            Some(next) => next,
            None if self.current.len > self.slices().segment_min.max(2 * self.begun_len) => {
                self.next(now)?
            }
            None => return Ok(()),
        };
        if next.write(&self.segments, &self.ends, now, engine, number)? {
            self.turn_to(next.segment)?;
        } else {
            self.next = Some(next);
        }
        Ok(())
    }

    /// Frees what was noted, since nothing more is written.
    fn forget(&mut self) {
        self.current.bytes = Vec::new();
        self.next = None;
        self.ends = Ends::new(self.ends.memory);
    }

    fn slices(&self) -> Slices {
        self.ends.memory.slices
    }

    /// Begins the segment that does not count.
    fn next(&mut self, now: Time) -> io::Result<Next> {
        self.ends.forget_old(now);
        let mut segment = Segment::begin(&self.segments, self.segments.word() & SECOND == 0)?;
        if let Some(highest) = self.highest {
            segment.append_number(highest);
        }
        Ok(Next {
            segment,
            ends: [0..self.ends.allocations.len(), 0..self.ends.families.len()],
            slot: 0,
        })
    }

    /// Has a segment count that is written, and empties the other.
    fn turn_to(&mut self, segment: Segment) -> io::Result<()> {
        let other = &self.segments.files[usize::from(!segment.is_second)];
        self.begun_len = segment.len;
        self.current = segment;
        self.count();
        other.set_len(0)
    }

    /// Has all count that the current segment holds.
    fn count(&self) {
        let Segment { is_second, len, .. } = self.current;
        self.segments.set_word(word_of(is_second, len));
    }
}

impl Next {
    /// Writes a part of it. Returns whether it is whole: ends of allocations first, then the state of the engine, and behind the allocations that they
    /// are about the ends of families.
    fn write<R: Random>(
        &mut self,
        segments: &Segments,
        ends: &Ends,
        now: Time,
        engine: &Engine<R>,
        number: &impl Fn(AllocationId) -> u64,
    ) -> io::Result<bool> {
        let slices = ends.memory.slices;
        let [allocations, families] = &mut self.ends;
        self.segment
            .append_some(&ends.allocations, allocations, slices.ends);
        let slots = engine.session_slots();
        let until = self.slot.saturating_add(slices.places).min(slots);
        for slot in self.slot..until {
            self.segment.snapshot(now, engine, slot, number);
        }
        self.slot = until;
        let is_at_end = until == slots;
        if is_at_end {
            self.segment
                .append_some(&ends.families, families, slices.ends);
        }
        self.segment.write(segments)?;
        Ok(is_at_end && self.ends.iter().all(Range::is_empty))
    }
}

impl Segment {
    /// Empties a file that does not count.
    fn begin(segments: &Segments, is_second: bool) -> io::Result<Self> {
        segments.files[usize::from(is_second)].set_len(0)?;
        Ok(Self {
            is_second,
            len: 0,
            encoder: Encoder::default(),
            bytes: Vec::new(),
        })
    }

    fn append_number(&mut self, numbered: (AllocationId, u64)) {
        self.encoder.append_number(numbered, &mut self.bytes);
    }

    fn append(&mut self, change: &Change) {
        self.encoder.append(change, &mut self.bytes);
    }

    /// Appends so many of the first of these ends that are left.
    fn append_some(&mut self, ends: &VecDeque<Change>, left: &mut Range<usize>, count: usize) {
        let until = left.start.saturating_add(count).min(left.end);
        for end in ends.range(left.start..until) {
            self.encoder.append(end, &mut self.bytes);
        }
        left.start = until;
    }

    fn snapshot<R: Random>(
        &mut self,
        now: Time,
        engine: &Engine<R>,
        slot: u32,
        number: &impl Fn(AllocationId) -> u64,
    ) {
        engine.snapshot(now, slot, |change| {
            self.append(change);
            if let Change::Created(created) = change {
                self.append_number((created.allocation, number(created.allocation)));
            }
        });
    }

    fn write(&mut self, segments: &Segments) -> io::Result<()> {
        segments.files[usize::from(self.is_second)].write_all_at(&self.bytes, self.len)?;
        self.len += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }
}
