//! Tunnels: relayed transport addresses for one peer each, which the host opens for clients that speak another protocol than TURN.
//!
//! A session is one authenticated user on one connection. It has the account, one unit of the quota and one rate, as an allocation has;
//! its tunnels share that. A tunnel has its place in the table of allocations, its port, its socket and its timer as an allocation
//! has, and its peer passes the same policy. It has no permissions, because its peer is the only one. It is a session to whoever follows
//! changes, and nothing of it is durable: it cannot outlive the connection that it came by.

use core::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_wire::TransactionId;

use crate::account::Account;
use crate::allocation::Entry;
use crate::allocation::opening::{Opening, Openings};
use crate::allocation::relay::{Relay, close};
use crate::allocation::tunnel::{OpenTunnel, Tunnel, TunnelState};
use crate::allocations::Allocations;
use crate::auth::Authenticator;
use crate::bandwidth::{Direction, Exhausted, share};
use crate::change::{Brought, Change, Created, EndCause, Ended, Usage};
use crate::command::{IcmpError, PeerRoute};
use crate::credential::User;
use crate::drop_reason::DropReason;
use crate::id::{AllocationId, ClientTuple, Family, RelayHandle, RelayProtocol};
use crate::opening::{OPENING_MAX, ask_host, lease};
use crate::out::Out;
use crate::ports::PortKind;
use crate::random::Random;
use crate::rules::Rules;
use crate::time::{Now, Time};
use crate::tunnel_end::TunnelEnd;

/// A tunnel is opened by no STUN transaction.
const NO_TRANSACTION: TransactionId = TransactionId::new([0; 12]);
/// How many tunnels a session may have.
const TUNNELS_MAX: usize = 128;

/// One authenticated user on one connection: what its tunnels are charged to. Dropping it, and its last tunnel, gives that back.
#[derive(Clone, Debug)]
pub struct TunnelSession(Arc<Account>);

impl TunnelSession {
    /// Returns whose it is.
    pub fn user(&self) -> &Arc<User> {
        self.0.user()
    }
}

/// Why there is no session or no tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelRefusal {
    /// The server takes no new clients.
    Draining,
    /// The policy forbids the peer, or clients of this address.
    Forbidden,
    /// There is no room: no port, no rate, or too many allocations and tunnels.
    NoCapacity,
    /// The user, or the session, has as many as it may have.
    QuotaReached,
    /// There is no relay address of the peer's family.
    Unroutable,
}

/// Opens a session for a user who has proven who it is.
pub(crate) fn open_session(
    from: SocketAddr,
    user: &Arc<User>,
    now: Time,
    rules: &Rules,
) -> Result<TunnelSession, TunnelRefusal> {
    if rules.is_draining {
        return Err(TunnelRefusal::Draining);
    }
    if !rules.policies.usual.accepts_client(from) {
        return Err(TunnelRefusal::Forbidden);
    }
    let shaper = rules.commons.bandwidth.reserve(&user.realm);
    let shaper = shaper.map_err(|Exhausted| TunnelRefusal::NoCapacity)?;
    let quota = &rules.commons.quota;
    if !quota.has_room(user, 1) {
        rules.commons.reservations.purge(now); // what has ended counts for nobody
    }
    // guard: V-43-session
    let [unit] = quota.take(user).ok_or(TunnelRefusal::QuotaReached)?;
    Ok(TunnelSession(Arc::new(Account::new(unit, shaper))))
}

/// Takes a port for a tunnel of `client` to `target`, and asks the host for its socket.
pub(crate) fn open(
    session: &TunnelSession,
    (client, target): (ClientTuple, SocketAddr),
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
    random: &mut impl Random,
) -> Result<AllocationId, TunnelRefusal> {
    if rules.is_draining {
        return Err(TunnelRefusal::Draining);
    }
    let TunnelSession(account) = session;
    let policy = rules.policies.of(account.user());
    // guard: V-89-policy
    let allowed = policy.check(target).ok();
    let target = allowed.ok_or(TunnelRefusal::Forbidden)?;
    let limits = &rules.config.limits;
    if allocations.client(&client).is_some() || Arc::strong_count(account) > TUNNELS_MAX {
        return Err(TunnelRefusal::QuotaReached);
    }
    if allocations.table.len() >= limits.allocations as usize
        || allocations.pending >= limits.pending_opens as usize
    {
        return Err(TunnelRefusal::NoCapacity);
    }
    let family = Family::of(&target.peer().address());
    let (kind, protocol) = (PortKind::Any, RelayProtocol::Udp);
    if !rules.commons.ports.supports(family) {
        return Err(TunnelRefusal::Unroutable);
    }
    let leased = lease(family, kind, protocol, rules, random);
    let (lease, _) = leased.ok_or(TunnelRefusal::NoCapacity)?;
    let mut by_family = [Opening::Unwanted, Opening::Unwanted];
    by_family[family.index()] = Opening::Waiting {
        attempt: 0,
        lease,
        sibling: None,
    };
    let deadline = now + OPENING_MAX;
    let openings = Openings::new(by_family, Some((kind, protocol)), deadline);
    let id = allocations.table.insert(Entry::Tunnel(Box::new(Tunnel {
        client,
        account: Arc::clone(account),
        target,
        state: TunnelState::Opening(openings),
    })));
    allocations.pending += 1;
    allocations.wheel.schedule(id.index, deadline);
    ask_host(id, None, allocations, out);
    Ok(id)
}

