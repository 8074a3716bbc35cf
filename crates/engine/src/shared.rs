//! Peers of shared relay sockets (coturn's `multiplex-peer`).
//!
//! A datagram that arrives at a shared socket names its allocation by nothing but the peer's address and port. So each peer belongs to
//! one allocation: the one that named it first, in a CreatePermission or ChannelBind request or a Send indication. It is held as long as
//! a permission for its address or a channel to it lives. Allocations with sockets of their own claim nothing.

use crate::address::PeerAddress;
use crate::allocation::{Allocation, Entry};
use crate::allocations::Allocations;
use crate::change::Change;
use crate::drop_reason::DropReason;
use crate::id::{AllocationId, Family};
use crate::out::Out;
use crate::reject::{Reject, SharedRefusal};
use crate::rules::Rules;
use crate::time::Time;

/// Why an allocation cannot have a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Another allocation has it.
    Taken,
    /// The allocation has as many as it may have.
    Limit,
}

impl From<Refused> for Reject {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Taken => Self::Shared(SharedRefusal::Taken),
            Refused::Limit => Self::Shared(SharedRefusal::Limit),
        }
    }
}

impl From<Refused> for DropReason {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Taken => Self::PeerTaken,
            Refused::Limit => Self::PeerLimit,
        }
    }
}

/// Returns whether an allocation may have all of `peers`, which are distinct. The others of one that may not have all are not claimed.
pub(crate) fn check_claims(
    id: AllocationId,
    peers: impl IntoIterator<Item = PeerAddress>,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> Result<(), Refused> {
    let Some(shared) = &rules.config.relays.shared else {
        return Ok(());
    };
    let mut count = allocations.claims.count(id);
    for peer in peers {
        let is_claimable = allocations
            .live(id)
            .is_some_and(|allocation| can_claim(allocation, peer));
        if !is_claimable {
            continue;
        }
        match holder(peer, now, allocations) {
            Some(owner) if owner == id => {}
            // guard: V-29-taken
            Some(_) => return Err(Refused::Taken),
            None => {
                count += 1;
                // guard: V-45-claims
                if count > usize::from(shared.peers_per_allocation) {
                    report_limit(id, peer, shared.peers_per_allocation, allocations, out);
                    return Err(Refused::Limit);
                }
            }
        }
    }
    Ok(())
}

/// Gives a peer to an allocation that may have it. The claim lasts from now on as long as [`holds`] says.
pub(crate) fn claim(
    id: AllocationId,
    peer: PeerAddress,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(allocation) = allocations.live(id) else {
        return;
    };
    let owner = allocations.claims.owner(peer);
    if !can_claim(allocation, peer) || owner == Some(id) {
        return;
    }
    if let Some(stale) = owner {
        // its hold has run out, and its timer has not fired yet
        allocations.claims.retain(stale, |held| held != peer);
    }
    allocations.claims.insert(peer, id);
    out.changes.push_back(Change::PeerClaimed {
        allocation: id,
        peer: peer.address(),
    });
}

/// Checks and claims the one peer of a Send indication.
pub(crate) fn claim_for_data(
    id: AllocationId,
    peer: PeerAddress,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> Result<(), Refused> {
    if rules.config.relays.shared.is_none() || allocations.claims.owner(peer) == Some(id) {
        return Ok(());
    }
    check_claims(id, [peer], now, rules, allocations, out)?;
    // mutant: send-claims-nothing
    claim(id, peer, allocations, out);
    Ok(())
}

/// Gives back the peers of an allocation that no permission and no channel of it holds any more.
pub(crate) fn release(id: AllocationId, allocations: &mut Allocations) {
    let Allocations { table, claims, .. } = allocations;
    if let Some(Entry::Live(allocation)) = table.at(id) {
        // mutant: claims-outlive-permission
        claims.retain(id, |peer| {
            allocation.permissions.contains(peer.ip())
                || allocation.channels.of_peer(peer).is_some()
        });
    }
}

/// Returns whether a peer is one that the allocation reaches through a shared socket. Port 0 is that of a permission for an address as
/// a whole, and names no peer.
fn can_claim(allocation: &Allocation, peer: PeerAddress) -> bool {
    let relay = allocation.relay(Family::of(&peer.address()));
    peer.port() != 0 && relay.is_some_and(|relay| relay.lease.is_shared())
}

/// Returns the allocation that holds a peer at this moment, although timers may be a tick late.
fn holder(peer: PeerAddress, now: Time, allocations: &Allocations) -> Option<AllocationId> {
    let owner = allocations.claims.owner(peer)?;
    let allocation = allocations.live(owner)?;
    holds(allocation, peer, now).then_some(owner)
}

/// Returns whether a permission or a channel of an allocation holds a peer.
fn holds(allocation: &Allocation, peer: PeerAddress, now: Time) -> bool {
    let channel = allocation.channels.of_peer(peer);
    let family = Family::of(&peer.address());
    allocation.live_relay(family, now).is_some()
        && (allocation.permissions.permits(peer.ip(), now)
            || channel.is_some_and(|channel| now < channel.expires))
}

/// Reports once for each allocation that it wants more peers than it may have.
fn report_limit(
    id: AllocationId,
    peer: PeerAddress,
    limit: u16,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    if allocations.claims.report_limit(id) {
        out.changes.push_back(Change::PeerLimitReached {
            allocation: id,
            peer: peer.address(),
            limit,
        });
    }
}
