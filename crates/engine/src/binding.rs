//! STUN Binding (RFC 8489 §12), tolerant of what ICE agents put in, with NAT behaviour discovery where it is served.

use turnbuckle_wire::IntegrityKey;

use crate::allocations::Allocations;
use crate::auth::Authenticator;
use crate::command::Outcome;
use crate::drop_reason::DropReason;
use crate::out::Out;
use crate::proof;
use crate::random::Random;
use crate::reply::Extent;
use crate::request::{REPLY_LEN_MAX, Request, unknown_attributes};
use crate::rules::Rules;
use crate::served;

/// Answers a Binding request: no allocation, no memory of it.
///
/// USERNAME and MESSAGE-INTEGRITY are for a peer's ICE agent and not looked at, unless `secure_stun` asks for credentials.
pub(crate) fn binding(
    request: &Request<'_>,
    rules: &Rules,
    authenticator: &mut Authenticator,
    allocations: &Allocations,
    out: &mut Out,
    random: &mut impl Random,
) -> Outcome {
    if !rules.config.binding.secure_stun {
        return match answer_binding(request, None, rules, out) {
            // guard: V-49-budget
            Ok(answer_len) => out.spend_unverified(rules, request, answer_len),
            Err(reason) => Outcome::Dropped(reason),
        };
    }
    match proof::authenticate(request, rules, authenticator, allocations, random) {
        Ok(proof) => match answer_binding(request, proof.response_key.as_ref(), rules, out) {
            Ok(_) => Outcome::Done,
            Err(reason) => Outcome::Dropped(reason),
        },
        Err(rejection) => proof::challenge(request, &rejection, rules, out),
    }
}

/// Queues the answer and returns its length.
fn answer_binding(
    request: &Request<'_>,
    key: Option<&IntegrityKey>,
    rules: &Rules,
    out: &mut Out,
) -> Result<usize, DropReason> {
    let served = served::served(request, rules);
    if unknown_attributes(&request.message, served)
        .next()
        .is_some()
    {
        return Ok(out.reply_unknown_attributes(&rules.config, request, served, key));
    }
    let mut envelope = request.envelope();
    let plan = match rules
        .listeners
        .discovery(request.from.listener)
        .map(|discovery| discovery.plan(request, key.is_some()))
        .transpose()
    {
        Ok(plan) => plan,
        Err(reject) => return Ok(out.reply_reject(&rules.config, &envelope, key, reject)),
    };
    if let Some(plan) = &plan {
        // RESPONSE-PORT may name one of our own listeners, which would take the answer for a message (V-41).
        // guard: V-41-response-port
        if !rules.listeners.is_possible_source(plan.to.remote) {
            return Err(DropReason::SourceInvalid);
        }
        envelope.to = plan.to;
    }
    let mapped_address = rules.config.binding.mapped_address || plan.is_some();
    let padding_len = plan.as_ref().and_then(|plan| plan.padding_len);
    let len_max = match plan {
        // what discovery asks for is longer by its nature (RFC 5780 §7.5, §7.6)
        Some(_) => usize::MAX,
        None => envelope.len_max(key),
    };
    let required_len_max = REPLY_LEN_MAX + padding_len.unwrap_or_default();
    let answer_len = out.reply_success_within(
        &rules.config,
        len_max,
        required_len_max,
        &envelope,
        key,
        |writer, extent| {
            // mutant: mapped-address-of-server
            writer.xor_mapped_address(request.from.remote);
            if mapped_address && extent == Extent::Whole {
                writer.mapped_address(request.from.remote);
            }
            if let Some(plan) = &plan {
                writer
                    .response_origin(plan.origin)
                    .other_address(plan.other);
            }
            if let Some(len) = padding_len {
                writer.padding(len);
            }
        },
    );
    Ok(answer_len)
}
