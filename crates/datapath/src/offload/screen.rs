//! Where datagrams of clients come, and how those begin that are somebody's. The program drops the others and counts them.
//!
//! User space says it, once for each address. The program reads `place` before the rest, so it is written last.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use turnbuckle_sys::mapped::Mapped;

use super::hash::{BUCKET, Seed, mix};

/// Words of an entry (`struct listener`), and where they are.
pub(super) const LISTENER_WORDS: usize = 8;
pub(super) const PLACE: usize = 0;
pub(super) const ADDRESS: usize = 1;
pub(super) const FIRST_BYTES: usize = 3;
pub(super) const MARK: usize = 7;
/// `LISTENER`, `V6` and `LISTENER_BUCKETS` of the program.
const IS_LISTENER: u64 = 1 << 16;
const IS_V6: u64 = 1 << 17;
const BUCKETS: usize = 64;
/// Entries of the map of counts, and words of each (`struct refused`).
const PROCESSORS: usize = 1024;
pub(super) const REFUSED_WORDS: usize = 8;
pub(super) const UNKNOWN: usize = 0;
pub(super) const UNMARKED: usize = 1;

/// The first bytes of datagrams that are somebody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstBytes([u64; 4]);

impl FromIterator<u8> for FirstBytes {
    fn from_iter<T: IntoIterator<Item = u8>>(bytes: T) -> Self {
        let mut words = [0; 4];
        for byte in bytes {
            words[usize::from(byte >> 6)] |= 1 << (byte & 63);
        }
        Self(words)
    }
}

impl FirstBytes {
    /// Returns whether a first byte is somebody's.
    pub fn contains(self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] >> (byte & 63) & 1 == 1
    }
}

/// The header of datagrams that begin with a small byte. At offset 2 it says how many bytes follow it, a multiple of four, in network byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Smaller first bytes than this one are meant.
    pub first_bytes_below: u8,
    /// The length of the header, in bytes; 8 or more.
    pub header_len: u8,
    /// The bytes at offset 4.
    pub bytes: [u8; 4],
}

/// Where datagrams of clients come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The address.
    pub address: SocketAddr,
    /// How they begin. Others are dropped.
    pub first_bytes: FirstBytes,
    /// What some of them have. Those without it are dropped.
    pub mark: Option<Mark>,
}

/// Datagrams that came to listeners and were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Their first byte is nobody's, or they have none.
    pub unknown: u64,
    /// They lack the mark.
    pub unmarked: u64,
}

/// All listeners that the program knows.
#[derive(Debug)]
pub struct Screen {
    listeners: Mapped,
    refused: Mapped,
    seed: Seed,
}

impl Screen {
    pub(super) fn new(listeners: Mapped, refused: Mapped, seed: Seed) -> Self {
        assert!(listeners.words().len() == Self::words());
        assert!(refused.words().len() == Self::refused_words());
        Self {
            listeners,
            refused,
            seed,
        }
    }

    pub(super) const fn words() -> usize {
        BUCKETS * BUCKET * LISTENER_WORDS
    }

    pub(super) const fn refused_words() -> usize {
        PROCESSORS * REFUSED_WORDS
    }

    /// Has the program drop what comes to a listener and is nobody's. What it was told of that address before is replaced. Returns `false` if there
    /// is no room for another address; then all of it goes to the socket.
    pub fn set(&self, listener: &Listener) -> bool {
        let (place, address) = key(listener.address);
        let Some(entry) = self.entry(place, address) else {
            return false;
        };
        let words = &self.listeners.words()[entry..][..LISTENER_WORDS];
        let store = |at: usize, word: u64| words[at].store(word, Ordering::Release);
        for (at, word) in (ADDRESS..).zip(address) {
            store(at, word);
        }
        for (at, word) in (FIRST_BYTES..).zip(listener.first_bytes.0) {
            store(at, word);
        }
        store(MARK, listener.mark.map_or(0, mark));
        store(PLACE, place);
        true
    }

