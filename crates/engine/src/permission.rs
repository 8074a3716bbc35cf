//! CreatePermission (RFC 8656 §10).

use core::net::IpAddr;

use crate::address::PeerAddress;
use crate::allocations::Allocations;
use crate::auth::Proof;
use crate::change::Change;
use crate::id::AllocationId;
use crate::out::Out;
use crate::refusal::Limit;
use crate::reject::Reject;
use crate::request::Request;
use crate::rules::Rules;
use crate::shared;
use crate::time::Time;

/// Sorts and takes out what is there twice: a message of 64 KiB has room for 5,400 peers.
fn sort_distinct<T: Ord>(peers: &mut Vec<T>) {
    peers.sort_unstable();
    peers.dedup();
}

/// Handles a CreatePermission request (RFC 8656 §10.2), all or nothing: if one address is refused, none is installed.
pub(crate) fn create_permission(
    request: &Request<'_>,
    proof: &Proof,
    peers: &mut Vec<PeerAddress>,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> Result<(), Reject> {
    let now = request.now.time;
    let id = allocations.of_request(request, proof, &rules.config)?;
    let checked = check_permissions(id, request, peers, rules, allocations).and_then(|()| {
        let peers = peers.iter().copied();
        Ok(shared::check_claims(
            id,
            peers,
            now,
            rules,
            allocations,
            out,
        )?)
    });
    if checked.is_ok() {
        let expires = now + rules.config.lifetimes.permission;
        for of_one in peers.chunk_by(|one, next| one.ip() == next.ip()) {
            for &peer in of_one {
                // mutant: permission-claims-nothing
                shared::claim(id, peer, allocations, out);
            }
            install_permission(id, of_one[0].ip(), expires, allocations, out);
        }
        out.reply_success(
            &rules.config,
            &request.envelope(),
            proof.response_key.as_ref(),
            |_, _| {},
        );
    }
    peers.clear();
    checked
}

/// Collects the peers of a CreatePermission request, each once, if all of them are to be had. The port of a peer means nothing to its
/// permission.
fn check_permissions(
    id: AllocationId,
    request: &Request<'_>,
    peers: &mut Vec<PeerAddress>,
    rules: &Rules,
    allocations: &Allocations,
) -> Result<(), Reject> {
    let limit = usize::from(rules.config.limits.permissions_per_allocation);
    let allocation = allocations.live(id).ok_or(Reject::AllocationMismatch)?;
    let policy = rules.policies.of(allocation.account.user());
    let mut refused = None;
    for peer in request.message.xor_peer_addresses() {
        let peer = peer.map_err(|_| Reject::BadRequest("XOR-PEER-ADDRESS malformed"))?; // any invalid one makes the request invalid
        let result = match policy.check(peer) {
            _ if !allocation.serves(peer) => Err(Reject::PeerFamilyMismatch),
            Ok(allowed) => {
                peers.push(allowed.peer());
                Ok(())
            }
            // mutant: permission-without-policy
            Err(_) => Err(Reject::Forbidden),
        };
        if refused.is_none() {
            refused = result.err();
        }
    }
    // guard: V-13-all-or-nothing
    if let Some(reject) = refused {
        return Err(reject);
    }
    if peers.is_empty() {
        return Err(Reject::BadRequest("XOR-PEER-ADDRESS missing"));
    }
    sort_distinct(peers);
    let added = peers
        .chunk_by(|one, next| one.ip() == next.ip())
        .filter(|of_one| !allocation.permissions.contains(of_one[0].ip()))
        .count();
    // guard: V-45-permissions
    if allocation.permissions.len() + added > limit {
        let limit = Limit::Permissions(rules.config.limits.permissions_per_allocation);
        return Err(Reject::InsufficientCapacity(limit.into()));
    }
    Ok(())
}

/// Installs or refreshes a permission that has been checked.
pub(crate) fn install_permission(
    id: AllocationId,
    peer: IpAddr,
    expires: Time,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    if let Some(allocation) = allocations.live_mut(id) {
        let is_new = allocation.permissions.install(peer, expires);
        out.changes.push_back(Change::PermissionInstalled {
            allocation: id,
            peer,
            expires,
            is_new,
        });
        allocations.wake_by(id, expires);
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use core::cmp::Ordering;

    use super::sort_distinct;

    #[test]
    fn peers_of_one_request_are_told_apart_in_few_comparisons() {
        struct Counted<'c>(u32, &'c Cell<u32>);
        impl PartialEq for Counted<'_> {
            fn eq(&self, other: &Self) -> bool {
                self.cmp(other).is_eq()
            }
        }
        impl Eq for Counted<'_> {}
        impl PartialOrd for Counted<'_> {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Ord for Counted<'_> {
            fn cmp(&self, other: &Self) -> Ordering {
                self.1.set(self.1.get() + 1);
                self.0.cmp(&other.0)
            }
        }
        // as many as fit a message, in no order, most of them twice
        let comparisons = Cell::new(0);
        let peer = |number: u32| Counted(number.wrapping_mul(2_654_435_761) % 3_000, &comparisons);
        let mut peers: Vec<Counted<'_>> = (0..5_400).map(peer).collect();
        sort_distinct(&mut peers);
        assert!(peers.is_sorted_by(|one, next| one.0 < next.0));
        // 5,400 squared is 29 million
        assert!(comparisons.get() < 200_000, "{}", comparisons.get());
    }
}
