//! What RFC 6062 says a server remembers, on a page: TCP allocations and their connections with peers.
//!
//! | what | said in | here |
//! |---|---|---|
//! | an allocation ends with its control connection, by release or by time | §4.2, RFC 8656 §5 | [`Model::end`] |
//! | a Connect request waits for the peer | §5.2 | [`State::Connecting`] |
//! | what is there waits 30 s for a ConnectionBind, and is bound once | §5.2, §5.3, §5.4 | [`State::Unbound`], [`Model::bind`] |
//! | one connection with each peer | §5.2 | [`Model::connect`] |
//! | who may connect: a peer with a permission | §5.3 | [`Model::accept`] |
//!
//! Connections end with their allocation. Besides the RFC's this has the bounds of V-12 and V-46.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::plan;
use crate::queue::SECOND;

/// How long a connection waits for its ConnectionBind, and the peer's answer is waited for.
pub(super) const WAIT: u64 = 30 * SECOND;
pub(super) const LIFETIME: u64 = 600 * SECOND;
const PERMISSION: u64 = 300 * SECOND;

/// Transaction of a request.
pub(super) type Id = [u8; 12];

#[derive(Clone, Debug)]
pub(super) struct Allocation {
    pub(super) user: usize,
    pub(super) relay: SocketAddr,
    /// Whether its relayed transport address is of TCP.
    pub(super) is_tcp: bool,
    pub(super) expires: u64,
    permissions: BTreeMap<IpAddr, u64>,
}

#[derive(Clone, Debug)]
pub(super) struct ModelConnection {
    /// Whose it is.
    pub(super) client: usize,
    pub(super) peer: SocketAddr,
    pub(super) state: State,
    /// The user who is charged with it until it is bound: who asked for it.
    charged: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Bound,
    /// The request that waits, and until when.
    Connecting(Id, u64),
    /// The peer refused, and the client learns that when the time is over.
    Failed(Id, u64),
    Unbound(u64),
}

impl State {
    pub(super) fn deadline(self) -> Option<u64> {
        match self {
            Self::Bound => None,
            Self::Connecting(_, until) | Self::Failed(_, until) | Self::Unbound(until) => {
                Some(until)
            }
        }
    }

    fn waiting(self) -> Option<Id> {
        match self {
            Self::Connecting(id, _) | Self::Failed(id, _) => Some(id),
            Self::Bound | Self::Unbound(_) => None,
        }
    }
}

/// A request that has waited, and what it may be answered.
pub(super) type Owed = (Id, Vec<u16>);

/// Everything that is remembered, by client and by CONNECTION-ID.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) allocations: BTreeMap<usize, Allocation>,
    pub(super) connections: BTreeMap<u32, ModelConnection>,
    pub(super) per_allocation: usize,
    pub(super) waiting_per_allocation: usize,
    pub(super) charged_per_user: usize,
}

impl Model {
    pub(super) fn allocated(&mut self, client: usize, held: (usize, SocketAddr, bool), now: u64) {
        let (user, relay, is_tcp) = held;
        let allocation = Allocation {
            user,
            relay,
            is_tcp,
            expires: now + LIFETIME,
            permissions: BTreeMap::new(),
        };
        self.allocations.insert(client, allocation);
    }

    pub(super) fn permit(&mut self, client: usize, peer: IpAddr, now: u64) {
        if let Some(held) = self.allocations.get_mut(&client) {
            held.permissions.insert(peer, now + PERMISSION);
        }
    }

    /// Returns the error codes of a Connect request; none when the peer is to be connected to (§5.2).
    pub(super) fn connect(&self, client: usize, user: usize, peer: SocketAddr) -> Vec<u16> {
        let Some(held) = self.allocations.get(&client) else {
            return vec![437];
        };
        let has = |wrong: bool, code: u16| wrong.then_some(code);
        let faults = [
            has(held.user != user, 441),
            has(!held.is_tcp, 403),
            has(peer.port() == 0, 400),
            has(self.with_peer(client, peer), 446),
            has(peer.is_ipv6(), 443),
            has(!self.may_be_connected(peer) || peer.port() < 1024, 403),
            has(peer == held.relay, 403),
            has(!self.has_room(client), 508),
            has(self.charged(user) >= self.charged_per_user, 486),
        ];
        faults.into_iter().flatten().collect()
    }

    pub(super) fn connecting(&mut self, id: u32, client: usize, peer: SocketAddr, wait: (Id, u64)) {
        let charged = self.allocations.get(&client).map(|held| held.user);
        let state = State::Connecting(wait.0, wait.1 + WAIT);
        self.insert(id, client, peer, state, charged);
    }

