//! What a keeper hands to the program that is to take over from it: a list of the descriptors that it is started with, and keys, in a file without a
//! name whose number is in the environment.
//!
//! Invariant: the program before changes none of it any more, and the new one neither, so that the one before can go on with it at any moment until
//! it is taken. It is taken, or withdrawn, by one exchange of one word.

use std::env;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::{Value, json};
use turnbuckle_sys::keeper::duplicate;
use turnbuckle_sys::mapped::Mapped;

use super::kept::{JOURNALS, Kept, Word};
use super::listing::{self, Listed};
use crate::config::Secret;
use crate::control::keys::KeyRing;
use crate::journal::Segments;

/// Number of the layout of this list and of the list of listening sockets. It is another one when either changes. Journals have a number of their own.
pub(super) const LAYOUT: u64 = 2;

/// The variable of the environment that holds the number of the descriptor.
pub(super) const VARIABLE: &str = "TURNBUCKLE_HANDED";

/// Bytes of the list at most.
const LIST_LEN_MAX: usize = 1 << 20;

/// Bits of the word that hold how it stands; the others are the number of the upgrade.
const STATE_BITS: u32 = 2;

/// How it stands with what was handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It can be taken.
    Offered = 1,
    /// The new program has it.
    Taken,
    /// The program before has it again.
    Withdrawn,
}

/// A word by which two programs agree on whose the calls are.
pub(super) struct Offer {
    words: Arc<Mapped>,
    index: usize,
    /// Number of the upgrade.
    number: u64,
}

impl Offer {
    /// Offers what `kept` names, in an upgrade of this number.
    pub(super) fn begin(kept: &Kept, number: u64) -> Self {
        let offer = Self {
            words: Arc::clone(&kept.words),
            index: Word::HandOver as usize,
            number,
        };
        offer.word().store(offer.value(State::Offered), Release);
        offer
    }

    /// Has it be this process's from now on. Returns false if it was withdrawn.
    pub(super) fn take(&self) -> bool {
        self.decide(State::Taken)
    }

    /// Has it stay with the program before. Returns false if it was taken.
    pub(super) fn withdraw(&self) -> bool {
        self.decide(State::Withdrawn)
    }

    pub(super) fn is_taken(&self) -> bool {
        self.word().load(Acquire) == self.value(State::Taken)
    }

    fn decide(&self, state: State) -> bool {
        let (offered, decided) = (self.value(State::Offered), self.value(state));
        self.word()
            .compare_exchange(offered, decided, AcqRel, Acquire)
            .is_ok()
    }

    fn value(&self, state: State) -> u64 {
        self.number << STATE_BITS | state as u64
    }

    fn word(&self) -> &AtomicU64 {
        &self.words.words()[self.index]
    }
}

/// What a spare finds that is about to be the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Open {
    /// Nothing was offered, or it is withdrawn now.
    Ours,
    /// Another program has taken it.
    Theirs,
}

/// Withdraws what may be on offer.
pub(super) fn withdraw_any(kept: &Kept) -> Open {
    let number = kept.get(Word::HandOver) >> STATE_BITS;
    let offer = Offer {
        words: Arc::clone(&kept.words),
        index: Word::HandOver as usize,
        number,
    };
    offer.withdraw();
    match offer.is_taken() {
        true => Open::Theirs,
        false => Open::Ours,
    }
}

/// What was handed to this program.
pub(super) struct Handed {
    /// Number of the upgrade.
    pub(super) number: u64,
    /// Version of the program before.
    pub(super) version: String,
    /// The descriptor of the page of the main process.
    pub(super) main: RawFd,
    pub(super) offer: Offer,
    /// Keys; a program that only tries has none.
    pub(super) keys: Option<KeyRing>,
    /// The password of the user that was made up, if one was. A program that only tries has none.
    pub(super) made_up_password: Option<Secret>,
    /// What the relay before knew of peers in rows, as [`Word::PeerRows`] has it.
    pub(super) peer_rows: u64,
    /// Whether the relay before drains.
    pub(super) is_draining: bool,
    listing: RawFd,
    listing_word: usize,
    journals: Vec<[RawFd; 2]>,
    journals_word: usize,
}

/// What the relay before has left on record.
pub(super) struct Before {
    pub(super) listed: Vec<Listed>,
    pub(super) journals: Vec<Segments>,
}

