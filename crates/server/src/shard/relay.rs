//! Joins data path, hub, fronts and peers of a shard, and hands each event of the data path to the part that it concerns.
//!
//! A client's message goes through its front to the hub. A peer's message goes to the hub and through a front to the client. The end of a turn
//! handles timers, handshakes, messages of other shards, and sockets to open and close. Then all changes are shown to their followers
//! ([`Changes::before_flush`](super::changes::Changes::before_flush)), and what is queued leaves.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use turnbuckle_datapath::offload::Routes;
use turnbuckle_datapath::{
    Accepted, Admission, DatagramHandler, Datapath, EndpointId, IcmpError, Instruction, Received,
    SendFailure, SendQueue, SocketPurpose, Sockets, StreamEnd, StreamHandler, StreamId,
    StreamInput, StreamListenerId, Taken, TurnHandler, Waker, Warning,
};
use turnbuckle_engine::{
    Belongings, Config as EngineConfig, Engine, InterfaceAddress, PeerEnd, RelayAddress,
    RelayHandle,
};

use super::across::mailbox::Mailbox;
use super::discovery::{self, Site};
use super::front::all::{DatagramService, Fronts};
use super::front::stream::StreamService;
use super::hub::Hub;
use super::hub::wanted::SocketDue;
use super::name::{self, SocketName, Token};
use super::pages::Pages;
use super::peer;
use super::serving::Serving;
use super::sessions::Sessions;
use crate::asking::{Answered, Asker};
use crate::clock::Clock;
use crate::counters::{DataPathDrop, HubDrop, ShardCounters};
use crate::handle::{EventSender, PageRequest, Trace};
use crate::journal::Journal;
use crate::log::Log;
use crate::offload::publisher::{Publisher, refusal};
use crate::random::Randomness;
use crate::survive::{Record, ShardJournal};

/// The handler of one shard's data path.
pub(crate) struct Relay {
    hub: Hub,
    fronts: Fronts,
    pub(super) clock: Clock,
    pages: Pages,
    /// The client-facing endpoints; all others are relay endpoints.
    listeners: Vec<EndpointId>,
    /// The listeners for connections of clients; `None` in the place of one that could not be opened.
    stream_listeners: Vec<Option<StreamListenerId>>,
    /// The program that chooses the shard for a datagram; `None` leaves it to the kernel's hash.
    pub(super) steering: Option<Vec<Instruction>>,
    /// The other shards are to know where clients are at home that have come here before this relay.
    has_roamers_due: bool,
    #[cfg(test)]
    pub(crate) panics_with_next: bool,
}

impl Relay {
    /// Joins an engine without listeners with the counters of its shard.
    pub(crate) fn new(
        engine: Engine<Randomness>,
        clock: Clock,
        counters: Arc<ShardCounters>,
        log: Log,
        sessions: Sessions,
        streams: StreamService,
        datagrams: DatagramService,
    ) -> Self {
        Self {
            fronts: Fronts::new(streams, datagrams, &counters),
            hub: Hub::new(engine, clock.now(), counters, log, sessions),
            clock,
            pages: Pages::default(),
            listeners: Vec::new(),
            stream_listeners: Vec::new(),
            steering: None,
            has_roamers_due: false,
            #[cfg(test)]
            panics_with_next: false,
        }
    }

    /// Sets the number of this shard, the mailboxes of all shards, and what wakes this one.
    pub(crate) fn set_shard(&mut self, index: usize, mailboxes: Arc<[Mailbox]>, waker: Waker) {
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        self.hub.engine.set_shard(number);
        self.fronts.stream.connect(waker.clone());
        self.fronts.quic.begin(index, waker.clone());
        self.hub.across.connect(index, mailboxes, waker);
    }

    /// Has requests wait for the answers of `asker` before they are refused.
    pub(crate) fn ask(&mut self, shard: usize, asker: Option<Asker>) {
        self.hub.parking.connect(shard, asker);
    }

    /// Takes an answer of the user database.
    pub(crate) fn answered(&mut self, answer: Answered) {
        let now = self.clock.now().time;
        self.hub.parking.answered(now, answer);
    }

