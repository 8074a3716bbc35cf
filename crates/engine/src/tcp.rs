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
//! Limits (V-12, V-46): everything that waits has a deadline and a limit, for each allocation and for each user. Nothing is read
//! from a peer before it is bound, so that the data it sends waits in the kernel's buffer and then with the peer.

pub(crate) mod handover;
pub(crate) mod ledger;
pub(crate) mod peer_end;
pub(crate) mod table;

use core::net::SocketAddr;
use core::time::Duration;

use std::sync::Arc;

use turnbuckle_wire::{Class, MessageWriter, Method};

use self::handover::Handover;
use self::peer_end::PeerEnd;
use self::table::{Connecting, PeerConnection, State};
use crate::address::PeerAddress;
use crate::allocation::Entry;
use crate::allocations::Allocations;
use crate::auth::Proof;
use crate::bandwidth::Direction;
use crate::change::Change;
use crate::command::Outcome;
use crate::config::Config;
use crate::credential::User;
use crate::id::{AllocationId, ClientTuple, ConnectionId, Family, RelayHandle, RelayProtocol};
use crate::out::Out;
use crate::policy::AllowedPeer;
use crate::random::transaction_id;
use crate::random::{Random, random_u64};
use crate::reject::Reject;
use crate::request::Request;
use crate::rules::Rules;
use crate::time::{Now, Time};

/// How long a peer data connection waits for its ConnectionBind (RFC 6062 §5.2, §5.3).
// guard: V-46-bind
const BIND_MAX: Duration = Duration::from_secs(30);

/// Which way bytes of a data connection go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From peer to client.
    ToClient,
    /// From client to peer.
    ToPeer,
}

