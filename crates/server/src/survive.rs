//! What outlives a relay process, and the processes that keep it.
//!
//! With `survive` the process that was started becomes the *keeper*. It makes two more, which share its table of descriptors
//! ([`turnbuckle_sys::keeper`]): the *relay*, and a *spare* that does nothing but wait for the end of the keeper. When the relay is killed, its sockets
//! stay open in that table, with all that waits in them, and the keeper makes the next relay, which finds them there. When the keeper is killed, the
//! spare is the keeper, and makes itself a spare. So whichever of them is killed, two are left that can go on.
//!
//! What the next relay has to know is [`Kept`]: keys, which every process has a copy of, and memory that all share: the journals of the shards, and
//! the list of listening sockets.
//!
//! Invariant: keeper and spare read nothing that a client sent, have no thread, and open no descriptor while they share the table. Whatever is not as
//! it was written is not used: then calls end, and no call gets a right that it did not have.

mod deaths;
mod heritage;
mod keeper;
mod listing;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use turnbuckle_sys::keeper::replace;
use turnbuckle_sys::mapped::Mapped;

use crate::config::Config;
use crate::control::events::Event;
use crate::control::keys::KeyRing;
use crate::journal::Segments;

pub(crate) use self::heritage::{Heritage, Record, ShardJournal};
pub use self::keeper::survive;

/// The words of the memory that all processes share; those behind the last one are the journals'.
#[derive(Clone, Copy)]
enum Word {
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
}

/// The first word of a journal.
const JOURNALS: usize = Word::Listing as usize + 1;

/// How long a relay whose keeper has ended waits for the next keeper.
const NEXT_KEEPER: Duration = Duration::from_secs(2);

/// What all processes of one server have. It is never dropped: its descriptors are those of every process.
struct Kept {
    words: Arc<Mapped>,
    listing: File,
    journals: Vec<Segments>,
    keys: KeyRing,
    /// Names the process that is the keeper.
    keeper: OwnedFd,
    /// Names the process that is the relay.
    relay: OwnedFd,
    /// The signals of the process that reads it.
    signals: SignalFd,
}

impl Kept {
    /// Makes what a server has that has not run yet. This process is its keeper, and gets these signals.
    fn new(config: &Config, signals: &SigSet) -> io::Result<&'static Self> {
        let shards = usize::from(config.datapath.shards.get());
        let count = JOURNALS + shards;
        let memory = |name| memfd_create(name, MemfdFlags::CLOEXEC);
        let header = memory("turnbuckle-header")?;
        ftruncate(&header, (count * size_of::<u64>()) as u64)?;
        let words = Arc::new(Mapped::new(&header, count)?);
        let journals = (0..shards).map(|shard| Segments::new(Arc::clone(&words), JOURNALS + shard));
        let kept = Self {
            journals: journals.collect::<io::Result<_>>()?,
            words,
            listing: memory("turnbuckle-listeners")?.into(),
            keys: KeyRing::new(config),
            keeper: pidfd_open(getpid(), PidfdFlags::empty())?,
            relay: pidfd_open(getpid(), PidfdFlags::empty())?,
            signals: SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?,
        };
        kept.set(Word::Keeper, number_of_this_process());
        Ok(Box::leak(Box::new(kept)))
    }

    fn word(&self, word: Word) -> &AtomicU64 {
        &self.words.words()[word as usize]
    }

    fn get(&self, word: Word) -> u64 {
        self.word(word).load(Acquire)
    }

    fn set(&self, word: Word, value: u64) {
        self.word(word).store(value, Release);
    }

    /// Returns the number of the process that keeps the relay.
    fn keeper_number(&self) -> u32 {
        u32::try_from(self.get(Word::Keeper)).unwrap_or(0)
    }

    /// Makes this process the one that a descriptor and a word name.
    fn be(&self, word: Word) -> io::Result<()> {
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

fn number_of_this_process() -> u64 {
    u64::from(std::process::id())
}

/// Waits until a process has ended.
fn await_end(process: &OwnedFd) {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    while let Err(Errno::INTR) = poll(&mut ended, None) {}
}

/// What a relay takes over from the one before it, and leaves to the next.
pub struct Estate {
    kept: &'static Kept,
    heritage: Heritage,
}

impl Estate {
    /// Returns whether there was a relay before.
    pub fn has_predecessor(&self) -> bool {
        self.kept.get(Word::Relays) > 1
    }

    /// The keys of all relays. That of nonces is derived from the secret that is configured now, if there is one.
    pub(crate) fn keys(&self, config: &Config) -> KeyRing {
        let mut keys = self.kept.keys.clone();
        keys.follow(config);
        keys
    }

    /// Returns the number of the process that keeps the relay.
    pub(crate) fn keeper(&self) -> u32 {
        self.kept.keeper_number()
    }

    /// Takes out what so many shards take over, and where they write their journals. If the relays before had another number of shards, there is
    /// nothing of either, and no later relay takes those journals over. `out` is told what there is.
    pub(crate) fn take(
        &mut self,
        shards: usize,
        out: &mut impl Write,
    ) -> (Heritage, Vec<Segments>) {
        let _ = writeln!(
            out,
            "survive: process {} is the keeper of process {}",
            self.keeper(),
            std::process::id()
        );
        let heritage = std::mem::take(&mut self.heritage);
        for complaint in &heritage.complaints {
            let _ = writeln!(out, "warning: survive: {complaint}");
        }
        let journals = &self.kept.journals;
        if journals.len() == shards {
            return (heritage, journals.clone());
        }
        for journal in journals {
            journal.give_up();
        }
        let _ = writeln!(
            out,
            "warning: survive: the number of threads has changed, so calls of the process before are \
             lost, and those of this one end with it"
        );
        (Heritage::none(shards), Vec::new())
    }

    /// Notes that the relay serves.
    pub(crate) fn serves(&self) {
        self.kept.set(Word::Served, 1);
    }

    /// Starts the thread that says when another process has become the keeper, or that there is none any more.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(crate) fn watch_keeper(&self, events: SyncSender<Event>) -> io::Result<()> {
        let kept = self.kept;
        let thread = std::thread::Builder::new().name("keeper".into());
        thread.spawn(move || {
            loop {
                let before = kept.get(Word::Keeper);
                await_end(&kept.keeper);
                let begun = Instant::now();
                while kept.get(Word::Keeper) == before && begun.elapsed() < NEXT_KEEPER {
                    std::thread::sleep(Duration::from_millis(10));
                }
                let is_kept = kept.get(Word::Keeper) != before;
                let line = match is_kept {
                    true => format!(
                        "survive: the keeper has ended; process {} is the keeper now",
                        kept.get(Word::Keeper)
                    ),
                    false => "error: survive: the keeper has ended, and there is none any more: \
                              calls end with this process"
                        .to_owned(),
                };
                // If nobody takes it, the relay ends.
                if events.send(Event::Line(line)).is_err() || !is_kept {
                    return;
                }
            }
        })?;
        Ok(())
    }
}