/// Writes down what is handed on, with the keys and the password that was made up or without, and returns the file.
///
/// # Errors
///
/// There is no room for it.
pub(super) fn write(kept: &Kept, number: u64, keys: Option<&KeyRing>) -> io::Result<File> {
    let journals = kept.journals.iter().map(|journal| {
        let [first, second] = journal.files();
        json!([first.as_raw_fd(), second.as_raw_fd()])
    });
    let password = kept.made_up_password.as_ref().filter(|_| keys.is_some());
    let list = json!({
        "layout": LAYOUT,
        "version": env!("CARGO_PKG_VERSION"),
        "number": number,
        "main": kept.main.file.as_raw_fd(),
        "words": kept.header.as_raw_fd(),
        "words_count": kept.words.words().len(),
        "hand_over": Word::HandOver as usize,
        "listing": kept.listing.as_raw_fd(),
        "listing_word": Word::Listing as usize,
        "journals": journals.collect::<Vec<_>>(),
        "journals_word": JOURNALS,
        "keys": keys.map(|keys| STANDARD.encode(keys.to_bytes())),
        "peer_rows": kept.get(Word::PeerRows),
        "draining": kept.get(Word::Draining) == 1,
        "made_up_password": password.map(|password| STANDARD.encode(password.expose())),
    });
    let mut file = File::from(memfd_create("turnbuckle-handed", MemfdFlags::CLOEXEC)?);
    file.write_all(list.to_string().as_bytes())?;
    Ok(file)
}

/// Returns all descriptors that the list names, of processes that are to read it without the sockets.
pub(super) fn named(kept: &Kept) -> Vec<RawFd> {
    let own = [
        kept.main.file.as_raw_fd(),
        kept.header.as_raw_fd(),
        kept.listing.as_raw_fd(),
    ];
    let journals = kept.journals.iter().flat_map(Segments::files);
    own.into_iter()
        .chain(journals.map(|file| file.as_raw_fd()))
        .collect()
}