    /// Makes the other shards forget the clients and allocations that this one had before it failed.
    pub(crate) fn say_restarted(&mut self) {
        self.hub.across.roaming.say_restarted();
    }

    /// Tells the other shards of the clients that have moved and are at home here since before this relay, once. To be called when all shards are
    /// there.
    pub(crate) fn announce_roamers(&mut self) {
        if std::mem::take(&mut self.has_roamers_due) {
            self.hub.announce_roamers();
        }
    }

    /// Ends the shard because it has failed, and leaves what its allocations have of what all shards share.
    pub(crate) fn leave(self) -> Belongings {
        self.hub.engine.leave()
    }

    /// Logs a warning.
    pub(crate) fn warn(&mut self, text: &str) {
        self.hub.changes.log.warn(text);
    }

    /// Publishes channels with `routes` from now on.
    pub(crate) fn set_routes(&mut self, routes: Box<dyn Routes + Send>) {
        let counters = Arc::clone(&self.hub.counters);
        let mut publisher = Publisher::new(routes, counters);
        publisher.set_proxies(self.fronts.udp.proxies());
        self.hub.changes.publisher = Some(publisher);
    }

    /// Returns a published channel that the engine would not relay now, or not so; for the simulator.
    pub(crate) fn disagreement(&mut self) -> Option<String> {
        let Hub {
            changes,
            engine,
            now,
            ..
        } = &mut self.hub;
        let publisher = changes.publisher.as_ref()?;
        publisher.disagreement(now.time, engine)
    }

    /// Shows the relayed transport address of each channel that the kernel may relay, published or not. Returns one that this shard would not relay if
    /// the kernel passed its data, in words.
    pub(crate) fn unserved(&mut self, mut each: impl FnMut(SocketAddr)) -> Option<String> {
        let Hub { engine, now, .. } = &mut self.hub;
        let slots = 0..engine.session_slots();
        let ids: Vec<_> = slots
            .filter_map(|slot| engine.session_at(slot).map(|it| it.id()))
            .collect();
        ids.into_iter().find_map(|id| {
            let mut flows = Vec::new();
            engine.flows(now.time, id, |flow| flows.push(flow));
            flows.into_iter().find_map(|flow| {
                each(flow.relay);
                let why = refusal(now.time, id, &flow, engine)?;
                Some(format!("{flow:?} is nobody's; {why}"))
            })
        })
    }

    /// Returns how many connections of QUIC there are; for the simulator.
    pub(crate) fn quic_connections(&self) -> usize {
        self.fronts.quic.connection_count()
    }

    /// Registers a bound client-facing socket.
    pub(crate) fn add_listener(&mut self, endpoint: EndpointId, local: SocketAddr) {
        let name = name::endpoint(endpoint);
        self.hub.engine.add_listener(name, local);
        self.fronts.dtls.add_listener(name, local);
        self.listeners.push(endpoint);
    }

    /// Registers a bound relay socket that allocations share.
    pub(crate) fn add_shared_relay(&mut self, endpoint: EndpointId, local: SocketAddr) {
        let name = name::endpoint(endpoint);
        self.hub.engine.add_shared_relay(name, local);
    }

    /// Puts in place what the record of an earlier process says, or of a shard that has failed, which has left `belongings`. To be called when the
    /// listeners are known; `endpoint_of` names the socket that is bound to a relay address, to be known by the handle.
    pub(crate) fn restore(
        &mut self,
        record: &Record,
        belongings: Belongings,
        mut endpoint_of: impl FnMut(SocketAddr, RelayHandle) -> Option<EndpointId>,
    ) {
        let hub = &mut self.hub;
        hub.engine.restore(
            hub.now,
            record.recorded.changes.iter().cloned(),
            belongings,
            |address, handle| endpoint_of(address, handle).map(name::endpoint),
        );
        hub.changes
            .restored(hub.now.time, &hub.engine, &record.recorded.numbers);
        hub.count();
        self.has_roamers_due = true;
        let counters = &hub.counters.engine;
        let taken = counters.allocations.get();
        counters.taken_over.add(taken);
        counters
            .not_taken_over
            .add((record.allocations as u64).saturating_sub(taken));
    }

