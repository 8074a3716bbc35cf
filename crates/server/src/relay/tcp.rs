//! TCP relays (RFC 6062): connections to and from peers, and the bytes between two joined connections.
//!
//! The engine decides which connections there are; the data path makes and joins them, and holds back whoever sends faster than the
//! other side takes. Here both meet, and each byte is handed from one connection to the other, through TLS if the client speaks it.
//!
//! A ConnectionBind may come to a shard that does not have the allocation. Then the client's connection moves: socket, TLS session
//! and all that was read behind the request go to the other shard as a [`Migrant`]. It leaves one turn after the
//! request came, when everything that was queued for it has been handed over.

use std::cmp::Reverse;

use turnbuckle_datapath::{
    Accepted, DetachedStream, Listen, Payload, SendQueue, Sockets, StreamEnd, StreamId,
    StreamInput, StreamListenerId, Taken,
};
use turnbuckle_engine::{
    AllowedPeer, ClientTuple, ConnectionId, DropReason, Endpoint, Handover, PeerEnd, RelayHandle,
    Time, Way,
};

use super::Relay;
use super::streams::STREAM_LISTENERS;
use crate::counters::CloseReason;
use crate::stream::Joined;
use crate::tls::Session;

/// The engine's names of relay sockets that listen begin here, below those of the client-facing listeners: an endpoint of the data
/// path with such a number would have to be the two millionth that is open, and open for the thousandth time.
const STREAM_RELAYS: u32 = 0xFFE0_0000;

/// A client's connection on its way to the shard that has the allocation.
pub(crate) struct Migrant {
    stream: DetachedStream,
    client: ClientTuple,
    tls: Option<Box<Session>>,
    handover: Box<Handover>,
    /// What came behind the request.
    rest: Vec<u8>,
}

/// A connection that leaves for another shard.
pub(super) struct Departure {
    stream: StreamId,
    handover: Box<Handover>,
    rest: Vec<u8>,
}

impl Relay {
    /// Accounts for the connections that are on their way when the shard ends; their requests get no answer any more.
    pub(crate) fn stop(&mut self) {
        self.stop_roaming();
        let leaving = self.departures.len() + self.departing.len();
        self.counters
            .dropped(DropReason::SocketClosed, leaving as u64);
        let (attempts, ends) = self.engine.peer_ends();
        self.counters.set_peer_ends(attempts, ends);
    }

    /// Whether there is something to do in the next turn, which therefore begins at once.
    pub(super) fn has_migrants(&self) -> bool {
        !(self.arrivals.is_empty() && self.departing.is_empty() && self.departures.is_empty())
    }

    /// Listens at a relayed transport address.
    pub(super) fn listen_for_peers(
        address: std::net::SocketAddr,
        handle: RelayHandle,
        sockets: &mut Sockets<'_>,
    ) -> std::io::Result<Endpoint> {
        let token = handle.to_u64();
        let listener = sockets.listen_for_peers(Listen { address, token })?;
        Ok(Endpoint(STREAM_RELAYS + listener.to_u32()))
    }

    /// Closes a relay socket that listens; `None` if this is none.
    pub(super) fn close_relay_listener(
        endpoint: Endpoint,
        sockets: &mut Sockets<'_>,
    ) -> Option<()> {
        let is_ours = (STREAM_RELAYS..STREAM_LISTENERS).contains(&endpoint.0);
        is_ours.then(|| {
            let listener = StreamListenerId::from_u32(endpoint.0 - STREAM_RELAYS);
            sockets.close_listener(listener);
        })
    }

    /// A connection arrived at a relayed transport address.
    pub(super) fn peer_accepted(
        &mut self,
        stream: StreamId,
        accepted: &Accepted,
        tx: &mut SendQueue,
    ) -> bool {
        let handle = RelayHandle::from_u64(accepted.token);
        match self.engine.accept_peer(self.now, handle, accepted.remote) {
            Ok(connection) => {
                // what the client is told of it goes out, so something came in
                self.counters.peer_in.add(1);
                self.peers.insert(stream, connection);
                self.carry_out_commands(tx);
                true
            }
            Err(_) => false,
        }
    }

    /// Begins a connection to a peer.
    pub(super) fn connect_to_peer(
        &mut self,
        connection: ConnectionId,
        local: std::net::SocketAddr,
        peer: AllowedPeer,
        sockets: &mut Sockets<'_>,
    ) {
        match sockets.connect(local, peer.address()) {
            Ok(stream) => self.peers.insert(stream, connection),
            Err(_) => self.engine.peer_connected(self.now, connection, false),
        }
    }

    /// A connection to a peer is there, or cannot be had.
    pub(super) fn peer_connected(
        &mut self,
        stream: StreamId,
        is_connected: bool,
        tx: &mut SendQueue,
    ) {
        let peer = if is_connected {
            self.peers.get(stream)
        } else {
            self.peers.remove(stream)
        };
        if let Some(peer) = peer {
            self.engine
                .peer_connected(self.now, peer.connection, is_connected);
            self.carry_out_commands(tx);
        }
    }

