//! What there is of tunnels in HTTP/3: connections, their requests, and what waits for what.
//!
//! A connection is one session. Each of its tunnels is a client of its own to the engine, with a name that nothing else ever has. `requests.rs` answers
//! the requests, `payloads.rs` relays what follows.

mod payloads;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use turnbuckle_datapath::Waker;
use turnbuckle_engine::{
    AllocationId, ClientTuple, Endpoint as Listener, Time, Transport, TunnelSession,
};
use turnbuckle_masque::Asked;
use turnbuckle_masque::h3::Payload;
use turnbuckle_quic::ConnectionName;

use super::lookups::Lookups;
use crate::counters::QuicDrop;
use crate::resolve::Resolver;
use crate::shard::hub::Hub;
use crate::shard::name;

/// The tunnels of a shard's connections.
pub(super) struct Door {
    pub(super) lookups: Lookups,
    /// Whether tunnels may be bound.
    pub(super) serves_bound: bool,
    /// By the places of their connections.
    connections: Vec<Option<TunnelConnection>>,
    /// Connections with granted requests that wait for the client's settings, and the client of one of these.
    pub(super) unsettled: VecDeque<(Time, ConnectionName, ClientTuple)>,
    /// Connections that have payloads which came before their tunnels were open.
    pub(super) early: Vec<ConnectionName>,
    later: Later,
    /// Requests whose users the database has been asked about.
    pub(super) users_asked: Vec<(ConnectionName, u64)>,
    /// Connections with payloads that are not sent yet.
    carrying: Vec<ConnectionName>,
    /// How many payloads these are.
    queued: u64,
    /// Payloads of one connection, kept for their memory.
    pub(super) came: Vec<Payload<AllocationId>>,
    /// Payloads of a run, back to back, kept for their memory.
    run: Vec<u8>,
}

/// What there is of clients' payloads that were more than a turn relays.
#[derive(Default)]
struct Later {
    /// Connections that have such, each once.
    unfinished: VecDeque<ConnectionName>,
    /// How many payloads of all connections these are.
    kept: usize,
    /// Payloads that this turn may still relay.
    share: usize,
}

/// A connection.
pub(super) struct TunnelConnection {
    /// Where it came to, and from where it began.
    listener: Listener,
    remote: SocketAddr,
    /// What its tunnels are charged to.
    pub(super) session: Option<TunnelSession>,
    pub(super) failures: u8,
    /// Streams that the client may have open, once it has shown who it is.
    pub(super) allowed: u32,
    /// By the streams of their requests.
    pub(super) tunnels: BTreeMap<u64, Tunnel>,
    /// The streams by the serial numbers of their clients.
    pub(super) streams: BTreeMap<u64, u64>,
    /// Payloads of the client that are relayed in a later turn.
    kept: VecDeque<Payload<AllocationId>>,
    /// Payloads that were handed to QUIC in DATAGRAM frames, and how many of them it has sent.
    queued: u64,
    carried: u64,
    is_carrying: bool,
}

/// What there is of a request.
pub(super) enum Tunnel {
    /// The user database is being asked who asks, under this name of the request.
    Identifying {
        client: ClientTuple,
        asked: Box<Asked>,
    },
    /// The name of its target is being resolved.
    Resolving { number: u64 },
    /// The engine has it under this name.
    Begun { client: ClientTuple },
}

impl TunnelConnection {
    /// Returns the address that its client came from.
    pub(super) const fn source(&self) -> IpAddr {
        self.remote.ip()
    }

    /// Returns a name for a request of connection `name`, which nothing else ever has.
    pub(super) fn client(&self, name: ConnectionName) -> ClientTuple {
        ClientTuple {
            listener: self.listener,
            remote: self.remote,
            transport: Transport::Quic,
            connection: name::connection(u32::try_from(name.place()).unwrap_or(u32::MAX)),
        }
    }
}

impl Tunnel {
    /// Ends what there is of it elsewhere, because its client is gone.
    pub(super) fn give_up(self, hub: &mut Hub) {
        match self {
            Self::Identifying { client, .. } => drop(hub.parking.of(&client)),
            Self::Resolving { .. } => {}
            Self::Begun { client } => hub.engine.disconnected(hub.now, &client),
        }
    }
}