    /// Takes the counts of what was dropped since this was asked last.
    pub fn take_refused(&self) -> Refused {
        let words = self.refused.words();
        let take = |at: usize| {
            let counts = words.iter().skip(at).step_by(REFUSED_WORDS);
            let used = counts.filter(|it| it.load(Ordering::Relaxed) != 0);
            used.map(|it| it.swap(0, Ordering::Relaxed)).sum()
        };
        Refused {
            unknown: take(UNKNOWN),
            unmarked: take(UNMARKED),
        }
    }

    /// Returns where the entry of an address is, or could be.
    fn entry(&self, place: u64, address: [u64; 2]) -> Option<usize> {
        let words = self.listeners.words();
        let hash = address
            .iter()
            .fold(mix(self.seed.0, place), |hash, &word| mix(hash, word));
        let bucket = usize::try_from(hash & (BUCKETS as u64 - 1)).unwrap_or(0);
        let entries = (0..BUCKET).map(|it| (bucket * BUCKET + it) * LISTENER_WORDS);
        let word = |at: usize| words[at].load(Ordering::Relaxed);
        let is_its = |&entry: &usize| {
            (
                word(entry),
                [word(entry + ADDRESS), word(entry + ADDRESS + 1)],
            ) == (place, address)
        };
        let mut free = entries.clone().filter(|&entry| word(entry) == 0);
        entries.clone().find(is_its).or_else(|| free.next())
    }
}

/// Returns the words that an address is found by, as they stand in a packet.
fn key(address: SocketAddr) -> (u64, [u64; 2]) {
    let place = u64::from(u16::from_ne_bytes(address.port().to_be_bytes())) | IS_LISTENER;
    match address.ip() {
        IpAddr::V4(ip) => (place, [u32::from_ne_bytes(ip.octets()).into(), 0]),
        IpAddr::V6(ip) => {
            let octets = ip.octets();
            let (halves, _) = octets.as_chunks::<8>();
            (
                place | IS_V6,
                [halves[0], halves[1]].map(u64::from_ne_bytes),
            )
        }
    }
}

fn mark(mark: Mark) -> u64 {
    let below = u64::from(mark.first_bytes_below) << 32;
    u64::from(u32::from_ne_bytes(mark.bytes)) | below | u64::from(mark.header_len.max(8)) << 40
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(words: usize) -> Mapped {
        let file = rustix::fs::memfd_create("screen", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, words as u64 * 8).unwrap();
        Mapped::new(&file, words).unwrap()
    }

    fn listener(last: u8, port: u16) -> Listener {
        Listener {
            address: SocketAddr::new([192, 0, 2, last].into(), port),
            first_bytes: (0..=3).chain(20..=79).collect(),
            mark: None,
        }
    }

    #[test]
    fn first_bytes_are_those_that_were_given() {
        let given = listener(1, 1).first_bytes;
        let found: Vec<u8> = (0..=255).filter(|&it| given.contains(it)).collect();
        assert_eq!(found, (0..=3).chain(20..=79).collect::<Vec<_>>());
    }

    #[test]
    fn an_address_has_one_entry_and_where_there_is_no_room_none() {
        let screen = Screen::new(
            mapped(Screen::words()),
            mapped(Screen::refused_words()),
            Seed(7),
        );
        let used = || {
            let words = screen.listeners.words().iter().step_by(LISTENER_WORDS);
            words.filter(|it| it.load(Ordering::Relaxed) != 0).count()
        };
        for _ in 0..2 {
            assert!(screen.set(&listener(1, 3478)) && screen.set(&listener(2, 3478)));
            assert_eq!(used(), 2);
        }
        let kept = (1..=2000).filter(|&port| screen.set(&listener(3, port)));
        assert_eq!(kept.count() + 2, used());
        assert!(used() <= BUCKETS * BUCKET);
    }
}
