//! Tunnels: relayed transport addresses for one peer each, which the host opens for clients that speak another protocol than TURN.
//!
//! A session is one authenticated user on one connection. It has the account, one unit of the quota and one rate, as an allocation has;
//! its tunnels share that. Each tunnel keeps the name and key that were checked when it was asked for, because the user of a long connection may have others
//! by then. A tunnel has its place in the table of allocations, its port, its socket and its timer as an allocation
//! has, and its peer passes the same policy. It has no permissions, because its peer is the only one. A bound tunnel has no peer of its own: its client
//! names one with each datagram, and whoever may be reached may also send, if the host says that the client wants it. It is a session to whoever follows
//! changes, and nothing of it is durable: it cannot outlive the connection that it came by.

use core::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_wire::TransactionId;

use crate::account::Account;
use crate::allocation::Entry;
use crate::allocation::opening::{Opening, Openings};
use crate::allocation::relay::{Relay, close};
use crate::allocation::tunnel::{OpenTunnel, Target, Tunnel, TunnelState};
use crate::allocations::Allocations;
use crate::auth::Authenticator;
use crate::bandwidth::{Direction, Exhausted, share};
use crate::change::{Brought, Change, Created, EndCause, Ended, Usage};
use crate::command::{ClientRoute, Framing, IcmpError, PeerRoute, TunnelTarget};
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
pub struct TunnelSession {
    account: Arc<Account>,
    /// As it has proven itself last: whose the next tunnel is.
    user: Arc<User>,
}

