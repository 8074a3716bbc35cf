//! Relay sockets: the ports for them, what the host is asked, and its answers. The same for allocations and for tunnels.

use core::time::Duration;

use crate::allocation::Entry;
use crate::allocation::lease::Lease;
use crate::allocation::opening::Opening;
use crate::allocations::Allocations;
use crate::held::{HeldPort, Opened};
use crate::id::{AllocationId, Family, RelayHandle, RelayProtocol, RelayRequest};
use crate::out::Out;
use crate::ports::{PortKind, PortLease};
use crate::random::{Random, random_u64};
use crate::refusal::{Limit, RelayOpenError};
use crate::reject::Reject;
use crate::reservation::ReservedPort;
use crate::rules::Rules;

/// How long the host may take to open a socket. After that the client gets 508, or no tunnel. Clients give up after 39.5 s (RFC 8489 §6.2.1).
pub(crate) const OPENING_MAX: Duration = Duration::from_secs(10);

/// Leases a port, and its sibling if `kind` wants one.
pub(crate) fn lease(
    family: Family,
    kind: PortKind,
    protocol: RelayProtocol,
    rules: &Rules,
    random: &mut impl Random,
) -> Option<(PortLease, Option<PortLease>)> {
    let random = random_u64(random);
    let (lease, sibling) = rules.commons.ports.lease(family, kind, random)?;
    Some((lease.of(protocol), sibling))
}

/// Asks for a socket for each lease of what is new; `held` is at the port of the only one, if that was reserved.
pub(crate) fn ask_host(
    id: AllocationId,
    mut held: Option<HeldPort>,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let entry = allocations.table.at_mut(id);
    let Some(openings) = entry.and_then(Entry::openings_mut) else {
        return;
    };
    for (opening, family) in openings.by_family.iter().zip([Family::V4, Family::V6]) {
        let Opening::Waiting {
            attempt,
            lease,
            sibling,
        } = opening
        else {
            continue;
        };
        let handle = RelayHandle {
            allocation: id,
            family,
        };
        let request = RelayRequest {
            handle,
            attempt: *attempt,
        };
        out.outbox
            .open_relay(request, lease, sibling.as_ref(), held.take());
    }
}

/// Takes the host's answer to [`ask_host`]. Returns whether it was the last one; what waits for it then has to be settled.
pub(crate) fn take_opened(
    request: RelayRequest,
    result: Result<Opened, RelayOpenError>,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
    random: &mut impl Random,
) -> bool {
    let RelayRequest { handle, attempt } = request;
    let entry = allocations.table.at_mut(handle.allocation);
    let openings = entry.and_then(Entry::openings_mut).filter(|openings| {
        matches!(&openings.by_family[handle.family.index()], Opening::Waiting { attempt: a, .. } if *a == attempt)
    });
    let Some(openings) = openings else {
        // given up in the meantime
        // mutant: late-socket-kept-open
        if let Ok(opened) = result {
            out.outbox.close_relay(opened.endpoint);
        }
        return false;
    };
    // another port, if a port is all that was wrong
    let is_in_use = matches!(result, Err(RelayOpenError::AddressInUse));
    let has_attempts = attempt.saturating_add(1) < rules.config.limits.relay_open_attempts;
    let retry = openings
        .other
        .filter(|_| is_in_use && has_attempts)
        .and_then(|(kind, protocol)| lease(handle.family, kind, protocol, rules, random));
    let opening = &mut openings.by_family[handle.family.index()];
    let Opening::Waiting { lease, sibling, .. } = core::mem::replace(opening, Opening::Unwanted)
    else {
        return false;
    };
    match (result, retry) {
        (Ok(Opened { endpoint, beside }), _) => {
            *opening = Opening::Open {
                endpoint,
                lease: Lease::Own(lease),
                sibling: sibling.map(|lease| ReservedPort {
                    held: beside,
                    lease,
                }),
            }
        }
        (Err(_), Some((other, other_sibling))) => {
            let attempt = attempt.saturating_add(1);
            let request = RelayRequest { handle, attempt };
            out.outbox
                .open_relay(request, &other, other_sibling.as_ref(), None);
            *opening = Opening::Waiting {
                attempt,
                lease: other,
                sibling: other_sibling,
            };
            openings.in_use.push(lease);
        }
        (Err(why), None) => {
            *opening = Opening::Failed(Reject::InsufficientCapacity(Limit::Socket(why).into()))
        }
    }
    openings.are_answered()
}
