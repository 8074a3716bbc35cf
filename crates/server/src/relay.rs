//! One shard's meeting of engine and data path: where a datagram is routed.
//!
//! How to read it: [`Relay::received`] is called once per message that the kernel handed over, which with GRO may be
//! a buffer of many equal datagrams ("segments") from one sender. [`Relay::client_message`] splits such a message into
//! *trains*, runs of segments of one channel, and asks the engine for the route once per train;
//! [`Relay::peer_message`] is the mirror. No byte is copied on either way: what is queued names a range of the receive
//! slot. Everything that is not data goes to [`Relay::control`]. Clients that come by TCP are in `relay/streams.rs`, those that come by
//! DTLS in `relay/dtls.rs`.
//!
//! Invariant: each datagram is counted in once, and then exactly once as queued or under one [`DropReason`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use turnbuckle_datapath::{
    Accepted, Bind, EndpointId, EndpointKind, Handler, IcmpError, Payload, Received, Run,
    SendFailure, SendQueue, Sockets, StreamEnd, StreamId, StreamInput, StreamListenerId, Taken,
    Waker, Warning,
};
use turnbuckle_engine::{
    AllocationId, AllowedPeer, ClientTuple, Command, Config as EngineConfig, ConnectionId,
    DropReason, Endpoint, Engine, Framing, InterfaceAddress, Now, Outcome, RelayAddress,
    RelayHandle, RelayOpenError, RelayProtocol, RelayRequest, Time, Transport,
};
use turnbuckle_wire::{
    ChannelData, DATA_INDICATION_HEADER_MAX, Demux, data_indication_header, padding_len,
};

mod discovery;
mod dtls;
mod mailbox;
mod opening;
mod proxied;
mod roaming;
mod streams;
mod told;
pub(crate) use discovery::{Site, describe_discovery, sites};
mod tcp;
pub(crate) use mailbox::Mailbox;
use roaming::Parcel;
use streams::is_client_listener;
pub(crate) use streams::stream_listener_token;
use tcp::Departure;
use tcp::Migrant;

use self::proxied::ProxiedClients;
use self::roaming::Roaming;
use crate::clock;
use crate::counters::ShardCounters;
use crate::dtls::{Address, Dtls, DtlsService, Plain};
use crate::log::{Answer, Log};
use crate::proxy::Proxies;
use crate::random::OsRandom;
use crate::stream::{Connections, HttpService, Peers, StreamService};
use crate::tls::CurrentTls;
use crate::train::{Train, cut, equal_runs, protocol};

/// What a shard needs to know to serve datagrams.
#[derive(Clone)]
pub(crate) struct DatagramService {
    /// Whether they may do without DTLS.
    pub(crate) serves_plain: bool,
    /// `None` refuses DTLS.
    pub(crate) dtls: Option<DtlsService>,
}

/// What an endpoint is for, packed into the data path's token: relay endpoints carry the engine's handle,
/// listeners this value, which no handle takes.
pub(crate) const LISTENER_TOKEN: u64 = u64::MAX;

/// The handler of one shard's data path.
pub(crate) struct Relay {
    engine: Engine<OsRandom>,
    now: Now,
    counters: Arc<ShardCounters>,
    log: Log,
    /// Answers that the log has not been told of.
    answers: Vec<Answer>,
    /// The client-facing endpoints; all others are relay endpoints.
    listeners: Vec<EndpointId>,
    /// Where connections arrive.
    stream_listeners: Vec<StreamListenerId>,
    connections: Connections,
    /// Certificates for connections that begin with a TLS handshake; `None` refuses them.
    tls: Option<CurrentTls>,
    /// Whether connections may do without TLS.
    serves_plain_tcp: bool,
    /// Who says for whom it speaks.
    proxies: Proxies,
    proxied: ProxiedClients,
    http: HttpService,
    /// Whether datagrams may do without DTLS.
    serves_plain_udp: bool,
    /// Sessions of DTLS; `None` refuses them.
    dtls: Option<Box<Dtls>>,
    /// What came out of DTLS records; kept for its memory.
    dtls_plain: Plain,
    /// What came out of TLS records, and what TLS has to say; kept for their memory.
    plain: Vec<u8>,
    /// Whether more messages than a turn handles of one connection were there.
    is_cut: bool,
    /// Whether what comes next of a connection is all that will come.
    is_last: bool,
    raw: Vec<u8>,
    /// Peer data connections of TCP relays.
    peers: Peers,
    /// Connections that are not read for some time, the next one first.
    held_back: BinaryHeap<Reverse<(Time, StreamId)>>,
    /// What waits for each shard, in their order.
    mailboxes: Arc<[Mailbox]>,
    /// Connections for another shard: of this turn, and of the one before.
    departures: Vec<Departure>,
    departing: Vec<Departure>,
    /// Connections to be joined as soon as the engine's commands have been looked through.
    joins: Vec<(ConnectionId, ClientTuple)>,
    /// Connections from other shards.
    arrivals: Vec<Migrant>,
    /// Clients whose allocations are at another shard than they.
    roaming: Roaming,
    /// Sockets the engine asked for or gave up, dealt with at the end of the turn.
    sockets_due: Vec<SocketDue>,
}