    /// Closes a connection that the engine has given up, and the client's that is joined with it.
    pub(super) fn close_peer(&mut self, connection: ConnectionId, tx: &mut SendQueue) {
        let Some(stream) = self.peers.stream_of(connection) else {
            return;
        };
        let client = self.peers.get(stream).and_then(|peer| peer.client);
        if let Some(client) = client {
            self.connections.close(client, CloseReason::AllocationEnded);
        }
        tx.close_stream(client.unwrap_or(stream));
    }

    /// Joins a connection of a client with a peer's.
    pub(super) fn join(
        &mut self,
        connection: ConnectionId,
        client: ClientTuple,
        tx: &mut SendQueue,
    ) {
        let client = self.connections.of_client(&client).map(|it| it.id);
        let peer = self.peers.stream_of(connection);
        let (Some(client), Some(peer)) = (client, peer) else {
            if let Some(peer) = peer {
                tx.close_stream(peer);
            }
            return self.engine.peer_disconnected(connection, PeerEnd::Failed);
        };
        let joined = Joined {
            peer,
            connection,
            ended: None,
        };
        self.connections.join(client, joined);
        self.peers.join(peer, client);
        tx.join_streams(client, peer);
    }

    /// Relays what stands in `bytes` from `start` on, if the client's connection is joined with a peer's. Returns whether it is, or is
    /// about to leave this shard, so that these bytes are not messages.
    pub(super) fn relayed_to_peer(
        &mut self,
        client: ClientTuple,
        bytes: &[u8],
        start: usize,
        payload: &impl Payload,
        tx: &mut SendQueue,
    ) -> bool {
        let Some(connection) = self.connections.of_client_mut(&client) else {
            return false;
        };
        let stream = connection.id;
        let Some(joined) = &mut connection.joined else {
            return false;
        };
        if start < bytes.len() {
            joined.progressed(self.now.time);
            tx.stream_relay(joined.peer, payload, start..bytes.len());
            let len = (bytes.len() - start) as u64;
            let connection = joined.connection;
            let until = self.engine.relayed(self.now, connection, Way::ToPeer, len);
            self.counters.tcp_to_peers_bytes.add(len);
            self.hold_back(stream, until, tx);
        }
        true
    }

    /// What came from a peer.
    pub(super) fn relayed_to_client(
        &mut self,
        input: &StreamInput<'_>,
        client: StreamId,
        connection: ConnectionId,
        tx: &mut SendQueue,
    ) -> Taken {
        if let Some(client) = self.connections.get_mut(client)
            && let Some(joined) = &mut client.joined
        {
            joined.progressed(self.now.time);
        }
        let len = input.bytes().len();
        tx.stream_relay(client, input, 0..len);
        let until = self
            .engine
            .relayed(self.now, connection, Way::ToClient, len as u64);
        self.counters.tcp_to_clients_bytes.add(len as u64);
        self.hold_back(input.stream, until, tx);
        Taken::ALL
    }

    /// Reads no more of a connection until then: its allocation has used up its rate.
    fn hold_back(&mut self, stream: StreamId, until: Option<Time>, tx: &mut SendQueue) {
        if let Some(until) = until {
            tx.hold_back_stream(stream, true);
            self.held_back.push(Reverse((until, stream)));
        }
    }

    /// When the next connection that is held back may be read again.
    pub(super) fn next_reading(&self) -> Option<Time> {
        self.held_back.peek().map(|Reverse((until, _))| *until)
    }

    /// Reads again what has been held back for long enough.
    pub(super) fn read_again(&mut self, tx: &mut SendQueue) {
        while self
            .next_reading()
            .is_some_and(|until| until <= self.now.time)
            && let Some(Reverse((_, stream))) = self.held_back.pop()
        {
            tx.hold_back_stream(stream, false);
        }
    }

    /// One side of two joined connections has ended what it sends.
    pub(super) fn half_closed(&mut self, stream: StreamId) {
        let (client, end) = match self.peers.get(stream) {
            Some(peer) => (peer.client, PeerEnd::PeerClosed),
            None => (Some(stream), PeerEnd::ClientClosed),
        };
        if let Some(client) = client {
            self.connections.half_closed(self.now.time, client, end);
        }
    }

    /// Says on a TLS connection that nothing more comes.
    pub(super) fn say_farewell(&mut self, stream: StreamId, sealed: &mut Vec<u8>) {
        let connection = self.connections.get_mut(stream);
        if let Some(session) = connection.and_then(|connection| connection.tls.as_mut()) {
            session.say_goodbye(sealed);
        }
    }

