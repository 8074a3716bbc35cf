//! The event queues (epoll) that a shard waits for: three, by who is served first.
//!
//! An event queue returns as many events as are requested, and the rest with the next call. If there were one queue for all, strangers
//! could fill these events and delay proven clients. So strangers and listeners have a queue each. The shard waits for the main queue,
//! which contains these two: when one of them becomes ready, the main queue reports an event for it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// Event data of queues of which there is one each; all other event data has its kind in the upper half and its name in the lower.
pub(crate) const WAKER: u64 = u64::MAX;
pub(crate) const TIMER: u64 = u64::MAX - 1;
/// Events of strangers wait in their queue.
pub(crate) const STRANGERS: u64 = u64::MAX - 2;
/// Connections wait to be accepted.
pub(crate) const LISTENERS: u64 = u64::MAX - 3;

/// A socket of a relay.
pub(crate) const RELAY: u64 = 0;
/// A connection.
pub(crate) const STREAM: u64 = 1 << 32;
/// A socket at which connections arrive.
pub(crate) const LISTENER: u64 = 2 << 32;
/// A socket to which clients send datagrams.
pub(crate) const CLIENTS: u64 = 3 << 32;

/// The event queues of one shard.
#[derive(Debug)]
pub(crate) struct Epolls {
    /// For everybody who is served in each turn, and for the two queues below.
    pub(crate) media: OwnedFd,
    /// For strangers: connections that have proven nothing.
    pub(crate) strangers: OwnedFd,
    /// For the sockets at which connections arrive.
    pub(crate) listeners: OwnedFd,
}

impl Epolls {
    /// Creates the queues.
    ///
    /// # Errors
    /// The error of the system when descriptors are short.
    pub(crate) fn new() -> io::Result<Self> {
        let create = || epoll::create(CreateFlags::CLOEXEC);
        let epolls = Self {
            media: create()?,
            strangers: create()?,
            listeners: create()?,
        };
        epoll::add(
            &epolls.media,
            &epolls.strangers,
            EventData::new_u64(STRANGERS),
            EventFlags::IN,
        )?;
        epolls.watch_listeners(true)?;
        Ok(epolls)
    }

    /// Enables or disables events about connections that wait to be accepted.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    #[cold]
    pub(crate) fn watch_listeners(&self, wanted: bool) -> io::Result<()> {
        let data = EventData::new_u64(LISTENERS);
        let result = match wanted {
            true => epoll::add(&self.media, &self.listeners, data, EventFlags::IN),
            false => epoll::delete(&self.media, &self.listeners),
        };
        match result {
            Ok(()) | Err(Errno::EXIST | Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Returns the kind of an event's source, from its data.
#[inline]
pub(crate) const fn kind(name: u64) -> u64 {
    name & !(u32::MAX as u64)
}