/// Datagrams of one length back to back, the last perhaps shorter: those of a received message, or what came out of records.
struct Segments<'a, P> {
    /// What they lie in, from its first byte.
    payload: &'a P,
    bytes: &'a [u8],
    segment: usize,
}

/// Something to do with a relay socket.
enum SocketDue {
    Close(Endpoint),
    ClosePeer(ConnectionId),
    Connect {
        connection: ConnectionId,
        local: SocketAddr,
        peer: AllowedPeer,
    },
    Open {
        request: RelayRequest,
        address: SocketAddr,
        handle: RelayHandle,
        protocol: RelayProtocol,
    },
}

impl Relay {
    /// Joins an engine without listeners with the counters of its shard.
    pub(crate) fn new(
        engine: Engine<OsRandom>,
        counters: Arc<ShardCounters>,
        log: Log,
        streams: StreamService,
        datagrams: DatagramService,
    ) -> Self {
        let dtls = datagrams
            .dtls
            .map(|service| Dtls::new(service, Arc::clone(&counters)));
        Self {
            engine,
            now: clock::now(),
            counters,
            log,
            answers: Vec::new(),
            listeners: Vec::new(),
            stream_listeners: Vec::new(),
            connections: Connections::new(streams.limits),
            tls: streams.tls,
            serves_plain_tcp: streams.serves_plain,
            proxies: streams.proxies,
            proxied: ProxiedClients::default(),
            http: streams.http,
            serves_plain_udp: datagrams.serves_plain,
            dtls: dtls.map(Box::new),
            dtls_plain: Plain::default(),
            plain: Vec::new(),
            is_cut: false,
            is_last: false,
            raw: Vec::new(),
            peers: Peers::default(),
            held_back: BinaryHeap::new(),
            mailboxes: Arc::default(),
            departures: Vec::new(),
            departing: Vec::new(),
            joins: Vec::new(),
            roaming: Roaming::default(),
            arrivals: Vec::new(),
            sockets_due: Vec::new(),
        }
    }

    /// Makes known which shard this is, what waits for each shard, and what wakes this one.
    pub(crate) fn set_shard(&mut self, index: usize, mailboxes: Arc<[Mailbox]>, waker: Waker) {
        self.engine.set_shard(len_u32(index));
        self.roaming = Roaming::new(index, mailboxes.len());
        if let Some(mailbox) = mailboxes.get(index) {
            mailbox.open(waker);
        }
        self.mailboxes = mailboxes;
    }

    /// Has the other shards forget what this one had before it failed.
    pub(crate) fn say_restarted(&mut self) {
        self.roaming.say_restarted();
    }

    /// Makes a bound client-facing socket known.
    pub(crate) fn add_listener(&mut self, endpoint: EndpointId, local: SocketAddr) {
        let name = Endpoint(endpoint.to_u32());
        self.engine.add_listener(name, local);
        if let Some(dtls) = &mut self.dtls {
            dtls.add_listener(name, local);
        }
        self.listeners.push(endpoint);
    }

    /// The client-facing sockets.
    pub(crate) fn listeners(&self) -> &[EndpointId] {
        &self.listeners
    }

    /// Tells the engine which addresses are the host's own, so that no peer is reached there (V-07).
    pub(crate) fn set_interfaces(&mut self, interfaces: Vec<InterfaceAddress>) {
        self.engine.set_host_addresses(interfaces, &[]);
    }

