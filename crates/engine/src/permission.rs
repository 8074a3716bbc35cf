//! Permissions (RFC 8656 §9) and CreatePermission (RFC 8656 §10).

use core::net::IpAddr;

use crate::auth::Proof;
use crate::change::Change;
use crate::engine::Engine;
use crate::id::{AllocationId, Family};
use crate::random::Random;
use crate::reject::Reject;
use crate::reply::Request;
use crate::time::Time;

/// The permissions of one allocation, sorted by address.
#[derive(Debug, Default)]
pub(crate) struct Permissions(Vec<Permission>);

#[derive(Clone, Copy, Debug)]
struct Permission {
    peer: IpAddr,
    expires: Time,
}

impl Permissions {
    /// Whether a live permission for `peer` exists; the port plays no part (RFC 8656 §9).
    #[inline]
    pub(crate) fn permits(&self, peer: IpAddr, now: Time) -> bool {
        // guard: V-13-expiry-to-the-nanosecond
        self.find(peer)
            .is_ok_and(|index| now < self.0[index].expires)
    }

    pub(crate) fn contains(&self, peer: IpAddr) -> bool {
        self.find(peer).is_ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn install(&mut self, peer: IpAddr, expires: Time) {
        match self.find(peer) {
            Ok(index) => self.0[index].expires = expires,
            Err(index) => {
                if self.0.is_empty() {
                    self.0.reserve_exact(1); // most allocations have one, and `insert` would make room for four
                }
                self.0.insert(index, Permission { peer, expires });
            }
        }
    }

    pub(crate) fn nearest_deadline(&self) -> Option<Time> {
        self.0.iter().map(|permission| permission.expires).min()
    }

    /// Removes what has run out.
    pub(crate) fn expire(&mut self, now: Time, mut expired: impl FnMut(IpAddr)) {
        // guard: V-13-expiry
        self.retain(|permission| now < permission.expires, &mut expired);
    }

    pub(crate) fn remove_family(&mut self, family: Family) {
        self.retain(
            |permission| permission.peer.is_ipv4() != (family == Family::V4),
            &mut |_| {},
        );
    }

    /// Removes what `keep` does not want to keep.
    pub(crate) fn retain_peers(
        &mut self,
        keep: impl Fn(IpAddr) -> bool,
        mut removed: impl FnMut(IpAddr),
    ) {
        self.retain(|permission| keep(permission.peer), &mut removed);
    }

    fn retain(&mut self, keep: impl Fn(&Permission) -> bool, removed: &mut impl FnMut(IpAddr)) {
        self.0.retain(|permission| {
            let kept = keep(permission);
            if !kept {
                removed(permission.peer);
            }
            kept
        });
    }

    #[inline]
    fn find(&self, peer: IpAddr) -> Result<usize, usize> {
        self.0
            .binary_search_by(|permission| permission.peer.cmp(&peer))
    }
}

/// Sorts and takes out what is there twice: a message of 64 KiB has room for 5,400 peers.
fn sort_distinct<T: Ord>(peers: &mut Vec<T>) {
    peers.sort_unstable();
    peers.dedup();
}

impl<R: Random> Engine<R> {
    /// RFC 8656 §10.2. All or nothing: one address that is refused, and none is installed.
    pub(crate) fn create_permission(
        &mut self,
        request: &Request<'_>,
        proof: &Proof,
    ) -> Result<(), Reject> {
        let now = request.now.time;
        let id = self.allocation_of(request, proof)?;
        let mut peers = core::mem::take(&mut self.peers);
        let checked = self.check_permissions(id, request, &mut peers);
        if checked.is_ok() {
            let expires = now + self.config.lifetimes.permission;
            for &peer in &peers {
                self.install_permission(id, peer, expires);
            }
            self.reply_success(&request.envelope(), Some(&proof.response_key), |_| {});
        }
        peers.clear();
        self.peers = peers;
        checked
    }

    /// Collects the addresses of a CreatePermission request, each once, if all of them are to be had.
    fn check_permissions(
        &self,
        id: AllocationId,
        request: &Request<'_>,
        peers: &mut Vec<IpAddr>,
    ) -> Result<(), Reject> {
        let limit = usize::from(self.config.limits.permissions_per_allocation);
        let allocation = self.live(id).ok_or(Reject::AllocationMismatch)?;
        let policy = self.policy_of(allocation.quota.user());
        let mut refused = None;
        for peer in request.message.xor_peer_addresses() {
            let peer = peer.map_err(|_| Reject::BadRequest("XOR-PEER-ADDRESS malformed"))?; // any invalid one makes the request invalid
            let result = match policy.check(peer) {
                _ if !allocation.serves(peer) => Err(Reject::PeerFamilyMismatch),
                Ok(allowed) => {
                    peers.push(allowed.ip());
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
            .iter()
            .filter(|&&peer| !allocation.permissions.contains(peer))
            .count();
        // guard: V-45-permissions
        if allocation.permissions.len() + added > limit {
            return Err(Reject::InsufficientCapacity);
        }
        Ok(())
    }

    /// Installs or refreshes a permission that has been checked.
    pub(crate) fn install_permission(&mut self, id: AllocationId, peer: IpAddr, expires: Time) {
        if let Some(allocation) = self.live_mut(id) {
            allocation.permissions.install(peer, expires);
            self.changes.push_back(Change::PermissionInstalled {
                allocation: id,
                peer,
                expires,
            });
            self.wake_by(id, expires);
        }
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
