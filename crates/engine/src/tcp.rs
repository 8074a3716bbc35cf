//! TCP allocations: Connect, incoming connections, ConnectionBind (RFC 6062 §5).
//!
//! A *peer data connection* is between the relayed transport address and a peer, a *client data connection* between the client and
//! this server; the host relays bytes between the two once the engine has joined them. The engine names the former by its
//! CONNECTION-ID and decides when it begins and ends; it never sees a byte of either.
//!
//! ```text
//! Connect request --> Connecting --peer_connected--> Unbound --ConnectionBind--> Bound
//! accept_peer --------------------------------------^
//! ```
//!
//! The allocation belongs to one engine, and a client's new connection may come to another one. That one checks who is asking,
//! and has the host move the connection to where the allocation is ([`Handover`]).
//!
//! Limits (V-12, V-46): all that waits has a deadline and a bound, for each allocation and for each user; nothing is read from a
//! peer before it is bound, so that what it sends waits in the kernel's buffer and then with the peer.

pub(crate) mod ledger;
pub(crate) mod table;

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;

use std::sync::Arc;

use turnbuckle_wire::{Class, IntegrityKey, MessageWriter, Method};

use self::table::{Connecting, PeerConnection, State};
use crate::address::PeerAddress;
use crate::allocation::Entry;
use crate::auth::Proof;
use crate::bandwidth::Direction;
use crate::change::Change;
use crate::command::Outcome;
use crate::credential::User;
use crate::engine::Engine;
use crate::id::{AllocationId, ClientTuple, ConnectionId, Family, RelayHandle, RelayProtocol};
use crate::policy::AllowedPeer;
use crate::random::{Random, random_u64};
use crate::reject::Reject;
use crate::reply::{Envelope, Request};
use crate::time::{Now, Time};

/// How long a peer data connection waits for its ConnectionBind (RFC 6062 §5.2, §5.3).
// guard: V-46-bind
const BIND_MAX: Duration = Duration::from_secs(30);