impl TunnelSession {
    /// Returns whose it is.
    pub const fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Makes the tunnels that are opened from now on those of `user`, who has proven who it is, perhaps with a name or password that the session was not
    /// opened with. Tunnels that are there keep theirs. Returns false, and changes nothing, if the session is charged to somebody else.
    pub fn renew(&mut self, user: &Arc<User>) -> bool {
        let charged = self.account.user();
        let is_charged = (&charged.realm, &charged.quota_name) == (&user.realm, &user.quota_name);
        if is_charged {
            self.user = Arc::clone(user);
        }
        is_charged
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
    /// Which peers may be reached is not known yet ([`crate::AnswerConfig::are_peer_rules_due`]).
    RulesDue,
    /// Nothing is relayed over UDP ([`crate::Service::StunOnly`], [`crate::RelayConfig::udp`]).
    SwitchedOff,
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
    if !rules.config.relays_over(RelayProtocol::Udp) {
        return Err(TunnelRefusal::SwitchedOff);
    }
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
    Ok(TunnelSession {
        account: Arc::new(Account::new(unit, shaper)),
        user: Arc::clone(user),
    })
}

/// Takes a port for a tunnel of `client` to `target`, or one of each family for a bound tunnel, and asks the host for sockets.
pub(crate) fn open(
    session: &TunnelSession,
    (client, target): (ClientTuple, Option<SocketAddr>),
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
    random: &mut impl Random,
) -> Result<AllocationId, TunnelRefusal> {
    if !rules.config.relays_over(RelayProtocol::Udp) {
        return Err(TunnelRefusal::SwitchedOff);
    }
    if rules.is_draining {
        return Err(TunnelRefusal::Draining);
    }
    // guard: V-63-peer-rules-tunnels
    if rules.config.answers.are_peer_rules_due {
        return Err(TunnelRefusal::RulesDue);
    }
    let TunnelSession { account, user } = session;
    let policy = rules.policies.of(user);
    // guard: V-89-policy
    let target = match target.map(|target| policy.check(target)) {
        Some(allowed) => Target::Peer(allowed.map_err(|_| TunnelRefusal::Forbidden)?),
        None => Target::Anyone,
    };
    let limits = &rules.config.limits;
    if allocations.client(&client).is_some() || Arc::strong_count(account) > TUNNELS_MAX {
        return Err(TunnelRefusal::QuotaReached);
    }
    if allocations.table.len() >= limits.allocations as usize
        || allocations.pending >= limits.pending_opens as usize
    {
        return Err(TunnelRefusal::NoCapacity);
    }
    let (kind, protocol) = (PortKind::Any, RelayProtocol::Udp);
    let families = [Family::V4, Family::V6].into_iter();
    let wanted = families.filter(|&family| match &target {
        Target::Peer(peer) => family == Family::of(&peer.peer().address()),
        Target::Anyone => true,
    });
    let mut by_family = [Opening::Unwanted, Opening::Unwanted];
    let mut why = TunnelRefusal::Unroutable;
    for family in wanted.filter(|&family| rules.commons.ports.supports(family)) {
        why = TunnelRefusal::NoCapacity;
        if let Some((lease, _)) = lease(family, kind, protocol, rules, random) {
            by_family[family.index()] = Opening::Waiting {
                attempt: 0,
                lease,
                sibling: None,
            };
        }
    }
    let has_any = by_family
        .iter()
        .any(|opening| matches!(opening, Opening::Waiting { .. }));
    if !has_any {
        return Err(why);
    }
    let deadline = now + OPENING_MAX;
    let openings = Openings::new(by_family, Some((kind, protocol)), deadline);
    let id = allocations.table.insert(Entry::Tunnel(Box::new(Tunnel {
        client,
        user: Arc::clone(user),
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
    let relays = by_family.map(|opening| match opening {
        Opening::Open {
            endpoint, lease, ..
        } => Some(Relay::new(endpoint, Time::MAX, lease)),
        Opening::Failed(_) | Opening::Unwanted | Opening::Waiting { .. } => None,
    });
    let addresses: Vec<_> = relays.iter().flatten().map(Relay::addresses).collect();
    if addresses.is_empty() {
        let cause = Some(TunnelEnd::NotOpened);
        return end(id, cause, now, rules, allocations, out);
    }
    let client = tunnel.client;
    let to = match &tunnel.target {
        Target::Peer(peer) => TunnelTarget::Peer(peer.peer().address()),
        Target::Anyone => TunnelTarget::Bound {
            relays: [0, 1].map(|index| addresses.get(index).map(|relay| relay.external)),
        },
    };
    let open = OpenTunnel {
        relays,
        usage: Usage::default(),
        last_used: now,
        created: now,
        renew: now + rules.config.lifetimes.allocation_default,
    };
    let (expires, wake) = (open.expires(), open.expires().min(open.renew));
    out.changes.push_back(Change::Created(Box::new(Created {
        allocation: id,
        path: rules.listeners.path(&client),
        user: Arc::clone(&tunnel.user),
        transaction: NO_TRANSACTION,
        protocol: RelayProtocol::Udp,
        relays: addresses,
        missing_family: None,
        reservation: None,
        brought: Brought {
            tunnel_to: Some(tunnel.target.on_record()),
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
    out.outbox.tunnel_opened(id, client, to);
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
            for relay in open.relays.iter().flatten() {
                // mutant: shards-leave-sockets-of-tunnels
                relay.close(&mut out.outbox);
            }
            let cause = match cause {
                Some(end) => EndCause::of_tunnel(end),
                None => Some(EndCause::Disconnected),
            };
            let ended = cause.map(|cause| Ended {
                allocation: id,
                path: rules.listeners.path(&tunnel.client),
                user: Arc::clone(&tunnel.user),
                tunnel_to: Some(tunnel.target.on_record()),
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
    let Tunnel { user, state, .. } = &mut **tunnel;
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
                let is_gone = !authenticator.accepts_still(now, user);
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

/// Ends a tunnel whose peer the policy forbids by now. The peers of bound tunnels are judged with each datagram.
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
    let policy = rules.policies.of(&tunnel.user);
    let Target::Peer(peer) = &tunnel.target else {
        return;
    };
    // guard: V-89-judged
    if policy.check(peer.peer().address()).is_err() {
        let cause = Some(TunnelEnd::Forbidden);
        end(id, cause, now, rules, allocations, out);
    }
}

/// Routes a train of a tunnel's client to its peer, or of a bound tunnel to the peer that the client has named, as
/// [`crate::Engine::route_channel_data`] does.
#[inline]
pub(crate) fn route_to_peer(
    now: Time,
    id: AllocationId,
    named: Option<SocketAddr>,
    (datagrams, bytes): (u32, u64),
    rules: &Rules,
    allocations: &mut Allocations,
) -> Result<PeerRoute, DropReason> {
    let Some(Entry::Tunnel(tunnel)) = allocations.table.at_mut(id) else {
        return Err(DropReason::NoTunnel);
    };
    let Tunnel {
        user,
        account,
        target,
        state: TunnelState::Open(open),
        ..
    } = &mut **tunnel
    else {
        return Err(DropReason::NoTunnel);
    };
    open.usage.client_received.add(datagrams, bytes);
    let policies = &rules.policies;
    let (peer, is_forbidden) = match (target, named) {
        (Target::Peer(peer), None) => (*peer, policies.forbids_by_now(id, user, peer.peer())),
        (Target::Anyone, Some(named)) => {
            // guard: V-89-bound
            let checked = policies.of(user).check(named);
            (checked.map_err(|_| DropReason::PeerForbidden)?, false)
        }
        (Target::Peer(_), Some(_)) | (Target::Anyone, None) => return Err(DropReason::NoTunnel),
    };
    if is_forbidden || !rules.commons.ports.may_reach(peer) {
        return Err(DropReason::PeerForbidden);
    }
    let relay = open.relay(Family::of(&peer.peer().address()));
    let relay = relay.ok_or(DropReason::PeerFamilyMismatch)?.endpoint;
    let admitted = account.shape(Direction::ToPeers, now, datagrams, bytes)?;
    open.usage
        .peer_sent
        .add(admitted, share(bytes, datagrams, admitted));
    open.last_used = now;
    Ok(PeerRoute {
        relay,
        peer,
        datagrams: admitted,
    })
}

/// Returns whether a bound tunnel's client may name `peer`.
pub(crate) fn may_name(
    id: AllocationId,
    peer: SocketAddr,
    rules: &Rules,
    allocations: &Allocations,
) -> bool {
    let Some(tunnel) = allocations.tunnel(id) else {
        return false;
    };
    let TunnelState::Open(open) = &tunnel.state else {
        return false;
    };
    let checked = rules.policies.of(&tunnel.user).check(peer);
    // guard: V-89-registered
    checked.is_ok() && open.relay(Family::of(&peer)).is_some()
}

/// Returns how a train that came from `peer` goes to a tunnel's client. Of a bound tunnel, [`charge_to_client`] says how much of it.
#[inline]
pub(crate) fn admit_from_peer(
    now: Time,
    id: AllocationId,
    tunnel: &mut Tunnel,
    peer: SocketAddr,
    (datagrams, bytes): (u32, u64),
    rules: &Rules,
) -> Result<ClientRoute, DropReason> {
    let Tunnel {
        client,
        user,
        account,
        target,
        state: TunnelState::Open(open),
    } = tunnel
    else {
        return Err(DropReason::RelayClosed);
    };
    let policies = &rules.policies;
    let source = policies.usual.admit(peer);
    open.usage.peer_received.add(datagrams, bytes);
    let target = match target {
        Target::Peer(target) => target.peer(),
        Target::Anyone => {
            let peer = source.address();
            // guard: V-89-bound-source
            if policies.of(user).check(peer).is_err() {
                return Err(DropReason::PeerForbidden);
            }
            return Ok(ClientRoute {
                client: *client,
                framing: Framing::Bound { peer },
                datagrams,
            });
        }
    };
    // guard: V-91-source
    if source != target {
        return Err(DropReason::TunnelSource);
    }
    if policies.forbids_by_now(id, user, target) {
        return Err(DropReason::PeerForbidden);
    }
    Ok(ClientRoute {
        client: *client,
        framing: Framing::Tunnel,
        datagrams: charge(now, account, open, datagrams, bytes)?,
    })
}

/// Returns how many datagrams of a train from a peer go to a bound tunnel's client, who wants them.
#[inline]
pub(crate) fn charge_to_client(
    now: Time,
    id: AllocationId,
    (datagrams, bytes): (u32, u64),
    allocations: &mut Allocations,
) -> Result<u32, DropReason> {
    let Some(Entry::Tunnel(tunnel)) = allocations.table.at_mut(id) else {
        return Err(DropReason::RelayClosed);
    };
    match &mut tunnel.state {
        TunnelState::Open(open) => charge(now, &tunnel.account, open, datagrams, bytes),
        TunnelState::Opening(_) => Err(DropReason::RelayClosed),
    }
}

#[inline]
fn charge(
    now: Time,
    account: &Account,
    open: &mut OpenTunnel,
    datagrams: u32,
    bytes: u64,
) -> Result<u32, DropReason> {
    let admitted = account.shape(Direction::ToClient, now, datagrams, bytes)?;
    open.usage
        .client_sent
        .add(admitted, share(bytes, datagrams, admitted));
    open.last_used = now;
    Ok(admitted)
}

/// Ends a tunnel if the network says that its peer cannot be reached; a bound tunnel has others. Returns why the error is dropped, as it always is:
/// nothing of it is relayed.
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
    let is_about_peer = match &tunnel.target {
        Target::Peer(peer) => rules.policies.usual.admit(error.peer) == peer.peer(),
        Target::Anyone => false,
    };
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
