//! Holds which of the shard's connections are peer data connections.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use turnbuckle_datapath::{StreamEnd, StreamId};
use turnbuckle_engine::{ConnectionId, PeerEnd, Time};

/// The peer side that a client data connection is joined with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    /// The peer data connection.
    pub(crate) peer: StreamId,
    /// The engine's name of it.
    pub(crate) connection: ConnectionId,
    /// The side that ended its direction first, and the time of the last bytes since then.
    pub(crate) ended: Option<(PeerEnd, Time)>,
}

impl Joined {
    pub(crate) fn new(peer: StreamId, connection: ConnectionId) -> Self {
        Self {
            peer,
            connection,
            ended: None,
        }
    }

    /// Notes that bytes came, from either side.
    #[inline]
    pub(crate) fn progressed(&mut self, now: Time) {
        if let Some((_, last)) = &mut self.ended {
            *last = now;
        }
    }
}

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
    /// Connections that are not read for some time, the next one first.
    held_back: BinaryHeap<Reverse<(Time, StreamId)>>,
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

    /// Returns the peer behind a connection, if there is one.
    #[inline]
    pub(crate) fn get(&self, stream: StreamId) -> Option<Peer> {
        match self.places.get(stream.index()) {
            Some(Some((id, peer))) if *id == stream => Some(*peer),
            _ => None,
        }
    }

    /// Returns where the connection with this name is.
    pub(crate) fn stream_of(&self, connection: ConnectionId) -> Option<StreamId> {
        self.by_connection.get(&connection).copied()
    }

    /// Notes the client data connection that a peer is joined with.
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

    /// Notes until when a connection is not read.
    pub(crate) fn hold_back(&mut self, stream: StreamId, until: Time) {
        self.held_back.push(Reverse((until, stream)));
    }

    /// Returns when the next connection that is held back may be read again.
    pub(crate) fn next_reading(&self) -> Option<Time> {
        self.held_back.peek().map(|Reverse((until, _))| *until)
    }

    /// Takes a connection that may be read again.
    pub(crate) fn pop_readable(&mut self, now: Time) -> Option<StreamId> {
        self.next_reading().filter(|until| *until <= now)?;
        self.held_back.pop().map(|Reverse((_, stream))| stream)
    }
}

/// Returns why two joined connections are gone, or a peer's alone.
pub(in crate::shard) fn peer_end(joined: Option<&Joined>, end: StreamEnd) -> PeerEnd {
    match (end, joined.and_then(|joined| joined.ended)) {
        (StreamEnd::Finished, Some((first, _))) => first,
        (StreamEnd::Local, Some(_)) => PeerEnd::Stalled,
        (StreamEnd::Local, None) => PeerEnd::Stopped,
        (StreamEnd::Remote, _) => PeerEnd::PeerClosed,
        (StreamEnd::Congested | StreamEnd::Failed | StreamEnd::Finished, _) => PeerEnd::Failed,
    }
}
