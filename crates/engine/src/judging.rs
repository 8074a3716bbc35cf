//! The effect of changed rules on what is open: a switch that forbids relaying ends allocations and tunnels, a peer policy ends
//! permissions, channels and connections.

use core::net::SocketAddr;

use crate::allocation::Entry;
use crate::allocations::Allocations;
use crate::change::Change;
use crate::ending;
use crate::id::{AllocationId, RelayProtocol};
use crate::out::Out;
use crate::rules::Rules;
use crate::shared;
use crate::tcp;
use crate::time::Time;
use crate::tunnel;

/// Applies changed rules to as many allocations as one call may check. Records that the rest is still to be checked.
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
            enforce(id, now, rules, allocations, out);
        }
    }
    rules.policies.unjudged_from = (to < count).then_some(to);
}

/// Ends an allocation or a tunnel if relaying of its kind is switched off, and otherwise what the peer policy forbids it.
pub(crate) fn enforce(
    id: AllocationId,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    end_switched_off(id, now, rules, allocations, out);
    enforce_policy(id, now, rules, allocations, out);
}

/// Ends an allocation or a tunnel if relaying of its kind is switched off. A pending allocation is checked when it opens.
pub(crate) fn end_switched_off(
    id: AllocationId,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let protocol = match allocations.table.at(id) {
        Some(Entry::Live(allocation)) => allocation.protocol(),
        Some(Entry::Tunnel(_)) => RelayProtocol::Udp,
        Some(Entry::Pending(_)) | None => return,
    };
    if !rules.config.relays_over(protocol) {
        ending::cancel(id, now, rules, allocations, out);
    }
}

/// Ends the permissions, channels and connections of an allocation that the policy forbids, or a tunnel to whom it forbids.
fn enforce_policy(
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
