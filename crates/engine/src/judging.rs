//! The effect of a changed peer policy on permissions, channels and connections.

use core::net::SocketAddr;

use crate::allocation::Entry;
use crate::allocations::Allocations;
use crate::change::Change;
use crate::id::AllocationId;
use crate::out::Out;
use crate::rules::Rules;
use crate::shared;
use crate::tcp;
use crate::time::Time;
use crate::tunnel;

/// Applies a changed policy to as many allocations as one call may check. Records that the rest is still to be checked.
pub(crate) fn judge_all(
    now: Time,
    rules: &mut Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    rules.policies.unjudged_from = Some(0);
    judge_some(now, rules, allocations, out);
}

/// Goes on with what [`judge_all`] began.
pub(crate) fn judge_some(
    now: Time,
    rules: &mut Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(from) = rules.policies.unjudged_from else {
        return;
    };
    let count = allocations.table.slot_count();
    let to = from.saturating_add(rules.config.limits.timeouts_per_call.max(1));
    for index in from..to.min(count) {
        if let Some(id) = allocations.table.id_at(index) {
            enforce_policy(id, now, rules, allocations, out);
        }
    }
    rules.policies.unjudged_from = (to < count).then_some(to);
}

/// Ends the permissions, channels and connections of an allocation that the policy forbids, or a tunnel to whom it forbids.
pub(crate) fn enforce_policy(
    id: AllocationId,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    // guard: V-10-accept-policy
    tcp::enforce_policy_on_connections(id, rules, allocations, out);
    tunnel::enforce_policy(id, now, rules, allocations, out);
    let Some(Entry::Live(allocation)) = allocations.table.at_mut(id) else {
        return;
    };
    let policy = rules.policies.of(allocation.account.user());
    allocation.permissions.retain_peers(
        |peer| policy.check(SocketAddr::new(peer, 0)).is_ok(),
        |peer| {
            out.changes.push_back(Change::PermissionExpired {
                allocation: id,
                peer,
            })
        },
    );
    allocation.channels.retain(
        |channel| policy.check(channel.peer.peer().address()).is_ok(),
        |channel| {
            out.changes.push_back(Change::ChannelExpired {
                allocation: id,
                number: channel.number,
            })
        },
    );
    shared::release(id, allocations);
}
