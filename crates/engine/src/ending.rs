//! How things end: allocations, their families, permissions and channels, by time or on request.

use std::sync::PoisonError;

use turnbuckle_wire::TransactionId;

use crate::allocate;
use crate::allocation::opening::Opening;
use crate::allocation::relay::close;
use crate::allocation::{Allocation, Entry};
use crate::allocations::Allocations;
use crate::auth::Authenticator;
use crate::change::{Change, EndCause, Ended, Path};
use crate::id::{AllocationId, ClientTuple, Family, Transport};
use crate::mobility;
use crate::out::Out;
use crate::random::Random;
use crate::refusal::Limit;
use crate::reject::Reject;
use crate::rules::Rules;
use crate::shared;
use crate::tcp;
use crate::tcp::peer_end::PeerEnd;
use crate::time::{Now, Time};
use crate::tombstone::{Addresses, Effect};
use crate::tunnel;
use crate::tunnel_end::TunnelEnd;

/// Ends whatever of this allocation has run out, and sets its timer to the next deadline.
pub(crate) fn expire(
    id: AllocationId,
    now: Now,
    rules: &Rules,
    authenticator: &mut Authenticator,
    allocations: &mut Allocations,
    out: &mut Out,
    random: &mut impl Random,
) {
    let time = now.time;
    match allocations.table.at(id) {
        None => return,
        Some(Entry::Tunnel(_)) => {
            return tunnel::expire(id, now, rules, authenticator, allocations, out);
        }
        Some(Entry::Pending(pending)) if pending.openings.deadline <= time => {
            // mutant: opening-never-given-up
            return allocate::settle(id, now, rules, authenticator, allocations, out, random);
        }
        Some(Entry::Pending(pending)) => {
            let deadline = pending.openings.deadline;
            return allocations.wheel.schedule(id.index, deadline);
        }
        Some(Entry::Live(allocation)) if allocation.expires() <= time => {
            return end(id, EndCause::Expired, time, rules, allocations, out);
        }
        Some(Entry::Live(_)) => {}
    }
    tcp::expire_connections(id, time, rules, allocations, out);
    for family in [Family::V4, Family::V6] {
        let has_ended = allocations
            .live(id)
            .and_then(|allocation| allocation.relay(family))
            .is_some_and(|relay| relay.expires <= time);
        if has_ended {
            end_family(id, family, EndCause::Expired, time, rules, allocations, out);
        }
    }
    let Some(Entry::Live(allocation)) = allocations.table.at_mut(id) else {
        return;
    };
    let changes = &mut out.changes;
    allocation.permissions.expire(time, |peer| {
        changes.push_back(Change::PermissionExpired {
            allocation: id,
            peer,
        });
    });
    allocation.channels.expire(time, |channel| {
        changes.push_back(Change::ChannelExpired {
            allocation: id,
            number: channel.number,
        });
    });
    allocation.wake = allocation.nearest_deadline().min(
        allocations
            .connections
            .nearest_deadline(id)
            .unwrap_or(Time::MAX),
    );
    allocations.wheel.schedule(id.index, allocation.wake);
    shared::release(id, allocations);
}

/// Ends an allocation or a tunnel because the operator wants it so.
pub(crate) fn cancel(
    id: AllocationId,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    if allocations.tunnel(id).is_some() {
        let cause = Some(TunnelEnd::Cancelled);
        return tunnel::end(id, cause, now, rules, allocations, out);
    }
    end(id, EndCause::Cancelled, now, rules, allocations, out);
}

/// Ends an allocation. Its ports and its quota unit go back as it is dropped.
pub(crate) fn end(
    id: AllocationId,
    cause: EndCause,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let allocation = match allocations.table.take(id) {
        Some(Entry::Live(allocation)) => allocation,
        Some(other @ (Entry::Pending(_) | Entry::Tunnel(_))) => {
            return allocations.table.put_back(id, other);
        }
        None => return,
    };
    // mutant: connection-outlives
    tcp::end_connections(id, None, PeerEnd::AllocationEnded, rules, allocations, out);
    allocations.table.vacate(id, &allocation.client);
    mobility::forget_paths(id, &allocation, rules, allocations);
    allocations.wheel.cancel(id.index);
    for relay in allocation.relays.iter().flatten() {
        relay.close(&mut out.outbox);
    }
    allocations.claims.remove_owner(id);
    remember(&allocation, cause, now, rules, allocations);
    out.changes.push_back(Change::Ended(Box::new(Ended {
        allocation: id,
        path: rules.listeners.path(&allocation.client),
        redeemed: allocation.rare.as_ref().and_then(|rare| rare.redeemed),
        user: allocation.account.user().clone(),
        tunnel_to: None,
        cause,
        created: allocation.created,
        time: now,
        created_by: allocation.transaction,
        created_from: created_from(&allocation, rules),
        totals: allocation.usage,
    })));
}

