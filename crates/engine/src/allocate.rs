//! Allocate (RFC 8656 §7.2).
//!
//! The request is checked and everything it needs is taken at once: a quota unit and the ports. Then the host opens the
//! sockets, and [`settle`] answers. Whatever goes wrong in between, dropping what was taken gives it back.

mod settle;

use std::sync::Arc;

use turnbuckle_wire::{AddressFamily, AttributeError, AttributeType, Method};

use self::settle::answer_allocate;
pub(crate) use self::settle::settle;
use crate::account::Account;
use crate::allocation::lease::Lease;
use crate::allocation::opening::{Opening, Openings};
use crate::allocation::{Entry, Pending, Wish};
use crate::allocations::Allocations;
use crate::auth::{Authenticator, CanonicalOrigin, Proof};
use crate::bandwidth::Exhausted;
use crate::config::{Config, DefaultFamily};
use crate::held::HeldPort;
use crate::id::{AllocationId, Family, RelayProtocol};
use crate::mobility;
use crate::opening::{OPENING_MAX, ask_host, lease};
use crate::out::Out;
use crate::ports::{PortKind, PortLease};
use crate::quota::QuotaUnit;
use crate::random::Random;
use crate::redirect;
use crate::refusal::{Limit, Refusal};
use crate::reject::{Reject, SharedRefusal};
use crate::request::{Answered, Request};
use crate::reservation::{ReservationToken, ReservedPort};
use crate::rules::Rules;
use crate::time::Time;

/// The numbers of TCP and UDP in REQUESTED-TRANSPORT.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The values that an Allocate request is granted, if the host can open the sockets.
struct Granted {
    openings: [Opening; 2],
    /// The socket at the port of the only opening, if that was reserved.
    held: Option<HeldPort>,
    quota: QuotaUnit,
    /// The unit of the port that it reserves.
    reserves: Option<QuotaUnit>,
}

/// Handles an Allocate request after step 1 of RFC 8656 §7.2, its authentication.
pub(crate) fn allocate(
    request: &Request<'_>,
    proof: &Proof,
    rules: &Rules,
    authenticator: &mut Authenticator,
    allocations: &mut Allocations,
    out: &mut Out,
    random: &mut impl Random,
) -> Result<Answered, Reject> {
    let now = request.now.time;
    let transaction = request.message.transaction_id();

    // Step 2: the 5-tuple is in use. A retransmission of the request that created the allocation gets the same answer again.
    if let Some(id) = allocations.client(&request.from) {
        return allocate_again(id, request, proof, rules, allocations, out);
    }
    if allocations
        .tombstones
        .find(request.from, transaction, now)
        .is_some()
    {
        // guard: V-22-replayed-allocation
        return Err(Reject::AllocationMismatch); // it created one already, and that has ended
    }
    // Step 11 allows this at any point: here it is the first thing to know for who has nothing here yet.
    if redirect::redirect(request, proof.response_key.as_ref(), rules, out).is_some() {
        return Ok(Answered::Now);
    }
    if rules.is_draining {
        return Err(Reject::Draining);
    }
    if !rules.policies.usual.accepts_client(request.from.remote) {
        return Err(Reject::ClientDenied); // RFC 8656 §21.4
    }

    // Steps 3 and 5 to 9, as far as the request alone decides. Step 4 is among the unknown attributes.
    let wish = read_wish(request, rules)?;

    // Step 5: the token can be redeemed.
    if let Some(token) = wish.token
        && !rules.commons.reservations.holds(token, now)
    {
        return Err(Reject::InsufficientCapacity(Refusal::ReservationUnknown));
    }

    // Step 10: the quota. Before it come this engine's own bounds, so that what the ledger counts can be had.
    let limits = &rules.config.limits;
    // mutant: allocations-without-limit
    if allocations.table.len() >= limits.allocations as usize {
        let limit = Limit::Allocations(limits.allocations);
        return Err(Reject::InsufficientCapacity(limit.into()));
    }
    if allocations.pending >= limits.pending_opens as usize {
        let limit = Limit::PendingOpens(limits.pending_opens);
        return Err(Reject::InsufficientCapacity(limit.into()));
    }
    let shaper = rules.commons.bandwidth.reserve(&proof.user.realm);
    let shaper = shaper.map_err(|Exhausted| Reject::QuotaReached(Limit::Bandwidth))?;
    let Granted {
        openings,
        held,
        quota,
        reserves,
    } = match wish.token {
        Some(token) => redeem(token, proof, now, rules)?,
        None => grant(&wish, proof, now, rules, random)?,
    };
    let protocol = wish.protocol;
    // a token is for one port
    let other = wish.token.is_none().then_some((wish.port, protocol));
    let deadline = now + OPENING_MAX;
    let pending = Box::new(Pending {
        envelope: request.envelope(),
        key: proof.response_key.clone(),
        account: Account::new(quota, shaper),
        reserves,
        origin: CanonicalOrigin::first_of(&request.message),
        openings: Openings::new(openings, other, deadline),
        wish,
    });
    let id = allocations.table.insert(Entry::Pending(pending));
    allocations.pending += 1;
    allocations.wheel.schedule(id.index, deadline);
    ask_host(id, held, allocations, out);
    if rules.shares(protocol) {
        settle(
            id,
            request.now,
            rules,
            authenticator,
            allocations,
            out,
            random,
        );
        return Ok(Answered::Now);
    }
    Ok(Answered::Later)
}

