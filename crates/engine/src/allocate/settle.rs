//! The end of an Allocate request whose sockets the host has opened, or has not: an allocation or none, and the answer.

use core::time::Duration;

use turnbuckle_wire::IntegrityKey;

use crate::allocation::channels::Channels;
use crate::allocation::mobility::Mobility;
use crate::allocation::opening::Opening;
use crate::allocation::permissions::Permissions;
use crate::allocation::relay::Relay;
use crate::allocation::{Allocation, Entry, Pending, Rare, Wish};
use crate::allocations::Allocations;
use crate::auth::Authenticator;
use crate::change::{Brought, Change, Created, Reserved, Usage};
use crate::id::{AllocationId, Family, RelayProtocol};
use crate::mobility;
use crate::out::Out;
use crate::quota::QuotaUnit;
use crate::random::Random;
use crate::refusal::{Limit, Refusal};
use crate::reject::{Reject, reason_phrase};
use crate::request::Envelope;
use crate::reservation::{RESERVATION_MIN, Reservation, ReservationToken, ReservedPort};
use crate::rules::Rules;
use crate::time::Now;

/// What the host has not answered in time.
const LATE: Reject = Reject::InsufficientCapacity(Refusal::Limit(Limit::SocketLate));
/// The limit on reserved ports is reached.
const FULL: Refusal = Refusal::Limit(Limit::Reservations);

/// Ends the pending state: an allocation and a success response, or neither and a 508.
pub(crate) fn settle(
    id: AllocationId,
    now: Now,
    rules: &Rules,
    authenticator: &mut Authenticator,
    allocations: &mut Allocations,
    out: &mut Out,
    random: &mut impl Random,
) {
    let pending = match allocations.table.take(id) {
        Some(Entry::Pending(pending)) => pending,
        Some(other @ (Entry::Live(_) | Entry::Tunnel(_))) => {
            return allocations.table.put_back(id, other);
        }
        None => return,
    };
    allocations.pending -= 1;
    allocations.wheel.cancel(id.index);
    let Pending {
        envelope,
        key,
        account,
        reserves,
        origin,
        wish,
        openings,
        ..
    } = *pending;
    let Wish {
        token: redeemed,
        is_mobile,
        ..
    } = wish;

    let lifetime_max = authenticator.lifetime_max(now, account.user());
    let lifetime = rules.config.lifetimes.granted(wish.lifetime, lifetime_max);
    let expires = now.time + lifetime;
    let mut relays = [None, None];
    let mut rare = Rare {
        origin,
        redeemed,
        ..Rare::default()
    };
    let mut reserved = None;
    let mut missing = None;
    for (opening, family) in openings.by_family.into_iter().zip([Family::V4, Family::V6]) {
        match opening {
            Opening::Open {
                endpoint,
                lease,
                sibling,
            } => {
                relays[family.index()] = Some(Relay::new(endpoint, expires, lease));
                reserved = reserved.or(sibling);
            }
            Opening::Failed(reject) => missing = Some((family, reject)),
            // given up: the host's answer will find no allocation, and the socket is closed
            Opening::Waiting { .. } => {
                missing = Some((family, LATE));
            }
            Opening::Unwanted => {}
        }
    }
    let reservation = reserved
        .zip(reserves)
        .map(|(port, quota)| reserve(port, quota, now, rules, allocations, random));
    if relays.iter().all(Option::is_none) || matches!(reservation, Some(None)) {
        for relay in relays.into_iter().flatten() {
            relay.close(&mut out.outbox);
        }
        allocations.table.vacate(id, &envelope.to);
        let reject = match missing {
            Some((_, reject)) => Reject::InsufficientCapacity(reject.refusal().unwrap_or(FULL)),
            None => Reject::InsufficientCapacity(FULL),
        };
        out.reply_reject(&rules.config, &envelope, key.as_ref(), reject);
        return;
    }
    rare.missing_family = missing.map(|(family, reject)| (family, reject.code()));
    let reservation = reservation.flatten();
    rare.token = reservation.map(|reserved| reserved.token);
    let created = Created {
        allocation: id,
        path: rules.listeners.path(&envelope.to),
        user: account.user().clone(),
        transaction: envelope.transaction,
        protocol: relays
            .iter()
            .flatten()
            .next()
            .map_or(RelayProtocol::Udp, |relay| relay.lease.protocol()),
        relays: relays.iter().flatten().map(Relay::addresses).collect(),
        missing_family: rare.missing_family,
        reservation,
        brought: Brought {
            redeemed,
            is_mobile,
            origin,
            tunnel_to: None,
        },
        bytes_per_s: account.rate(),
        created: now.time,
        expires,
    };
    let allocation = Allocation {
        client: envelope.to,
        relays,
        permissions: Permissions::default(),
        channels: Channels::default(),
        usage: Usage::default(),
        wake: expires,
        created: now.time,
        account,
        transaction: envelope.transaction,
        mobility: is_mobile.then(|| Box::new(Mobility::new(envelope.to))),
        rare: rare.boxed(),
    };
    allocations.table.put_back(id, Entry::Live(allocation));
    allocations.wheel.schedule(id.index, expires);
    mobility::announce_paths(id, rules, allocations);
    out.changes.push_back(Change::Created(Box::new(created)));
    answer_allocate(
        id,
        &envelope,
        key.as_ref(),
        lifetime,
        rules,
        allocations,
        out,
    );
}

/// Keeps a port for whoever brings its token.
fn reserve(
    port: ReservedPort,
    quota: QuotaUnit,
    now: Now,
    rules: &Rules,
    allocations: &mut Allocations,
    random: &mut impl Random,
) -> Option<Reserved> {
    let mut token = [0; 8];
    random.fill(&mut token);
    let token = ReservationToken(token);
    let expires = now.time + rules.config.lifetimes.reservation.max(RESERVATION_MIN);
    let local = port.lease.local();
    let reservation = Reservation {
        port,
        quota,
        expires,
    };
    rules.commons.reservations.put(token, reservation).ok()?;
    allocations.reservation_deadlines.push_back(expires);
    Some(Reserved {
        token,
        local,
        expires,
    })
}

/// Queues the success response, for a new request and for a repeated one (RFC 8656 §7.2).
pub(super) fn answer_allocate(
    id: AllocationId,
    envelope: &Envelope,
    key: Option<&IntegrityKey>,
    lifetime: Duration,
    rules: &Rules,
    allocations: &Allocations,
    out: &mut Out,
) {
    let Some(Entry::Live(allocation)) = allocations.table.at(id) else {
        return;
    };
    let relayed = [Family::V4, Family::V6]
        .map(|family| allocation.relay(family).map(|relay| relay.lease.external()));
    let rare = allocation.rare.as_deref().copied().unwrap_or_default();
    let client = envelope.to.remote;
    let ticket = mobility::ticket(id, rules, allocations);
    // a fraction of a second left is announced as a whole one, never as the end
    let lifetime_s = u32::try_from(lifetime.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
    out.reply_success(&rules.config, envelope, key, |writer, _| {
        for address in relayed.into_iter().flatten() {
            writer.xor_relayed_address(address);
        }
        writer.lifetime(lifetime_s).xor_mapped_address(client);
        if let Some(ReservationToken(token)) = rare.token {
            writer.reservation_token(token);
        }
        if let Some(ticket) = ticket {
            writer.mobility_ticket(&ticket);
        }
        if let Some((family, code)) = rare.missing_family {
            writer.address_error_code(family.into(), code, reason_phrase(code));
        }
    });
}