    /// Writes changes to a journal from now on. The engine was restored from what it held `before`.
    ///
    /// # Errors
    ///
    /// The journal cannot be written.
    pub(crate) fn begin_journal(
        &mut self,
        journal: &ShardJournal,
        before: &Record,
    ) -> io::Result<()> {
        let Hub {
            changes,
            engine,
            now,
            ..
        } = &mut self.hub;
        let (segments, memory) = (journal.segments.clone(), journal.memory);
        let begun = Journal::begin(
            segments,
            memory,
            &before.recorded,
            now.time,
            engine,
            |allocation| changes.sessions.number(allocation),
        )
        .map_err(|error| io::Error::new(error.kind(), format!("survive: {error}")))?;
        changes.journal = Some(begun);
        Ok(())
    }

    /// Returns the client-facing sockets.
    pub(crate) fn listeners(&self) -> &[EndpointId] {
        &self.listeners
    }

    /// Returns the number of the next listener for connections.
    pub(crate) fn next_stream_listener(&self) -> u16 {
        u16::try_from(self.stream_listeners.len()).unwrap_or(u16::MAX)
    }

    /// Registers the next listener for connections.
    pub(crate) fn add_stream_listener(&mut self, listener: StreamListenerId, local: SocketAddr) {
        let name = SocketName::ClientListener(self.next_stream_listener());
        self.hub.engine.add_listener(name.endpoint(), local);
        self.stream_listeners.push(Some(listener));
    }

    /// Passes over the number of a client-facing socket that could not be opened: shards name a client's listener to each other by its number.
    pub(crate) fn skip_listener(&mut self, local: SocketAddr) {
        self.hub.engine.skip_listener(local);
    }

    /// Passes over the number of the next listener for connections, likewise.
    pub(crate) fn skip_stream_listener(&mut self, local: SocketAddr) {
        self.hub.engine.skip_listener(local);
        self.stream_listeners.push(None);
    }

    /// Returns the listeners for connections in their places.
    pub(crate) fn stream_listeners(&self) -> &[Option<StreamListenerId>] {
        &self.stream_listeners
    }

    /// Makes the listeners at `sites` serve NAT behaviour discovery. The other arguments are all sockets for datagrams and all listeners for
    /// connections.
    pub(crate) fn serve_discovery(
        &mut self,
        sites: &[Site],
        datagrams: &[(EndpointId, SocketAddr)],
        connections: &[(turnbuckle_engine::Endpoint, SocketAddr)],
    ) {
        discovery::serve(&mut self.hub.engine, sites, datagrams, connections);
    }

    /// Sets the engine's list of the host's own addresses, so that no peer is reached there (V-07).
    pub(crate) fn set_interfaces(&mut self, interfaces: Vec<InterfaceAddress>) {
        let now = self.hub.now.time;
        (self.hub.engine).set_host_addresses(now, interfaces, &[]);
        self.hub.rules_changed();
    }

    /// Adds relay addresses to the engine that were found after the start.
    pub(crate) fn add_relays(&mut self, relays: &[RelayAddress]) {
        self.hub.engine.add_relays(self.hub.now.time, relays);
        self.hub.rules_changed();
    }

    /// Refuses new allocations from now on.
    pub(crate) fn drain(&mut self) {
        self.hub.engine.drain();
        self.fronts.quic.refuse(true);
    }

    /// Takes new allocations again.
    pub(crate) fn undrain(&mut self) {
        self.hub.engine.undrain();
        self.fronts.quic.refuse(false);
    }

    /// Lists sessions from now on, or ends them, some of them each time that [`Self::work_on_pages`] is called.
    pub(crate) fn page(&mut self, wish: PageRequest) {
        self.pages.begin(wish);
    }

    /// Goes on with what lists or ends sessions. To be called after each turn.
    pub(crate) fn work_on_pages(&mut self, tx: &mut SendQueue) {
        let Self {
            hub, fronts, pages, ..
        } = self;
        pages.work(hub, fronts, tx);
    }

