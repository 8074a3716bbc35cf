//! What stands in for a shard's data path: sockets without descriptors, and the turn.
//!
//! A turn shows datagrams of one sender and size together, as GRO does, and of everything that waits only a part.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use turnbuckle_datapath::{
    Bind, DetachedStream, EndpointId, Handler, HeldSocket, IcmpError, Listen, Memory, Received,
    SendFailure, SendQueue, Sockets, StreamId, StreamListenerId,
};

use super::host::{Held, Owner, SharedHost};
use super::payload::{Payload, Sender};
use super::streams::Streams;
use crate::plan;
use crate::random::Seeded;

/// Bits of an endpoint's name that are its place.
const INDEX_BITS: u32 = 22;
/// How often a place is used before its names come again; a real data path has 512.
const GENERATIONS: u32 = 8;
/// Datagrams that a socket keeps for a shard that does not read.
const QUEUE_MAX: usize = 256;
/// Messages of one turn.
const MESSAGES_MAX: u64 = 40;
/// Datagrams of one GRO buffer.
const SEGMENTS_MAX: usize = 64;

/// A datagram that has left.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// Whether a relay socket sent it.
    pub(super) is_relayed: bool,
    /// Who had the port at the relay's own machine that it went to.
    pub(super) found: Option<Owner>,
    pub(super) bytes: Vec<u8>,
}

/// A socket for datagrams.
#[derive(Debug)]
struct Socket {
    id: EndpointId,
    local: SocketAddr,
    token: u64,
    is_relay: bool,
}

/// The sockets for datagrams of one shard, by place.
#[derive(Debug)]
struct Table {
    places: Vec<(u32, Option<Socket>)>,
    free: Vec<usize>,
}

impl Table {
    fn insert(&mut self, local: SocketAddr, token: u64, is_relay: bool) -> EndpointId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() - 1
        });
        let (generation, socket) = &mut self.places[place];
        let index = u32::try_from(place).unwrap_or(u32::MAX);
        let id = EndpointId::from_u32(*generation << INDEX_BITS | index);
        *socket = Some(Socket {
            id,
            local,
            token,
            is_relay,
        });
        id
    }

    fn get(&self, id: EndpointId) -> Option<&Socket> {
        let (_, socket) = self.places.get(id.index())?;
        socket.as_ref().filter(|socket| socket.id == id)
    }

    fn remove(&mut self, id: EndpointId) -> Option<Socket> {
        let (generation, socket) = self.places.get_mut(id.index())?;
        let socket = socket.take_if(|socket| socket.id == id)?;
        *generation = (*generation + 1) % GENERATIONS;
        self.free.push(id.index());
        Some(socket)
    }
}

/// Where what came in lies until it has left again.
#[derive(Clone, Copy)]
struct Lying<'a> {
    slots: &'a [Vec<u8>],
    read: &'a [u8],
}

impl<'a> Memory<'a> for Lying<'a> {
    fn slot(self, slot: u32) -> &'a [u8] {
        &self.slots[slot as usize]
    }

    fn streams(self) -> &'a [u8] {
        self.read
    }
}

/// The data path of one shard.
pub(super) struct Path {
    queue: SendQueue,
    sockets: Opened,
    /// What came and has not been read.
    inbox: VecDeque<(EndpointId, SocketAddr, Vec<u8>)>,
    /// ICMP errors that came and have not been read.
    errors: VecDeque<(EndpointId, IcmpError)>,
    random: Seeded,
    /// Datagrams that were shown to the shard.
    pub(super) shown: u64,
    /// Datagrams that left it.
    left: i64,
}

/// What a shard has open.
struct Opened {
    shard: usize,
    host: SharedHost,
    table: Table,
    closing: Vec<EndpointId>,
    streams: Streams,
}

impl Path {
    pub(super) fn new(shard: usize, host: SharedHost, random: Seeded) -> Self {
        Self {
            queue: SendQueue::new(64),
            sockets: Opened {
                shard,
                table: Table {
                    places: Vec::new(),
                    free: Vec::new(),
                },
                closing: Vec::new(),
                streams: Streams::new(host.clone(), random.fork("streams")),
                host,
            },
            inbox: VecDeque::new(),
            errors: VecDeque::new(),
            random,
            shown: 0,
            left: 0,
        }
    }

    /// Opens a socket of a group that all shards share.
    pub(super) fn listen(&mut self, local: SocketAddr, token: u64) -> EndpointId {
        self.sockets.table.insert(local, token, false)
    }

    /// Opens a relay socket that allocations share.
    pub(super) fn share_relay(&mut self, local: SocketAddr, token: u64) -> io::Result<EndpointId> {
        self.sockets.open_relay(local, token)
    }

    /// Takes in a datagram, if there is room at its socket.
    pub(super) fn arrive(&mut self, socket: EndpointId, from: SocketAddr, bytes: Vec<u8>) {
        let waiting = self.inbox.iter().filter(|(id, ..)| *id == socket).count();
        if waiting < QUEUE_MAX && self.sockets.table.get(socket).is_some() {
            self.inbox.push_back((socket, from, bytes));
        }
    }

