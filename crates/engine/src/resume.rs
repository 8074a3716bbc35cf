//! Refresh requests with a ticket: a client that has moved comes back to its allocation (RFC 8016 §3.2.2).

use crate::allocation::mobility::LastResume;
use crate::allocations::Allocations;
use crate::auth::{Authenticator, Proof};
use crate::change::{Change, Resumed};
use crate::ending;
use crate::id::AllocationId;
use crate::mobility;
use crate::out::Out;
use crate::random::Random;
use crate::reject::Reject;
use crate::request::Request;
use crate::rules::Rules;
use crate::ticket::Creator;

/// The effect of a Refresh request with a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resume {
    /// To open a new path; the number of the next ticket.
    NewPath(u32),
    /// It did before, and is answered once more.
    Repeated,
}

/// Finds the allocation that a Refresh request with a ticket is about, and whether it may move (RFC 8016 §3.2.2).
pub(crate) fn check_resume(
    request: &Request<'_>,
    proof: &Proof,
    rules: &Rules,
    authenticator: &mut Authenticator,
    allocations: &mut Allocations,
    out: &mut Out,
    random: &mut impl Random,
) -> Result<(AllocationId, Resume), Reject> {
    let tickets = rules.tickets.as_ref().ok_or(Reject::MobilityForbidden)?;
    let ticket = tickets
        .open(request.message.mobility_ticket().unwrap_or_default())
        .ok_or(Reject::BadRequest("MOBILITY-TICKET not valid"))?;
    if ticket.shard != rules.shard {
        return Err(Reject::AllocationMismatch);
    }
    let (id, from, now) = (ticket.allocation, request.from, request.now);
    if allocations
        .live(id)
        .is_some_and(|allocation| allocation.wake <= now.time)
    {
        ending::expire(id, now, rules, authenticator, allocations, out, random); // it is as it is at this moment, although timers may be late
    }
    let allocation = allocations.live(id).ok_or(Reject::AllocationMismatch)?;
    let mobility = allocation.mobility.as_deref();
    let mobility = mobility.filter(|_| Creator::new(&allocation.transaction) == ticket.created_by);
    let mobility = mobility.ok_or(Reject::AllocationMismatch)?;
    // guard: V-30-owner
    if !allocation.account.user().is_same_as(&proof.user) {
        return Err(Reject::WrongCredentials);
    }
    allocation.check_origin(request, &rules.config)?;
    let transaction = request.message.transaction_id();
    let is_repeated = mobility.resumed.is_some_and(|resumed| {
        resumed.transaction == transaction && resumed.client == from && now.time < resumed.until
    });
    let next = ticket
        .number
        .checked_add(1)
        .ok_or(Reject::BadRequest("MOBILITY-TICKET not valid"))?;
    // mutant: lost-answer-stays-lost
    if is_repeated && next == mobility.number {
        return Ok((id, Resume::Repeated));
    }
    let is_known = allocation.client == from && !mobility.is_parked;
    // guard: V-30-once
    if ticket.number != mobility.number || is_known || mobility.new_path == Some(from) {
        return Err(Reject::BadRequest("MOBILITY-TICKET not valid"));
    }
    // mutant: path-of-another-allocation
    if allocations.client(&from).is_some_and(|other| other != id) {
        return Err(Reject::AllocationMismatch); // it has an allocation of its own
    }
    if !rules.policies.usual.accepts_client(from.remote) {
        return Err(Reject::ClientDenied); // RFC 8656 §21.4
    }
    Ok((id, Resume::NewPath(next)))
}

/// Opens the new path; from now on only the next ticket is good.
pub(crate) fn resume(
    id: AllocationId,
    request: &Request<'_>,
    resume: &Resume,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let &Resume::NewPath(number) = resume else {
        return;
    };
    let (path, now) = (request.from, request.now.time);
    let resumed = LastResume::new(path, request.message.transaction_id(), now);
    let is_parked = mobility::open_path(id, resumed, number, rules, allocations);
    out.changes.push_back(Change::Resumed(Box::new(Resumed {
        allocation: id,
        path: rules.listeners.path(&path),
        transaction: resumed.transaction,
        number,
        until: resumed.until,
    })));
    // mutant: old-path-gone-at-once
    if is_parked {
        mobility::move_over(id, now, rules, allocations, out);
    }
}
