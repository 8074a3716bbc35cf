//! Serves peers by TCP (RFC 6062): connections to and from them, and the bytes between two joined connections.
//!
//! The engine decides which connections exist. The data path makes and joins them, and slows down a side that sends faster than the other one
//! reads. This module connects both, and hands each byte from one connection to the other, through TLS if the client uses it.

pub(in crate::shard) mod table;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;

use turnbuckle_datapath::{
    Admission, Listen, Payload, SendQueue, Sockets, StreamEnd, StreamId, StreamInput, Taken,
};
use turnbuckle_engine::{
    AllowedPeer, ClientTuple, ConnectionId, Endpoint, PeerEnd, RelayHandle, Time, Way,
};

use self::table::{Joined, peer_end};
use crate::shard::front::Front;
use crate::shard::hub::Hub;
use crate::shard::name::{SocketName, Token};

/// Listens at a relayed transport address.
pub(super) fn listen(
    address: SocketAddr,
    handle: RelayHandle,
    sockets: &mut impl Sockets,
) -> io::Result<Endpoint> {
    let token = Token::Relay(handle).to_u64();
    let listener = sockets.listen_for_peers(Listen { address, token })?;
    Ok(SocketName::PeerListener(listener).endpoint())
}

impl Hub {
    /// Accepts a connection that arrived at a relayed transport address, or returns that it has to be closed at once.
    pub(in crate::shard) fn accept_peer<F: Front>(
        &mut self,
        stream: StreamId,
        handle: RelayHandle,
        remote: SocketAddr,
        front: &mut F,
        tx: &mut SendQueue,
    ) -> Admission {
        match self.engine.accept_peer(self.now, handle, remote) {
            Ok(connection) => {
                // the client's indication of it is counted as sent, so this is counted as received
                self.counters.datagrams.peer_in.add(1);
                self.peers.insert(stream, connection);
                self.carry_out_commands(front, tx);
                Admission::Trusted
            }
            Err(_) => Admission::Refused,
        }
    }

    /// Begins a connection to a peer.
    pub(in crate::shard) fn connect_to_peer(
        &mut self,
        connection: ConnectionId,
        local: SocketAddr,
        peer: AllowedPeer,
        sockets: &mut impl Sockets,
    ) {
        match sockets.connect(local, peer.address()) {
            Ok(stream) => self.peers.insert(stream, connection),
            Err(_) => self.engine.peer_connected(self.now, connection, false),
        }
    }

    /// Handles the result of a connection attempt to a peer.
    pub(in crate::shard) fn peer_connected<F: Front>(
        &mut self,
        stream: StreamId,
        is_connected: bool,
        front: &mut F,
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
            self.carry_out_commands(front, tx);
        }
    }

    /// Joins a connection of a client with a peer's.
    pub(in crate::shard) fn join<F: Front>(
        &mut self,
        connection: ConnectionId,
        client: ClientTuple,
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        let peer = self.peers.stream_of(connection);
        let client = peer.and_then(|peer| front.join(&client, Joined::new(peer, connection)));
        match (client, peer) {
            (Some(client), Some(peer)) => {
                self.peers.join(peer, client);
                tx.join_streams(client, peer);
            }
            (_, peer) => {
                if let Some(peer) = peer {
                    tx.close_stream(peer);
                }
                self.engine.peer_disconnected(connection, PeerEnd::Failed);
            }
        }
    }

    /// Relays a part of `payload`, which came from a client on `from`, to the peer that it is joined with.
    pub(in crate::shard) fn relay_to_peer(
        &mut self,
        from: StreamId,
        (peer, connection): (StreamId, ConnectionId),
        payload: &impl Payload,
        range: Range<usize>,
        tx: &mut SendQueue,
    ) {
        let len = range.len() as u64;
        tx.stream_relay(peer, payload, range);
        let until = self.engine.relayed(self.now, connection, Way::ToPeer, len);
        self.counters.tcp_relays.tcp_to_peers_bytes.add(len);
        self.hold_back(from, until, tx);
    }

    /// Relays the bytes of a peer to the client that it is joined with.
    pub(in crate::shard) fn relay_to_client(
        &mut self,
        input: &StreamInput<'_>,
        client: StreamId,
        connection: ConnectionId,
        tx: &mut SendQueue,
    ) -> Taken {
        let len = input.bytes().len();
        tx.stream_relay(client, input, 0..len);
        let until = self
            .engine
            .relayed(self.now, connection, Way::ToClient, len as u64);
        self.counters
            .tcp_relays
            .tcp_to_clients_bytes
            .add(len as u64);
        self.hold_back(input.stream, until, tx);
        Taken::ALL
    }

    /// Stops reading a connection until that time, because its allocation has used up its rate.
    fn hold_back(&mut self, stream: StreamId, until: Option<Time>, tx: &mut SendQueue) {
        if let Some(until) = until {
            tx.hold_back_stream(stream, true);
            self.peers.hold_back(stream, until);
        }
    }

    /// Resumes reading the connections whose pause is over.
    pub(in crate::shard) fn read_again(&mut self, tx: &mut SendQueue) {
        while let Some(stream) = self.peers.pop_readable(self.now.time) {
            tx.hold_back_stream(stream, false);
        }
    }

    /// Handles a closed peer data connection, whether or not it was joined with a client's.
    pub(in crate::shard) fn peer_closed(
        &mut self,
        connection: ConnectionId,
        joined: Option<&Joined>,
        end: StreamEnd,
    ) {
        let cause = peer_end(joined, end);
        self.engine.peer_disconnected(connection, cause);
    }
}
