//! Send indications (RFC 8656 §11.2).

use crate::allocation::Entry;
use crate::allocations::Allocations;
use crate::bandwidth::Direction;
use crate::command::{Outcome, SendRoute};
use crate::drop_reason::DropReason;
use crate::id::{Family, RelayProtocol};
use crate::mobility;
use crate::out::Out;
use crate::request::Request;
use crate::rules::Rules;
use crate::shared;

/// Handles a Send indication (RFC 8656 §11.2). Indications are not authenticated: the 5-tuple and the permission are what authorises them.
pub(crate) fn send(
    request: &Request<'_>,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> Outcome {
    match route_send(request, rules, allocations, out) {
        Ok(route) => Outcome::Relay(route),
        Err(reason) => Outcome::Dropped(reason),
    }
}

fn route_send(
    request: &Request<'_>,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> Result<SendRoute, DropReason> {
    let message = &request.message;
    let now = request.now.time;
    let id = allocations
        .client(&request.from)
        .ok_or(DropReason::NoAllocation)?;
    if allocations.has_new_paths() {
        mobility::client_of_data(&request.from, request.now, rules, allocations, out);
    }
    let (Ok(Some(peer)), Some(data)) = (message.xor_peer_address(), message.data_range()) else {
        return Err(DropReason::IndicationMalformed);
    };
    let dont_fragment = message
        .dont_fragment()
        .map_err(|_| DropReason::IndicationMalformed)?;
    if dont_fragment && !rules.config.relays.dont_fragment {
        return Err(DropReason::FragmentationUnsupported);
    }
    let user = allocations.table.at(id).map(Entry::user);
    let policy = user.map_or(&rules.policies.usual, |user| rules.policies.of(user));
    let allowed = policy.check(peer).ok();
    let allowed = allowed.filter(|&peer| rules.commons.ports.may_reach(peer));
    let allocation = allocations.live_mut(id).ok_or(DropReason::NoAllocation)?;
    let bytes = data.len() as u64;
    allocation.usage.client_received.add(1, bytes);
    if allocation.protocol() == RelayProtocol::Tcp {
        return Err(DropReason::RelayIsStream);
    }
    let peer = allowed.ok_or(DropReason::PeerForbidden)?;
    if peer.peer().port() == 0 {
        return Err(DropReason::IndicationMalformed);
    }
    let family = Family::of(&peer.peer().address());
    if allocation.relay(family).is_none() {
        return Err(DropReason::PeerFamilyMismatch);
    }
    // mutant: relay-of-another
    let relay = allocation
        .live_relay(family, now)
        .ok_or(DropReason::NoAllocation)?
        .endpoint;
    // guard: V-13-send
    if !allocation.permissions.permits(peer.ip(), now) {
        return Err(DropReason::NoPermission);
    }
    shared::claim_for_data(id, peer.peer(), now, rules, allocations, out)?;
    let allocation = allocations.live_mut(id).ok_or(DropReason::NoAllocation)?;
    allocation
        .account
        .shape(Direction::ToPeers, now, 1, bytes)?;
    // mutant: send-refreshes-permission
    allocation.usage.peer_sent.add(1, bytes);
    // only IPv4 to IPv4 has a DF bit to set; in translations the attribute is ignored (RFC 8656 §13, §14)
    let is_v4 = family == Family::V4 && Family::of(&request.from.remote) == Family::V4;
    let dont_fragment = dont_fragment && is_v4;
    Ok(SendRoute {
        relay,
        peer,
        data,
        dont_fragment,
    })
}
