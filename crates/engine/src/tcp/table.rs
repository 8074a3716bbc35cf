//! The peer data connections of one engine.

use std::collections::BTreeMap;

use turnbuckle_wire::IntegrityKey;

use super::ledger::{ConnectionLease, PendingUnit};
use super::peer_end::PeerEnd;
use crate::address::PeerAddress;
use crate::id::{AllocationId, ConnectionId, Family};
use crate::request::Envelope;
use crate::time::Time;

/// One peer data connection, or the attempt to make one.
#[derive(Debug)]
pub(crate) struct PeerConnection {
    pub(crate) lease: ConnectionLease,
    pub(crate) allocation: AllocationId,
    pub(crate) peer: PeerAddress,
    pub(crate) state: State,
}

#[derive(Debug)]
pub(crate) enum State {
    /// A client data connection has been joined to it.
    Bound,
    /// The host connects.
    Connecting(Box<Connecting>),
    /// It could not be had, and the client is to learn that at the deadline only.
    Failed(Box<Connecting>),
    /// It is there, and waits for the client.
    Unbound {
        deadline: Time,
        /// Held by what a Connect request began.
        _pending: Option<PendingUnit>,
    },
}

/// A Connect request that waits for its answer.
#[derive(Debug)]
pub(crate) struct Connecting {
    pub(crate) envelope: Envelope,
    pub(crate) key: Option<IntegrityKey>,
    pub(crate) deadline: Time,
    pub(crate) pending: PendingUnit,
}

impl PeerConnection {
    /// Returns the time by which the connection must be connected or bound. Returns `None` once it is bound.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match &self.state {
            State::Bound => None,
            State::Connecting(connecting) | State::Failed(connecting) => Some(connecting.deadline),
            State::Unbound { deadline, .. } => Some(*deadline),
        }
    }
}

/// Connections by name and by peer.
///
/// Invariant: both maps hold the same connections, and an allocation has at most one with each peer (RFC 6062 §5.2).
#[derive(Debug, Default)]
pub(crate) struct PeerConnections {
    by_id: BTreeMap<ConnectionId, PeerConnection>,
    by_peer: BTreeMap<(AllocationId, PeerAddress), ConnectionId>,
    /// Connections that were tried or came.
    pub(crate) attempts: u64,
    /// Number of connections that have ended, by [`PeerEnd::index`].
    pub(crate) ends: [u64; PeerEnd::ALL.len()],
}

impl PeerConnections {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<&PeerConnection> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut PeerConnection> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn has_peer(&self, allocation: AllocationId, peer: PeerAddress) -> bool {
        self.by_peer.contains_key(&(allocation, peer))
    }

    pub(crate) fn insert(&mut self, connection: PeerConnection) {
        let id = connection.lease.id();
        self.by_peer
            .insert((connection.allocation, connection.peer), id);
        self.by_id.insert(id, connection);
    }

    /// Removes a connection, and counts why it ended.
    pub(crate) fn remove(&mut self, id: ConnectionId, cause: PeerEnd) -> Option<PeerConnection> {
        let connection = self.by_id.remove(&id)?;
        self.by_peer
            .remove(&(connection.allocation, connection.peer));
        self.count_end(cause);
        Some(connection)
    }

    pub(crate) fn count_end(&mut self, cause: PeerEnd) {
        if let Some(count) = self.ends.get_mut(cause.index()) {
            *count += 1;
        }
    }

    /// Returns the connections of an allocation.
    pub(crate) fn of_allocation(
        &self,
        allocation: AllocationId,
    ) -> impl Iterator<Item = &PeerConnection> {
        self.by_peer
            .range((allocation, PeerAddress::FIRST)..)
            .take_while(move |((owner, _), _)| *owner == allocation)
            .filter_map(|(_, id)| self.by_id.get(id))
    }

    /// Returns the CONNECTION-IDs of an allocation, of one family or of both.
    pub(crate) fn ids_of(
        &self,
        allocation: AllocationId,
        family: Option<Family>,
    ) -> Vec<ConnectionId> {
        self.of_allocation(allocation)
            .filter(|connection| {
                family.is_none_or(|family| Family::of(&connection.peer.address()) == family)
            })
            .map(|connection| connection.lease.id())
            .collect()
    }

    /// Returns the earliest deadline of an allocation's connections.
    pub(crate) fn nearest_deadline(&self, allocation: AllocationId) -> Option<Time> {
        self.of_allocation(allocation)
            .filter_map(PeerConnection::deadline)
            .min()
    }
}
