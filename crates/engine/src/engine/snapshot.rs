//! The state of an engine as changes: what a journal is begun anew with, so that it does not grow for ever.
//!
//! Invariant: an engine rebuilt from the snapshot of every place, in any order of the places, has the same allocations as one that is rebuilt from
//! all changes up to now. Changes that come while a snapshot is taken may stand before and after that of their allocation: the later record of the
//! same allocation replaces the earlier one, and changes of an allocation that is not on record yet change nothing.
//!
//! Not in it is what has ended: finished transactions are forgotten, as rebuilding allows. A reservation that is over is on record with a lifetime
//! that is over, so that its port is not reserved again.

use std::sync::Arc;

use crate::allocation::{Allocation, Rare};
use crate::allocations::Allocations;
use crate::change::{Brought, Change, Created, Moved, Path, Reserved, Resumed};
use crate::id::{AllocationId, Family};
use crate::rules::Rules;
use crate::time::Time;

/// Shows the allocation at a place of the table as changes, in their order; none if the place is free.
pub(super) fn show(
    now: Time,
    slot: u32,
    rules: &Rules,
    allocations: &Allocations,
    mut each: impl FnMut(&Change),
) {
    let Some(id) = allocations.table.id_at(slot) else {
        return;
    };
    let Some(allocation) = allocations.live(id) else {
        return;
    };
    let path = rules.listeners.path(&allocation.client);
    let mobility = allocation.mobility.as_deref();
    let first = mobility.and_then(|mobility| mobility.first);
    let first = first.map_or(path, |first| rules.listeners.path(&first));
    each(&Change::Created(Box::new(created(
        now, id, allocation, first, rules,
    ))));
    for relay in allocation.relays.iter().flatten() {
        // guard: V-63-anew-families
        each(&Change::Refreshed {
            allocation: id,
            family: Some(Family::of(&relay.lease.local())),
            expires: relay.expires,
            usage: allocation.usage,
        });
    }
    show_paths(now, id, allocation, (first, path), rules, &mut each);
    for (peer, expires) in allocation.permissions.iter() {
        // guard: V-63-anew-permissions
        each(&Change::PermissionInstalled {
            allocation: id,
            peer,
            expires,
            is_new: true,
        });
    }
    for channel in allocation.channels.iter() {
        // guard: V-63-anew-channels
        each(&Change::ChannelInstalled {
            allocation: id,
            number: channel.number,
            peer: channel.peer.peer().address(),
            expires: channel.expires,
        });
    }
    for peer in allocations.claims.peers(id) {
        // guard: V-63-anew-claims
        each(&Change::PeerClaimed {
            allocation: id,
            peer: peer.address(),
        });
    }
}

fn created(
    now: Time,
    id: AllocationId,
    allocation: &Allocation,
    path: Path,
    rules: &Rules,
) -> Created {
    let rare = allocation.rare.as_deref().copied().unwrap_or_default();
    let Rare {
        origin,
        token,
        redeemed,
        missing_family,
    } = rare;
    let reservations = &rules.commons.reservations;
    Created {
        allocation: id,
        path,
        user: Arc::clone(allocation.account.user()),
        transaction: allocation.transaction,
        protocol: allocation.protocol(),
        relays: allocation
            .relays
            .iter()
            .flatten()
            .map(|relay| relay.addresses())
            .collect(),
        missing_family,
        reservation: token.map(|token| {
            // A token that cannot be redeemed any more is still in the answer to the same request.
            let over = (path.server, Time::ZERO);
            let (local, expires) = reservations.waiting(token, now).unwrap_or(over);
            Reserved {
                token,
                local,
                expires,
            }
        }),
        brought: Brought {
            redeemed,
            is_mobile: allocation.mobility.is_some(),
            origin,
            tunnel_to: None,
        },
        bytes_per_s: allocation.account.rate(),
        created: allocation.created,
        expires: allocation.expires(),
    }
}

/// Shows how an allocation came from its first path to the present one, and whether there is one beside it (RFC 8016 §3.2.2).
fn show_paths(
    now: Time,
    id: AllocationId,
    allocation: &Allocation,
    (first, path): (Path, Path),
    rules: &Rules,
    each: &mut impl FnMut(&Change),
) {
    let Some(mobility) = allocation.mobility.as_deref() else {
        return;
    };
    let moved = Change::Moved(Box::new(Moved {
        allocation: id,
        path,
        time: now,
    }));
    let has_new_path = mobility.new_path.is_some();
    if has_new_path && first != path {
        // mutant: snapshot-without-moves
        each(&moved);
    }
    if mobility.resumed.is_some() || mobility.number > 1 {
        let last = mobility.resumed.as_ref();
        // mutant: snapshot-without-resumes
        each(&Change::Resumed(Box::new(Resumed {
            allocation: id,
            path: last.map_or(path, |last| rules.listeners.path(&last.client)),
            transaction: last.map_or(allocation.transaction, |last| last.transaction),
            number: mobility.number,
            until: last.map_or(Time::ZERO, |last| last.until),
        })));
        // Without it the resumed path would count as one beside the present one.
        if !has_new_path {
            each(&moved);
        }
    }
}