    /// Tells the engine of addresses of relay sockets that came later.
    pub(crate) fn add_relays(&mut self, relays: &[RelayAddress]) {
        self.engine.add_relays(relays);
    }

    /// Takes no new allocations from now on.
    pub(crate) fn drain(&mut self) {
        self.engine.drain();
    }

    /// Takes over other users and peer rules.
    pub(crate) fn reconfigure(&mut self, engine: &EngineConfig) {
        self.engine.reconfigure(engine);
    }

    /// When the engine next has something to do, counted from the present turn.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        let has_handshakes = self.dtls.as_ref().is_some_and(|dtls| dtls.has_work());
        if !self.sockets_due.is_empty()
            || has_handshakes
            || self.has_migrants()
            || self.roaming.has_work()
        {
            // A connection ended during the last flush, and with it an allocation; or handshakes have used up their time.
            return Some(Duration::ZERO);
        }
        let due = self.engine.next_timeout().into_iter();
        let dtls = self.dtls.as_ref().and_then(|dtls| dtls.next_timeout());
        let due = due
            .chain(self.connections.next_timeout())
            .chain(dtls)
            .chain(self.next_reading())
            .chain(self.log.next_timeout())
            .min()?;
        Some(due.since(self.now.time))
    }

    /// Client to peer: one client lookup per message, one route per train.
    fn client_message(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        let bytes = message.bytes;
        self.counters.client_in.add(message.segment_count() as u64);
        self.counters.client_in_bytes.add(bytes.len() as u64);
        let client = ClientTuple::udp(Endpoint(message.endpoint.to_u32()), message.remote);
        if bytes.is_empty() {
            return self.counters.dropped(DropReason::ProtocolUnknown, 1);
        }
        if self.proxies.may_speak_for_datagram(message.remote.ip()) {
            return self.proxied_message(message, tx);
        }
        let allocation = self.engine.client(&client);
        let mut start = 0;
        let segments = Segments {
            payload: message,
            bytes,
            segment: message.segment,
        };
        let address = Address {
            listener: client.listener,
            client: client.remote,
            proxy: None,
        };
        while start < bytes.len() {
            start = match protocol(bytes[start]) {
                Demux::Dtls => self.dtls_received(address, (bytes, message.segment), start, tx),
                _ if !self.serves_plain_udp => {
                    self.counters.dropped(DropReason::ServiceDisabled, 1);
                    start + message.segment
                }
                _ => self.message(client, allocation, &segments, start, tx),
            };
        }
    }

    /// The message or the train that begins at `start`: answered, queued or dropped. Returns where it ends.
    #[inline]
    fn message(
        &mut self,
        client: ClientTuple,
        allocation: Option<AllocationId>,
        segments: &Segments<'_, impl Payload>,
        start: usize,
        tx: &mut SendQueue,
    ) -> usize {
        let end = segments.bytes.len().min(start + segments.segment);
        if self.sent_home(client, &segments.bytes[start..end]) {
            return end;
        }
        match protocol(segments.bytes[start]) {
            Demux::ChannelData => {
                let allocation = self.sender_of_data(&client, allocation);
                return self.channel_data(allocation, segments, start, tx);
            }
            Demux::Stun => {
                let datagram = &segments.bytes[start..end];
                self.control(client, datagram, segments.payload, start, tx);
            }
            Demux::Dtls => self.counters.dropped(DropReason::ServiceDisabled, 1),
            Demux::Quic | Demux::Reserved | Demux::Rtp | Demux::Zrtp => {
                self.counters.dropped(DropReason::ProtocolUnknown, 1);
            }
        }
        end
    }

    /// Whose data this is: on a new path of an allocation, data makes it the only one (RFC 8016 §3.2.2).
    #[inline]
    fn sender_of_data(
        &mut self,
        client: &ClientTuple,
        allocation: Option<AllocationId>,
    ) -> Option<AllocationId> {
        if self.engine.has_new_paths() {
            self.engine.client_of_data(client, self.now)
        } else {
            allocation
        }
    }

    /// The train that begins at `start`: routed and queued, or dropped. Returns where it ends.
    fn channel_data(
        &mut self,
        allocation: Option<AllocationId>,
        segments: &Segments<'_, impl Payload>,
        start: usize,
        tx: &mut SendQueue,
    ) -> usize {
        let train = match Train::at(segments.bytes, start, segments.segment) {
            Ok(train) => train,
            Err(reason) => {
                self.counters.dropped(reason, 1);
                return segments.bytes.len().min(start + segments.segment);
            }
        };
        let datagrams = train.run.count as u64;
        let routed = match allocation {
            Some(allocation) => self.engine.route_channel_data(
                self.now.time,
                allocation,
                train.channel,
                len_u32(train.run.count),
                train.payload_bytes(),
            ),
            None => Err(DropReason::NoAllocation),
        };
        match routed {
            Ok(route) => {
                let run = self.admitted(train.run, route.datagrams);
                self.counters.peer_queued.add(run.count as u64);
                let (relay, to) = (EndpointId::from_u32(route.relay.0), route.peer.address());
                tx.forward(relay, to, segments.payload, run, &[], 0);
            }
            Err(reason) => self.counters.dropped(reason, datagrams),
        }
        train.end
    }

    /// The first `count` datagrams of a train; the others are beyond the rate of their allocation.
    #[inline]
    fn admitted(&self, run: Run, count: u32) -> Run {
        let (admitted, rest) = cut(run, count as usize);
        if rest > 0 {
            self.counters
                .dropped(DropReason::BandwidthExceeded, rest as u64);
        }
        admitted
    }

    /// A STUN message from a client: an answer, a Send indication's data, or a drop.
    fn control(
        &mut self,
        client: ClientTuple,
        datagram: &[u8],
        message: &impl Payload,
        start: usize,
        tx: &mut SendQueue,
    ) {
        let outcome = match self.roaming.has_front(&client) {
            true => self.engine.handle_handed_on(self.now, client, datagram),
            false => self.engine.handle_stun(self.now, client, datagram),
        };
        match outcome {
            Outcome::Done => {
                self.carry_out_commands(tx);
                self.tell_answers(datagram);
            }
            Outcome::HandOver(handover) => self.depart(client, handover, tx),
            // guard: V-50-lines
            Outcome::Dropped(reason) => self.drop_request(reason, &client, datagram),
            // Its shard asks the right one as soon as it knows that it has nothing here.
            Outcome::Elsewhere { .. } if self.roaming.has_front(&client) => {
                self.counters.dropped(DropReason::NoAllocation, 1);
            }
            Outcome::Elsewhere { shard } => {
                let shard = usize::try_from(shard).unwrap_or(usize::MAX);
                self.send_to(shard, client, datagram);
            }
            Outcome::Relay(route) => {
                self.counters.peer_queued.add(1);
                let relay = EndpointId::from_u32(route.relay.0);
                let run = Run::single(start + route.data.start, route.data.len());
                if route.dont_fragment {
                    tx.forward_unfragmented(relay, route.peer.address(), message, run);
                } else {
                    tx.forward(relay, route.peer.address(), message, run, &[], 0);
                }
            }
        }
    }

    /// Peer to client: one permission check per message, headers put in front of every segment.
    fn peer_message(&mut self, handle: RelayHandle, message: &Received<'_>, tx: &mut SendQueue) {
        let bytes = message.bytes.len();
        let datagrams = message.segment_count() as u64;
        self.counters.peer_in.add(datagrams);
        self.counters.peer_in_bytes.add(bytes as u64);
        let count = len_u32(message.segment_count());
        let route = match self.engine.route_from_peer(
            self.now.time,
            handle,
            message.remote,
            count,
            bytes as u64,
        ) {
            Ok(route) => route,
            Err(reason) => return self.counters.dropped(reason, datagrams),
        };
        let client = route.client;
        let remote = match self.roaming.has_front(&client) {
            true => Some(client.remote),
            false => self.proxied.data_address(&client, handle.allocation()),
        };
        let Some(remote) = remote else {
            return self.counters.dropped(DropReason::SocketClosed, datagrams);
        };
        let admitted = route.datagrams as usize;
        let beyond = datagrams - u64::from(route.datagrams);
        if beyond > 0 {
            self.counters.dropped(DropReason::BandwidthExceeded, beyond);
        }
        match route.framing {
            Framing::Channel(channel) => {
                let mut left = admitted;
                // All segments but the last are equal, so they share one header; a shorter last one has its own.
                for run in equal_runs(message).into_iter().flatten() {
                    if left == 0 {
                        break;
                    }
                    let (run, _) = cut(run, left);
                    left -= run.count;
                    let header = ChannelData::header(channel, len_u16(run.len));
                    // RFC 8656 §12.5: streams need padding.
                    let is_padded = client.transport.is_stream();
                    let trailer = if is_padded { padding(run.len) } else { 0 };
                    let framing = (&header[..], trailer);
                    self.forward_to_client(client, remote, message, run, framing, tx);
                }
            }
            Framing::DataIndication { peer } => {
                let mut start = 0;
                for segment in message.segments().take(admitted) {
                    let run = Run::single(start, segment.len());
                    start += segment.len();
                    let len = len_u16(segment.len());
                    let mut header = [0; DATA_INDICATION_HEADER_MAX];
                    let transaction = self.engine.transaction_id();
                    let Some(header_len) =
                        data_indication_header(&mut header, transaction, peer, len)
                    else {
                        self.counters.dropped(DropReason::DatagramTooLarge, 1);
                        continue;
                    };
                    let framing = (&header[..header_len], padding(segment.len()));
                    self.forward_to_client(client, remote, message, run, framing, tx);
                }
            }
        }
    }

    /// Queues relayed data for a client who is reached at `remote`: each datagram is a header, one payload of `message`, and so many zero
    /// bytes.
    #[inline]
    fn forward_to_client(
        &mut self,
        client: ClientTuple,
        remote: SocketAddr,
        message: &Received<'_>,
        run: Run,
        framing: (&[u8], u8),
        tx: &mut SendQueue,
    ) {
        if self.roaming.has_front(&client) {
            return self.data_to_front(&client, message, run, framing);
        }
        if client.transport == Transport::Dtls {
            return self.seal_to_client(client, message, run, framing, tx);
        }
        let (header, trailer) = framing;
        let datagrams = run.count as u64;
        if client.transport.is_stream() {
            let Some(connection) = self.connections.of_client(&client) else {
                return self.counters.dropped(DropReason::SocketClosed, datagrams);
            };
            let stream = connection.id;
            self.counters.client_queued.add(datagrams);
            tx.stream_forward(stream, message, run, header, trailer);
        } else {
            let listener = EndpointId::from_u32(client.listener.0);
            self.counters.client_queued.add(datagrams);
            tx.forward(listener, remote, message, run, header, trailer);
        }
    }
}