    /// Begins a trace of one user.
    pub(crate) fn trace(&mut self, trace: Trace) {
        self.hub.changes.log.trace(trace);
    }

    /// Takes over other settings.
    pub(crate) fn reconfigure(&mut self, engine: &Arc<EngineConfig>) {
        self.hub.engine.reconfigure(self.hub.now.time, engine);
        self.hub.rules_changed();
    }

    /// Serves clients in this way from now on.
    pub(crate) fn serve(&mut self, serving: &Serving) {
        let is_other_proxy = self.fronts.udp.proxies() != serving.datagram_proxies;
        self.fronts.reconfigure(serving);
        if is_other_proxy && let Some(publisher) = &mut self.hub.changes.publisher {
            publisher.set_proxies(&serving.datagram_proxies);
            self.hub.rules_changed();
        }
        self.hub.changes.log.set_logged(serving.log);
    }

    /// Makes events from now on.
    pub(crate) fn consume(&mut self, events: EventSender) {
        self.hub.changes.sessions.consume(events);
    }

    /// Returns the time until the next timer, counted from the present turn.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        if self.fronts.dtls.has_work() || self.pages.has_work() {
            return Some(Duration::ZERO);
        }
        let due = self.hub.next_timeout().into_iter();
        let due = due
            .chain(self.fronts.stream.next_timeout())
            .chain(self.fronts.dtls.next_timeout())
            .chain(self.fronts.quic.next_timeout())
            .min()?;
        Some(due.since(self.hub.now.time))
    }

    /// Ends all sessions of DTLS and connections of QUIC, because the relay ends.
    pub(crate) fn stop_sessions(&mut self, tx: &mut SendQueue) {
        self.fronts.dtls.stop(tx);
        self.fronts.quic.stop(&mut self.hub, tx);
    }

    /// Leaves all allocations as they are on record, tells clients of connections and sessions that these end, and counts the messages that are lost.
    pub(crate) fn seal(&mut self, datapath: &mut Datapath) {
        // What ends from here on stays on record as it was. Nothing is flushed any more either, so this holds twice.
        let journal = self.hub.changes.journal.take();
        let now = self.hub.now.time;
        self.hub.changes.leave(now, &mut self.hub.engine);
        let sealed = journal.map(|journal| journal.seal(now, &self.hub.engine));
        if let Some(Err(error)) = sealed {
            self.warn(&format!(
                "what calls have relayed since the last refresh is not handed over: {error}"
            ));
        }
        self.stop_sessions(datapath.send_queue());
        datapath.close_streams(self);
        datapath.report_undelivered(self);
        self.stop();
    }

    /// Counts the messages that are lost when the shard ends.
    pub(crate) fn stop(&mut self) {
        self.hub.stop();
    }

    /// Returns how many clients with an allocation here use another shard as their ingress, and how many client names were sent to other shards.
    #[cfg(test)]
    pub(crate) fn roamers(&self) -> (usize, usize) {
        self.hub.across.roaming.counts()
    }

    /// Returns of how many allocations the proxy is known that their clients come by.
    #[cfg(test)]
    pub(crate) fn known_proxies(&self) -> usize {
        self.fronts.udp.known_proxies()
    }

    /// Opens and closes relay sockets until the engine asks for no more. If an address is in use, the engine tries another port.
    fn settle_sockets(&mut self, tx: &mut SendQueue, sockets: &mut impl Sockets) {
        let Self { hub, fronts, .. } = self;
        while !hub.sockets_due.is_empty() {
            for due in std::mem::take(&mut hub.sockets_due) {
                match due {
                    SocketDue::Close(endpoint) => peer::sockets::close(endpoint, sockets),
                    SocketDue::ClosePeer(connection) => {
                        // This closes the joined connection of the client too.
                        if let Some(stream) = hub.peers.stream_of(connection) {
                            let client = hub.peers.get(stream).and_then(|peer| peer.client);
                            if let Some(client) = client {
                                fronts.stream.close_joined(client);
                            }
                            tx.close_stream(client.unwrap_or(stream));
                        }
                    }
                    SocketDue::Connect {
                        connection,
                        local,
                        peer,
                    } => hub.connect_to_peer(connection, local, peer, sockets),
                    SocketDue::Open(wish) => {
                        let request = wish.request;
                        // RFC 9298 §3.1
                        let forbids_fragments = hub.engine.is_tunnel(wish.handle.allocation());
                        let opened = peer::sockets::open(wish, forbids_fragments, sockets);
                        hub.engine.relay_opened(hub.now, request, opened);
                    }
                }
            }
            hub.carry_out_commands(fronts, tx);
        }
    }
}