/// Returns the 5-tuple of the request that created an allocation, if the allocation has moved since.
fn created_from(allocation: &Allocation, rules: &Rules) -> Option<Path> {
    let first = allocation.mobility.as_ref()?.first?;
    (first != allocation.client).then(|| rules.listeners.path(&first))
}

/// Ends what a client has on a connection that is closed. No other client can use that 5-tuple.
pub(crate) fn end_disconnected(
    client: &ClientTuple,
    now: Now,
    rules: &Rules,
    authenticator: &mut Authenticator,
    allocations: &mut Allocations,
    out: &mut Out,
    random: &mut impl Random,
) {
    let Some(id) = allocations.client(client) else {
        return;
    };
    if let Some(Entry::Tunnel(_)) = allocations.table.at(id) {
        return tunnel::end(id, None, now.time, rules, allocations, out);
    }
    if mobility::outlives(id, client, now.time, rules, allocations, out) {
        return;
    }
    let Some(Entry::Pending(pending)) = allocations.table.at_mut(id) else {
        return end(
            id,
            EndCause::Disconnected,
            now.time,
            rules,
            allocations,
            out,
        );
    };
    for opening in &mut pending.openings.by_family {
        let failed = Opening::Failed(Reject::InsufficientCapacity(Limit::SocketLate.into()));
        match core::mem::replace(opening, failed) {
            Opening::Open {
                endpoint, lease, ..
            } => close(endpoint, &lease, &mut out.outbox),
            Opening::Unwanted => *opening = Opening::Unwanted,
            // the host's answer will find no allocation, and the socket is closed
            Opening::Waiting { .. } | Opening::Failed(_) => {}
        }
    }
    allocate::settle(id, now, rules, authenticator, allocations, out, random);
}

/// Ends one of two families, with its permissions and channels and no others (RFC 8656 §8.1).
pub(crate) fn end_family(
    id: AllocationId,
    family: Family,
    cause: EndCause,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(Entry::Live(allocation)) = allocations.table.at_mut(id) else {
        return;
    };
    let Some(relay) = allocation.relays[family.index()].take() else {
        return;
    };
    // mutant: family-takes-all-permissions
    allocation.permissions.remove_family(family);
    allocation.channels.remove_family(family);
    relay.close(&mut out.outbox);
    let (paths, has_moved) = (allocation.paths(), allocation.has_moved());
    shared::release(id, allocations);
    tcp::end_connections(
        id,
        Some(family),
        PeerEnd::AllocationEnded,
        rules,
        allocations,
        out,
    );
    if let EndCause::Released(transaction) = cause {
        for client in paths {
            record_release(
                client,
                transaction,
                Effect::EndedFamily(id),
                has_moved,
                now,
                rules,
                allocations,
            );
        }
    }
    out.changes.push_back(Change::FamilyEnded {
        allocation: id,
        family,
        cause,
        time: now,
    });
}

/// Records the transactions that created and ended an allocation, so that they have no effect when they are repeated (V-22).
fn remember(
    allocation: &Allocation,
    cause: EndCause,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
) {
    allocations
        .tombstones
        .record(allocation.client, allocation.transaction, Effect::Over, now);
    if let EndCause::Released(transaction) = cause {
        for client in allocation.paths() {
            let has_moved = allocation.has_moved();
            record_release(
                client,
                transaction,
                Effect::Over,
                has_moved,
                now,
                rules,
                allocations,
            );
        }
    }
}

/// Records one Refresh request with lifetime zero. With `has_moved`, records it for all engines, because another engine may have
/// the client's next allocation.
pub(crate) fn record_release(
    client: ClientTuple,
    transaction: TransactionId,
    effect: Effect,
    has_moved: bool,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
) {
    allocations
        .tombstones
        .record(client, transaction, effect, now);
    if let Some(addresses) = addresses_of(&client, rules).filter(|_| has_moved) {
        let releases = &rules.commons.releases;
        let mut releases = releases.lock().unwrap_or_else(PoisonError::into_inner);
        // `Over`, because a family of this engine's allocation means nothing to the other engines
        releases.record(addresses, transaction, Effect::Over, now);
    }
}

/// Returns what a Refresh request with lifetime zero did before, if there is a record of it.
pub(crate) fn find_release(
    client: &ClientTuple,
    transaction: TransactionId,
    now: Time,
    rules: &Rules,
    allocations: &Allocations,
) -> Option<Effect> {
    let own = allocations.tombstones.find(*client, transaction, now);
    own.or_else(|| {
        // mutant: release-of-this-engine-only
        let addresses = addresses_of(client, rules)?;
        let releases = &rules.commons.releases;
        let releases = releases.lock().unwrap_or_else(PoisonError::into_inner);
        releases.find(addresses, transaction, now)
    })
}

/// Returns the addresses that identify a client of plain UDP in all engines. Returns `None` for a connection: nobody else can send
/// on it.
fn addresses_of(client: &ClientTuple, rules: &Rules) -> Option<Addresses> {
    let is_plain = client.transport == Transport::Udp;
    is_plain.then(|| (rules.listeners.address(client.listener), client.remote))
}
