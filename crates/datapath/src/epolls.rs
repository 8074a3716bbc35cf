//! What a shard waits for, in three event queues by who is served first.
//!
//! A queue tells of as much as is asked for, and of the rest the next time. In one queue for all, who has proven nothing would
//! stand in front of those who have, as many at a time as a turn asks for. So strangers and listeners have a queue each, and the
//! queue that the shard waits at holds these two as it holds sockets: that one of them has something to tell is one of its events.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// Event data of what is one of a kind; all else has its kind in the upper half and its name in the lower.
pub(crate) const WAKER: u64 = u64::MAX;
pub(crate) const TIMER: u64 = u64::MAX - 1;
/// Connections that have proven nothing have something to tell.
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
    /// Of everybody who is served in each turn, and of the two below.
    pub(crate) media: OwnedFd,
    /// Of connections that have proven nothing.
    pub(crate) strangers: OwnedFd,
    /// Of the sockets at which connections arrive.
    pub(crate) listeners: OwnedFd,
}

impl Epolls {
    /// Creates the queues.
    ///
    /// # Errors
    /// What the system says about missing descriptors.
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
        epolls.heed_listeners(true)?;
        Ok(epolls)
    }

    /// Has the shard be told, or no longer be told, that connections wait to be accepted.
    ///
    /// # Errors
    /// No memory for it.
    #[cold]
    pub(crate) fn heed_listeners(&self, wanted: bool) -> io::Result<()> {
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

/// The kind of what an event is about.
#[inline]
pub(crate) const fn kind(name: u64) -> u64 {
    name & !(u32::MAX as u64)
}
