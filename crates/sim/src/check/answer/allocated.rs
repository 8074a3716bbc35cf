//! The answer to an Allocate request: which it has to be, and what has to be in it.

use std::net::SocketAddr;

use turnbuckle_wire::{AddressFamily, Message};

use crate::model::{Allocation, Model, Pending, Secrets, Tuple};
use crate::violation::{Violation, ensure};

/// Returns whether the request is granted, which has to be so or not so by the sockets that were opened.
pub(super) fn is_granted(model: &Model, pending: &Pending, code: u16) -> Result<bool, Violation> {
    if pending.opened.is_empty() {
        ensure(code == 508, "model", || {
            format!("{code} although no socket opened")
        })?;
        return Ok(false);
    }
    if code == 508 && pending.asked.even == Some(true) {
        // Others were quicker with their reservations.
        let full = model.reservations.len() >= model.rules.bounds.reservations;
        ensure(full, "model", || {
            "508 with room for a reservation".to_owned()
        })?;
        return Ok(false);
    }
    ensure(code == 0, "model", || {
        format!("{code} although {:?} opened", pending.opened)
    })?;
    Ok(true)
}

/// Checks the contents of an Allocate success response (TURN-048).
pub(super) fn check(
    secrets: &Secrets,
    held: &Allocation,
    from: Tuple,
    reply: &Message<'_>,
    lifetime_s: u64,
) -> Result<(), Violation> {
    let mut relayed: Vec<SocketAddr> = reply
        .xor_relayed_addresses()
        .filter_map(Result::ok)
        .collect();
    let expected: Vec<SocketAddr> = held.relays.keys().copied().collect();
    relayed.sort_unstable();
    ensure(relayed == expected, "model", || {
        format!("relayed addresses {relayed:?}, expected {expected:?}")
    })?;
    let mapped = reply.xor_mapped_address();
    ensure(mapped == Ok(Some(from.client)), "model", || {
        format!("mapped {mapped:?}")
    })?;
    let ticket = reply.mobility_ticket();
    let good = held.mobility.as_ref().map(|held| held.ticket.as_slice());
    ensure(ticket == good, "model", || {
        format!("ticket {ticket:02x?}, good is {good:02x?}")
    })?;
    let token = reply.reservation_token().ok().flatten();
    ensure(token == held.token, "model", || format!("token {token:?}"))?;
    let lifetime = reply.lifetime().ok().flatten().map(u64::from);
    ensure(lifetime == Some(lifetime_s), "model", || {
        format!("granted {lifetime:?}, expected {lifetime_s}")
    })?;
    let missing = reply.address_error_codes().filter_map(Result::ok).next();
    let missing = missing.map(|error| (error.family == AddressFamily::V6, error.code));
    ensure(missing == held.missing, "model", || {
        format!("missing family {missing:?}, expected {:?}", held.missing)
    })?;
    let key = secrets.key(&held.user, reply.has_integrity_sha256());
    let sound = key.is_some_and(|key| reply.check_integrity(&key).is_ok());
    ensure(sound, "model", || {
        "success under a wrong integrity".to_owned()
    })
}