impl TurnHandler for Relay {
    fn turn_started(&mut self) {
        // The data path has just read `CLOCK_MONOTONIC` to measure how busy it is. That clock stands still while the machine sleeps, lifetimes
        // do not, so the engine's time needs a reading of its own: one for a turn, whatever the number of datagrams.
        self.hub.now = self.clock.now();
        self.fronts.udp.turn_started();
        let has_calls = self.hub.engine.statistics().allocations > 0;
        self.fronts.quic.turn_started(self.hub.now.time, has_calls);
    }

    fn flushes_before_end(&self) -> bool {
        self.fronts.quic.keeps_calls()
    }

    fn turn_ended(&mut self, tx: &mut SendQueue, sockets: &mut impl Sockets) {
        let Self { hub, fronts, .. } = self;
        hub.carry_out_rest(fronts, tx);
        hub.handle_timeout(fronts, tx);
        hub.finish_parked(fronts, tx);
        fronts.stream.close_overdue(hub, tx);
        fronts.stream.work(hub, tx);
        fronts.dtls.work(hub, tx);
        hub.read_again(tx);
        hub.collect();
        if hub.across.has_connections() {
            fronts.stream.move_connections(hub, tx, sockets);
        }
        hub.receive_from_shards(fronts, tx);
        if fronts.quic.work(hub, tx) {
            hub.carry_out_commands(fronts, tx);
        }
        self.settle_sockets(tx, sockets);
        let Self { hub, fronts, .. } = self;
        hub.carry_out_rest(fronts, tx);
        if fronts.quic.flush(hub, tx) {
            hub.carry_out_commands(fronts, tx);
        }
        hub.post();
        hub.count();
    }

    fn before_flush(&mut self) {
        let Self { hub, fronts, .. } = self;
        let now = hub.now.time;
        for allocation in hub.changes.before_flush(now, &mut hub.engine, fronts) {
            fronts.udp.ended(allocation);
        }
    }

    fn warning(&mut self, warning: Warning) {
        self.hub.changes.log.warn(&warning.to_string());
    }
}

impl DatagramHandler for Relay {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        let Self { hub, fronts, .. } = self;
        match Token::from_u64(message.token) {
            Token::Relay(handle) => hub.peer_message(handle, message, fronts, tx),
            Token::SharedRelay => hub.shared_message(message, fronts, tx),
            Token::ClientDatagrams | Token::ClientConnections(_) => {
                fronts.datagrams(message, hub, tx);
                #[cfg(test)]
                assert!(!self.panics_with_next, "a test wants it so");
            }
        }
    }

    fn truncated(&mut self, token: u64) {
        let counters = &self.hub.counters;
        let arrived = match Token::from_u64(token) {
            Token::Relay(_) | Token::SharedRelay => &counters.datagrams.peer_in,
            Token::ClientDatagrams | Token::ClientConnections(_) => &counters.datagrams.client_in,
        };
        arrived.add(1);
        // mutant: shards-count-no-truncated
        counters.dropped(DataPathDrop::Truncated, 1);
    }

    fn undelivered(&mut self, at: SocketPurpose, messages: u64) {
        let counters = &self.hub.counters.datagrams;
        // guard: counts-socket-drops
        counters.socket_drops.of(at).add(messages);
    }

    fn icmp(&mut self, _: EndpointId, token: u64, error: IcmpError, tx: &mut SendQueue) {
        let Self { hub, fronts, .. } = self;
        hub.counters.datagrams.icmp_in.add(1);
        let relay = match Token::from_u64(token) {
            Token::Relay(handle) => Some(handle),
            // The error names the datagram's destination, so it is for whose peer that is.
            Token::SharedRelay => hub.engine.owner_of_peer(error.peer).ok(),
            Token::ClientDatagrams | Token::ClientConnections(_) => None,
        };
        match relay {
            Some(handle) => hub.icmp(handle, peer::udp::icmp_error(error), fronts, tx),
            None => hub.counters.dropped(HubDrop::IcmpNotRelayed, 1),
        }
    }

    fn send_failed(&mut self, endpoint: EndpointId, datagrams: u32, cause: SendFailure) {
        let counters = &self.hub.counters;
        let datagrams = u64::from(datagrams);
        let refused = if self.listeners.contains(&endpoint) {
            &counters.datagrams.client_out
        } else {
            &counters.datagrams.peer_out
        };
        refused.refused(datagrams);
        let reason = match cause {
            SendFailure::BufferFull => DataPathDrop::SendBufferFull,
            SendFailure::Closed => DataPathDrop::SocketClosed,
            SendFailure::MessageTooLong => DataPathDrop::DatagramTooLarge,
            SendFailure::NotPermitted | SendFailure::Other | SendFailure::Unreachable => {
                DataPathDrop::SendFailed
            }
        };
        counters.dropped(reason, datagrams);
    }
}