impl Handed {
    /// Returns what was handed to this process, if the environment says that something was.
    ///
    /// # Errors
    ///
    /// It is not what this program understands, and why.
    pub(super) fn of_environment() -> Result<Option<Self>, String> {
        match env::var(VARIABLE) {
            Ok(number) => Self::read(&number).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Returns what stands in the descriptor of this number.
    ///
    /// # Errors
    ///
    /// It is not what this program understands, and why.
    pub(super) fn read(number: &str) -> Result<Self, String> {
        let unreadable = |error: &dyn std::fmt::Display| {
            format!("what the program before hands over cannot be read: {error}")
        };
        let number: RawFd = number.parse().map_err(|error| unreadable(&error))?;
        let text = contents(number).map_err(|error| unreadable(&error))?;
        let list: Value = serde_json::from_slice(&text).map_err(|error| unreadable(&error))?;
        let version = list["version"].as_str().unwrap_or("?").to_owned();
        // guard: V-63-handed-layout
        if list["layout"] != LAYOUT {
            return Err(format!(
                "turnbuckle {version} hands over in layout {}, this program takes layout {LAYOUT}",
                list["layout"]
            ));
        }
        Self::of(&list, version).map_err(|error| unreadable(&error))
    }

    fn of(list: &Value, version: String) -> io::Result<Self> {
        let missing = || io::Error::from(io::ErrorKind::InvalidData);
        let number = |value: &Value| value.as_u64().ok_or_else(missing);
        let place = |value: &Value| usize::try_from(number(value)?).map_err(|_| missing());
        let descriptor = |value: &Value| RawFd::try_from(number(value)?).map_err(|_| missing());
        let header = duplicate(descriptor(&list["words"])?)?;
        let words = Arc::new(Mapped::new(&header, place(&list["words_count"])?)?);
        let journals = list["journals"].as_array().ok_or_else(missing)?;
        let journals: Vec<_> = journals
            .iter()
            .map(|files| Ok([descriptor(&files[0])?, descriptor(&files[1])?]))
            .collect::<io::Result<_>>()?;
        let keys = match &list["keys"] {
            Value::Null => None,
            keys => {
                let bytes = STANDARD.decode(keys.as_str().ok_or_else(missing)?);
                let ring = KeyRing::from_bytes(&bytes.map_err(|_| missing())?);
                Some(ring.ok_or_else(missing)?)
            }
        };
        let made_up_password = match &list["made_up_password"] {
            Value::Null => None,
            password => {
                let bytes = STANDARD.decode(password.as_str().ok_or_else(missing)?);
                Some(Secret::new(bytes.map_err(|_| missing())?))
            }
        };
        let handed = Self {
            number: number(&list["number"])?,
            version,
            main: descriptor(&list["main"])?,
            offer: Offer {
                words,
                index: place(&list["hand_over"])?,
                number: number(&list["number"])?,
            },
            keys,
            made_up_password,
            peer_rows: list["peer_rows"].as_u64().ok_or_else(missing)?,
            is_draining: list["draining"].as_bool().ok_or_else(missing)?,
            listing: descriptor(&list["listing"])?,
            listing_word: place(&list["listing_word"])?,
            journals,
            journals_word: place(&list["journals_word"])?,
        };
        let words = handed.offer.words.words().len();
        let last_journal = handed.journals_word.saturating_add(handed.journals.len());
        let is_within =
            handed.offer.index.max(handed.listing_word) < words && last_journal <= words;
        is_within.then_some(handed).ok_or_else(missing)
    }

    /// Returns the number of shards that the relay before had.
    pub(super) fn shards(&self) -> usize {
        self.journals.len()
    }

    /// Returns what the relay before has left on record, in files that `open` takes by their numbers.
    ///
    /// # Errors
    ///
    /// A file is not there, or the list of listening sockets is not one of this program.
    pub(super) fn before(
        &self,
        mut open: impl FnMut(RawFd) -> io::Result<File>,
    ) -> io::Result<Before> {
        let words = &self.offer.words;
        let listing = open(self.listing)?;
        let word = words.words()[self.listing_word].load(Acquire);
        let listed = listing::read(word, &listing)
            .ok_or_else(|| io::Error::other("the list of listening sockets cannot be read"))?;
        let journals = self.journals.iter().enumerate().map(|(index, files)| {
            let files = [open(files[0])?, open(files[1])?];
            let word = self.journals_word + index;
            Ok(Segments::of_other(files, Arc::clone(words), word))
        });
        Ok(Before {
            journals: journals.collect::<io::Result<_>>()?,
            listed,
        })
    }
}

/// Returns what stands in the file of a descriptor. A relay could have put another one there, so it is read with the rights that it was opened with.
fn contents(number: RawFd) -> io::Result<Vec<u8>> {
    let file = File::from(duplicate(number)?);
    let mut text = vec![0; LIST_LEN_MAX];
    let mut len = 0;
    loop {
        match file.read_at(&mut text[len..], len as u64)? {
            0 => break,
            more => len += more,
        }
    }
    text.truncate(len);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::SigSet;

    use super::*;
    use crate::configured::configured;
    use crate::survive::staying::Main;

    #[test]
    fn what_is_handed_over_is_read_and_in_another_layout_refused() {
        let config = configured(&[]);
        let keys = KeyRing::new(&config);
        let signals = SigSet::empty();
        let password = Some(Secret::new(b"made up".to_vec()));
        let kept = Kept::new(3, &signals, Main::new().unwrap(), (keys, password)).unwrap();
        let tried = read(&write(kept, 7, None).unwrap()).unwrap();
        assert!(tried.keys.is_none() && tried.made_up_password.is_none());
        let list = write(kept, 7, Some(&kept.keys)).unwrap();
        let handed = read(&list).unwrap();
        assert_eq!((handed.number, handed.shards()), (7, 3));
        assert!(handed.keys.is_some());
        let password = handed.made_up_password.as_ref().map(Secret::expose);
        assert_eq!(password, Some(&b"made up"[..]));
        assert_eq!((handed.is_draining, handed.peer_rows), (false, 0));
        kept.set(Word::Draining, 1);
        kept.set(Word::PeerRows, 2);
        let draining = read(&write(kept, 8, Some(&kept.keys)).unwrap()).unwrap();
        assert_eq!((draining.is_draining, draining.peer_rows), (true, 2));
        let text = contents(list.as_raw_fd()).unwrap();
        let list: Value = serde_json::from_slice(&text).unwrap();
        // A relay names a file that it may read: whoever takes over writes nothing into it, whatever more it may.
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("of-another");
        std::fs::write(&path, [0; 4096]).unwrap();
        let readable = File::open(&path).unwrap();
        let mut other = list.clone();
        other["words"] = readable.as_raw_fd().into();
        let mut file = File::from(memfd_create("handed", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(other.to_string().as_bytes()).unwrap();
        assert!(read(&file).is_err());
        for layout in [
            json!(LAYOUT - 1),
            json!(LAYOUT + 1),
            json!(LAYOUT.to_string()),
            Value::Null,
        ] {
            let mut other = list.clone();
            other["layout"] = layout.clone();
            other["version"] = "9.8.7".into();
            let mut file = File::from(memfd_create("handed", MemfdFlags::CLOEXEC).unwrap());
            file.write_all(other.to_string().as_bytes()).unwrap();
            let expected = format!(
                "turnbuckle 9.8.7 hands over in layout {layout}, this program takes layout {LAYOUT}"
            );
            assert_eq!(read(&file).err(), Some(expected));
        }
    }

    fn read(list: &File) -> Result<Handed, String> {
        Handed::read(&list.as_raw_fd().to_string())
    }
}
