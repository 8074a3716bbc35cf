//! Connections in the shard's own loop, beside the datagrams.
//!
//! A connection is read at most once per turn, into one arena for all of them, and what a handler forwards from it lies there
//! until the flush. What the handler cannot use yet it *keeps*: those bytes come again in front of the next ones. Towards a
//! connection each turn's messages leave with one gathering write. What the kernel does not take waits in an
//! [`Outgoing`], which is bounded: relayed data beyond the bound pushes out the oldest, and a connection whose control messages
//! do not fit is closed.
//!
//! Two connections can be *joined*: what is read from either is sent on the other, nothing is dropped, and one is not read while
//! something waits for the other. The end of either stream is passed on as that, a failure as a reset.
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

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use rustix::event::epoll::{self, EventFlags};
use rustix::net::sockopt::socket_error;

use self::accept::Listener;
pub use self::accepting::{AcceptStrategy, Accepting};
pub use self::connection::DetachedStream;
use self::connection::{Shutdown, Start, Table};
pub(crate) use self::flush::{Job, StreamFlusher};
use self::read::Arena;
pub(crate) use self::shortage::Shortage;

use crate::counters::StreamCounters;
use crate::epolls::Epolls;
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

impl StreamListenerId {
    /// The name as a number, small and reused after close.
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// The name that [`to_u32`](Self::to_u32) returned.
    pub const fn from_u32(name: u32) -> Self {
        Self(name)
    }
}

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
    /// Both sides of two joined connections have ended what they sent, and all of it has arrived.
    Finished,
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
    /// The other side said in its own protocol that nothing more comes: as if it had ended the stream itself.
    Ended,
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
    awaited_len: usize,
    is_cut: bool,
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

    /// Has nothing more be shown before `len` bytes are there, those that are kept among them.
    pub fn await_len(&mut self, len: usize) {
        self.awaited_len = len;
    }

    /// Has what is kept be shown in the next turn, whatever comes: this turn has done enough for the connection.
    pub fn cut(&mut self) {
        self.is_cut = true;
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
    listeners: Vec<Option<Listener>>,
    /// Places of listeners that were closed.
    free_listeners: Vec<u32>,
    /// Listeners of which the shard is told by themselves.
    exclusive: Vec<u32>,
    pub(crate) table: Table,
    /// Connections of which a handler has seen enough in the last turn.
    pub(crate) cut: Vec<StreamId>,
    /// The same while they are gone through.
    looking: Vec<StreamId>,
    /// The same of strangers, the first to be served first.
    pub(crate) cut_strangers: VecDeque<StreamId>,
    pub(crate) arena: Arena,
    pub(crate) shortage: Shortage,
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self {
            listeners: Vec::new(),
            free_listeners: Vec::new(),
            exclusive: Vec::new(),
            table: Table::default(),
            cut: Vec::new(),
            looking: Vec::new(),
            cut_strangers: VecDeque::new(),
            arena: Arena::default(),
            shortage: Shortage::default(),
        }
    }

    /// Looks at the listeners again, if a shortage of descriptors has kept them from being looked at for long enough.
    #[cold]
    pub(crate) fn resume(&mut self, now_ns: u64, epolls: &Epolls) {
        if !self.shortage.is_over(now_ns) {
            return;
        }
        let exclusive = self
            .exclusive_listeners()
            .map(|(name, listener)| listener.watch(name, epolls));
        if exclusive
            .chain([epolls.heed_listeners(true)])
            .any(|result| result.is_err())
        {
            // No memory for it: once more later. Those that are watched already say so and stay.
            self.shortage.noticed(now_ns);
        }
    }

    /// Listeners that the shard waits for by themselves: as many as addresses at most, and none by default.
    fn exclusive_listeners(&self) -> impl Iterator<Item = (u32, &Listener)> {
        let listeners = self.exclusive.iter().copied();
        listeners.filter_map(|name| Some((name, self.listeners.get(name as usize)?.as_ref()?)))
    }

    /// Has the shard be told when connections wait, once they are admitted.
    fn add_listener(
        &mut self,
        listener: Listener,
        epolls: &Epolls,
    ) -> io::Result<StreamListenerId> {
        let name = match self.free_listeners.pop() {
            Some(name) => name,
            None => {
                self.listeners.push(None);
                narrow(self.listeners.len() - 1)
            }
        };
        if let Err(error) = listener.watch(name, epolls) {
            self.free_listeners.push(name);
            return Err(error);
        }
        if listener.is_exclusive() {
            self.exclusive.push(name);
        }
        self.listeners[name as usize] = Some(listener);
        Ok(StreamListenerId(name))
    }

    /// Listens on an address, without admitting anybody yet.
    pub(crate) fn listen(
        &mut self,
        listen: Listen,
        epolls: &Epolls,
        settings: &Settings,
    ) -> io::Result<StreamListenerId> {
        let name = self.add_listener(Listener::bind(listen, settings)?, epolls)?;
        self.shortage.prepare();
        Ok(name)
    }

    /// Lets connections arrive at a listener.
    pub(crate) fn admit(&mut self, id: StreamListenerId, epolls: &Epolls) -> io::Result<()> {
        let listener = self
            .listeners
            .get_mut(id.0 as usize)
            .and_then(Option::as_mut);
        listener.ok_or(io::ErrorKind::NotFound)?.admit(id.0, epolls)
    }

    /// Listens on the address of a relay.
    pub(crate) fn listen_for_peers(
        &mut self,
        listen: Listen,
        settings: &Settings,
        epolls: &Epolls,
    ) -> io::Result<StreamListenerId> {
        self.add_listener(Listener::bind_relay(listen, settings)?, epolls)
    }

    pub(crate) fn listener(&self, id: StreamListenerId) -> Option<&Listener> {
        self.listeners.get(id.0 as usize)?.as_ref()
    }

    /// Stops listening. Connections that were accepted stay.
    pub(crate) fn close_listener(&mut self, id: StreamListenerId) {
        let listener = self.listeners.get_mut(id.0 as usize);
        if listener.and_then(Option::take).is_some() {
            self.free_listeners.push(id.0);
            self.exclusive.retain(|name| *name != id.0);
        }
    }

    /// Begins a connection.
    pub(crate) fn connect(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        settings: &Settings,
        epolls: &Epolls,
    ) -> io::Result<StreamId> {
        let socket = accept::connect(local, remote, settings)?;
        // guard: V-46-unbound
        self.table.enter(socket, Start::Connecting, epolls)
    }

    /// Takes what waits at a listener, up to a bound of number and of time.
    #[cold]
    #[expect(
        clippy::too_many_arguments,
        reason = "parts of a data path that is borrowed in pieces"
    )]
    pub(crate) fn accept<H: Handler>(
        &mut self,
        name: u32,
        (now_ns, until): (u64, Instant),
        epolls: &Epolls,
        settings: &Settings,
        counters: &StreamCounters,
        queue: &mut SendQueue,
        handler: &mut H,
    ) {
        let Some(Some(listener)) = self.listeners.get(name as usize) else {
            return;
        };
        if self.shortage.is_on() {
            return;
        }
        let table = &mut self.table;
        let mut accepted_any = false;
        let limit = (settings.accepts_per_turn, until);
        let end = listener.accept(limit, counters, |socket, remote| {
            accepted_any = true;
            let id = table.insert(socket, listener.start)?.id;
            let accepted = Accepted {
                token: listener.token,
                remote,
            };
            if !handler.accepted(id, &accepted, queue) {
                counters.refused.add(1);
                table.remove(id);
                return Ok(());
            }
            counters.accepted.add(1);
            // guard: V-47-strangers-apart
            let is_stranger = handler.is_stranger(id);
            if let Some(stream) = table.get_mut(id)
                && stream.enter(epolls, is_stranger).is_err()
            {
                stream.ending = Some(StreamEnd::Failed);
                queue.touch_stream(id);
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
            Err(_) => self.run_short(name, now_ns, epolls, settings, counters),
        }
    }

    /// Leaves all listeners alone for a while; turns away what waits at one of them if that has lasted too long.
    fn run_short(
        &mut self,
        name: u32,
        now_ns: u64,
        epolls: &Epolls,
        settings: &Settings,
        counters: &StreamCounters,
    ) {
        self.shortage.noticed(now_ns);
        if let Some(Some(listener)) = self.listeners.get(name as usize)
            && self.shortage.take_spare(now_ns)
        {
            listener.turn_away(settings.accepts_per_turn, counters);
            self.shortage.prepare();
        }
        // The failure would be that it is not watched.
        let _ = epolls.heed_listeners(false);
        for (_, listener) in self.exclusive_listeners() {
            let _ = epoll::delete(&epolls.media, listener.fd());
        }
    }

    /// Handles a connection that is ready. What can be written is written by the flush that follows.
    #[inline]
    pub(crate) fn serve<H: Handler>(
        &mut self,
        id: StreamId,
        flags: EventFlags,
        epolls: &Epolls,
        counters: &StreamCounters,
        queue: &mut SendQueue,
        handler: &mut H,
    ) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        if stream.is_connecting {
            return self.connected(id, epolls, queue, handler);
        }
        if flags.contains(EventFlags::OUT) && stream.outgoing.is_some() {
            queue.touch_stream(id);
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP)
            || stream.ending.is_some()
        {
            return;
        }
        // The kernel keeps what came before a reset. Nobody is there to be answered, and a handshake is much work.
        // guard: V-47-reset
        let is_reset = stream.is_stranger() && flags.contains(EventFlags::ERR);
        if is_reset || !stream.is_reading() {
            return self.failed_unread(id, epolls, queue);
        }
        // What was cut is shown by itself, once in a turn.
        if stream.is_cut || !handler.may_read(id) {
            return;
        }
        let result = self.arena.read(stream, counters, queue, handler);
        self.was_shown(id, result, epolls, queue, handler);
    }

    /// Begins to go through the connections that were cut, so that those which are cut once more wait for the next turn.
    pub(crate) fn start_cut(&mut self) {
        std::mem::swap(&mut self.cut, &mut self.looking);
    }

    /// The next connection that was cut in an earlier turn.
    pub(crate) fn next_cut(&mut self) -> Option<StreamId> {
        self.looking.pop()
    }

    /// Shows what was kept of a connection that was cut.
    #[cold]
    pub(crate) fn show_again<H: Handler>(
        &mut self,
        id: StreamId,
        epolls: &Epolls,
        queue: &mut SendQueue,
        handler: &mut H,
    ) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        if stream.ending.is_some() {
            return;
        }
        if !handler.may_read(id) {
            return self.note_cut(id);
        }
        let result = self.arena.show_again(stream, queue, handler);
        self.was_shown(id, result, epolls, queue, handler);
    }

    /// Has a connection be shown again in the next turn.
    #[cold]
    pub(crate) fn note_cut(&mut self, id: StreamId) {
        match self.table.get_mut(id) {
            Some(stream) if stream.is_stranger() => self.cut_strangers.push_back(id),
            Some(_) => self.cut.push(id),
            None => {}
        }
    }

    /// Whether a connection is to be shown again.
    #[inline]
    pub(crate) fn has_cut(&self) -> bool {
        !(self.cut.is_empty() && self.cut_strangers.is_empty())
    }

    /// After a connection was shown to the handler.
    #[inline]
    fn was_shown<H: Handler>(
        &mut self,
        id: StreamId,
        result: Result<(), StreamEnd>,
        epolls: &Epolls,
        queue: &mut SendQueue,
        handler: &mut H,
    ) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        match result {
            Ok(()) if stream.is_cut => self.note_cut(id),
            Ok(()) => {}
            Err(StreamEnd::Remote) if stream.partner.is_some() => {
                self.half_closed(id, epolls, queue);
                handler.stream_ended(id);
            }
            Err(ending) => self.end(id, ending, queue),
        }
    }

    /// Finds out what became of a connection that this side began.
    #[cold]
    fn connected<H: Handler>(
        &mut self,
        id: StreamId,
        epolls: &Epolls,
        queue: &mut SendQueue,
        handler: &mut H,
    ) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        let result = match socket_error(stream.fd()) {
            Ok(Ok(())) => stream.set_connected(epolls),
            Ok(Err(errno)) | Err(errno) => Err(errno.into()),
        };
        if result.is_err() {
            self.table.remove(id);
        }
        handler.connected(id, result, queue);
    }

    /// An error of a connection that is not read: it ends if it is not joined; if it is, that will be found out when it is
    /// read or written again.
    #[cold]
    fn failed_unread(&mut self, id: StreamId, epolls: &Epolls, queue: &mut SendQueue) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        if stream.partner.is_none() || stream.unwatch(epolls).is_err() {
            self.end(id, StreamEnd::Failed, queue);
        }
    }

    /// The other side of a joined connection has ended what it sends: so will this side do on the connection it is joined with.
    #[cold]
    fn half_closed(&mut self, id: StreamId, epolls: &Epolls, queue: &mut SendQueue) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        stream.has_ended = true;
        if stream.set_reading(epolls, false).is_err() {
            return self.end(id, StreamEnd::Failed, queue);
        }
        let partner = stream.partner;
        if let Some(partner) = partner.and_then(|partner| self.table.get_mut(partner)) {
            partner.shutdown = Shutdown::Wanted;
            queue.touch_stream(partner.id);
        }
    }

    /// Has a connection that has proven itself be served with the others.
    #[inline]
    pub(crate) fn prove(&mut self, id: StreamId, epolls: &Epolls, queue: &mut SendQueue) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        if stream.is_stranger() && stream.prove(epolls).is_err() {
            self.end(id, StreamEnd::Failed, queue);
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

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd as _, OwnedFd};

    use super::*;

    /// How many descriptors an event queue watches.
    fn watched(queue: &OwnedFd) -> usize {
        let info = format!("/proc/self/fdinfo/{}", queue.as_raw_fd());
        let info = std::fs::read_to_string(info).unwrap();
        info.lines().filter(|line| line.starts_with("tfd:")).count()
    }

    #[test]
    fn a_shortage_changes_one_entry_however_many_listeners_there_are() {
        let epolls = Epolls::new().unwrap();
        let mut streams = Streams::new();
        let settings = Settings::default();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        for token in 0..50 {
            let listen = Listen { address, token };
            let id = streams.listen_for_peers(listen, &settings, &epolls);
            assert!(streams.listener(id.unwrap()).is_some());
        }
        assert_eq!(
            (watched(&epolls.media), watched(&epolls.listeners)),
            (2, 50)
        );
        streams.run_short(0, 1000, &epolls, &settings, &StreamCounters::default());
        assert_eq!(
            (watched(&epolls.media), watched(&epolls.listeners)),
            (1, 50)
        );
        streams.resume(1000, &epolls);
        assert_eq!(watched(&epolls.media), 1);
        streams.resume(1_000_000_000, &epolls);
        assert_eq!(
            (watched(&epolls.media), watched(&epolls.listeners)),
            (2, 50)
        );
    }
}