impl StreamHandler for Relay {
    fn accepted(&mut self, stream: StreamId, accepted: &Accepted, tx: &mut SendQueue) -> Admission {
        let Self { hub, fronts, .. } = self;
        let remote = accepted.remote;
        match Token::from_u64(accepted.token) {
            Token::ClientConnections(listener) => {
                fronts.stream.accepted(stream, listener, remote, hub, tx)
            }
            Token::Relay(handle) => hub.accept_peer(stream, handle, remote, fronts, tx),
            Token::ClientDatagrams | Token::SharedRelay => Admission::Refused,
        }
    }

    fn connected(&mut self, stream: StreamId, result: io::Result<()>, tx: &mut SendQueue) {
        let Self { hub, fronts, .. } = self;
        hub.peer_connected(stream, result.is_ok(), fronts, tx);
    }

    fn stream_received(&mut self, input: &mut StreamInput<'_>, tx: &mut SendQueue) -> Taken {
        let Self { hub, fronts, .. } = self;
        let Some(peer) = hub.peers.get(input.stream) else {
            return fronts.stream.received(input, hub, tx);
        };
        match peer.client {
            Some(client) => {
                fronts.stream.peer_progressed(hub.now.time, client);
                hub.relay_to_client(input, client, peer.connection, tx)
            }
            None => Taken::Close, // it is not read before it is joined
        }
    }

    fn seal(&mut self, stream: StreamId, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        self.fronts.stream.seal(stream, plain, sealed)
    }

    fn seal_end(&mut self, stream: StreamId, sealed: &mut Vec<u8>) {
        self.fronts.stream.close_notify(stream, sealed);
    }

    fn stream_ended(&mut self, stream: StreamId) {
        let (client, end) = match self.hub.peers.get(stream) {
            Some(peer) => (peer.client, PeerEnd::PeerClosed),
            None => (Some(stream), PeerEnd::ClientClosed),
        };
        if let Some(client) = client {
            let now = self.hub.now.time;
            self.fronts.stream.half_closed(now, client, end);
        }
    }

    fn stream_failed(&mut self, _: StreamId, messages: u32, cause: SendFailure) {
        let messages = u64::from(messages);
        // An answer may wait although the connection is joined with a peer's by now.
        self.hub.counters.datagrams.client_out.refused(messages);
        let reason = match cause {
            SendFailure::BufferFull => DataPathDrop::StreamCongested,
            _ => DataPathDrop::SocketClosed,
        };
        self.hub.counters.dropped(reason, messages);
    }

    fn stream_closed(&mut self, stream: StreamId, end: StreamEnd) {
        let Self { hub, fronts, .. } = self;
        if let Some(peer) = hub.peers.remove(stream) {
            let joined = peer.client.and_then(|client| fronts.stream.joined(client));
            hub.peer_closed(peer.connection, joined, end);
        }
        fronts.stream.closed(stream, end, hub);
    }
}