/// Answers an Allocate request on a 5-tuple that has an allocation. The transaction that created it gets the same answer again
/// (RFC 8656 §7.2, the note at its end); any other request gets 437.
fn allocate_again(
    id: AllocationId,
    request: &Request<'_>,
    proof: &Proof,
    rules: &Rules,
    allocations: &Allocations,
    out: &mut Out,
) -> Result<Answered, Reject> {
    let envelope = request.envelope();
    match allocations.table.at(id) {
        // mutant: 437-for-a-retransmission
        Some(Entry::Live(allocation))
            if allocation.transaction == envelope.transaction
                && allocation.account.user().is_same_as(&proof.user) =>
        {
            let lifetime = allocation.expires().since(request.now.time);
            answer_allocate(
                id,
                &envelope,
                proof.response_key.as_ref(),
                lifetime,
                rules,
                allocations,
                out,
            );
            Ok(Answered::Now)
        }
        Some(Entry::Pending(pending))
            if pending.envelope.transaction == envelope.transaction
                && pending.account.user().is_same_as(&proof.user) =>
        {
            // mutant: second-request-while-opening
            Ok(Answered::InProgress)
        }
        _ => Err(Reject::AllocationMismatch),
    }
}

/// Returns whether this server understands DONT-FRAGMENT in this request: step 4 of RFC 8656 §7.2.
///
/// It does not in a request that asks for translation from IPv4 to IPv6. A socket does not show the DF bit of what the client
/// sends, and without it the request has to be refused (RFC 8656 §3.7).
pub(crate) fn serves_dont_fragment(request: &Request<'_>, config: &Config) -> bool {
    let message = &request.message;
    let translates = message.method() == Method::ALLOCATE
        && Family::of(&request.from.remote) == Family::V4
        && (message.has_additional_address_family()
            || requested_family(request, config) == Ok(Family::V6));
    config.relays.dont_fragment && !translates
}

/// Performs step 7 of RFC 8656 §7.2, as far as the request and the configuration decide it.
fn requested_family(request: &Request<'_>, config: &Config) -> Result<Family, Reject> {
    match request.message.requested_address_family() {
        Ok(Some(AddressFamily::V4)) => Ok(Family::V4),
        Ok(Some(AddressFamily::V6)) => Ok(Family::V6),
        Ok(None) => Ok(match config.relays.default_family {
            DefaultFamily::V4 => Family::V4,
            DefaultFamily::V6 => Family::V6,
            DefaultFamily::Client => Family::of(&request.from.remote),
        }),
        Err(AttributeError::UnsupportedFamily(_)) => Err(Reject::FamilyUnsupported),
        Err(AttributeError::Length | AttributeError::Value) => {
            Err(Reject::BadRequest("REQUESTED-ADDRESS-FAMILY malformed"))
        }
    }
}