impl Relay {
    /// Sends the answers the engine has ready and remembers what it wants done with sockets.
    fn carry_out_commands(&mut self, tx: &mut SendQueue) {
        let Self {
            engine,
            connections,
            counters,
            proxied,
            sockets_due,
            dtls,
            joins,
            roaming,
            log,
            answers,
            ..
        } = self;
        engine.with_commands(|command| {
            if let Command::Reply { to, bytes } = &command
                && log.wants_answer(bytes)
            {
                answers.extend(Answer::of(*to, bytes));
            }
            match command {
                Command::ClosePeer { connection } => {
                    sockets_due.push(SocketDue::ClosePeer(connection))
                }
                Command::CloseRelay { endpoint } => sockets_due.push(SocketDue::Close(endpoint)),
                Command::Connect {
                    connection,
                    local,
                    peer,
                } => sockets_due.push(SocketDue::Connect {
                    connection,
                    local,
                    peer,
                }),
                Command::Join { connection, client } => joins.push((connection, client)),
                Command::OpenRelay {
                    request,
                    address,
                    handle,
                    protocol,
                } => {
                    sockets_due.push(SocketDue::Open {
                        request,
                        address,
                        handle,
                        protocol,
                    });
                }
                Command::Reply { to, bytes } if roaming.has_front(&to) => {
                    if !roaming.send_to_front(&to, bytes.to_vec()) {
                        counters.dropped(DropReason::HandoverQueueFull, 1);
                    }
                }
                Command::Reply { to, bytes } if to.transport == Transport::Dtls => {
                    dtls::seal_reply(dtls.as_deref_mut(), counters, to, bytes, tx);
                }
                Command::Reply { to, bytes } if to.transport.is_stream() => {
                    match connections.of_client(&to) {
                        Some(connection) => {
                            counters.client_queued.add(1);
                            tx.stream_reply(connection.id, bytes);
                        }
                        None => counters.dropped(DropReason::SocketClosed, 1),
                    }
                }
                Command::Reply { to, bytes } => match proxied.answer_address(&to) {
                    Some(remote) => {
                        counters.client_queued.add(1);
                        tx.reply(EndpointId::from_u32(to.listener.0), remote, bytes);
                    }
                    None => counters.dropped(DropReason::SocketClosed, 1),
                },
            }
        });
        while let Some((connection, client)) = self.joins.pop() {
            self.join(connection, client, tx);
        }
    }

