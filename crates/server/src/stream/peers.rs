//! The peers' side of TCP relays: which of the shard's connections are peer data connections.

use std::collections::HashMap;

use turnbuckle_datapath::StreamId;
use turnbuckle_engine::ConnectionId;

/// A peer data connection, or the attempt to make one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) connection: ConnectionId,
    /// The client data connection it is joined with.
    pub(crate) client: Option<StreamId>,
}

/// Peer data connections by the data path's name and by the engine's.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    places: Vec<Option<(StreamId, Peer)>>,
    by_connection: HashMap<ConnectionId, StreamId>,
}

impl Peers {
    pub(crate) fn insert(&mut self, stream: StreamId, connection: ConnectionId) {
        if self.places.len() <= stream.index() {
            self.places.resize(stream.index() + 1, None);
        }
        let peer = Peer {
            connection,
            client: None,
        };
        self.places[stream.index()] = Some((stream, peer));
        self.by_connection.insert(connection, stream);
    }

    /// The peer behind a connection, if there is one.
    #[inline]
    pub(crate) fn get(&self, stream: StreamId) -> Option<Peer> {
        match self.places.get(stream.index()) {
            Some(Some((id, peer))) if *id == stream => Some(*peer),
            _ => None,
        }
    }

    /// Where the connection with this name is.
    pub(crate) fn stream_of(&self, connection: ConnectionId) -> Option<StreamId> {
        self.by_connection.get(&connection).copied()
    }

    /// Notes whom a peer is joined with.
    pub(crate) fn join(&mut self, stream: StreamId, client: StreamId) {
        if let Some(Some((id, peer))) = self.places.get_mut(stream.index())
            && *id == stream
        {
            peer.client = Some(client);
        }
    }

    pub(crate) fn remove(&mut self, stream: StreamId) -> Option<Peer> {
        let place = self.places.get_mut(stream.index())?;
        let (_, peer) = place.take_if(|(id, _)| *id == stream)?;
        self.by_connection.remove(&peer.connection);
        Some(peer)
    }
}