/// Takes steps 3 and 5 to 9 of RFC 8656 §7.2, as far as they look at the request and the configuration alone.
fn read_wish(request: &Request<'_>, rules: &Rules) -> Result<Wish, Reject> {
    let message = &request.message;
    // Step 3
    let protocol = match message.requested_transport() {
        Ok(Some(UDP)) if rules.config.relays.udp => RelayProtocol::Udp,
        Ok(Some(UDP)) => return Err(Reject::Forbidden), // RFC 6062 §5.1
        Ok(Some(TCP)) if rules.config.relays.tcp.is_some() => RelayProtocol::Tcp,
        Ok(Some(_)) => return Err(Reject::TransportUnsupported),
        Ok(None) | Err(_) => {
            return Err(Reject::BadRequest(
                "REQUESTED-TRANSPORT missing or malformed",
            ));
        }
    };
    let needs_udp = [
        AttributeType::DONT_FRAGMENT,
        AttributeType::EVEN_PORT,
        AttributeType::RESERVATION_TOKEN,
    ];
    if protocol == RelayProtocol::Tcp
        && (!request.from.transport.is_stream()
            || needs_udp.iter().any(|&kind| message.contains(kind)))
    {
        return Err(Reject::BadRequest(
            "TCP relay over UDP, or with an attribute of UDP relays",
        )); // RFC 6062 §5.1
    }
    let even_port = message
        .even_port()
        .map_err(|_| Reject::BadRequest("EVEN-PORT malformed"))?;
    let token = message
        .reservation_token()
        .map_err(|_| Reject::BadRequest("RESERVATION-TOKEN malformed"))?
        // coturn's client sends a token of zeros where it has none.
        .filter(|token| *token != [0; 8])
        .map(ReservationToken);
    let lifetime = message
        .lifetime()
        .map_err(|_| Reject::BadRequest("LIFETIME malformed"))?;
    let is_mobile = mobility::wants_ticket(request, protocol, rules)?;
    let names_family = message.contains(AttributeType::REQUESTED_ADDRESS_FAMILY);
    let names_additional = message.has_additional_address_family();

    if rules.shares(protocol) && token.is_some() {
        return Err(Reject::Shared(SharedRefusal::Token));
    }
    if rules.shares(protocol) && even_port.is_some() {
        return Err(Reject::Shared(SharedRefusal::EvenPort));
    }

    // Step 5
    if token.is_some() && (even_port.is_some() || names_family || names_additional) {
        return Err(Reject::BadRequest(
            "RESERVATION-TOKEN with EVEN-PORT or an address family",
        ));
    }
    // Step 6
    if names_family && names_additional {
        return Err(Reject::BadRequest(
            "REQUESTED-ADDRESS-FAMILY with ADDITIONAL-ADDRESS-FAMILY",
        ));
    }
    // Step 7
    let family = requested_family(request, &rules.config)?;
    // Step 8
    if even_port == Some(true) && names_additional {
        return Err(Reject::BadRequest(
            "EVEN-PORT with ADDITIONAL-ADDRESS-FAMILY",
        ));
    }
    // Step 9
    let is_dual = match message.additional_address_family() {
        Ok(None) => false,
        Ok(Some(AddressFamily::V6)) => true,
        Ok(Some(AddressFamily::V4)) | Err(AttributeError::Length | AttributeError::Value) => {
            return Err(Reject::BadRequest(
                "ADDITIONAL-ADDRESS-FAMILY malformed or not IPv6",
            ));
        }
        Err(AttributeError::UnsupportedFamily(_)) => return Err(Reject::FamilyUnsupported),
    };
    if !is_dual && token.is_none() && !rules.supports(family, protocol) {
        return Err(Reject::FamilyUnsupported);
    }
    let port = match even_port {
        None => PortKind::Any,
        Some(false) => PortKind::Even,
        Some(true) => PortKind::EvenPair,
    };
    let families = [
        is_dual || family == Family::V4,
        is_dual || family == Family::V6,
    ];
    Ok(Wish {
        families,
        port,
        protocol,
        token,
        lifetime,
        is_mobile,
    })
}

/// Redeems a reservation token. Returns the port that was reserved, and its unit of the quota.
fn redeem(
    token: ReservationToken,
    proof: &Proof,
    now: Time,
    rules: &Rules,
) -> Result<Granted, Reject> {
    let (reservations, quota) = (&rules.commons.reservations, &rules.commons.quota);
    reservations.purge(now); // what has ended counts for nobody
    let charge = |unit| {
        let turned = quota.turn_over(unit, &proof.user);
        turned.map_err(|unit| (unit, quota.reached(&proof.user, 1)))
    };
    let (ReservedPort { held, lease }, quota) = reservations.redeem(token, now, charge)?;
    let mut openings = [Opening::Unwanted, Opening::Unwanted];
    let family = lease.family();
    openings[family.index()] = Opening::Waiting {
        attempt: 0,
        lease,
        sibling: None,
    };
    Ok(Granted {
        openings,
        held,
        quota,
        reserves: None,
    })
}