    /// A peer data connection is gone.
    pub(super) fn peer_closed(&mut self, stream: StreamId, end: StreamEnd) {
        let Some(peer) = self.peers.remove(stream) else {
            return;
        };
        let joined = peer
            .client
            .and_then(|client| self.connections.get(client))
            .and_then(|client| client.joined.as_deref());
        let cause = peer_end(joined, end);
        self.engine.peer_disconnected(peer.connection, cause);
    }

    /// A connection is to go to the shard that has the allocation. One that is not here any more cannot, and is told so.
    pub(super) fn depart(
        &mut self,
        client: ClientTuple,
        handover: Box<Handover>,
        tx: &mut SendQueue,
    ) {
        let Some(connection) = self.connections.of_client_mut(&client) else {
            self.engine.decline(client, *handover);
            return self.carry_out_commands(tx);
        };
        connection.is_departing = true;
        self.departures.push(Departure {
            stream: connection.id,
            handover,
            rest: Vec::new(),
        });
    }

    /// Keeps what came behind the request of a connection that departs. Returns whether it does.
    pub(super) fn departs_with(&mut self, client: ClientTuple, rest: &[u8]) -> bool {
        let stream = self.connections.of_client(&client).map(|it| it.id);
        match self.departures.last_mut() {
            Some(departure) if Some(departure.stream) == stream => {
                departure.rest.extend_from_slice(rest);
                true
            }
            _ => false,
        }
    }

    /// Whether a connection is one of two that are joined, or a peer's.
    pub(super) fn is_of_relay(&self, stream: StreamId) -> bool {
        let connection = self.connections.get(stream);
        connection.is_some_and(|connection| connection.joined.is_some())
            || self.peers.get(stream).is_some()
    }

    /// Sends on their way the connections whose last answers were handed over with the turn before, and takes in those that came.
    pub(super) fn move_connections(&mut self, tx: &mut SendQueue, sockets: &mut Sockets<'_>) {
        for departure in std::mem::take(&mut self.departing) {
            self.send_off(departure, tx, sockets);
        }
        self.departing = std::mem::take(&mut self.departures);
        for migrant in std::mem::take(&mut self.arrivals) {
            self.settle(migrant, true, tx, sockets);
        }
    }

    fn send_off(&mut self, departure: Departure, tx: &mut SendQueue, sockets: &mut Sockets<'_>) {
        let Departure {
            stream,
            handover,
            rest,
        } = departure;
        let connection = self.connections.get(stream).is_some();
        let detached = connection.then(|| sockets.detach(stream)).flatten();
        let (Some(stream), Some(connection)) = (detached, self.connections.remove(stream)) else {
            // closed in the meantime: nobody is there to read the answer
            return self.counters.dropped(DropReason::SocketClosed, 1);
        };
        self.roamer_gone(&connection.client);
        self.counters.closed(CloseReason::Moved);
        let shard = usize::try_from(handover.shard()).unwrap_or(usize::MAX);
        let migrant = Migrant {
            stream,
            client: connection.client,
            tls: connection.tls,
            handover,
            rest,
        };
        let returned = match self.mailboxes.get(shard) {
            None => migrant,
            Some(mailbox) => match mailbox.offer(migrant) {
                None => return self.counters.handed_out.add(1),
                Some(migrant) => migrant,
            },
        };
        self.settle(returned, false, tx, sockets);
    }

    /// Takes in a connection, and does what it asks for if this is where it wanted to go.
    fn settle(
        &mut self,
        migrant: Migrant,
        is_here: bool,
        tx: &mut SendQueue,
        sockets: &mut Sockets<'_>,
    ) {
        let Migrant {
            stream,
            client,
            tls,
            handover,
            rest,
        } = migrant;
        self.counters.connections.add(1);
        let Ok(stream) = sockets.adopt(stream) else {
            self.counters.closed(CloseReason::Failed);
            return self.counters.dropped(DropReason::SocketClosed, 1);
        };
        let client = self.connections.adopt(self.now.time, stream, client, tls);
        if is_here {
            self.engine.take_over(self.now, client, *handover);
        } else {
            self.engine.decline(client, *handover);
        }
        self.carry_out_commands(tx);
        if rest.is_empty() {
            return;
        }
        let staged = tx.stage(&rest);
        if !self.relayed_to_peer(client, &rest, 0, &staged, tx) {
            // meant for a peer, so no messages
            self.connections.close(stream, CloseReason::Malformed);
            tx.close_stream(stream);
        }
    }
}

/// Why two joined connections are gone, or a peer's alone.
pub(super) fn peer_end(joined: Option<&Joined>, end: StreamEnd) -> PeerEnd {
    match (end, joined.and_then(|joined| joined.ended)) {
        (StreamEnd::Finished, Some((first, _))) => first,
        (StreamEnd::Local, Some(_)) => PeerEnd::Stalled,
        (StreamEnd::Local, None) => PeerEnd::Stopped,
        (StreamEnd::Remote, _) => PeerEnd::PeerClosed,
        (StreamEnd::Congested | StreamEnd::Failed | StreamEnd::Finished, _) => PeerEnd::Failed,
    }
}