/// Begins to relay if the host has opened the socket. If it has not, the tunnel ends.
pub(crate) fn settle(
    id: AllocationId,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(Entry::Tunnel(tunnel)) = allocations.table.at_mut(id) else {
        return;
    };
    let Some(openings) = tunnel.openings_mut() else {
        return;
    };
    let none = [Opening::Unwanted, Opening::Unwanted];
    let by_family = core::mem::replace(&mut openings.by_family, none);
    let opened = by_family.into_iter().find_map(|opening| match opening {
        Opening::Open {
            endpoint, lease, ..
        } => Some(Relay::new(endpoint, Time::MAX, lease)),
        Opening::Failed(_) | Opening::Unwanted | Opening::Waiting { .. } => None,
    });
    let Some(relay) = opened else {
        let cause = Some(TunnelEnd::NotOpened);
        return end(id, cause, now, rules, allocations, out);
    };
    let (client, peer) = (tunnel.client, tunnel.target.peer().address());
    let open = OpenTunnel {
        relay,
        usage: Usage::default(),
        last_used: now,
        created: now,
        renew: now + rules.config.lifetimes.allocation_default,
    };
    let (expires, wake) = (open.expires(), open.expires().min(open.renew));
    out.changes.push_back(Change::Created(Box::new(Created {
        allocation: id,
        path: rules.listeners.path(&client),
        user: Arc::clone(tunnel.account.user()),
        transaction: NO_TRANSACTION,
        protocol: RelayProtocol::Udp,
        relays: vec![open.relay.addresses()],
        missing_family: None,
        reservation: None,
        brought: Brought {
            tunnel_to: Some(peer),
            ..Brought::default()
        },
        bytes_per_s: tunnel.account.rate(),
        created: now,
        expires,
    })));
    tunnel.state = TunnelState::Open(open);
    allocations.pending -= 1;
    allocations.tunnels += 1;
    allocations.wheel.schedule(id.index, wake);
    out.outbox.tunnel_opened(id, client, peer);
}

/// Ends a tunnel, and has the host tell its client if there is a `cause`: without one its connection is gone. Its port goes back as it is
/// dropped.
pub(crate) fn end(
    id: AllocationId,
    cause: Option<TunnelEnd>,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let tunnel = match allocations.table.take(id) {
        Some(Entry::Tunnel(tunnel)) => tunnel,
        Some(other) => return allocations.table.put_back(id, other),
        None => return,
    };
    allocations.table.vacate(id, &tunnel.client);
    allocations.wheel.cancel(id.index);
    match &tunnel.state {
        TunnelState::Open(open) => {
            allocations.tunnels -= 1;
            open.relay.close(&mut out.outbox);
            let cause = match cause {
                Some(end) => EndCause::of_tunnel(end),
                None => Some(EndCause::Disconnected),
            };
            let ended = cause.map(|cause| Ended {
                allocation: id,
                path: rules.listeners.path(&tunnel.client),
                user: Arc::clone(tunnel.account.user()),
                tunnel_to: Some(tunnel.target.peer().address()),
                cause,
                created: open.created,
                time: now,
                created_by: NO_TRANSACTION,
                redeemed: None,
                created_from: None,
                totals: open.usage,
            });
            let ended = ended.map(Box::new).map(Change::Ended);
            out.changes.extend(ended);
        }
        // the host's answer to what waits will find no tunnel, and the socket is closed
        TunnelState::Opening(openings) => {
            allocations.pending -= 1;
            for opening in &openings.by_family {
                if let Opening::Open {
                    endpoint, lease, ..
                } = opening
                {
                    close(*endpoint, lease, &mut out.outbox);
                }
            }
        }
    }
    if let Some(cause) = cause {
        out.outbox.tunnel_ended(tunnel.client, cause);
    }
}

