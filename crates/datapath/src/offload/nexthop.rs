//! Next hops: by which device and to which link-layer address datagrams to a destination leave.
//!
//! A destination that a published route names is *wanted* as long as one does. Whoever knows the routes and neighbours of this host asks for what is
//! wanted ([`Hops::wanted`]) and says what it is ([`Hops::set`]). Until then, and when it is not known any more, the program passes the packets.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use turnbuckle_sys::mapped::Mapped;

/// Words of a next hop (`struct hop`).
pub(super) const HOP_WORDS: usize = 4;
pub(super) const EGRESS: usize = 0;
pub(super) const DESTINATION: usize = 1;
pub(super) const SOURCE: usize = 2;

/// Next hops that there are at most.
pub(super) const HOPS_MAX: usize = 1 << 16;

/// A next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The index of the device.
    pub device: u32,
    /// The largest IP packet, in bytes.
    pub mtu: u16,
    /// The link-layer address that frames go to.
    pub to: [u8; 6],
    /// The link-layer address of the device.
    pub from: [u8; 6],
}

/// A pair of addresses that a next hop is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// The source, an address of this host.
    pub from: IpAddr,
    /// The destination.
    pub to: IpAddr,
}

/// The next hops of all published routes.
#[derive(Debug)]
pub struct Hops {
    memory: Mapped,
    places: Mutex<Places>,
    /// Readable when something else is wanted than before.
    news: OwnedFd,
}

#[derive(Debug, Default)]
struct Places {
    by_wanted: BTreeMap<Wanted, Place>,
    /// What each place that was ever used is for.
    by_index: Vec<Option<Wanted>>,
    free: Vec<u16>,
    /// What has come to be wanted since it was taken last.
    new: Vec<Wanted>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    index: u16,
    routes: u32,
    hop: Option<Hop>,
}

impl Hops {
    /// Takes memory for [`HOPS_MAX`] next hops.
    ///
    /// # Errors
    ///
    /// There is no descriptor left.
    pub(super) fn new(memory: Mapped) -> io::Result<Self> {
        assert!(memory.words().len() == Self::words());
        Ok(Self {
            memory,
            places: Mutex::default(),
            news: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(super) const fn words() -> usize {
        HOPS_MAX * HOP_WORDS
    }

    /// Returns the place of the next hop for a route, or `None` if there are too many.
    pub(super) fn claim(&self, wanted: Wanted) -> Option<u16> {
        let mut places = self.places();
        if let Some(place) = places.by_wanted.get_mut(&wanted) {
            place.routes += 1;
            return Some(place.index);
        }
        let index = match places.free.pop() {
            Some(index) => index,
            None => {
                let index = u16::try_from(places.by_index.len()).ok()?;
                places.by_index.push(None);
                index
            }
        };
        places.by_index[usize::from(index)] = Some(wanted);
        let place = Place {
            index,
            routes: 1,
            hop: None,
        };
        places.by_wanted.insert(wanted, place);
        places.new.push(wanted);
        drop(places);
        // It can only be full, and then somebody is going to read it.
        let _ = rustix::io::write(&self.news, &1_u64.to_ne_bytes());
        Some(index)
    }

    /// Gives the place of the next hop of one route back.
    pub(super) fn release(&self, index: u16) {
        let mut places = self.places();
        let Some(wanted) = places.by_index[usize::from(index)] else {
            return;
        };
        let Some(place) = places.by_wanted.get_mut(&wanted) else {
            return;
        };
        place.routes -= 1;
        if place.routes == 0 {
            places.by_wanted.remove(&wanted);
            places.by_index[usize::from(index)] = None;
            places.free.push(index);
            self.write(index, None);
        }
    }

    /// Returns what is readable when there is something for [`Self::take_new`].
    pub fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// Takes the pairs that have come to be wanted since they were taken last.
    pub fn take_new(&self) -> Vec<Wanted> {
        // Nothing is there to read if it was called without news.
        let _ = rustix::io::read(&self.news, &mut [0_u8; 8][..]);
        std::mem::take(&mut self.places().new)
    }

    /// Returns all pairs that are wanted, with what is known of them.
    pub fn wanted(&self) -> Vec<(Wanted, Option<Hop>)> {
        let places = self.places();
        let all = places.by_wanted.iter();
        all.map(|(&wanted, place)| (wanted, place.hop)).collect()
    }

    /// Sets the next hop of a pair, if it is still wanted. `None` if it is not known.
    pub fn set(&self, wanted: Wanted, hop: Option<Hop>) {
        let mut places = self.places();
        if let Some(place) = places.by_wanted.get_mut(&wanted)
            && place.hop != hop
        {
            place.hop = hop;
            self.write(place.index, hop);
        }
    }

    /// Writes a next hop for the program. The lock on the places is held.
    fn write(&self, index: u16, hop: Option<Hop>) {
        let words = &self.memory.words()[usize::from(index) * HOP_WORDS..][..HOP_WORDS];
        // The program reads this word before and after the others.
        let old = words[EGRESS].swap(0, Ordering::SeqCst);
        if let Some(hop) = hop {
            let address =
                |it: [u8; 6]| u64::from_le_bytes([it[0], it[1], it[2], it[3], it[4], it[5], 0, 0]);
            words[DESTINATION].store(address(hop.to), Ordering::Relaxed);
            let version = words[SOURCE].load(Ordering::Relaxed) >> 48;
            let version = version.max(old >> 48) % 0xFFFF + 1;
            words[SOURCE].store(address(hop.from) | version << 48, Ordering::Relaxed);
            let egress = u64::from(hop.device) | u64::from(hop.mtu) << 32 | version << 48;
            words[EGRESS].store(egress, Ordering::SeqCst);
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
