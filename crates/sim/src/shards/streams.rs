//! The connections of a simulated data path: read in part, written in part, joined, moved to another shard.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::{io, mem};

use turnbuckle_datapath::{
    Accepted, Admission, Content, DetachedStream, Handler, Listen, Memory, SendFailure, SendQueue,
    StreamChange, StreamEnd, StreamId, StreamInput, StreamListenerId, Taken,
};

use super::host::SharedHost;
use super::wire::WireId;
use crate::plan;
use crate::random::Seeded;

const INDEX_BITS: u32 = 22;
/// How often a place is used before its names come again; a real data path has 1024.
const GENERATIONS: u32 = 16;
/// Media that waits for a connection, in bytes.
const MEDIA_MAX: usize = 2048;
/// Answers that wait for a connection, in bytes.
const CONTROL_MAX: usize = 64 * 1024;
/// Most bytes of one reading.
const READ_MAX: u64 = 4096;

/// A message that has not been written whole.
#[derive(Debug)]
struct Waiting {
    content: Content,
    bytes: Vec<u8>,
    written: usize,
}

impl Waiting {
    /// Returns how many messages this counts as.
    fn counted(&self) -> u32 {
        counted(self.content)
    }
}

fn counted(content: Content) -> u32 {
    u32::from(matches!(content, Content::Control | Content::Media))
}

/// What was read of a connection and not taken by the shard.
#[derive(Debug, Default)]
struct Unread {
    kept: Vec<u8>,
    /// How many bytes the message has that begins in `kept`.
    awaited_len: usize,
    /// Whether whole messages are left for the next turn.
    is_cut: bool,
}

#[derive(Debug)]
struct Stream {
    id: StreamId,
    wire: WireId,
    unread: Unread,
    outgoing: VecDeque<Waiting>,
    partner: Option<StreamId>,
    has_ended: bool,
    /// Whether this side is to end what it sends, and whether it has.
    wants_shutdown: bool,
    has_shut_down: bool,
    is_stranger: bool,
    /// It is not read before it is joined.
    is_held: bool,
    is_held_back: bool,
    ending: Option<StreamEnd>,
}

/// A connection between two shards. It is closed when nobody takes it in, as when the process is killed meanwhile.
struct Moving {
    host: SharedHost,
    /// `None` once a shard has it.
    wire: Option<WireId>,
    kept: Vec<u8>,
    is_cut: bool,
    outgoing: VecDeque<Waiting>,
}

impl Drop for Moving {
    fn drop(&mut self) {
        if let Some(wire) = self.wire {
            self.host.lock().wires.end(wire);
        }
    }
}

/// The connections of one shard.
pub(super) struct Streams {
    host: SharedHost,
    places: Vec<(u32, Option<Stream>)>,
    free: Vec<usize>,
    /// Relays that listen: by number, where.
    listeners: BTreeMap<u32, SocketAddr>,
    count: u32,
    /// Connections that came, with the token of their listener.
    arrivals: VecDeque<(u64, WireId)>,
    /// Connections that this side began, and whether they could be had.
    begun: VecDeque<(StreamId, bool)>,
    random: Seeded,
    /// Messages that were handed over to be written, without those that were given up, which another shard may have been given.
    pub(super) left: i64,
    /// Whether the shard has had a connection.
    pub(super) has_had_any: bool,
}

impl Streams {
    pub(super) fn new(host: SharedHost, random: Seeded) -> Self {
        Self {
            host,
            places: Vec::new(),
            free: Vec::new(),
            listeners: BTreeMap::new(),
            count: 0,
            arrivals: VecDeque::new(),
            begun: VecDeque::new(),
            random,
            left: 0,
            has_had_any: false,
        }
    }

    /// Takes in a connection that came to the listener with this token.
    pub(super) fn arrive(&mut self, token: u64, wire: WireId) {
        self.arrivals.push_back((token, wire));
    }

    /// Closes all connections, and all relays that listen. Those of clients that nobody has taken in yet wait on.
    pub(super) fn close_all(&mut self) {
        let mut host = self.host.lock();
        for (place, (generation, stream)) in self.places.iter_mut().enumerate() {
            if let Some(stream) = stream.take() {
                *generation = (*generation + 1) % GENERATIONS;
                self.free.push(place);
                host.wires.end(stream.wire);
            }
        }
        for address in mem::take(&mut self.listeners).into_values() {
            host.relays.remove(&address);
        }
        self.arrivals.retain(|(_, wire)| {
            let local = host.wires.get(*wire).map(|it| it.local);
            let is_client = local.is_some_and(|it| plan::place(it) == plan::Place::Listener);
            if !is_client {
                host.wires.end(*wire);
            }
            is_client
        });
        self.begun.clear();
    }

