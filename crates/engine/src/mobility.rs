//! Allocations that can move to another 5-tuple (RFC 8016): a client whose address has changed presents the ticket and keeps its
//! allocation.
//!
//! Two paths exist between a Refresh request with the ticket and the first data on the new 5-tuple: the old one carries data
//! both ways, the new one is answered (RFC 8016 §3.2.2). Data on the new path, or the end of the old one's connection, makes
//! the new one *the* path. An allocation has at most one new path; another resume takes its place (V-30).
//!
//! The invariant: every 5-tuple in `Allocations::new_paths` is the new path of the allocation it names, and no other allocation's.

pub(crate) mod paths;

use turnbuckle_wire::Method;

use self::paths::NoncePath;
use crate::allocation::mobility::LastResume;
use crate::allocation::{Allocation, Entry};
use crate::allocations::Allocations;
use crate::change::{Change, Moved};
use crate::command::Outcome;
use crate::id::{AllocationId, ClientTuple, RelayProtocol};
use crate::out::Out;
use crate::reject::Reject;
use crate::request::Request;
use crate::rules::Rules;
use crate::ticket::{Creator, TICKET_LEN, Ticket};
use crate::time::{Now, Time};
use crate::tombstone::Effect;

/// Returns the allocation of a client that sends channel messages. If the 5-tuple is the allocation's new path, it becomes the only
/// path.
///
/// Call this instead of [`Allocations::client`] while any allocation has a new path.
pub(crate) fn client_of_data(
    client: &ClientTuple,
    now: Now,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> Option<AllocationId> {
    if let Some(&id) = allocations.new_paths.get(client) {
        // mutant: old-path-for-ever
        move_over(id, now.time, rules, allocations, out);
        return Some(id);
    }
    allocations.client(client)
}

/// Returns which other engine an authenticated Refresh request with a ticket is for, if any. A client that has an allocation in
/// this engine is refused here, because a 5-tuple identifies one allocation of the whole server.
pub(crate) fn elsewhere(
    request: &Request<'_>,
    rules: &Rules,
    allocations: &Allocations,
) -> Option<Outcome> {
    let message = &request.message;
    if message.method() != Method::REFRESH {
        return None;
    }
    let ticket = rules.tickets.as_ref()?.open(message.mobility_ticket()?)?;
    // mutant: ticket-names-no-shard
    let is_elsewhere = ticket.shard != rules.shard && allocations.client(&request.from).is_none();
    is_elsewhere.then_some(Outcome::Elsewhere {
        shard: ticket.shard,
    })
}

/// Returns whether an Allocate request asks for a ticket (RFC 8016 §3.1.2).
///
/// A TCP allocation ends with its control connection (RFC 6062 §4.2), so it cannot move.
pub(crate) fn wants_ticket(
    request: &Request<'_>,
    protocol: RelayProtocol,
    rules: &Rules,
) -> Result<bool, Reject> {
    let is_allowed = rules.tickets.is_some() && protocol == RelayProtocol::Udp;
    match request.message.mobility_ticket() {
        None => Ok(false),
        Some([]) if is_allowed => Ok(true),
        Some([]) => Err(Reject::MobilityForbidden),
        Some(_) => Err(Reject::BadRequest("MOBILITY-TICKET not empty")),
    }
}

/// Returns the other paths on which the nonce of a Refresh request with a ticket may have been issued, if the configuration allows
/// that. They are the paths that the allocation has, and the last one it had. The ticket must be the current one, or the one before
/// it, whose request may be repeated.
pub(crate) fn paths_of_ticket(request: &Request<'_>, rules: &Rules) -> Vec<NoncePath> {
    let message = &request.message;
    if !rules.config.mobility.resume_with_old_nonce || message.method() != Method::REFRESH {
        return Vec::new();
    }
    let tickets = rules.tickets.as_ref();
    let ticket = message.mobility_ticket();
    let ticket = tickets.and_then(|tickets| tickets.open(ticket?));
    ticket.map_or_else(Vec::new, |ticket| rules.commons.mobile_paths.of(&ticket))
}

/// Publishes to all engines the paths on which nonces for an allocation that can move were issued.
pub(crate) fn announce_paths(id: AllocationId, rules: &Rules, allocations: &Allocations) {
    if !rules.config.mobility.resume_with_old_nonce {
        return;
    }
    let Some(allocation) = allocations.live(id) else {
        return;
    };
    let Some(mobility) = &allocation.mobility else {
        return;
    };
    let paths = allocation
        .paths()
        .map(|path| (path.remote, rules.listeners.address(path.listener)));
    let known = &rules.commons.mobile_paths;
    known.set(rules.shard, id, mobility.number, paths);
}

/// Sets the new path of an allocation, in place of any earlier new path. Returns whether the old path is closed already.
pub(crate) fn open_path(
    id: AllocationId,
    resumed: LastResume,
    number: u32,
    rules: &Rules,
    allocations: &mut Allocations,
) -> bool {
    let Some(Entry::Live(allocation)) = allocations.table.at_mut(id) else {
        return false;
    };
    let Some(mobility) = &mut allocation.mobility else {
        return false;
    };
    mobility.number = number;
    mobility.resumed = Some(resumed);
    let is_parked = mobility.is_parked;
    // guard: V-30-flood
    if let Some(other) = mobility.new_path.replace(resumed.client) {
        allocations.new_paths.remove(&other);
    }
    allocations.new_paths.insert(resumed.client, id);
    announce_paths(id, rules, allocations);
    is_parked
}

/// Makes the new path of an allocation its only one.
pub(crate) fn move_over(
    id: AllocationId,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(Entry::Live(allocation)) = allocations.table.at_mut(id) else {
        return;
    };
    let Some(mobility) = &mut allocation.mobility else {
        return;
    };
    let Some(path) = mobility.new_path.take() else {
        return;
    };
    // mutant: move-charged-twice
    mobility.is_parked = false;
    let (old, transaction) = (allocation.client, allocation.transaction);
    allocations.new_paths.remove(&path);
    allocations.table.move_to(id, &old, |entry| {
        if let Entry::Live(allocation) = entry {
            allocation.client = path;
        }
    });
    announce_paths(id, rules, allocations);
    // the request that created it must not create another one on the 5-tuple that is free now (V-22)
    // mutant: move-leaves-the-request
    allocations
        .tombstones
        .record(old, transaction, Effect::Over, now);
    // mutant: stream-omits-move
    out.changes.push_back(Change::Moved(Box::new(Moved {
        allocation: id,
        path: rules.listeners.path(&path),
        time: now,
    })));
}

/// Handles the end of a connection for an allocation that can move. Returns whether the allocation continues.
pub(crate) fn outlives(
    id: AllocationId,
    client: &ClientTuple,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> bool {
    let Some(Entry::Live(allocation)) = allocations.table.at_mut(id) else {
        return false;
    };
    let Some(mobility) = &mut allocation.mobility else {
        return false;
    };
    if allocation.client != *client {
        allocations.new_paths.remove(client);
        mobility.new_path = None;
    } else if mobility.new_path.is_some() {
        move_over(id, now, rules, allocations, out);
    } else {
        mobility.is_parked = true;
    }
    true
}

/// Returns the ticket of an allocation that can move.
pub(crate) fn ticket(
    id: AllocationId,
    rules: &Rules,
    allocations: &Allocations,
) -> Option<[u8; TICKET_LEN]> {
    let allocation = allocations.live(id)?;
    rules.tickets.as_ref()?.seal(&Ticket {
        shard: rules.shard,
        allocation: id,
        number: allocation.mobility.as_ref()?.number,
        created_by: Creator::new(&allocation.transaction),
    })
}

/// Removes the paths of an allocation that ends.
pub(crate) fn forget_paths(
    id: AllocationId,
    allocation: &Allocation,
    rules: &Rules,
    allocations: &mut Allocations,
) {
    if allocation.mobility.is_some() {
        rules.commons.mobile_paths.remove(rules.shard, id);
    }
    // mutant: new-path-outlives
    for path in allocation.paths().skip(1) {
        allocations.new_paths.remove(&path);
    }
}
