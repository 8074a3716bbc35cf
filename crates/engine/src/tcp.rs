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
//! and has the host move the connection to where the allocation is ([`handover::Handover`]).
//!
//! Limits (V-12, V-46): everything that waits has a deadline and a limit, for each allocation and for each user. Nothing is read
//! from a peer before it is bound, so that the data it sends waits in the kernel's buffer and then with the peer.

mod bind;
mod ending;
pub(crate) mod handover;
pub(crate) mod ledger;
pub(crate) mod peer_end;
pub(crate) mod table;

use core::net::SocketAddr;
use core::time::Duration;

use std::sync::Arc;

use turnbuckle_wire::{Class, MessageWriter, Method};

pub(crate) use self::bind::{
    bind_connection, control_connection, decline, refuse_datagram, renew_connections, take_over,
    token_holder,
};
pub(crate) use self::ending::{
    end_connections, enforce_policy_on_connections, expire_connections, peer_disconnected,
};
use self::ending::{expire_connection, fail_connect};
use self::peer_end::PeerEnd;
use self::table::{Connecting, PeerConnection, State};
use crate::address::PeerAddress;
use crate::allocations::Allocations;
use crate::auth::Proof;
use crate::bandwidth::Direction;
use crate::change::Change;
use crate::credential::User;
use crate::id::{AllocationId, ClientTuple, ConnectionId, Family, RelayHandle, RelayProtocol};
use crate::out::Out;
use crate::policy::AllowedPeer;
use crate::random::transaction_id;
use crate::random::{Random, random_u64};
use crate::refusal::Limit;
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
        let limit = Limit::PeerConnections(tcp.connections_per_allocation);
        return Err(Reject::InsufficientCapacity(limit.into()));
    }
    let pending = rules
        .commons
        .connections
        .charge(&proof.user.realm, &proof.user.quota_name, now)
        .ok_or(Reject::QuotaReached(Limit::Connects))?;
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