    /// Counts the messages that are queued as handed over to be written.
    pub(super) fn count_queued<'a>(&mut self, queue: &'a SendQueue, memory: impl Memory<'a>) {
        for queued in queue.touched_streams() {
            let messages = queue.stream_messages(queued, memory);
            let count: u32 = messages.map(|it| counted(it.content)).sum();
            self.left += i64::from(count);
        }
    }

    /// Returns whether there is something to read or to write.
    pub(super) fn has_work(&self) -> bool {
        let mut host = self.host.lock();
        let mut streams = self.places.iter().filter_map(|(_, stream)| stream.as_ref());
        !self.arrivals.is_empty()
            || !self.begun.is_empty()
            || streams.any(|stream| {
                let can_read = self.is_reading(stream)
                    && host
                        .wires
                        .get(stream.wire)
                        .is_some_and(|wire| !wire.to_machine.is_empty() || wire.has_remote_ended);
                can_read
                    || stream.unread.is_cut
                    || !stream.outgoing.is_empty()
                    || stream.ending.is_some()
            })
    }

    fn insert(&mut self, wire: WireId, is_held: bool) -> StreamId {
        self.has_had_any = true;
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() - 1
        });
        let (generation, stream) = &mut self.places[place];
        let index = u32::try_from(place).unwrap_or(u32::MAX);
        let id = StreamId::from_u32(*generation << INDEX_BITS | index);
        *stream = Some(Stream {
            id,
            wire,
            unread: Unread::default(),
            outgoing: VecDeque::new(),
            partner: None,
            has_ended: false,
            wants_shutdown: false,
            has_shut_down: false,
            is_stranger: false,
            is_held,
            is_held_back: false,
            ending: None,
        });
        id
    }

    fn get(&self, id: StreamId) -> Option<&Stream> {
        let (_, stream) = self.places.get(id.index())?;
        stream.as_ref().filter(|stream| stream.id == id)
    }

    fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        let (_, stream) = self.places.get_mut(id.index())?;
        stream.as_mut().filter(|stream| stream.id == id)
    }

    fn remove(&mut self, id: StreamId) -> Option<Stream> {
        let (generation, stream) = self.places.get_mut(id.index())?;
        let stream = stream.take_if(|stream| stream.id == id)?;
        *generation = (*generation + 1) % GENERATIONS;
        self.free.push(id.index());
        Some(stream)
    }

    fn ids(&self) -> Vec<StreamId> {
        let streams = self.places.iter().filter_map(|(_, stream)| stream.as_ref());
        streams.map(|stream| stream.id).collect()
    }

    /// Returns whether a connection is read: not before it is joined, and not while something waits on the one that it is joined with.
    fn is_reading(&self, stream: &Stream) -> bool {
        let has_room = match stream.partner {
            Some(partner) => self.get(partner).is_some_and(|it| it.outgoing.is_empty()),
            None => !stream.is_held,
        };
        has_room && !stream.is_held_back && !stream.has_ended && stream.ending.is_none()
    }

    /// Shows what came on connections, and the connections that came. `read` is where it lies.
    pub(super) fn serve(
        &mut self,
        handler: &mut impl Handler,
        queue: &mut SendQueue,
        read: &mut Vec<u8>,
    ) {
        for id in self.ids() {
            self.read(id, handler, queue, read);
        }
        while let Some((id, is_there)) = self.begun.pop_front() {
            let result = match is_there {
                true => Ok(()),
                false => Err(io::ErrorKind::ConnectionRefused.into()),
            };
            if !is_there && let Some(stream) = self.remove(id) {
                self.host.lock().wires.end(stream.wire);
            }
            handler.connected(id, result, queue);
        }
        for _ in 0..self.random.below(8) {
            let Some((token, wire)) = self.arrivals.pop_front() else {
                break;
            };
            let remote = self.host.lock().wires.get(wire).map(|wire| wire.remote);
            let Some(remote) = remote else {
                continue;
            };
            let id = self.insert(wire, false);
            let accepted = Accepted { token, remote };
            match handler.accepted(id, &accepted, queue) {
                Admission::Refused => {
                    self.remove(id);
                    self.host.lock().wires.end(wire);
                }
                Admission::Stranger => self.change(id, |stream| stream.is_stranger = true),
                Admission::Trusted => self.change(id, |stream| stream.is_held = true),
            }
        }
    }

    fn change(&mut self, id: StreamId, change: impl FnOnce(&mut Stream)) {
        if let Some(stream) = self.get_mut(id) {
            change(stream);
        }
    }

    fn read(
        &mut self,
        id: StreamId,
        handler: &mut impl Handler,
        queue: &mut SendQueue,
        read: &mut Vec<u8>,
    ) {
        let limit = self.random.between(1, READ_MAX);
        let limit = if self.random.one_in(4) {
            limit.min(30)
        } else {
            limit
        };
        let Some(stream) = self.get(id) else {
            return;
        };
        let is_cut = stream.unread.is_cut && !stream.is_held_back;
        if !self.is_reading(stream) {
            return;
        }
        let wire = stream.wire;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let received = self.host.lock().wires.receive(wire, limit);
        let Some(stream) = self.get_mut(id) else {
            return;
        };
        let Some(received) = received else {
            if let Some(partner) = stream.partner {
                stream.has_ended = true;
                self.change(partner, |partner| partner.wants_shutdown = true);
                return handler.stream_ended(id);
            }
            stream.ending = Some(StreamEnd::Remote);
            return;
        };
        if received.is_empty() && !is_cut {
            return;
        }
        let kept_len = stream.unread.kept.len();
        stream.unread.kept.extend(received);
        if stream.unread.kept.len() < stream.unread.awaited_len && !is_cut {
            return;
        }
        let base = read.len();
        read.append(&mut stream.unread.kept);
        let lies_at = u32::try_from(base).unwrap_or(u32::MAX);
        let is_stranger = stream.is_stranger;
        let mut input = StreamInput::new(id, is_stranger, kept_len, &mut read[base..], lies_at);
        let taken = handler.stream_received(&mut input, queue);
        let (awaited_len, is_cut) = (input.awaited_len(), input.is_cut());
        let bytes = input.bytes().to_vec();
        self.change(id, |stream| {
            stream.unread.awaited_len = awaited_len;
            stream.unread.is_cut = is_cut;
            match taken {
                Taken::AllBut(ranges) => {
                    stream.unread.kept = ranges
                        .into_iter()
                        .flat_map(|it| bytes[it].to_vec())
                        .collect();
                }
                Taken::Close => stream.ending = Some(StreamEnd::Local),
                Taken::Ended => stream.ending = Some(StreamEnd::Remote),
            }
        });
    }

    /// Writes what is queued, as far as there is room, and closes what has come to its end.
    pub(super) fn flush<'a>(
        &mut self,
        queue: &'a SendQueue,
        memory: impl Memory<'a>,
        handler: &mut impl Handler,
    ) {
        for &(id, change) in queue.stream_changes() {
            self.apply(id, change);
        }
        let mut touched: BTreeSet<_> = self.ids().into_iter().collect();
        for queued in queue.touched_streams() {
            let messages = queue.stream_messages(queued, memory);
            let messages = messages.map(|it| Waiting {
                content: it.content,
                bytes: it.parts.concat(),
                written: 0,
            });
            let messages: Vec<_> = messages.collect();
            let count = messages.iter().map(Waiting::counted).sum();
            self.left += i64::from(count);
            if self.get(queued.stream).is_none() {
                self.give_up(queued.stream, count, SendFailure::Closed, handler);
                continue;
            }
            self.queue_up(queued.stream, messages, handler);
            self.write(queued.stream);
            if queued.close {
                self.change(queued.stream, |stream| {
                    stream.ending.get_or_insert(StreamEnd::Local);
                });
            }
            self.settle(queued.stream, handler);
            touched.remove(&queued.stream);
        }
        for id in touched {
            self.write(id);
            self.settle(id, handler);
        }
    }

    fn apply(&mut self, id: StreamId, change: StreamChange) {
        match change {
            StreamChange::HoldBack(is_held_back) => {
                self.change(id, |stream| stream.is_held_back = is_held_back);
            }
            StreamChange::Join(partner) => {
                for (id, partner) in [(id, partner), (partner, id)] {
                    let is_there = self.get(partner).is_some();
                    self.change(id, |stream| {
                        stream.partner = Some(partner);
                        if !is_there {
                            stream.ending.get_or_insert(StreamEnd::Failed);
                        }
                    });
                }
            }
            StreamChange::Prove => self.change(id, |stream| stream.is_stranger = false),
            StreamChange::Seal => {}
        }
    }

    fn give_up(
        &mut self,
        id: StreamId,
        messages: u32,
        cause: SendFailure,
        handler: &mut impl Handler,
    ) {
        if messages > 0 {
            self.left -= i64::from(messages);
            handler.stream_failed(id, messages, cause);
        }
    }

    /// Puts messages behind those that wait: too much media pushes out the oldest, too many answers end the connection.
    fn queue_up(&mut self, id: StreamId, messages: Vec<Waiting>, handler: &mut impl Handler) {
        let mut dropped = 0;
        self.change(id, |stream| {
            stream.outgoing.extend(messages);
            let len = |stream: &Stream, content| -> usize {
                let waiting = stream.outgoing.iter().filter(|it| it.content == content);
                waiting.map(|it| it.bytes.len()).sum()
            };
            while len(stream, Content::Media) > MEDIA_MAX {
                let mut waiting = stream.outgoing.iter();
                let oldest = waiting.position(|it| it.content == Content::Media && it.written == 0);
                let Some(oldest) = oldest else { break };
                stream.outgoing.remove(oldest);
                dropped += 1;
            }
            if len(stream, Content::Control) > CONTROL_MAX {
                stream.ending.get_or_insert(StreamEnd::Congested);
            }
        });
        self.give_up(id, dropped, SendFailure::BufferFull, handler);
    }

    fn write(&mut self, id: StreamId) {
        let limit = if self.random.one_in(4) {
            self.random.index(40)
        } else {
            usize::MAX
        };
        let host = self.host.clone();
        let mut host = host.lock();
        let Some(stream) = self.get_mut(id) else {
            return;
        };
        let mut left = limit;
        while let Some(first) = stream.outgoing.front_mut() {
            let rest = &first.bytes[first.written..];
            let Some(written) = host.wires.send(stream.wire, rest, left) else {
                stream.ending.get_or_insert(StreamEnd::Remote);
                return;
            };
            first.written += written;
            left -= written;
            if first.written < first.bytes.len() {
                // A part of it, or nothing at all: EAGAIN.
                host.met.count("short writes", u16::from(written == 0));
                return;
            }
            stream.outgoing.pop_front();
        }
        if stream.wants_shutdown && !stream.has_shut_down {
            stream.has_shut_down = true;
            host.wires.end(stream.wire);
        }
    }

    /// Ends a connection that has come to its end, with the one that it is joined with.
    fn settle(&mut self, id: StreamId, handler: &mut impl Handler) {
        let Some(stream) = self.get(id) else {
            return;
        };
        let is_finished = |it: &Stream| it.has_ended && it.has_shut_down;
        let partner = stream.partner.and_then(|partner| self.get(partner));
        let are_finished = is_finished(stream) && partner.is_some_and(is_finished);
        let finished = are_finished.then_some(StreamEnd::Finished);
        let Some(end) = stream.ending.or(finished) else {
            return;
        };
        let partner = stream.partner;
        for id in [Some(id), partner].into_iter().flatten() {
            let Some(stream) = self.get(id) else {
                continue;
            };
            // Two joined connections have no messages: the shard counts none of them as lost.
            let waiting = match stream.partner {
                None => stream.outgoing.iter().map(Waiting::counted).sum(),
                Some(_) => 0,
            };
            self.give_up(id, waiting, SendFailure::Closed, handler);
            if let Some(stream) = self.remove(id) {
                self.host.lock().wires.end(stream.wire);
                handler.stream_closed(id, end);
            }
        }
    }

    pub(super) fn listen(&mut self, shard: usize, listen: Listen) -> io::Result<StreamListenerId> {
        let mut host = self.host.lock();
        host.descriptor()?;
        if host.relays.contains_key(&listen.address) || host.others.contains(&listen.address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        host.relays.insert(listen.address, (shard, listen.token));
        self.count += 1;
        self.listeners.insert(self.count, listen.address);
        Ok(StreamListenerId::from_u32(self.count))
    }

    pub(super) fn close_listener(&mut self, listener: StreamListenerId) {
        if let Some(address) = self.listeners.remove(&listener.to_u32()) {
            self.host.lock().relays.remove(&address);
        }
    }

    pub(super) fn connect(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> io::Result<StreamId> {
        let wire = {
            let mut host = self.host.lock();
            host.descriptor()?;
            host.wires.open(local, remote)
        };
        let id = self.insert(wire, true);
        let is_there = plan::place(remote) != plan::Place::Nowhere;
        self.begun.push_back((id, is_there));
        Ok(id)
    }

    pub(super) fn detach(&mut self, id: StreamId) -> Option<DetachedStream> {
        let stream = self.remove(id)?;
        Some(DetachedStream::new(Moving {
            host: self.host.clone(),
            wire: Some(stream.wire),
            kept: stream.unread.kept,
            is_cut: stream.unread.is_cut,
            outgoing: stream.outgoing,
        }))
    }

    pub(super) fn adopt(&mut self, stream: DetachedStream) -> io::Result<StreamId> {
        let mut moving: Moving = stream.into_inner().ok_or(io::ErrorKind::InvalidInput)?;
        self.host.lock().descriptor()?;
        let wire = moving.wire.take().ok_or(io::ErrorKind::NotConnected)?;
        let id = self.insert(wire, false);
        self.change(id, |stream| {
            stream.unread.kept = mem::take(&mut moving.kept);
            stream.unread.is_cut = moving.is_cut;
            stream.outgoing = mem::take(&mut moving.outgoing);
        });
        Ok(id)
    }
}
