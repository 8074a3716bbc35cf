//! ChannelBind (RFC 8656 §12.2).

use turnbuckle_wire::ChannelNumber;

use crate::address::PeerAddress;
use crate::allocations::Allocations;
use crate::auth::Proof;
use crate::change::Change;
use crate::id::{AllocationId, RelayProtocol};
use crate::out::Out;
use crate::permission;
use crate::policy::AllowedPeer;
use crate::refusal::Limit;
use crate::reject::Reject;
use crate::request::Request;
use crate::rules::Rules;
use crate::shared;
use crate::time::Time;

/// Handles a ChannelBind request (RFC 8656 §12.2).
pub(crate) fn bind_channel(
    request: &Request<'_>,
    proof: &Proof,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> Result<(), Reject> {
    let now = request.now.time;
    let id = allocations.of_request(request, proof, &rules.config)?;
    if allocations
        .live(id)
        .is_some_and(|allocation| allocation.protocol() == RelayProtocol::Tcp)
    {
        return Err(Reject::Forbidden); // there is nothing that a channel of a stream could carry
    }
    let (number, peer) = check_channel(id, request, rules, allocations)?;
    shared::check_claims(id, [peer.peer()], now, rules, allocations, out)?;
    // mutant: channel-claims-nothing
    shared::claim(id, peer.peer(), allocations, out);
    let permission_expires = now + rules.config.lifetimes.permission;
    permission::install_permission(id, peer.ip(), permission_expires, allocations, out);
    install_channel(
        id,
        number,
        peer,
        now + rules.config.lifetimes.channel,
        allocations,
        out,
    );
    // mutant: two-answers
    out.reply_success(
        &rules.config,
        &request.envelope(),
        proof.response_key.as_ref(),
        |_, _| {},
    );
    Ok(())
}

fn check_channel(
    id: AllocationId,
    request: &Request<'_>,
    rules: &Rules,
    allocations: &mut Allocations,
) -> Result<(ChannelNumber, AllowedPeer), Reject> {
    let message = &request.message;
    let (Ok(Some(number)), Ok(Some(peer))) = (message.channel_number(), message.xor_peer_address())
    else {
        return Err(Reject::BadRequest(
            "CHANNEL-NUMBER or XOR-PEER-ADDRESS missing or malformed",
        ));
    };
    let valid = if rules.config.relays.rfc5766_channel_numbers {
        ChannelNumber::from_rfc5766(number)
    } else {
        ChannelNumber::try_from(number)
    };
    let Ok(number) = valid else {
        if (0x5000..=0x7FFF).contains(&number) {
            // legal for RFC 5766 clients
            allocations.channel_numbers_reserved += 1;
        }
        return Err(Reject::BadRequest("Channel number out of range"));
    };
    let address = PeerAddress::new(peer);
    let allocation = allocations.live(id).ok_or(Reject::AllocationMismatch)?;
    let channels = &allocation.channels;
    let bound_elsewhere = channels
        .of_number(number.get())
        .is_some_and(|channel| channel.peer.peer() != address)
        || channels
            .of_peer(address)
            .is_some_and(|channel| channel.number != number);
    // guard: V-29-conflict
    if bound_elsewhere || address.port() == 0 {
        return Err(Reject::BadRequest(
            "Channel or peer bound otherwise, or peer port 0",
        ));
    }
    if !allocation.serves(peer) {
        // mutant: family-not-checked
        return Err(Reject::PeerFamilyMismatch);
    }
    let policy = rules.policies.of(allocation.account.user());
    let peer = policy.check(peer).map_err(|_| Reject::Forbidden)?;
    if !rules.commons.ports.may_reach(peer) {
        return Err(Reject::Forbidden);
    }
    let limits = &rules.config.limits;
    // guard: V-45-channels
    let channel_fits = channels.of_number(number.get()).is_some()
        || channels.len() < usize::from(limits.channels_per_allocation);
    let permission_fits = allocation.permissions.contains(peer.ip())
        || allocation.permissions.len() < usize::from(limits.permissions_per_allocation);
    let limit = match (channel_fits, permission_fits) {
        (true, true) => return Ok((number, peer)),
        (false, _) => Limit::Channels(limits.channels_per_allocation),
        (true, false) => Limit::Permissions(limits.permissions_per_allocation),
    };
    Err(Reject::InsufficientCapacity(limit.into()))
}

/// Binds a channel that has been checked.
pub(crate) fn install_channel(
    id: AllocationId,
    number: ChannelNumber,
    peer: AllowedPeer,
    expires: Time,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    if let Some(allocation) = allocations.live_mut(id) {
        allocation.channels.install(number, peer, expires);
        let peer = peer.peer().address();
        out.changes.push_back(Change::ChannelInstalled {
            allocation: id,
            number,
            peer,
            expires,
        });
        allocations.wake_by(id, expires);
    }
}
