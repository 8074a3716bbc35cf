//! The journal of a shard: its engine's changes, written before the answers that announce them leave.
//!
//! It lies in memory that the next process of the same server finds again (two files without a name, [`Segments`]), so that an engine is built from it
//! that has the same allocations ([`turnbuckle_engine::Engine::restore`]). How many bytes of which segment count stands in one word of shared memory,
//! and is changed by one store when they are written. What a process was writing when it ended is cut; anything else that is not as it was written has
//! the whole shard refused ([`segment::decode`]).
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
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use turnbuckle_engine::{Change, Engine, Random, Time};
use turnbuckle_sys::mapped::Mapped;

use self::segment::{Encoder, Refused};

/// Bytes that a segment may always have before it is begun anew.
const SEGMENT_MIN: u64 = 1 << 20;

/// Places of the table that one flush writes to the next segment.
const PLACES_PER_FLUSH: u32 = 64;

/// Ends that one flush writes to the next segment.
const ENDS_PER_FLUSH: usize = 256;

/// In the word of a journal: the second segment counts. The other bits are its length in bytes.
const SECOND: u64 = 1 << 63;

/// The word of a journal that is not to be used.
const GIVEN_UP: u64 = u64::MAX;

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
        let files = Arc::new([file()?, file()?]);
        Ok(Self {
            files,
            words,
            index,
        })
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

    /// Returns the changes on record.
    ///
    /// # Errors
    ///
    /// The journal is not to be used, and why.
    pub(crate) fn read(&self) -> Result<Vec<Change>, String> {
        let word = self.word();
        if word == GIVEN_UP {
            return Err("it could not be written".into());
        }
        let mut file = &self.files[usize::from(word & SECOND != 0)];
        let mut bytes = Vec::new();
        file.rewind()
            .and_then(|()| file.read_to_end(&mut bytes))
            .map_err(|error| error.to_string())?;
        let committed = usize::try_from(word & !SECOND).unwrap_or(usize::MAX);
        segment::decode(&bytes, committed).map_err(|refused: Refused| refused.to_string())
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
}

/// How much is kept of what has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Ends at most.
    pub(crate) count_max: usize,
    /// How long a request that made something can be repeated.
    pub(crate) replay: Duration,
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
    /// Ends of allocations, and of families, that were there when it began and are not in it yet.
    ends: [VecDeque<Change>; 2],
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
        before: &[Change],
        now: Time,
        engine: &Engine<R>,
    ) -> io::Result<Self> {
        let mut ends = Ends::new(memory);
        for change in before {
            ends.note(change);
        }
        let mut journal = Self {
            begun_len: 0,
            current: Segment::begin(&segments, segments.word() & SECOND == 0)?,
            segments,
            next: None,
            ends,
        };
        let mut next = journal.next(now)?;
        while !next.write(&journal.segments, now, engine)? {}
        journal.turn_to(next.segment);
        Ok(journal)
    }

    /// Notes a change. It is written by the next [`Self::commit`].
    pub(crate) fn append(&mut self, change: &Change) {
        self.current.append(change);
        if let Some(next) = &mut self.next {
            next.segment.append(change);
        }
        self.ends.note(change);
    }

    /// Writes what was noted, and begins the next segment or goes on with it if that is due. Nothing that the changes allow or forbid may be
    /// announced earlier. After an error nothing is written any more, and what is on record is not used again.
    ///
    /// # Errors
    ///
    /// What could not be written, once.
    #[inline]
    pub(crate) fn commit<R: Random>(&mut self, now: Time, engine: &Engine<R>) -> io::Result<()> {
        if self.current.bytes.is_empty() && self.next.is_none() {
            return Ok(());
        }
        self.commit_changes(now, engine)
    }

    fn commit_changes<R: Random>(&mut self, now: Time, engine: &Engine<R>) -> io::Result<()> {
        if self.segments.word() == GIVEN_UP {
            self.current.bytes.clear();
            self.next = None;
            return Ok(());
        }
        let written = self.write(now, engine);
        if written.is_err() {
            self.next = None;
            self.segments.give_up();
        }
        written
    }

    fn write<R: Random>(&mut self, now: Time, engine: &Engine<R>) -> io::Result<()> {
        if !self.current.bytes.is_empty() {
            self.current.write(&self.segments)?;
            self.count();
        }
        let mut next = match self.next.take() {
            Some(next) => next,
            None if self.current.len > SEGMENT_MIN.max(2 * self.begun_len) => self.next(now)?,
            None => return Ok(()),
        };
        let old = self.current.is_second;
        if next.write(&self.segments, now, engine)? {
            self.turn_to(next.segment);
            self.segments.files[usize::from(old)].set_len(0)?;
        } else {
            self.next = Some(next);
        }
        Ok(())
    }

    /// Begins the segment that does not count.
    fn next(&mut self, now: Time) -> io::Result<Next> {
        self.ends.forget_old(now);
        Ok(Next {
            segment: Segment::begin(&self.segments, self.segments.word() & SECOND == 0)?,
            ends: [self.ends.allocations.clone(), self.ends.families.clone()],
            slot: 0,
        })
    }

    /// Has a segment count that is written.
    fn turn_to(&mut self, segment: Segment) {
        self.begun_len = segment.len;
        self.current = segment;
        self.count();
    }

    /// Has all count that the current segment holds.
    fn count(&self) {
        let second = if self.current.is_second { SECOND } else { 0 };
        self.segments.set_word(second | self.current.len);
    }
}

impl Next {
    /// Writes a part of it. Returns whether it is whole: ends of allocations first, then the state of the engine, and behind the allocations that they
    /// are about the ends of families.
    fn write<R: Random>(
        &mut self,
        segments: &Segments,
        now: Time,
        engine: &Engine<R>,
    ) -> io::Result<bool> {
        let [allocations, families] = &mut self.ends;
        self.segment.append_some(allocations);
        let slots = engine.session_slots();
        let until = self.slot.saturating_add(PLACES_PER_FLUSH).min(slots);
        for slot in self.slot..until {
            self.segment.snapshot(now, engine, slot);
        }
        self.slot = until;
        let is_at_end = until == slots;
        if is_at_end {
            self.segment.append_some(families);
        }
        self.segment.write(segments)?;
        Ok(is_at_end && self.ends.iter().all(VecDeque::is_empty))
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

    fn append(&mut self, change: &Change) {
        self.encoder.append(change, &mut self.bytes);
    }

    /// Appends the first of these ends, as many as one flush writes.
    fn append_some(&mut self, ends: &mut VecDeque<Change>) {
        for end in ends.drain(..ends.len().min(ENDS_PER_FLUSH)) {
            self.encoder.append(&end, &mut self.bytes);
        }
    }

    fn snapshot<R: Random>(&mut self, now: Time, engine: &Engine<R>, slot: u32) {
        engine.snapshot(now, slot, |change| self.append(change));
    }

    fn write(&mut self, segments: &Segments) -> io::Result<()> {
        segments.files[usize::from(self.is_second)].write_all_at(&self.bytes, self.len)?;
        self.len += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }
}
