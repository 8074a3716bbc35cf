//! What all processes of one server share: memory, journals, keys, and what names them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use serde_json::Value;
use turnbuckle_sys::keeper::replace;
use turnbuckle_sys::mapped::Mapped;

use super::staying::{Main, number_of_this_process};
use crate::config::Secret;
use crate::control::keys::KeyRing;
use crate::journal::Segments;

/// The words of the memory that all processes share; those behind the last one are the journals'.
#[derive(Clone, Copy)]
pub(super) enum Word {
    /// Number of the keeper.
    Keeper,
    /// Number of the relay, once its descriptor is in place.
    Relay,
    /// Relays so far, with the present one.
    Relays,
    /// 1 if the present relay has served.
    Served,
    /// The code that the present relay ends with by itself, and one.
    Ended,
    /// Where the list of listening sockets is.
    Listing,
    /// Whether the relay has ended its last turn, and leaves what it has to a keeper.
    Sealed,
    /// Whose the calls are during an upgrade ([`handed::Offer`]).
    HandOver,
    /// The last wish of a relay for an upgrade ([`upgrade`]).
    Wished,
    /// What the keeper has answered.
    Answered,
    /// What rows of the user database say of peers: 1 nothing, 2 that some are denied, 3 that some are allowed too, so that permissions cannot be judged
    /// without them; 0 if no relay has known.
    PeerRows,
    /// 1 if the relay takes no new allocations and ends with the last of them, so that the next one does too.
    Draining,
}

/// The first word of a journal.
pub(super) const JOURNALS: usize = Word::Draining as usize + 1;

/// Bytes of a wish or an answer at most.
pub(super) const NOTE_LEN_MAX: usize = 16 << 10;

/// Bits of a word that hold the length; the others count.
const LEN_BITS: u32 = 32;

/// What the word says while shards make their last turn, and when they have made it.
pub(super) const SEALING: u64 = 1;
pub(super) const SEALED: u64 = 2;

/// What all processes of one server have. It is never dropped: its descriptors are those of every process.
pub(super) struct Kept {
    pub(super) words: Arc<Mapped>,
    /// The file of the words.
    pub(super) header: File,
    pub(super) listing: File,
    /// Wishes for an upgrade, and answers.
    pub(super) notes: File,
    /// Tells the keeper that a word has changed.
    pub(super) bell: OwnedFd,
    /// Which process was started, and which is the keeper.
    pub(super) main: Main,
    pub(super) journals: Vec<Segments>,
    pub(super) keys: KeyRing,
    /// The password of the user that the first relay made up, if it did.
    pub(super) made_up_password: Option<Secret>,
    /// Names the process that is the keeper.
    pub(super) keeper: OwnedFd,
    /// Names the process that is the relay.
    pub(super) relay: OwnedFd,
    /// The signals of the process that reads it.
    pub(super) signals: SignalFd,
}

impl Kept {
    /// Makes what a server has that has not run yet, or not by this program. This process is its keeper, and gets these signals.
    pub(super) fn new(
        shards: usize,
        signals: &SigSet,
        main: Main,
        (keys, made_up_password): (KeyRing, Option<Secret>),
    ) -> io::Result<&'static Self> {
        let count = JOURNALS + shards;
        let memory = |name| {
            memfd_create(name, MemfdFlags::CLOEXEC).map_err(|error| named("memfd_create", error))
        };
        let this_process = || {
            let process = pidfd_open(getpid(), PidfdFlags::empty());
            process.map_err(|error| named("pidfd_open", error))
        };
        let header = File::from(memory("turnbuckle-header")?);
        ftruncate(&header, (count * size_of::<u64>()) as u64)?;
        let words = Arc::new(Mapped::new(&header, count)?);
        let journals = (0..shards).map(|shard| Segments::new(Arc::clone(&words), JOURNALS + shard));
        let kept = Self {
            journals: journals.collect::<io::Result<_>>()?,
            words,
            header,
            listing: memory("turnbuckle-listeners")?.into(),
            notes: memory("turnbuckle-notes")?.into(),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|error| named("eventfd", error))?,
            main,
            keys,
            made_up_password,
            keeper: this_process()?,
            relay: this_process()?,
            signals: SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
                .map_err(|error| named("signalfd", error))?,
        };
        kept.set(Word::Keeper, number_of_this_process());
        Ok(Box::leak(Box::new(kept)))
    }

    pub(super) fn word(&self, word: Word) -> &AtomicU64 {
        &self.words.words()[word as usize]
    }

    pub(super) fn get(&self, word: Word) -> u64 {
        self.word(word).load(Acquire)
    }

    pub(super) fn set(&self, word: Word, value: u64) {
        self.word(word).store(value, Release);
    }

    /// Returns the number of the process that keeps the relay.
    pub(super) fn keeper_number(&self) -> u32 {
        u32::try_from(self.get(Word::Keeper)).unwrap_or(0)
    }

    /// Makes this process the one that a descriptor and a word name.
    pub(super) fn be(&self, word: Word) -> io::Result<()> {
        let place = match word {
            Word::Keeper => &self.keeper,
            _ => &self.relay,
        };
        let own = pidfd_open(getpid(), PidfdFlags::empty())?;
        replace(place.as_fd(), own.as_fd())?;
        self.set(word, number_of_this_process());
        Ok(())
    }
}

/// Names the call that an error is of: whoever reads it has to know what a sandbox is to allow.
fn named(call: &str, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{call}: {error}"))
}

/// Waits until a process has ended. Nobody else may have the number of its descriptor name another process meanwhile ([`Kept::be`]).
pub(super) fn await_end(process: &OwnedFd) {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    while let Err(Errno::INTR) = poll(&mut ended, None) {}
}

impl Kept {
    /// Writes a text in place of the one before, and counts it. There is one place for each of the two words.
    pub(super) fn write_note(&self, word: Word, note: &Value) -> io::Result<()> {
        let text = note.to_string();
        if text.len() > NOTE_LEN_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.notes.write_all_at(text.as_bytes(), place(word))?;
        let count = (self.get(word) >> LEN_BITS).wrapping_add(1);
        self.set(word, count << LEN_BITS | text.len() as u64);
        Ok(())
    }

    /// Returns the text that the value of a word counts.
    pub(super) fn note(&self, word: Word, value: u64) -> Option<Value> {
        let len = usize::try_from(value & ((1 << LEN_BITS) - 1)).ok()?;
        let mut text = vec![0; len.min(NOTE_LEN_MAX)];
        self.notes.read_exact_at(&mut text, place(word)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

fn place(word: Word) -> u64 {
    match word {
        Word::Wished => 0,
        _ => NOTE_LEN_MAX as u64,
    }
}