    /// Opens and closes relay sockets until the engine wants no more: an address in use makes it try another port.
    fn settle_sockets(&mut self, tx: &mut SendQueue, sockets: &mut Sockets<'_>) {
        while !self.sockets_due.is_empty() {
            for due in std::mem::take(&mut self.sockets_due) {
                match due {
                    SocketDue::Close(endpoint) => {
                        if Self::close_relay_listener(endpoint, sockets).is_none() {
                            sockets.close(EndpointId::from_u32(endpoint.0));
                        }
                    }
                    SocketDue::ClosePeer(connection) => self.close_peer(connection, tx),
                    SocketDue::Connect {
                        connection,
                        local,
                        peer,
                    } => self.connect_to_peer(connection, local, peer, sockets),
                    SocketDue::Open {
                        request,
                        address,
                        handle,
                        protocol,
                    } => {
                        let opened = match protocol {
                            RelayProtocol::Tcp => Self::listen_for_peers(address, handle, sockets),
                            RelayProtocol::Udp => sockets
                                .bind(Bind {
                                    address,
                                    kind: EndpointKind::Relay,
                                    token: handle.to_u64(),
                                })
                                .map(|endpoint| Endpoint(endpoint.to_u32())),
                        };
                        let opened = opened.map_err(|error| relay_open_error(&error));
                        self.engine.relay_opened(self.now, request, opened);
                    }
                }
            }
            self.carry_out_commands(tx);
        }
    }
}