/// Takes steps 8 to 10 of RFC 8656 §7.2 for a request without a token: the ports and the quota.
fn grant(
    wish: &Wish,
    proof: &Proof,
    now: Time,
    rules: &Rules,
    random: &mut impl Random,
) -> Result<Granted, Reject> {
    let reserves = wish.port == PortKind::EvenPair;
    let count = 1 + u32::from(reserves);
    if !rules.commons.quota.has_room(&proof.user, count) {
        rules.commons.reservations.purge(now); // what has ended counts for nobody
        if !rules.commons.quota.has_room(&proof.user, count) {
            return Err(rules.commons.quota.reached(&proof.user, count));
        }
    }
    // mutant: dual-counts-twice
    let openings = lease_ports(wish, now, rules, random)?;
    // The units come last: one that is held by a request that fails would be missed by another that is refused meanwhile.
    let quota = &rules.commons.quota;
    let units = if reserves {
        quota
            .take(&proof.user)
            .map(|[quota, reserved]| (quota, Some(reserved)))
    } else {
        quota.take(&proof.user).map(|[quota]| (quota, None))
    };
    let (quota, reserves) = units.ok_or_else(|| rules.commons.quota.reached(&proof.user, count))?;
    Ok(Granted {
        openings,
        held: None,
        quota,
        reserves,
    })
}

/// Leases what is wished for; in a dual allocation one family may fail (RFC 8656 §7.2 step 9).
fn lease_ports(
    wish: &Wish,
    now: Time,
    rules: &Rules,
    random: &mut impl Random,
) -> Result<[Opening; 2], Reject> {
    let mut openings = [Opening::Unwanted, Opening::Unwanted];
    if wish.port == PortKind::EvenPair && !rules.commons.reservations.has_room(now) {
        return Err(Reject::InsufficientCapacity(Limit::Reservations.into()));
    }
    for family in [Family::V4, Family::V6] {
        if wish.families[family.index()] {
            let shared = rules.shared[family.index()].as_ref();
            openings[family.index()] = if !rules.supports(family, wish.protocol) {
                Opening::Failed(Reject::FamilyUnsupported)
            } else if let Some(relay) = shared.filter(|_| rules.shares(wish.protocol)) {
                Opening::Open {
                    endpoint: relay.endpoint,
                    lease: Lease::Shared(Arc::clone(relay)),
                    sibling: None,
                }
            } else if let Some((lease, sibling)) = lease_or_purge(family, wish, now, rules, random)
            {
                Opening::Waiting {
                    attempt: 0,
                    lease,
                    sibling,
                }
            } else {
                Opening::Failed(Reject::InsufficientCapacity(
                    ports_taken(family, rules).into(),
                ))
            };
        }
    }
    let any = openings
        .iter()
        .any(|opening| matches!(opening, Opening::Waiting { .. } | Opening::Open { .. }));
    if any {
        return Ok(openings);
    }
    let family = match wish.families[Family::V4.index()] {
        true => Family::V4,
        false => Family::V6,
    };
    Err(Reject::InsufficientCapacity(
        ports_taken(family, rules).into(),
    ))
}

/// Returns the limit that is reached when no port of `family` is free.
fn ports_taken(family: Family, rules: &Rules) -> Limit {
    let ports = &rules.config.relays.ports;
    Limit::Ports {
        family,
        first: *ports.start(),
        last: *ports.end(),
    }
}

/// Leases a port of `family`, of an expired reservation too where no other is free: its engine may have failed, and its timer with it.
fn lease_or_purge(
    family: Family,
    wish: &Wish,
    now: Time,
    rules: &Rules,
    random: &mut impl Random,
) -> Option<(PortLease, Option<PortLease>)> {
    let leased = lease(family, wish.port, wish.protocol, rules, random);
    if leased.is_some() {
        return leased;
    }
    rules.commons.reservations.purge(now);
    lease(family, wish.port, wish.protocol, rules, random)
}