    /// Returns the connections.
    pub(super) fn streams(&mut self) -> &mut Streams {
        &mut self.sockets.streams
    }

    /// Returns how many datagrams and messages left it, and whether all that came in were datagrams.
    pub(super) fn left(&self) -> (i64, bool) {
        let streams = &self.sockets.streams;
        (self.left + streams.left, !streams.has_had_any)
    }

    /// Returns whether something waits to be read.
    pub(super) fn has_work(&self) -> bool {
        !self.inbox.is_empty() || !self.errors.is_empty() || self.sockets.streams.has_work()
    }

    /// Begins a turn in whose midst the shard fails: what has come is read, and nothing leaves. What is queued by then counts as out all the same.
    pub(super) fn fail(&mut self, handler: &mut impl Handler) {
        handler.turn_started();
        let slots = self.receive(handler);
        let mut read = Vec::new();
        let streams = &mut self.sockets.streams;
        streams.serve(handler, &mut self.queue, &mut read);
        let lying = Lying {
            slots: &slots,
            read: &read,
        };
        let queued = self.queue.datagrams(lying).count();
        self.left += i64::try_from(queued).unwrap_or(i64::MAX);
        self.sockets.streams.count_queued(&self.queue, lying);
        self.queue.clear();
    }

    /// Closes all connections and all relay sockets but those that are `kept`; what clients are listened to at stays open, with what waits there.
    pub(super) fn close(&mut self, kept: impl Fn(SocketAddr) -> bool) {
        self.sockets.streams.close_all();
        self.errors.clear();
        let Opened { table, host, .. } = &mut self.sockets;
        let sockets = table.places.iter().filter_map(|(_, it)| it.as_ref());
        let closed = sockets.filter(|it| it.is_relay && !kept(it.local));
        let closed: Vec<_> = closed.map(|it| it.id).collect();
        for socket in closed.into_iter().filter_map(|id| table.remove(id)) {
            host.give_back(socket.local);
        }
    }

    /// Hands the relay socket at an address to the next process of the server, which knows it by `token`.
    pub(super) fn take_over(&mut self, local: SocketAddr, token: u64) -> Option<EndpointId> {
        let places = &mut self.sockets.table.places;
        let mut sockets = places.iter_mut().filter_map(|(_, it)| it.as_mut());
        let socket = sockets.find(|it| it.is_relay && it.local == local)?;
        socket.token = token;
        Some(socket.id)
    }

    /// Counts anew, because another process counts.
    pub(super) fn begin_counting(&mut self) {
        (self.shown, self.left, self.sockets.streams.left) = (0, 0, 0);
    }

    /// Makes one turn, and returns what has left.
    pub(super) fn turn(&mut self, handler: &mut impl Handler) -> Vec<Sent> {
        handler.turn_started();
        let slots = self.receive(handler);
        self.receive_errors(handler);
        let mut read = Vec::new();
        let streams = &mut self.sockets.streams;
        streams.serve(handler, &mut self.queue, &mut read);
        let mut sent = Vec::new();
        if handler.flushes_before_end() {
            sent = self.flush(&slots, &read, handler);
        }
        handler.turn_ended(&mut self.queue, &mut self.sockets);
        sent.extend(self.flush(&slots, &read, handler));
        for id in std::mem::take(&mut self.sockets.closing) {
            if let Some(socket) = self.sockets.table.remove(id) {
                self.sockets.host.give_back(socket.local);
            }
        }
        sent
    }

    /// Shows what came, and returns where it lies.
    fn receive(&mut self, handler: &mut impl Handler) -> Vec<Vec<u8>> {
        let mut slots: Vec<Vec<u8>> = Vec::new();
        for _ in 0..self.random.below(MESSAGES_MAX) {
            let Some((id, from, first)) = self.inbox.pop_front() else {
                break;
            };
            let segment = first.len();
            let mut bytes = first;
            let mut count = 1;
            while count < SEGMENTS_MAX
                && bytes.len() == count * segment
                && segment > 0
                && let Some((next, sender, datagram)) = self.inbox.front()
                && (*next, *sender) == (id, from)
                && (1..=segment).contains(&datagram.len())
            {
                if self.random.one_in(4) {
                    self.sockets.host.met("buffers that are cut short", 0);
                    break;
                }
                bytes.extend_from_slice(datagram);
                self.inbox.pop_front();
                count += 1;
            }
            let Some(socket) = self.sockets.table.get(id) else {
                continue; // what waited at a socket that was closed is lost with it
            };
            if self.sockets.host.fails(|faults| faults.truncations_ppm) {
                self.shown += 1;
                handler.truncated(socket.token);
                continue;
            }
            self.shown += count as u64;
            if count > 1 {
                self.sockets.host.met("datagrams shown together", 0);
            }
            let slot = u32::try_from(slots.len()).unwrap_or(u32::MAX);
            let message = Received::new((id, socket.token), from, &bytes, segment, slot);
            handler.received(&message, &mut self.queue);
            slots.push(bytes);
        }
        slots
    }