impl Door {
    pub(super) fn new(resolver: Option<Resolver>, serves_bound: bool) -> Self {
        Self {
            lookups: Lookups::new(resolver),
            serves_bound,
            connections: Vec::new(),
            unsettled: VecDeque::new(),
            early: Vec::new(),
            later: Later::default(),
            users_asked: Vec::new(),
            carrying: Vec::new(),
            queued: 0,
            came: Vec::new(),
            run: Vec::new(),
        }
    }

    /// Sets what wakes the shard when a name is resolved.
    pub(super) fn connect(&mut self, waker: Waker) {
        self.lookups.connect(waker);
    }

    /// Enters a connection.
    pub(super) fn begun(&mut self, name: ConnectionName, listener: Listener, remote: SocketAddr) {
        let place = name.place();
        if self.connections.len() <= place {
            self.connections.resize_with(place + 1, || None);
        }
        self.connections[place] = Some(TunnelConnection {
            listener,
            remote,
            session: None,
            failures: 0,
            allowed: 0,
            tunnels: BTreeMap::new(),
            streams: BTreeMap::new(),
            kept: VecDeque::new(),
            queued: 0,
            carried: 0,
            is_carrying: false,
        });
    }

    /// Forgets a connection that has ended, with its tunnels.
    pub(super) fn ended(&mut self, name: ConnectionName, hub: &mut Hub) {
        let Some(connection) = self
            .connections
            .get_mut(name.place())
            .and_then(Option::take)
        else {
            return;
        };
        for tunnel in connection.tunnels.into_values() {
            // mutant: shards-keep-tunnels-of-connections
            tunnel.give_up(hub);
        }
        let lost = connection.queued - connection.carried;
        self.queued -= lost;
        hub.counters.dropped(QuicDrop::Queue, lost);
        self.later.kept -= connection.kept.len();
        lose(connection.kept.len(), hub);
        if connection.is_carrying {
            self.carrying.retain(|it| *it != name);
        }
    }

    /// Returns all connections.
    pub(super) fn names(&self) -> Vec<ConnectionName> {
        let connections = self.connections.iter().enumerate();
        connections
            .filter(|(_, connection)| connection.is_some())
            .map(|(place, _)| ConnectionName::at(place))
            .collect()
    }

    /// Returns whether a connection has tunnels, or is about to have.
    pub(super) fn has_tunnels(&self, name: ConnectionName) -> bool {
        let connection = self.connections.get(name.place()).and_then(Option::as_ref);
        connection.is_some_and(|connection| !connection.tunnels.is_empty())
    }

    /// Returns whether a client's tunnel is here.
    pub(super) fn has_client(&self, client: &ClientTuple) -> bool {
        self.stream_of(client).is_some()
    }

    /// Returns when there is something to do by itself.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        if !self.early.is_empty() || self.keeps_payloads() || !self.users_asked.is_empty() {
            return Some(Time::ZERO);
        }
        let resolving = self.lookups.next_timeout();
        let unsettled = self.unsettled.front().map(|&(until, ..)| until);
        resolving.into_iter().chain(unsettled).min()
    }

    /// Returns a connection that has not ended.
    pub(super) fn connection(&mut self, name: ConnectionName) -> Option<&mut TunnelConnection> {
        self.connections.get_mut(name.place())?.as_mut()
    }

    /// Returns the connection and the stream of a client's tunnel.
    pub(super) fn stream_of(&self, client: &ClientTuple) -> Option<(ConnectionName, u64)> {
        let place = usize::try_from(client.connection.place).ok()?;
        let connection = self.connections.get(place)?.as_ref()?;
        // mutant: shards-carry-by-any-tunnel
        let stream = connection.streams.get(&client.connection.serial)?;
        Some((ConnectionName::at(place), *stream))
    }
}

/// Drops payloads of a client that cannot be kept.
fn lose(count: usize, hub: &Hub) {
    if count > 0 {
        hub.counters.datagrams.client_in.add(count as u64);
        hub.counters.dropped(QuicDrop::Backlog, count as u64);
    }
}