macro_rules! peer_ends {
    ($($(#[$doc:meta])+ $name:ident = $label:literal,)+) => {
        /// Why a peer data connection is gone, or never was: every one that was tried or came ends under exactly one of these.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum PeerEnd {
            $($(#[$doc])+ $name,)+
        }

        impl PeerEnd {
            /// All of them, in the order of [`PeerEnd::index`].
            pub const ALL: [Self; [$($label),+].len()] = [$(Self::$name),+];

            /// The metric label: lower case with underscores, the same for ever.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                }
            }

            /// The position in [`PeerEnd::ALL`].
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

peer_ends! {
    /// Its allocation ended (RFC 6062 §5.5).
    AllocationEnded = "allocation_ended",
    /// No ConnectionBind came in time (RFC 6062 §5.2, §5.3).
    BindTimeout = "bind_timeout",
    /// The client closed its side.
    ClientClosed = "client_closed",
    /// The peer could not be connected to (RFC 6062 §5.2).
    ConnectFailed = "connect_failed",
    /// The peer did not answer in time (RFC 6062 §5.2).
    ConnectTimeout = "connect_timeout",
    /// It came from a peer that a connection exists with.
    Duplicate = "duplicate",
    /// An error of either connection, such as a reset.
    Failed = "failed",
    /// It came from a peer without a permission (RFC 6062 §5.3).
    NoPermission = "no_permission",
    /// The peer closed its side.
    PeerClosed = "peer_closed",
    /// The policy denies the peer.
    PeerForbidden = "peer_forbidden",
    /// It came after the end of the allocation.
    RelayClosed = "relay_closed",
    /// It came when there was no room to tell the client.
    ReplyQueueFull = "reply_queue_full",
    /// One side had closed, and the other did not in time.
    Stalled = "stalled",
    /// The relay ended.
    Stopped = "stopped",
    /// It came when the allocation had as many as it may have (V-46).
    TooMany = "too_many",
}

/// Which way bytes of a data connection go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From peer to client.
    ToClient,
    /// From client to peer.
    ToPeer,
}

/// An authenticated ConnectionBind request on its way to the engine that has the connection.
#[derive(Clone)]
pub struct Handover {
    shard: u32,
    connection: ConnectionId,
    envelope: Envelope,
    key: IntegrityKey,
    user: Arc<User>,
}

impl Handover {
    /// The shard of the engine that it is for: what that one was told with [`Engine::set_shard`].
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// The connection that it is about.
    pub fn connection(&self) -> ConnectionId {
        self.connection
    }
}

impl PartialEq for Handover {
    fn eq(&self, other: &Self) -> bool {
        self.connection == other.connection && self.envelope == other.envelope
    }
}

impl Eq for Handover {}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover")
            .field("shard", &self.shard)
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

impl<R: Random> Engine<R> {
    /// Tells which shard this engine is, for connections that have to be moved between shards; 0 until this is called.
    pub fn set_shard(&mut self, shard: u32) {
        self.shard = shard;
    }

    /// Peer data connections that were tried or came, and how they ended, by [`PeerEnd::index`]. What has not ended is
    /// [`crate::Statistics::peer_connections`].
    pub fn peer_ends(&self) -> (u64, &[u64; PeerEnd::ALL.len()]) {
        (self.tcp.attempts, &self.tcp.ends)
    }

    /// Takes the host's answer to [`crate::Command::Connect`].
    pub fn peer_connected(&mut self, now: Now, connection: ConnectionId, is_connected: bool) {
        let has_deadline_passed = self
            .tcp
            .get(connection)
            .and_then(PeerConnection::deadline)
            .is_some_and(|deadline| deadline <= now.time);
        if has_deadline_passed {
            return self.expire_connection(connection);
        }
        let Some(held) = self.tcp.get_mut(connection) else {
            return; // given up, and the host was told
        };
        let State::Connecting(connecting) = core::mem::replace(&mut held.state, State::Bound)
        else {
            debug_assert!(false, "one answer to each Connect");
            return;
        };
        if !is_connected {
            held.state = State::Failed(connecting);
            let is_masked = self
                .config
                .tcp
                .as_ref()
                .is_some_and(|tcp| tcp.mask_connect_errors);
            // guard: V-12-mask
            if !is_masked {
                self.fail_connect(connection, PeerEnd::ConnectFailed);
            }
            return;
        }
        let Connecting {
            envelope,
            key,
            pending,
            ..
        } = *connecting;
        let deadline = now.time + BIND_MAX;
        held.state = State::Unbound {
            deadline,
            _pending: Some(pending),
        };
        let (allocation, peer) = (held.allocation, held.peer.address());
        self.changes.push_back(Change::PeerConnected {
            allocation,
            connection,
            peer,
            is_incoming: false,
        });
        self.reply_success(&envelope, Some(&key), |writer| {
            writer.connection_id(connection.0);
        });
        self.wake_by(allocation, deadline);
    }

    /// Judges a connection that came to a relayed transport address (RFC 6062 §5.3). When it may stay the client is told of it,
    /// and the host keeps it under the name returned, without reading from it.
    ///
    /// # Errors
    ///
    /// Why the host has to close it at once.
    pub fn accept_peer(
        &mut self,
        now: Now,
        relay: RelayHandle,
        remote: SocketAddr,
    ) -> Result<ConnectionId, PeerEnd> {
        self.tcp.attempts += 1;
        let peer = self.admit_peer(now.time, relay, remote);
        let (client, user, peer) = peer.inspect_err(|&cause| self.tcp.count_end(cause))?;
        let lease = self.lease_connection(client, user);
        let connection = lease.id();
        let deadline = now.time + BIND_MAX;
        self.tcp.insert(PeerConnection {
            lease,
            allocation: relay.allocation,
            peer: peer.peer(),
            state: State::Unbound {
                deadline,
                _pending: None,
            },
        });
        let peer = peer.peer().address();
        self.changes.push_back(Change::PeerConnected {
            allocation: relay.allocation,
            connection,
            peer,
            is_incoming: true,
        });
        let transaction = self.transaction_id();
        self.outbox.reply(client, |buffer| {
            let mut writer = MessageWriter::new(
                buffer,
                Class::Indication,
                Method::CONNECTION_ATTEMPT,
                transaction,
            );
            writer.xor_peer_address(peer).connection_id(connection.0);
            writer.finish()
        });
        // mutant: connection-waits-for-ever
        self.wake_by(relay.allocation, deadline);
        Ok(connection)
    }

    /// Takes a ConnectionBind request from another engine, together with the client's connection, which is `client` here.
    pub fn take_over(&mut self, now: Now, client: ClientTuple, handover: Handover) {
        let Handover {
            connection,
            mut envelope,
            key,
            user,
            ..
        } = handover;
        envelope.to = client;
        if let Err(reject) = self.bind_here(now.time, connection, &envelope, &key, &user) {
            self.reply_reject(&envelope, Some(&key), reject);
        }
    }

    /// Answers a ConnectionBind request that could not be handed to the engine it is for; the connection is `client` now.
    pub fn decline(&mut self, client: ClientTuple, handover: Handover) {
        let Handover {
            mut envelope, key, ..
        } = handover;
        envelope.to = client;
        self.reply_error(&envelope, &key, Reject::InsufficientCapacity.code());
    }

    /// Takes note that a peer data connection is gone, and so is the client data connection that was joined with it.
    pub fn peer_disconnected(&mut self, connection: ConnectionId, cause: PeerEnd) {
        if let Some(gone) = self.tcp.remove(connection, cause) {
            self.changes.push_back(Change::PeerDisconnected {
                allocation: gone.allocation,
                connection,
                cause,
            });
        }
    }

    /// Counts `bytes` bytes of a reading that the host relays from one data connection to the other. When they go beyond the
    /// allocation's rate, until when the host has to read no more of that connection.
    pub fn relayed(
        &mut self,
        now: Now,
        connection: ConnectionId,
        way: Way,
        bytes: u64,
    ) -> Option<Time> {
        let allocation = self.tcp.get(connection)?.allocation;
        let allocation = self.live_mut(allocation)?;
        let usage = &mut allocation.usage;
        let (received, sent, direction) = match way {
            Way::ToClient => (
                &mut usage.peer_received,
                &mut usage.client_sent,
                Direction::ToClient,
            ),
            Way::ToPeer => (
                &mut usage.client_received,
                &mut usage.peer_sent,
                Direction::ToPeers,
            ),
        };
        received.add(1, bytes);
        sent.add(1, bytes);
        let shaper = allocation.shaper.as_mut()?;
        shaper.charge_stream(direction, now.time, bytes)
    }

    /// RFC 6062 §5.2. Answered when the host has connected, or not.
    pub(crate) fn connect(&mut self, request: &Request<'_>, proof: &Proof) -> Result<(), Reject> {
        let now = request.now.time;
        let id = self.allocation_of(request, proof)?;
        let (peer, local) = self.check_connect(id, request)?;
        let tcp = self.config.tcp.as_ref().ok_or(Reject::Forbidden)?;
        let deadline = now + tcp.connect_timeout;
        if !self.has_room_for_connection(id) {
            return Err(Reject::InsufficientCapacity);
        }
        let pending = self
            .commons
            .connections
            .charge(&proof.user.realm, &proof.user.quota_name, now)
            .ok_or(Reject::QuotaReached)?;
        let lease = self.lease_connection(request.from, Arc::clone(&proof.user));
        let connection = lease.id();
        self.tcp.attempts += 1;
        self.tcp.insert(PeerConnection {
            lease,
            allocation: id,
            peer: peer.peer(),
            state: State::Connecting(Box::new(Connecting {
                envelope: request.envelope(),
                key: proof.response_key.clone(),
                deadline,
                pending,
            })),
        });
        self.outbox.connect(connection, local, peer);
        self.wake_by(id, deadline);
        Ok(())
    }

    /// Whom a Connect request may connect to, and from where.
    fn check_connect(
        &self,
        id: AllocationId,
        request: &Request<'_>,
    ) -> Result<(AllowedPeer, SocketAddr), Reject> {
        let allocation = self.live(id).ok_or(Reject::AllocationMismatch)?;
        if allocation.protocol() != RelayProtocol::Tcp {
            return Err(Reject::Forbidden);
        }
        let Ok(Some(peer)) = request.message.xor_peer_address() else {
            return Err(Reject::BadRequest("XOR-PEER-ADDRESS missing or malformed"));
        };
        let address = PeerAddress::new(peer);
        if address.port() == 0 {
            return Err(Reject::BadRequest("Peer port 0"));
        }
        // mutant: connection-twice-to-a-peer
        if self.tcp.has_peer(id, address) {
            return Err(Reject::ConnectionExists);
        }
        let relay = allocation
            .live_relay(Family::of(&peer), request.now.time)
            .ok_or(Reject::PeerFamilyMismatch)?;
        let policy = self.policy_of(allocation.quota.user());
        let allowed = policy.check(peer).map_err(|_| Reject::Forbidden)?;
        let local = relay.lease.local();
        let is_own = allowed.address() == local; // the kernel would connect it with itself
        let tcp = self.config.tcp.as_ref();
        // mutant: connection-to-any-port
        let is_open = tcp.is_some_and(|tcp| tcp.may_connect_to(address.port()));
        if is_own || !is_open || !self.may_reach_stream(allowed) {
            return Err(Reject::Forbidden);
        }
        Ok((allowed, local))
    }

    /// Whether an incoming connection may stay: whose it is, and who the peer is.
    fn admit_peer(
        &self,
        now: Time,
        relay: RelayHandle,
        remote: SocketAddr,
    ) -> Result<(ClientTuple, Arc<User>, AllowedPeer), PeerEnd> {
        let peer = self.policy.admit(remote);
        let allocation = self.live(relay.allocation).ok_or(PeerEnd::RelayClosed)?;
        allocation
            .live_relay(relay.family, now)
            .ok_or(PeerEnd::RelayClosed)?;
        // guard: V-10-accept
        if !allocation.permissions.permits(peer.ip(), now) {
            return Err(PeerEnd::NoPermission);
        }
        // the policy may have changed since the permission was given
        let allowed = self
            .policy_of(allocation.quota.user())
            .check(peer.address())
            .map_err(|_| PeerEnd::PeerForbidden)?;
        if !self.may_reach_stream(allowed) {
            return Err(PeerEnd::PeerForbidden);
        }
        if self.tcp.has_peer(relay.allocation, peer) {
            return Err(PeerEnd::Duplicate);
        }
        if !self.has_room_for_connection(relay.allocation) {
            return Err(PeerEnd::TooMany);
        }
        if !self.outbox.has_room(self.config.limits.reply_queue_bytes) {
            return Err(PeerEnd::ReplyQueueFull);
        }
        let user = Arc::clone(allocation.quota.user());
        Ok((allocation.client, user, allowed))
    }

    fn may_reach_stream(&self, peer: AllowedPeer) -> bool {
        self.commons.ports.may_reach_by(peer, RelayProtocol::Tcp)
    }

    /// Whether one more connection can wait, and be, in an allocation (V-46).
    fn has_room_for_connection(&self, id: AllocationId) -> bool {
        let Some(tcp) = &self.config.tcp else {
            return false;
        };
        let (mut all, mut waiting) = (0, 0);
        for connection in self.tcp.of_allocation(id) {
            all += 1;
            waiting += usize::from(connection.deadline().is_some());
        }
        // guard: V-46-pending
        all < usize::from(tcp.connections_per_allocation)
            && waiting < usize::from(tcp.pending_per_allocation)
    }

    /// A name for a connection of the allocation that `user` has on `control`.
    fn lease_connection(
        &mut self,
        control: ClientTuple,
        user: Arc<User>,
    ) -> ledger::ConnectionLease {
        let owner = ledger::Owner {
            user,
            shard: self.shard,
            client: control.remote,
            listener: self.listener_address(control.listener),
        };
        let random = &mut self.random;
        self.commons.connections.lease(owner, || {
            u32::try_from(random_u64(random) >> 32).unwrap_or_default()
        })
    }

    /// Where the nonce of a ConnectionBind request may come from too: clients authenticate a new connection as they do the control
    /// connection (RFC 6062 §4.3), some with its very nonce. Only from the same address, and what is bound is bound once.
    pub(crate) fn control_connection(
        &self,
        request: &Request<'_>,
    ) -> Option<(SocketAddr, SocketAddr)> {
        if request.message.method() != Method::CONNECTION_BIND {
            return None;
        }
        let connection = ConnectionId(request.message.connection_id().ok()??);
        let owner = self.commons.connections.owner_of(connection)?;
        // guard: V-22-control-nonce
        let is_same_host = owner.client.ip() == request.from.remote.ip();
        is_same_host.then_some((owner.client, owner.listener))
    }

    /// Who showed a token for the connection that a ConnectionBind request is about: the request carries none (RFC 7635 §9), and
    /// the connection that it comes on has no allocation.
    pub(crate) fn token_holder(&self, request: &Request<'_>) -> Option<Arc<User>> {
        if request.message.method() != Method::CONNECTION_BIND {
            return None;
        }
        let connection = ConnectionId(request.message.connection_id().ok()??);
        let owner = self.commons.connections.owner_of(connection)?;
        // no other request is to tell which connections there are
        Some(owner.user).filter(|user| user.has_token())
    }

    /// The connections of an allocation belong to who has another token now.
    pub(crate) fn renew_connections(&self, id: AllocationId, user: &Arc<User>) {
        for connection in self.tcp.of_allocation(id) {
            self.commons.connections.renew(connection.lease.id(), user);
        }
    }

    /// RFC 6062 §5.4.
    pub(crate) fn bind_connection(
        &mut self,
        request: &Request<'_>,
        proof: &Proof,
    ) -> Result<Outcome, Reject> {
        // a control connection stays one, and one that another shard has was one
        // guard: V-30-data-connection, V-30-third-shard
        let is_control = request.is_handed_on || self.client(&request.from).is_some();
        if !request.from.transport.is_stream() || is_control {
            return Err(Reject::BadRequest(
                "ConnectionBind over UDP or on a control connection",
            ));
        }
        let Ok(Some(connection)) = request.message.connection_id() else {
            return Err(Reject::BadRequest("CONNECTION-ID missing or malformed"));
        };
        let connection = ConnectionId(connection);
        let owner = self.commons.connections.owner_of(connection);
        let shard = owner
            .ok_or(Reject::BadRequest("CONNECTION-ID unknown"))?
            .shard;
        let (envelope, key) = (request.envelope(), &proof.response_key);
        if shard == self.shard {
            self.bind_here(request.now.time, connection, &envelope, key, &proof.user)?;
            return Ok(Outcome::Done);
        }
        Ok(Outcome::HandOver(Box::new(Handover {
            shard,
            connection,
            envelope,
            key: key.clone(),
            user: Arc::clone(&proof.user),
        })))
    }

    /// Joins a peer data connection of this engine with the connection that the request came on.
    fn bind_here(
        &mut self,
        now: Time,
        connection: ConnectionId,
        envelope: &Envelope,
        key: &IntegrityKey,
        user: &User,
    ) -> Result<(), Reject> {
        let held = self
            .tcp
            .get(connection)
            .ok_or(Reject::BadRequest("CONNECTION-ID unknown"))?;
        let allocation = held.allocation;
        let owner = self
            .live(allocation)
            .ok_or(Reject::BadRequest("CONNECTION-ID unknown"))?;
        // mutant: connection-of-another-user
        if !owner.quota.user().is_same_as(user) {
            return Err(Reject::WrongCredentials);
        }
        let held = self
            .tcp
            .get_mut(connection)
            .ok_or(Reject::BadRequest("CONNECTION-ID unknown"))?;
        match &held.state {
            State::Unbound { deadline, .. } if now < *deadline => held.state = State::Bound,
            // mutant: connection-bound-twice
            State::Unbound { .. } | State::Bound | State::Connecting(_) | State::Failed(_) => {
                return Err(Reject::BadRequest(
                    "Connection bound already, or not in time",
                ));
            }
        }
        self.changes.push_back(Change::PeerBound {
            allocation,
            connection,
            client: envelope.to.remote,
        });
        self.reply_success(envelope, Some(key), |_| {});
        self.outbox.join(connection, envelope.to);
        Ok(())
    }

    /// Ends what has waited too long in an allocation.
    pub(crate) fn expire_connections(&mut self, allocation: AllocationId, now: Time) {
        let due: Vec<ConnectionId> = self
            .tcp
            .of_allocation(allocation)
            .filter(|connection| {
                connection
                    .deadline()
                    .is_some_and(|deadline| deadline <= now)
            })
            .map(|connection| connection.lease.id())
            .collect();
        for connection in due {
            self.expire_connection(connection);
        }
    }

    /// Ends one connection that has waited too long.
    fn expire_connection(&mut self, connection: ConnectionId) {
        let state = self.tcp.get(connection).map(|held| &held.state);
        match state {
            None | Some(State::Bound) => {}
            Some(State::Connecting(_)) => {
                self.outbox.close_peer(connection);
                self.fail_connect(connection, PeerEnd::ConnectTimeout);
            }
            Some(State::Failed(_)) => self.fail_connect(connection, PeerEnd::ConnectFailed),
            Some(State::Unbound { .. }) => {
                self.outbox.close_peer(connection);
                self.peer_disconnected(connection, PeerEnd::BindTimeout);
            }
        }
    }

    /// Answers a Connect request whose connection is not to be had (RFC 6062 §5.2).
    fn fail_connect(&mut self, connection: ConnectionId, cause: PeerEnd) {
        let Some(gone) = self.tcp.remove(connection, cause) else {
            return;
        };
        if let State::Connecting(connecting) | State::Failed(connecting) = gone.state {
            let code = Reject::ConnectionFailed.code();
            // mutant: connect-unanswered
            self.reply_error(&connecting.envelope, &connecting.key, code);
        }
    }

    /// Ends the connections of an allocation, or those of one of its families (RFC 6062 §5.5).
    pub(crate) fn end_connections(
        &mut self,
        allocation: AllocationId,
        family: Option<Family>,
        cause: PeerEnd,
    ) {
        for connection in self.tcp.ids_of(allocation, family) {
            self.end_connection(connection, cause);
        }
    }

    /// Ends the connections of an allocation with peers that the policy forbids.
    pub(crate) fn enforce_policy_on_connections(&mut self, allocation: AllocationId) {
        let user = self.table.at(allocation).map(Entry::user);
        let policy = user.map_or(&self.policy, |user| self.policy_of(user));
        let forbidden: Vec<ConnectionId> = self
            .tcp
            .of_allocation(allocation)
            .filter(|connection| policy.check(connection.peer.address()).is_err())
            .map(|connection| connection.lease.id())
            .collect();
        for connection in forbidden {
            self.end_connection(connection, PeerEnd::PeerForbidden);
        }
    }

    fn end_connection(&mut self, connection: ConnectionId, cause: PeerEnd) {
        let Some(gone) = self.tcp.remove(connection, cause) else {
            return;
        };
        let waiting = match gone.state {
            State::Bound | State::Unbound { .. } => {
                self.outbox.close_peer(connection);
                self.changes.push_back(Change::PeerDisconnected {
                    allocation: gone.allocation,
                    connection,
                    cause,
                });
                return;
            }
            State::Connecting(connecting) => {
                self.outbox.close_peer(connection);
                connecting
            }
            State::Failed(connecting) => connecting,
        };
        let reject = match cause {
            PeerEnd::PeerForbidden => Reject::Forbidden,
            PeerEnd::AllocationEnded
            | PeerEnd::BindTimeout
            | PeerEnd::ClientClosed
            | PeerEnd::ConnectFailed
            | PeerEnd::ConnectTimeout
            | PeerEnd::Duplicate
            | PeerEnd::Failed
            | PeerEnd::NoPermission
            | PeerEnd::PeerClosed
            | PeerEnd::RelayClosed
            | PeerEnd::ReplyQueueFull
            | PeerEnd::Stalled
            | PeerEnd::Stopped
            | PeerEnd::TooMany => Reject::AllocationMismatch,
        };
        self.reply_reject(&waiting.envelope, Some(&waiting.key), reject);
    }
}