    /// Shows the ICMP errors that came about what relay sockets have sent.
    fn receive_errors(&mut self, handler: &mut impl Handler) {
        for (id, error) in self.errors.drain(..) {
            let Some(socket) = self.sockets.table.get(id) else {
                continue;
            };
            self.shown += 1;
            handler.icmp(id, socket.token, error, &mut self.queue);
        }
    }

    /// Sends what is queued.
    fn flush(&mut self, slots: &[Vec<u8>], read: &[u8], handler: &mut impl Handler) -> Vec<Sent> {
        handler.before_flush();
        let Opened { table, host, .. } = &self.sockets;
        let mut sent = Vec::new();
        let lying = Lying { slots, read };
        for datagram in self.queue.datagrams(lying) {
            let Some(socket) = table.get(datagram.endpoint) else {
                handler.send_failed(datagram.endpoint, 1, SendFailure::Closed);
                continue;
            };
            if host.fails(|faults| faults.buffers_ppm) {
                host.met("sends without buffers", 0);
                handler.send_failed(datagram.endpoint, 1, SendFailure::BufferFull);
                continue;
            }
            let is_for_peer = matches!(plan::place(datagram.to), plan::Place::Peer(_));
            if socket.is_relay && is_for_peer && host.fails(|faults| faults.refusals_ppm) {
                self.left += 1;
                let error = refusal(socket.local, datagram.to);
                self.errors.push_back((datagram.endpoint, error));
                let payload = Payload::read(&datagram.parts.concat());
                if let Some(Sender::Client(owner)) = payload.map(|it| it.sender) {
                    host.lock().refused.insert(owner);
                }
                continue;
            }
            sent.push(Sent {
                from: socket.local,
                to: datagram.to,
                is_relayed: socket.is_relay,
                found: host.owner(datagram.to),
                bytes: datagram.parts.concat(),
            });
        }
        self.left += i64::try_from(sent.len()).unwrap_or(i64::MAX);
        // How trains are joined depends on a hash that is another one in each process; the order within a flow does not.
        sent.sort_by_key(|it| (it.from, it.to));
        let streams = &mut self.sockets.streams;
        streams.flush(&self.queue, lying, handler);
        self.queue.clear();
        sent
    }
}

impl Opened {
    fn open_relay(&mut self, local: SocketAddr, token: u64) -> io::Result<EndpointId> {
        // The name is known only when the port is.
        self.host.take(local, Owner::Held)?;
        let id = self.table.insert(local, token, true);
        let owner = Owner::Relay(self.shard, id);
        self.host.lock().ports.insert(local, owner);
        Ok(id)
    }
}

/// Returns the ICMP error of a peer's host that does not take what `relayed` has sent. It says from where that was, so that whoever hears of it can tell
/// whether it was meant.
fn refusal(relayed: SocketAddr, peer: SocketAddr) -> IcmpError {
    IcmpError {
        peer,
        kind: kind_of_refusal(relayed),
        code: code_of_refusal(relayed),
        mtu: 0,
        v6: relayed.is_ipv6(),
    }
}

/// Returns the ICMP type with which peers refuse what `relayed` has sent: destination unreachable (RFC 792, RFC 4443 §3.1).
pub(super) fn kind_of_refusal(relayed: SocketAddr) -> u8 {
    match relayed {
        SocketAddr::V4(_) => 3,
        SocketAddr::V6(_) => 1,
    }
}

/// Returns the ICMP code with which peers refuse what `relayed` has sent.
pub(super) fn code_of_refusal(relayed: SocketAddr) -> u8 {
    u8::try_from(relayed.port() % 16).unwrap_or(0)
}

impl Sockets for Opened {
    fn bind(&mut self, bind: Bind) -> io::Result<EndpointId> {
        self.open_relay(bind.address, bind.token)
    }

    fn hold(&mut self, address: SocketAddr) -> io::Result<HeldSocket> {
        self.host.hold(address).map(HeldSocket::new)
    }

    fn bind_held(&mut self, held: HeldSocket, token: u64) -> io::Result<EndpointId> {
        let held: Held = held.into_inner().ok_or(io::ErrorKind::InvalidInput)?;
        let id = self.table.insert(held.address, token, true);
        held.take_in(Owner::Relay(self.shard, id));
        Ok(id)
    }

    fn local_addr(&self, endpoint: EndpointId) -> Option<SocketAddr> {
        self.table.get(endpoint).map(|socket| socket.local)
    }

    fn forbid_fragments(&mut self, _: EndpointId) {}

    fn close(&mut self, endpoint: EndpointId) {
        self.closing.push(endpoint);
    }

    fn listen_for_peers(&mut self, listen: Listen) -> io::Result<StreamListenerId> {
        self.streams.listen(self.shard, listen)
    }

    fn close_listener(&mut self, listener: StreamListenerId) {
        self.streams.close_listener(listener);
    }

    fn connect(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<StreamId> {
        self.streams.connect(local, remote)
    }

    fn detach(&mut self, stream: StreamId) -> Option<DetachedStream> {
        self.streams.detach(stream)
    }

    fn adopt(&mut self, stream: DetachedStream) -> io::Result<StreamId> {
        self.streams.adopt(stream)
    }
}