impl Handler for Relay {
    fn turn_started(&mut self) {
        self.now = clock::now();
        self.proxied.turn_started();
    }

    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        if message.token == LISTENER_TOKEN {
            self.client_message(message, tx);
        } else {
            self.peer_message(RelayHandle::from_u64(message.token), message, tx);
        }
    }

    fn truncated(&mut self, token: u64) {
        let arrived = match token {
            LISTENER_TOKEN => &self.counters.client_in,
            _ => &self.counters.peer_in,
        };
        arrived.add(1);
        self.counters.dropped(DropReason::Truncated, 1);
    }

    fn accepted(&mut self, stream: StreamId, accepted: &Accepted, tx: &mut SendQueue) -> bool {
        if is_client_listener(accepted.token) {
            self.connection_accepted(stream, accepted, tx)
        } else {
            self.peer_accepted(stream, accepted, tx)
        }
    }

    fn connected(&mut self, stream: StreamId, result: io::Result<()>, tx: &mut SendQueue) {
        self.peer_connected(stream, result.is_ok(), tx);
    }

    fn stream_ended(&mut self, stream: StreamId) {
        self.half_closed(stream);
    }

    fn farewell(&mut self, stream: StreamId, sealed: &mut Vec<u8>) {
        self.say_farewell(stream, sealed);
    }

    fn stream_received(&mut self, input: &mut StreamInput<'_>, tx: &mut SendQueue) -> Taken {
        self.connection_received(input, tx)
    }

    fn is_stranger(&self, stream: StreamId) -> bool {
        self.connections.is_stranger(stream)
    }

    fn may_read(&mut self, stream: StreamId) -> bool {
        self.may_read_connection(stream)
    }

    fn is_sealed(&self, stream: StreamId) -> bool {
        self.is_connection_sealed(stream)
    }

    fn seal(&mut self, stream: StreamId, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        self.seal_connection(stream, plain, sealed)
    }

    fn stream_failed(&mut self, stream: StreamId, messages: u32, cause: SendFailure) {
        if self.is_of_relay(stream) {
            return; // no messages
        }
        let messages = u64::from(messages);
        self.counters.client_refused.add(messages);
        let reason = match cause {
            SendFailure::BufferFull => DropReason::StreamCongested,
            _ => DropReason::SocketClosed,
        };
        self.counters.dropped(reason, messages);
    }

    fn stream_closed(&mut self, stream: StreamId, end: StreamEnd) {
        self.peer_closed(stream, end);
        self.connection_closed(stream, end);
    }

    fn icmp(&mut self, _endpoint: EndpointId, token: u64, error: IcmpError, tx: &mut SendQueue) {
        self.counters.icmp_in.add(1);
        if token == LISTENER_TOKEN {
            return self.counters.dropped(DropReason::IcmpNotRelayed, 1);
        }
        match self
            .engine
            .handle_icmp(self.now, RelayHandle::from_u64(token), engine_error(error))
        {
            Outcome::Done => self.carry_out_commands(tx),
            // guard: V-50-lines.queued
            Outcome::Dropped(reason) => self.counters.dropped(reason, 1),
            Outcome::Elsewhere { .. } | Outcome::HandOver(_) | Outcome::Relay(_) => {
                unreachable!("an ICMP error is answered or dropped")
            }
        }
    }

    fn send_failed(&mut self, endpoint: EndpointId, datagrams: u32, cause: SendFailure) {
        let datagrams = u64::from(datagrams);
        let refused = if self.listeners.contains(&endpoint) {
            &self.counters.client_refused
        } else {
            &self.counters.peer_refused
        };
        refused.add(datagrams);
        let reason = match cause {
            SendFailure::BufferFull => DropReason::SendBufferFull,
            SendFailure::Closed => DropReason::SocketClosed,
            SendFailure::MessageTooLong => DropReason::DatagramTooLarge,
            SendFailure::NotPermitted | SendFailure::Other | SendFailure::Unreachable => {
                DropReason::SendFailed
            }
        };
        self.counters.dropped(reason, datagrams);
    }

    fn warning(&mut self, warning: Warning) {
        self.log.warn(&warning.to_string());
    }

    fn turn_ended(&mut self, tx: &mut SendQueue, sockets: &mut Sockets<'_>) {
        if self
            .engine
            .next_timeout()
            .is_some_and(|due| due <= self.now.time)
        {
            self.engine.handle_timeout(self.now);
            self.carry_out_commands(tx);
        }
        self.close_overdue_connections(tx);
        self.work_on_dtls(tx);
        self.read_again(tx);
        self.collect();
        if self.has_migrants() {
            self.move_connections(tx, sockets);
        }
        self.open_parcels(tx);
        self.settle_sockets(tx, sockets);
        self.post();
        self.tell_answers(&[]);
        self.log.handle_timeout(self.now.time);
        self.counters
            .allocations
            .store(self.engine.statistics().allocations as u64, Relaxed);
        let (attempts, ends) = self.engine.peer_ends();
        self.counters.set_peer_ends(attempts, ends);
    }
}

/// The data path's error in the engine's words.
fn engine_error(error: IcmpError) -> turnbuckle_engine::IcmpError {
    let IcmpError {
        peer,
        kind,
        code,
        mtu,
        v6,
    } = error;
    turnbuckle_engine::IcmpError {
        peer,
        kind,
        code,
        mtu,
        v6,
    }
}

/// What the engine should think of a relay socket that could not be opened.
fn relay_open_error(error: &io::Error) -> RelayOpenError {
    match error.kind() {
        io::ErrorKind::AddrInUse => RelayOpenError::AddressInUse,
        io::ErrorKind::OutOfMemory => RelayOpenError::OutOfResources,
        // EMFILE and ENFILE have no kind of their own.
        _ if matches!(error.raw_os_error(), Some(23 | 24)) => RelayOpenError::OutOfResources,
        _ => RelayOpenError::Other,
    }
}

/// Zero bytes behind a DATA attribute of `len` bytes: 0 to 3.
fn padding(len: usize) -> u8 {
    u8::try_from(padding_len(len)).unwrap_or_default()
}

/// A number of datagrams in one message.
fn len_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A payload length that came from one UDP datagram.
fn len_u16(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}