/// Takes the host's answer to [`crate::Command::Connect`].
pub(crate) fn peer_connected(
    now: Now,
    connection: ConnectionId,
    is_connected: bool,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let has_deadline_passed = allocations
        .connections
        .get(connection)
        .and_then(PeerConnection::deadline)
        .is_some_and(|deadline| deadline <= now.time);
    if has_deadline_passed {
        return expire_connection(connection, rules, allocations, out);
    }
    let Some(held) = allocations.connections.get_mut(connection) else {
        return; // given up, and ClosePeer is queued already
    };
    let State::Connecting(connecting) = core::mem::replace(&mut held.state, State::Bound) else {
        debug_assert!(false, "one answer to each Connect");
        return;
    };
    if !is_connected {
        held.state = State::Failed(connecting);
        let is_masked = rules
            .config
            .relays
            .tcp
            .as_ref()
            .is_some_and(|tcp| tcp.mask_connect_errors);
        // guard: V-12-mask
        if !is_masked {
            fail_connect(connection, PeerEnd::ConnectFailed, rules, allocations, out);
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
    out.changes.push_back(Change::PeerConnected {
        allocation,
        connection,
        peer,
        is_incoming: false,
    });
    out.reply_success(&rules.config, &envelope, key.as_ref(), |writer, _| {
        writer.connection_id(connection.0);
    });
    allocations.wake_by(allocation, deadline);
}

/// Checks a connection that came to a relayed transport address (RFC 6062 §5.3). If it is accepted, the client gets a
/// ConnectionAttempt indication, and the host keeps the connection under the returned name without reading from it.
///
/// # Errors
///
/// Returns why the host has to close the connection at once.
pub(crate) fn accept_peer(
    now: Now,
    relay: RelayHandle,
    remote: SocketAddr,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
    random: &mut impl Random,
) -> Result<ConnectionId, PeerEnd> {
    allocations.connections.attempts += 1;
    let peer = admit_peer(now.time, relay, remote, rules, allocations, out);
    let (client, user, peer) =
        peer.inspect_err(|&cause| allocations.connections.count_end(cause))?;
    let lease = lease_connection(client, user, rules, random);
    let connection = lease.id();
    let deadline = now.time + BIND_MAX;
    allocations.connections.insert(PeerConnection {
        lease,
        allocation: relay.allocation,
        peer: peer.peer(),
        state: State::Unbound {
            deadline,
            _pending: None,
        },
    });
    let peer = peer.peer().address();
    out.changes.push_back(Change::PeerConnected {
        allocation: relay.allocation,
        connection,
        peer,
        is_incoming: true,
    });
    let transaction = transaction_id(random);
    out.outbox.reply(client, |buffer| {
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
    allocations.wake_by(relay.allocation, deadline);
    Ok(connection)
}

/// Takes a ConnectionBind request from another engine, together with the client's connection, which is `client` here.
pub(crate) fn take_over(
    now: Now,
    client: ClientTuple,
    handover: Handover,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let mut handover = handover;
    handover.envelope.to = client;
    if let Err(reject) = bind_here(now.time, &handover, rules, allocations, out) {
        out.reply_reject(
            &rules.config,
            &handover.envelope,
            handover.key.as_ref(),
            reject,
        );
    }
}

/// Answers a ConnectionBind request that could not be moved to the engine it is for. The connection is `client` now.
pub(crate) fn decline(client: ClientTuple, handover: Handover, config: &Config, out: &mut Out) {
    let Handover {
        mut envelope, key, ..
    } = handover;
    envelope.to = client;
    out.reply_error(
        config,
        &envelope,
        key.as_ref(),
        Reject::InsufficientCapacity.code(),
    );
}

/// Records that a peer data connection is closed, and with it the client data connection that was joined with it.
pub(crate) fn peer_disconnected(
    connection: ConnectionId,
    cause: PeerEnd,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    if let Some(gone) = allocations.connections.remove(connection, cause) {
        out.changes.push_back(Change::PeerDisconnected {
            allocation: gone.allocation,
            connection,
            cause,
        });
    }
}

/// Counts `bytes` bytes that the host read from one data connection and relays to the other. If they exceed the allocation's rate,
/// returns the time until which the host must not read from that connection.
pub(crate) fn relayed(
    now: Now,
    connection: ConnectionId,
    way: Way,
    bytes: u64,
    allocations: &mut Allocations,
) -> Option<Time> {
    let allocation = allocations.connections.get(connection)?.allocation;
    let allocation = allocations.live_mut(allocation)?;
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
    let shaper = allocation.account.shaper()?;
    shaper.charge_stream(direction, now.time, bytes)
}

/// Handles a Connect request (RFC 6062 §5.2). The answer follows when the host has connected, or has failed to.
pub(crate) fn connect(
    request: &Request<'_>,
    proof: &Proof,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
    random: &mut impl Random,
) -> Result<(), Reject> {
    let now = request.now.time;
    let id = allocations.of_request(request, proof, &rules.config)?;
    let (peer, local) = check_connect(id, request, rules, allocations)?;
    let tcp = rules.config.relays.tcp.as_ref().ok_or(Reject::Forbidden)?;
    let deadline = now + tcp.connect_timeout;
    if !has_room_for_connection(id, rules, allocations) {
        return Err(Reject::InsufficientCapacity);
    }
    let pending = rules
        .commons
        .connections
        .charge(&proof.user.realm, &proof.user.quota_name, now)
        .ok_or(Reject::QuotaReached)?;
    let lease = lease_connection(request.from, Arc::clone(&proof.user), rules, random);
    let connection = lease.id();
    allocations.connections.attempts += 1;
    allocations.connections.insert(PeerConnection {
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
    out.outbox.connect(connection, local, peer);
    allocations.wake_by(id, deadline);
    Ok(())
}

/// Returns the peer that a Connect request may connect to, and the local address to connect from.
fn check_connect(
    id: AllocationId,
    request: &Request<'_>,
    rules: &Rules,
    allocations: &Allocations,
) -> Result<(AllowedPeer, SocketAddr), Reject> {
    let allocation = allocations.live(id).ok_or(Reject::AllocationMismatch)?;
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
    if allocations.connections.has_peer(id, address) {
        return Err(Reject::ConnectionExists);
    }
    let relay = allocation
        .live_relay(Family::of(&peer), request.now.time)
        .ok_or(Reject::PeerFamilyMismatch)?;
    let policy = rules.policies.of(allocation.account.user());
    let allowed = policy.check(peer).map_err(|_| Reject::Forbidden)?;
    let local = relay.lease.local();
    let is_own = allowed.address() == local; // the kernel would connect it with itself
    let tcp = rules.config.relays.tcp.as_ref();
    // mutant: connection-to-any-port
    let is_open = tcp.is_some_and(|tcp| tcp.may_connect_to(address.port()));
    if is_own || !is_open || !may_reach_stream(allowed, rules) {
        return Err(Reject::Forbidden);
    }
    Ok((allowed, local))
}

/// Checks whether an incoming connection may stay. Returns the client, the user and the peer it belongs to.
fn admit_peer(
    now: Time,
    relay: RelayHandle,
    remote: SocketAddr,
    rules: &Rules,
    allocations: &Allocations,
    out: &Out,
) -> Result<(ClientTuple, Arc<User>, AllowedPeer), PeerEnd> {
    let peer = rules.policies.usual.admit(remote);
    let allocation = allocations
        .live(relay.allocation)
        .ok_or(PeerEnd::RelayClosed)?;
    allocation
        .live_relay(relay.family, now)
        .ok_or(PeerEnd::RelayClosed)?;
    // guard: V-10-accept
    if !allocation.permissions.permits(peer.ip(), now) {
        return Err(PeerEnd::NoPermission);
    }
    // the policy may have changed since the permission was given
    let allowed = rules
        .policies
        .of(allocation.account.user())
        .check(peer.address())
        .map_err(|_| PeerEnd::PeerForbidden)?;
    if !may_reach_stream(allowed, rules) {
        return Err(PeerEnd::PeerForbidden);
    }
    if allocations.connections.has_peer(relay.allocation, peer) {
        return Err(PeerEnd::Duplicate);
    }
    if !has_room_for_connection(relay.allocation, rules, allocations) {
        return Err(PeerEnd::TooMany);
    }
    if !out.outbox.has_room(rules.config.limits.reply_queue_bytes) {
        return Err(PeerEnd::ReplyQueueFull);
    }
    let user = Arc::clone(allocation.account.user());
    Ok((allocation.client, user, allowed))
}

fn may_reach_stream(peer: AllowedPeer, rules: &Rules) -> bool {
    rules.commons.ports.may_reach_by(peer, RelayProtocol::Tcp)
}

/// Returns whether an allocation may have one more connection, and one more that waits for its ConnectionBind (V-46).
fn has_room_for_connection(id: AllocationId, rules: &Rules, allocations: &Allocations) -> bool {
    let Some(tcp) = &rules.config.relays.tcp else {
        return false;
    };
    let (mut all, mut waiting) = (0, 0);
    for connection in allocations.connections.of_allocation(id) {
        all += 1;
        waiting += usize::from(connection.deadline().is_some());
    }
    // guard: V-46-pending
    all < usize::from(tcp.connections_per_allocation)
        && waiting < usize::from(tcp.pending_per_allocation)
}

/// Leases a CONNECTION-ID for a connection of the allocation that `user` has on `control`.
fn lease_connection(
    control: ClientTuple,
    user: Arc<User>,
    rules: &Rules,
    random: &mut impl Random,
) -> ledger::ConnectionLease {
    let owner = ledger::Owner {
        user,
        shard: rules.shard,
        client: control.remote,
        listener: rules.listeners.address(control.listener),
    };
    rules.commons.connections.lease(owner, || {
        u32::try_from(random_u64(random) >> 32).unwrap_or_default()
    })
}

/// Returns the path of the control connection that a ConnectionBind request belongs to: its nonce may have been issued there.
/// Clients authenticate a new connection as they do the control connection (RFC 6062 §4.3), and some use its nonce. Only the same
/// client address qualifies, and a connection is bound only once.
pub(crate) fn control_connection(
    request: &Request<'_>,
    rules: &Rules,
) -> Option<(SocketAddr, SocketAddr)> {
    if request.message.method() != Method::CONNECTION_BIND {
        return None;
    }
    let connection = ConnectionId(request.message.connection_id().ok()??);
    let owner = rules.commons.connections.owner_of(connection)?;
    // guard: V-22-control-nonce
    let is_same_host = owner.client.ip() == request.from.remote.ip();
    is_same_host.then_some((owner.client, owner.listener))
}

/// Returns the user who presented a token for the connection that a ConnectionBind request is about. The request itself carries no
/// token (RFC 7635 §9), and the connection that it comes on has no allocation.
pub(crate) fn token_holder(request: &Request<'_>, rules: &Rules) -> Option<Arc<User>> {
    if request.message.method() != Method::CONNECTION_BIND {
        return None;
    }
    let connection = ConnectionId(request.message.connection_id().ok()??);
    let owner = rules.commons.connections.owner_of(connection)?;
    // with token holders only, so that no other request reveals which connections exist
    Some(owner.user).filter(|user| user.has_token())
}

/// Assigns the connections of an allocation to `user`, whose token has been renewed.
pub(crate) fn renew_connections(
    id: AllocationId,
    user: &Arc<User>,
    rules: &Rules,
    allocations: &Allocations,
) {
    for connection in allocations.connections.of_allocation(id) {
        rules.commons.connections.renew(connection.lease.id(), user);
    }
}

/// Handles a ConnectionBind request (RFC 6062 §5.4).
pub(crate) fn bind_connection(
    request: &Request<'_>,
    proof: &Proof,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> Result<Outcome, Reject> {
    // a control connection stays one, and one that another shard has was one
    // guard: V-30-data-connection, V-30-third-shard
    let is_control = request.is_handed_on || allocations.client(&request.from).is_some();
    if !request.from.transport.is_stream() || is_control {
        return Err(Reject::BadRequest(
            "ConnectionBind over UDP or on a control connection",
        ));
    }
    let Ok(Some(connection)) = request.message.connection_id() else {
        return Err(Reject::BadRequest("CONNECTION-ID missing or malformed"));
    };
    let connection = ConnectionId(connection);
    let owner = rules.commons.connections.owner_of(connection);
    let shard = owner
        .ok_or(Reject::BadRequest("CONNECTION-ID unknown"))?
        .shard;
    let handover = Handover {
        shard,
        connection,
        envelope: request.envelope(),
        key: proof.response_key.clone(),
        user: Arc::clone(&proof.user),
    };
    if shard == rules.shard {
        bind_here(request.now.time, &handover, rules, allocations, out)?;
        return Ok(Outcome::Done);
    }
    Ok(Outcome::HandOver(Box::new(handover)))
}

/// Joins a peer data connection of this engine with the connection that the request came on.
fn bind_here(
    now: Time,
    handover: &Handover,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> Result<(), Reject> {
    let Handover {
        connection,
        envelope,
        key,
        user,
        ..
    } = handover;
    let connection = *connection;
    let held = allocations
        .connections
        .get(connection)
        .ok_or(Reject::BadRequest("CONNECTION-ID unknown"))?;
    let allocation = held.allocation;
    let owner = allocations
        .live(allocation)
        .ok_or(Reject::BadRequest("CONNECTION-ID unknown"))?;
    // mutant: connection-of-another-user
    if !owner.account.user().is_same_as(user) {
        return Err(Reject::WrongCredentials);
    }
    let held = allocations
        .connections
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
    out.changes.push_back(Change::PeerBound {
        allocation,
        connection,
        client: envelope.to.remote,
    });
    out.reply_success(&rules.config, envelope, key.as_ref(), |_, _| {});
    out.outbox.join(connection, envelope.to);
    Ok(())
}

/// Ends the connections of an allocation that have waited too long.
pub(crate) fn expire_connections(
    allocation: AllocationId,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let due: Vec<ConnectionId> = allocations
        .connections
        .of_allocation(allocation)
        .filter(|connection| {
            connection
                .deadline()
                .is_some_and(|deadline| deadline <= now)
        })
        .map(|connection| connection.lease.id())
        .collect();
    for connection in due {
        expire_connection(connection, rules, allocations, out);
    }
}

/// Ends one connection that has waited too long.
fn expire_connection(
    connection: ConnectionId,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let state = allocations
        .connections
        .get(connection)
        .map(|held| &held.state);
    match state {
        None | Some(State::Bound) => {}
        Some(State::Connecting(_)) => {
            out.outbox.close_peer(connection);
            fail_connect(connection, PeerEnd::ConnectTimeout, rules, allocations, out);
        }
        Some(State::Failed(_)) => {
            fail_connect(connection, PeerEnd::ConnectFailed, rules, allocations, out)
        }
        Some(State::Unbound { .. }) => {
            out.outbox.close_peer(connection);
            peer_disconnected(connection, PeerEnd::BindTimeout, allocations, out);
        }
    }
}

/// Answers a Connect request whose connection could not be made (RFC 6062 §5.2).
fn fail_connect(
    connection: ConnectionId,
    cause: PeerEnd,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(gone) = allocations.connections.remove(connection, cause) else {
        return;
    };
    if let State::Connecting(connecting) | State::Failed(connecting) = gone.state {
        let code = Reject::ConnectionFailed.code();
        // mutant: connect-unanswered
        out.reply_error(
            &rules.config,
            &connecting.envelope,
            connecting.key.as_ref(),
            code,
        );
    }
}

/// Ends the connections of an allocation, or those of one of its families (RFC 6062 §5.5).
pub(crate) fn end_connections(
    allocation: AllocationId,
    family: Option<Family>,
    cause: PeerEnd,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    for connection in allocations.connections.ids_of(allocation, family) {
        end_connection(connection, cause, rules, allocations, out);
    }
}

/// Ends the connections of an allocation with peers that the policy forbids.
pub(crate) fn enforce_policy_on_connections(
    allocation: AllocationId,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let user = allocations.table.at(allocation).map(Entry::user);
    let policy = user.map_or(&rules.policies.usual, |user| rules.policies.of(user));
    let forbidden: Vec<ConnectionId> = allocations
        .connections
        .of_allocation(allocation)
        .filter(|connection| policy.check(connection.peer.address()).is_err())
        .map(|connection| connection.lease.id())
        .collect();
    for connection in forbidden {
        end_connection(connection, PeerEnd::PeerForbidden, rules, allocations, out);
    }
}

fn end_connection(
    connection: ConnectionId,
    cause: PeerEnd,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(gone) = allocations.connections.remove(connection, cause) else {
        return;
    };
    let waiting = match gone.state {
        State::Bound | State::Unbound { .. } => {
            out.outbox.close_peer(connection);
            out.changes.push_back(Change::PeerDisconnected {
                allocation: gone.allocation,
                connection,
                cause,
            });
            return;
        }
        State::Connecting(connecting) => {
            out.outbox.close_peer(connection);
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
    out.reply_reject(
        &rules.config,
        &waiting.envelope,
        waiting.key.as_ref(),
        reject,
    );
}
