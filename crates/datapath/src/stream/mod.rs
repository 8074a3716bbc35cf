//! Connections in the shard's own loop, beside the datagrams.
//!
//! A connection is read at most once per turn, into one arena for all of them, and what a handler forwards from it lies there
//! until the flush. What the handler cannot use yet it *keeps*: those bytes come again in front of the next ones. Towards a
//! connection each turn's messages leave with one gathering write. What the kernel does not take waits in an
//! [`Outgoing`], which is bounded: relayed data beyond the bound pushes out the oldest, and a connection whose control messages
//! do not fit is closed.
//!
//! Invariants:
//! * nothing blocks: every socket is non-blocking, and every loop over a socket is bounded per turn;
//! * a message that was begun on a connection is completed or the connection is closed;
//! * every queued message is handed to the kernel or reported by [`Handler::stream_failed`](crate::Handler::stream_failed),
//!   exactly once;
//! * what a connection takes while nothing is under way is its entry in the table.
//!
//! Read `accept.rs` for how connections come (`accepting.rs`: to which shard, `shortage.rs`: when descriptors are short), `read.rs` and `flush.rs` for how bytes come and go, `outgoing.rs` for what waits.

mod accept;
mod accepting;
mod connection;
mod flush;
mod outgoing;
mod read;
mod shortage;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventFlags};

use self::accept::Listener;
pub use self::accepting::{AcceptStrategy, Accepting};
pub(crate) use self::connection::EVENT_TAG as STREAM_TAG;
use self::connection::Table;
pub(crate) use self::flush::{Job, StreamFlusher};
use self::read::Arena;
pub(crate) use self::shortage::Shortage;

/// Marks event data that names a listener; the lower half is its name.
pub(crate) const LISTENER_TAG: u64 = 2 << 32;

use crate::counters::StreamCounters;
use crate::handler::Handler;
use crate::queue::{SendQueue, narrow};
use crate::settings::Settings;

/// The name of a connection; as with [`EndpointId`](crate::EndpointId), an index that is used again and a count of how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u32);

const INDEX_BITS: u32 = 22;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

impl StreamId {
    fn new(index: u32, generation: u32) -> Self {
        Self((generation << INDEX_BITS) | (index & INDEX_MASK))
    }

    /// Position in a table, small and reused after close.
    pub const fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    /// The whole name as a number.
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// The name that [`to_u32`](Self::to_u32) returned.
    pub const fn from_u32(name: u32) -> Self {
        Self(name)
    }
}

/// The name of a socket on which connections arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamListenerId(pub(crate) u32);

/// Where to listen for connections.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// Local address; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// A number passed with every connection.
    pub token: u64,
}

/// A connection just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The number given with [`Listen::token`].
    pub token: u64,
    /// Who connected.
    pub remote: SocketAddr,
}

/// Why a connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamEnd {
    /// Control messages for it did not fit the bound on what may wait.
    Congested,
    /// The other side closed it.
    Remote,
    /// The socket reported an error, such as a reset.
    Failed,
    /// This side closed it.
    Local,
}

/// What a handler does with what it was shown of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All but these ranges, which come again in this order in front of what comes next. What is forwarded may lie in them too.
    AllBut([Range<usize>; 2]),
    /// The connection ends, after what is queued for it.
    Close,
}

impl Taken {
    /// Everything.
    pub const ALL: Self = Self::AllBut([0..0, 0..0]);
}

/// Bytes of a connection that were kept, and then those that came now.
#[derive(Debug)]
pub struct StreamInput<'a> {
    /// The connection.
    pub stream: StreamId,
    /// How many bytes were kept before.
    pub kept_len: usize,
    bytes: &'a mut [u8],
    /// Where `bytes` begins in the arena.
    base: u32,
}

impl StreamInput<'_> {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// The bytes, to be decrypted in place. What was forwarded already must stay as it is.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Leaves out the first `len` bytes, as if they had not come; positions count from behind them.
    pub fn skip(&mut self, len: usize) {
        self.bytes = &mut std::mem::take(&mut self.bytes)[len..];
        self.base += narrow(len);
        self.kept_len = self.kept_len.saturating_sub(len);
    }

    pub(crate) fn base(&self) -> u32 {
        self.base
    }
}