    /// Returns whether a connection that comes to `client`'s relayed transport address may stay (§5.3).
    pub(super) fn accept(&self, client: usize, peer: SocketAddr, now: u64) -> bool {
        let held = self.allocations.get(&client);
        let permitted = held.and_then(|held| held.permissions.get(&peer.ip()));
        permitted.is_some_and(|until| *until > now)
            && self.may_be_connected(peer)
            && !self.with_peer(client, peer)
            && self.has_room(client)
    }

    pub(super) fn accepted(&mut self, id: u32, client: usize, peer: SocketAddr, now: u64) {
        self.insert(id, client, peer, State::Unbound(now + WAIT), None);
    }

    /// Returns the error code of a ConnectionBind request, if it gets one (§5.4).
    pub(super) fn bind(&self, id: u32, user: usize, now: u64) -> Option<u16> {
        let Some(connection) = self.connections.get(&id) else {
            return Some(400);
        };
        let owner = self.allocations.get(&connection.client);
        if owner.is_none_or(|held| held.user != user) {
            return Some(441);
        }
        let waits = matches!(connection.state, State::Unbound(until) if now < until);
        (!waits).then_some(400)
    }

    /// Ends an allocation with all its connections (§5.5). Returns what its requests that wait may be answered.
    pub(super) fn end(&mut self, client: usize) -> Vec<Owed> {
        self.allocations.remove(&client);
        let gone = self
            .connections
            .extract_if(.., |_, held| held.client == client);
        let waiting = gone.filter_map(|(_, held)| held.state.waiting());
        waiting.map(|id| (id, vec![437])).collect()
    }

    /// Ends what is over at `now`.
    pub(super) fn pass(&mut self, now: u64) -> Vec<Owed> {
        let is_over = |held: &&ModelConnection| held.state.deadline().is_some_and(|due| due <= now);
        let over = self.connections.values().filter(is_over);
        let mut owed: BTreeMap<Id, Vec<u16>> = over
            .filter_map(|held| Some((held.state.waiting()?, vec![447])))
            .collect();
        let ended: Vec<usize> = self
            .allocations
            .iter()
            .filter(|(_, held)| held.expires <= now)
            .map(|(client, _)| *client)
            .collect();
        for client in ended {
            for (id, codes) in self.end(client) {
                owed.entry(id).or_default().extend(codes);
            }
        }
        self.connections
            .retain(|_, held| held.state.deadline().is_none_or(|due| due > now));
        for held in self.allocations.values_mut() {
            held.permissions.retain(|_, until| *until > now);
        }
        owed.into_iter().collect()
    }

    /// Returns every moment at which something is over.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = u64> {
        let connections = self.connections.values();
        let held = self.allocations.values();
        connections
            .filter_map(|held| held.state.deadline())
            .chain(held.flat_map(|held| held.permissions.values().copied().chain([held.expires])))
    }

    /// Counts the connections that a Connect request began and no ConnectionBind has joined.
    pub(super) fn charged_in_all(&self) -> usize {
        let mut connections = self.connections.values().map(ModelConnection::charged);
        connections.by_ref().flatten().count()
    }

    fn charged(&self, user: usize) -> usize {
        let connections = self.connections.values().map(ModelConnection::charged);
        connections.filter(|who| *who == Some(user)).count()
    }

    fn insert(
        &mut self,
        id: u32,
        client: usize,
        peer: SocketAddr,
        state: State,
        charged: Option<usize>,
    ) {
        let connection = ModelConnection {
            client,
            peer,
            state,
            charged,
        };
        self.connections.insert(id, connection);
    }

    fn with_peer(&self, client: usize, peer: SocketAddr) -> bool {
        let mut held = self.connections.values();
        held.any(|held| held.client == client && held.peer == peer)
    }

    fn has_room(&self, client: usize) -> bool {
        let held = || self.connections.values().filter(|c| c.client == client);
        let waiting = held().filter(|held| held.state.deadline().is_some());
        held().count() < self.per_allocation && waiting.count() < self.waiting_per_allocation
    }

    /// Returns whether `peer` may be connected to: of the server's own addresses only relayed ones of TCP may be (V-07).
    pub(super) fn may_be_connected(&self, peer: SocketAddr) -> bool {
        if peer.ip() == plan::RELAY_V4 {
            let mut held = self.allocations.values();
            return held.any(|held| held.is_tcp && held.relay == peer);
        }
        plan::may_be_peer(peer.ip())
    }
}

impl ModelConnection {
    fn charged(&self) -> Option<usize> {
        self.charged.filter(|_| self.state != State::Bound)
    }
}