/// Ends a tunnel that has been idle or opening for too long, or whose user is gone, and sets its timer otherwise.
pub(crate) fn expire(
    id: AllocationId,
    now: Now,
    rules: &Rules,
    authenticator: &mut Authenticator,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(Entry::Tunnel(tunnel)) = allocations.table.at_mut(id) else {
        return;
    };
    let time = now.time;
    let Tunnel { account, state, .. } = &mut **tunnel;
    let (cause, wake) = match state {
        TunnelState::Opening(openings) => {
            let is_over = openings.deadline <= time;
            (is_over.then_some(TunnelEnd::NotOpened), openings.deadline)
        }
        TunnelState::Open(open) if open.expires() <= time => (Some(TunnelEnd::Idle), time),
        TunnelState::Open(open) => {
            let mut cause = None;
            if open.renew <= time {
                // Its client sends no Refresh. So the user is looked up as often as one is needed, and by the same rules.
                // guard: V-93-removed
                let is_gone = !authenticator.accepts_still(now, account.user());
                cause = is_gone.then_some(TunnelEnd::UserGone);
                open.renew = time + rules.config.lifetimes.allocation_default;
            }
            (cause, open.expires().min(open.renew))
        }
    };
    match cause {
        Some(cause) => end(id, Some(cause), time, rules, allocations, out),
        None => allocations.wheel.schedule(id.index, wake),
    }
}

/// Ends a tunnel whose peer the policy forbids by now.
pub(crate) fn enforce_policy(
    id: AllocationId,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(tunnel) = allocations.tunnel(id) else {
        return;
    };
    let policy = rules.policies.of(tunnel.account.user());
    // guard: V-89-judged
    if policy.check(tunnel.target.peer().address()).is_err() {
        let cause = Some(TunnelEnd::Forbidden);
        end(id, cause, now, rules, allocations, out);
    }
}

/// Routes a train of a tunnel's client to the peer, as [`crate::Engine::route_channel_data`] does.
#[inline]
pub(crate) fn route_to_peer(
    now: Time,
    id: AllocationId,
    (datagrams, bytes): (u32, u64),
    rules: &Rules,
    allocations: &mut Allocations,
) -> Result<PeerRoute, DropReason> {
    let Some(Entry::Tunnel(tunnel)) = allocations.table.at_mut(id) else {
        return Err(DropReason::NoTunnel);
    };
    let Tunnel {
        account,
        target: peer,
        state: TunnelState::Open(open),
        ..
    } = &mut **tunnel
    else {
        return Err(DropReason::NoTunnel);
    };
    let peer = *peer;
    open.usage.client_received.add(datagrams, bytes);
    let policies = &rules.policies;
    if !rules.commons.ports.may_reach(peer)
        || policies.forbids_by_now(id, account.user(), peer.peer())
    {
        return Err(DropReason::PeerForbidden);
    }
    let admitted = account.shape(Direction::ToPeers, now, datagrams, bytes)?;
    open.usage
        .peer_sent
        .add(admitted, share(bytes, datagrams, admitted));
    open.last_used = now;
    Ok(PeerRoute {
        relay: open.relay.endpoint,
        peer,
        datagrams: admitted,
    })
}

/// Returns how many datagrams of a train that came from `peer` go to a tunnel's client.
#[inline]
pub(crate) fn admit_from_peer(
    now: Time,
    id: AllocationId,
    tunnel: &mut Tunnel,
    peer: SocketAddr,
    (datagrams, bytes): (u32, u64),
    rules: &Rules,
) -> Result<u32, DropReason> {
    let Tunnel {
        account,
        target,
        state: TunnelState::Open(open),
        ..
    } = tunnel
    else {
        return Err(DropReason::RelayClosed);
    };
    let policies = &rules.policies;
    let (source, target) = (policies.usual.admit(peer), target.peer());
    open.usage.peer_received.add(datagrams, bytes);
    // guard: V-91-source
    if source != target {
        return Err(DropReason::TunnelSource);
    }
    if policies.forbids_by_now(id, account.user(), target) {
        return Err(DropReason::PeerForbidden);
    }
    let admitted = account.shape(Direction::ToClient, now, datagrams, bytes)?;
    open.usage
        .client_sent
        .add(admitted, share(bytes, datagrams, admitted));
    open.last_used = now;
    Ok(admitted)
}

/// Ends a tunnel if the network says that its peer cannot be reached. Returns why the error is dropped, as it always is: nothing of it
/// is relayed.
pub(crate) fn take_icmp(
    now: Time,
    relay: RelayHandle,
    error: &IcmpError,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> Option<DropReason> {
    let tunnel = allocations.tunnel(relay.allocation)?;
    // the destination of the datagram that caused it decides, never the sender of the ICMP message
    let is_about_peer = rules.policies.usual.admit(error.peer) == tunnel.target.peer();
    // guard: V-94-tuple
    if !is_about_peer || !says_unreachable(error) {
        return Some(DropReason::IcmpNotRelayed);
    }
    let cause = TunnelEnd::Unreachable;
    end(relay.allocation, Some(cause), now, rules, allocations, out);
    Some(DropReason::IcmpEndsTunnel)
}

/// Returns whether the error says that there is no such host, protocol or port, or no way to it. What is only too large for the path is
/// dropped there and ends nothing (RFC 792, RFC 4443 §3.1).
fn says_unreachable(error: &IcmpError) -> bool {
    match error.v6 {
        true => error.kind == 1,
        false => error.kind == 3 && error.code != 4,
    }
}