/// A shard's connections and what it takes to serve them.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) table: Table,
    pub(crate) arena: Arena,
    pub(crate) shortage: Shortage,
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self {
            listeners: Vec::new(),
            table: Table::default(),
            arena: Arena::default(),
            shortage: Shortage::default(),
        }
    }

    /// Listens on an address, without admitting anybody yet.
    pub(crate) fn listen(
        &mut self,
        listen: Listen,
        epoll: &OwnedFd,
        settings: &Settings,
    ) -> io::Result<StreamListenerId> {
        let name = u32::try_from(self.listeners.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let listener = Listener::bind(listen, settings)?;
        listener.watch(name, epoll, settings)?;
        self.shortage.prepare();
        self.listeners.push(listener);
        Ok(StreamListenerId(name))
    }

    /// Looks at the listeners again, if a shortage of descriptors has kept them from being looked at for long enough.
    #[cold]
    pub(crate) fn resume(&mut self, now_ns: u64, epoll: &OwnedFd, settings: &Settings) {
        if !self.shortage.is_over(now_ns) {
            return;
        }
        for (name, listener) in (0..).zip(&self.listeners) {
            if listener.watch(name, epoll, settings).is_err() {
                // No memory for it: once more later. Those that are watched already say so and stay.
                self.shortage.noticed(now_ns);
            }
        }
    }

    /// Takes what waits at a listener, up to a bound.
    #[cold]
    #[expect(
        clippy::too_many_arguments,
        reason = "parts of a data path that is borrowed in pieces"
    )]
    pub(crate) fn accept<H: Handler>(
        &mut self,
        name: u32,
        now_ns: u64,
        epoll: &OwnedFd,
        settings: &Settings,
        counters: &StreamCounters,
        queue: &mut SendQueue,
        handler: &mut H,
    ) {
        let Some(listener) = self.listeners.get(name as usize) else {
            return;
        };
        if self.shortage.is_on() {
            return;
        }
        let table = &mut self.table;
        let mut accepted_any = false;
        let end = listener.accept(settings.accepts_per_turn, counters, |socket, remote| {
            accepted_any = true;
            let id = table.insert(socket, epoll)?;
            let accepted = Accepted {
                token: listener.token,
                remote,
            };
            if handler.accepted(id, &accepted, queue) {
                counters.accepted.add(1);
            } else {
                counters.refused.add(1);
                table.remove(id);
            }
            Ok(())
        });
        if accepted_any {
            self.shortage.relieved();
        }
        match end {
            Ok(()) => {
                self.shortage.relieved();
                self.shortage.prepare();
            }
            Err(_) => self.run_short(name, now_ns, epoll, settings, counters),
        }
    }

    /// Leaves all listeners alone for a while; turns away what waits at one of them if that has lasted too long.
    fn run_short(
        &mut self,
        name: u32,
        now_ns: u64,
        epoll: &OwnedFd,
        settings: &Settings,
        counters: &StreamCounters,
    ) {
        self.shortage.noticed(now_ns);
        if let Some(listener) = self.listeners.get(name as usize)
            && self.shortage.take_spare(now_ns)
        {
            listener.turn_away(settings.accepts_per_turn, counters);
            self.shortage.prepare();
        }
        for listener in &self.listeners {
            // The failure would be that it is not watched.
            let _ = epoll::delete(epoll, listener.fd());
        }
    }

    /// Handles a connection that is ready. What can be written is written by the flush that follows.
    #[inline]
    pub(crate) fn serve<H: Handler>(
        &mut self,
        id: StreamId,
        flags: EventFlags,
        counters: &StreamCounters,
        queue: &mut SendQueue,
        handler: &mut H,
    ) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        if flags.contains(EventFlags::OUT) && stream.outgoing.is_some() {
            queue.touch_stream(id);
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP)
            || stream.ending.is_some()
            || !handler.may_read(id)
        {
            return;
        }
        if let Err(ending) = self.arena.read(stream, counters, queue, handler) {
            self.end(id, ending, queue);
        }
    }

    /// Has a connection end at the next flush, after what is queued for it.
    pub(crate) fn end(&mut self, id: StreamId, ending: StreamEnd, queue: &mut SendQueue) {
        if let Some(stream) = self.table.get_mut(id)
            && stream.ending.is_none()
        {
            stream.ending = Some(ending);
            queue.touch_stream(id);
        }
    }
}
