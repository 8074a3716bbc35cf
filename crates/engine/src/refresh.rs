//! Refresh (RFC 8656 §8): extends an allocation or ends it.

use core::time::Duration;
use std::sync::Arc;

use turnbuckle_wire::{AddressFamily, AttributeError};

use crate::allocations::Allocations;
use crate::auth::{Authenticator, Proof};
use crate::change::{Change, EndCause};
use crate::config::Lifetimes;
use crate::ending;
use crate::id::{AllocationId, Family};
use crate::mobility;
use crate::out::Out;
use crate::random::Random;
use crate::reject::Reject;
use crate::request::{Envelope, Request};
use crate::resume;
use crate::rules::Rules;
use crate::tcp;
use crate::ticket::TICKET_LEN;
use crate::time::Time;
use crate::tombstone::Effect;

/// Handles a Refresh request (RFC 8656 §8.2).
pub(crate) fn refresh(
    request: &Request<'_>,
    proof: &Proof,
    rules: &Rules,
    authenticator: &mut Authenticator,
    allocations: &mut Allocations,
    out: &mut Out,
    random: &mut impl Random,
) -> Result<(), Reject> {
    let now = request.now.time;
    let envelope = request.envelope();
    let (id, resume) = match request.message.mobility_ticket() {
        None => (allocations.of_request(request, proof, &rules.config)?, None),
        Some(_) => resume::check_resume(
            request,
            proof,
            rules,
            authenticator,
            allocations,
            out,
            random,
        )
        .map(|(id, resume)| (id, Some(resume)))?,
    };
    let asked = request
        .message
        .lifetime()
        .map_err(|_| Reject::BadRequest("LIFETIME malformed"))?;
    let is_release = asked == Some(0);
    if is_release {
        match ending::find_release(&request.from, envelope.transaction, now, rules, allocations) {
            // its own allocation ended with it; the one that is here now is another
            // guard: V-22-replayed-deletion
            Some(Effect::Over) => return Err(Reject::AllocationMismatch),
            Some(Effect::EndedFamily(ended)) if ended == id => {
                // mutant: answer-without-ticket
                let ticket = mobility::ticket(id, rules, allocations).filter(|_| resume.is_some());
                answer_refresh(&envelope, proof, Duration::ZERO, ticket, rules, out);
                return Ok(());
            }
            Some(Effect::EndedFamily(_)) => return Err(Reject::AllocationMismatch),
            None => {}
        }
    }

    let family = match request.message.requested_address_family() {
        Ok(None) => None,
        Ok(Some(AddressFamily::V4)) => Some(Family::V4),
        Ok(Some(AddressFamily::V6)) => Some(Family::V6),
        Err(AttributeError::UnsupportedFamily(_)) => return Err(Reject::PeerFamilyMismatch),
        Err(AttributeError::Length | AttributeError::Value) => {
            return Err(Reject::BadRequest("REQUESTED-ADDRESS-FAMILY malformed"));
        }
    };
    let lifetime_max = authenticator.lifetime_max(request.now, &proof.user);
    let allocation = allocations.live(id).ok_or(Reject::AllocationMismatch)?;
    if family.is_some_and(|family| allocation.relay(family).is_none()) {
        return Err(Reject::PeerFamilyMismatch);
    }

    let lifetime = if is_release {
        Duration::ZERO
    } else {
        rules.config.lifetimes.granted(asked, lifetime_max)
    };
    let ends_whole =
        is_release && (family.is_none() || allocation.relays.iter().flatten().count() == 1);
    if let Some(resume) = &resume
        && !ends_whole
    {
        resume::resume(id, request, resume, rules, allocations, out);
    }
    if ends_whole {
        if allocations.new_paths.contains_key(&request.from) {
            mobility::move_over(id, now, rules, allocations, out); // for the record of where it ended
        }
        ending::end(
            id,
            EndCause::Released(envelope.transaction),
            now,
            rules,
            allocations,
            out,
        );
    } else if let Some(family) = family.filter(|_| is_release) {
        ending::end_family(
            id,
            family,
            EndCause::Released(envelope.transaction),
            now,
            rules,
            allocations,
            out,
        );
    } else {
        extend(id, family, now + lifetime, allocations, out);
    }
    renew(id, proof, rules, allocations, out);
    let ticket = mobility::ticket(id, rules, allocations).filter(|_| resume.is_some());
    answer_refresh(&envelope, proof, lifetime, ticket, rules, out);
    Ok(())
}

/// Queues the success response, for a new request and for a repeated one. It carries the current ticket if the request presented
/// one.
fn answer_refresh(
    envelope: &Envelope,
    proof: &Proof,
    lifetime: Duration,
    ticket: Option<[u8; TICKET_LEN]>,
    rules: &Rules,
    out: &mut Out,
) {
    out.reply_success(
        &rules.config,
        envelope,
        proof.response_key.as_ref(),
        |writer, _| {
            writer.lifetime(u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX));
            if let Some(ticket) = ticket {
                writer.mobility_ticket(&ticket);
            }
        },
    );
}

/// Makes the token of this request the client's current one (RFC 7635 §9).
fn renew(
    id: AllocationId,
    proof: &Proof,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(allocation) = allocations.live_mut(id) else {
        return;
    };
    let held = allocation.account.user();
    if held.name != proof.user.name || !held.is_same_as(&proof.user) {
        allocation.account.renew(&proof.user);
        let user = Arc::clone(allocation.account.user());
        tcp::renew_connections(id, &user, rules, allocations);
        out.changes.push_back(Change::Reauthorized {
            allocation: id,
            user,
        });
    }
}

fn extend(
    id: AllocationId,
    family: Option<Family>,
    expires: Time,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(allocation) = allocations.live_mut(id) else {
        return;
    };
    for held in [Family::V4, Family::V6] {
        if family.is_none_or(|family| family == held)
            && let Some(relay) = &mut allocation.relays[held.index()]
        {
            relay.expires = expires;
        }
    }
    // mutant: totals-lost
    let usage = allocation.usage;
    out.changes.push_back(Change::Refreshed {
        allocation: id,
        family,
        expires,
        usage,
    });
    // mutant: stream-omits-refresh
    allocations.wake_by(id, expires);
}

impl Lifetimes {
    /// Returns the lifetime that is granted when `asked` is requested: at least the default, at most the maximum (RFC 8656 §7.2,
    /// §8.2), and never more than the credential lets the allocation last ([`Authenticator::lifetime_max`]).
    pub(crate) fn granted(&self, asked: Option<u32>, of_credential: Duration) -> Duration {
        let asked = Duration::from_secs(asked.unwrap_or(0).into());
        // guard: V-52-lifetime
        let granted = asked.max(self.allocation_default).min(self.allocation_max);
        granted.min(of_credential)
    }
}
