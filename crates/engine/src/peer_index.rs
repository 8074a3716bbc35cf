//! Who has which peer of the shared relay sockets: each peer has at most one owner, and each owner a list of its peers.
//!
//! The invariant: a peer is in the index if and only if it is in the list of its owner. So what an owner gives back costs as much as
//! its own list is long, whatever others have.

use std::collections::BTreeMap;

use hashbrown::HashTable;

use crate::address::PeerAddress;
use crate::id::AllocationId;
use crate::table::Seeds;

/// The peers of all allocations on shared relay sockets.
#[derive(Debug)]
pub(crate) struct PeerIndex {
    claims: HashTable<Claim>,
    by_owner: BTreeMap<AllocationId, Owned>,
    seeds: Seeds,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    peer: PeerAddress,
    owner: AllocationId,
}

/// The peers of one allocation.
#[derive(Debug, Default)]
struct Owned {
    peers: Vec<PeerAddress>,
    /// Whether it was reported that it may not have more.
    is_limit_reported: bool,
}

impl PeerIndex {
    pub(crate) fn new(seeds: Seeds) -> Self {
        Self {
            claims: HashTable::new(),
            by_owner: BTreeMap::new(),
            seeds,
        }
    }

    /// Returns the owner of a peer, by one hash lookup for each message of a peer.
    #[inline]
    pub(crate) fn owner(&self, peer: PeerAddress) -> Option<AllocationId> {
        let hash = self.hash(peer);
        let claim = self.claims.find(hash, |claim| claim.peer == peer)?;
        Some(claim.owner)
    }

    /// Returns how many peers an allocation has.
    pub(crate) fn count(&self, owner: AllocationId) -> usize {
        self.by_owner
            .get(&owner)
            .map_or(0, |owned| owned.peers.len())
    }

    /// Gives a peer that nobody has to `owner`.
    pub(crate) fn insert(&mut self, peer: PeerAddress, owner: AllocationId) {
        let (hash, seeds) = (self.hash(peer), &self.seeds);
        debug_assert!(self.owner(peer).is_none(), "a peer has one owner");
        let rehash = |claim: &Claim| seeds.hash_address(claim.peer.address(), 0);
        self.claims
            .insert_unique(hash, Claim { peer, owner }, rehash);
        let owned = self.by_owner.entry(owner).or_default();
        if owned.peers.is_empty() {
            owned.peers.reserve_exact(1); // most allocations have one
        }
        owned.peers.push(peer);
    }

    /// Takes from `owner` the peers that `keep` does not want to keep.
    pub(crate) fn retain(&mut self, owner: AllocationId, keep: impl Fn(PeerAddress) -> bool) {
        let Self {
            claims,
            by_owner,
            seeds,
        } = self;
        let Some(owned) = by_owner.get_mut(&owner) else {
            return;
        };
        owned.peers.retain(|&peer| {
            let kept = keep(peer);
            if !kept {
                let hash = seeds.hash_address(peer.address(), 0);
                if let Ok(claim) = claims.find_entry(hash, |claim| claim.peer == peer) {
                    claim.remove();
                }
            }
            kept
        });
    }

    /// Takes all peers of an allocation that has ended.
    pub(crate) fn remove_owner(&mut self, owner: AllocationId) {
        // mutant: claims-outlive-allocation
        self.retain(owner, |_| false);
        self.by_owner.remove(&owner);
    }

    /// Returns the peers of an owner.
    pub(crate) fn peers(&self, owner: AllocationId) -> impl Iterator<Item = PeerAddress> + '_ {
        let owned = self.by_owner.get(&owner);
        owned.into_iter().flat_map(|owned| &owned.peers).copied()
    }

    /// Notes that an allocation was refused a peer because it has as many as it may have. Returns whether that is the first time.
    pub(crate) fn report_limit(&mut self, owner: AllocationId) -> bool {
        let owned = self.by_owner.entry(owner).or_default();
        !core::mem::replace(&mut owned.is_limit_reported, true)
    }

    #[inline]
    fn hash(&self, peer: PeerAddress) -> u64 {
        self.seeds.hash_address(peer.address(), 0)
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use super::*;
    use crate::random::seeded::Seeded;

    fn owner(index: u32) -> AllocationId {
        AllocationId {
            index,
            generation: 1,
        }
    }

    fn peer(number: u16) -> PeerAddress {
        PeerAddress::new(SocketAddr::from(([192, 0, 2, 1], number)))
    }

    fn index() -> PeerIndex {
        PeerIndex::new(Seeds::new(&mut Seeded(1)))
    }

    #[test]
    fn a_peer_has_the_owner_that_it_was_given_to() {
        let mut index = index();
        for number in 1..2_000 {
            index.insert(peer(number), owner(u32::from(number) % 7));
        }
        for number in 1..2_000 {
            assert_eq!(
                index.owner(peer(number)),
                Some(owner(u32::from(number) % 7))
            );
        }
        assert_eq!(index.owner(peer(2_000)), None);
        assert_eq!(index.count(owner(0)), 285);
    }

    #[test]
    fn what_an_owner_gives_back_is_free_and_nothing_else() {
        let mut index = index();
        index.insert(peer(1), owner(1));
        index.insert(peer(2), owner(1));
        index.insert(peer(3), owner(2));
        index.retain(owner(1), |kept| kept == peer(2));
        assert_eq!(index.owner(peer(1)), None);
        assert_eq!(index.owner(peer(2)), Some(owner(1)));
        index.remove_owner(owner(1));
        assert_eq!(index.owner(peer(2)), None);
        assert_eq!(index.count(owner(1)), 0);
        assert_eq!(index.owner(peer(3)), Some(owner(2)));
    }

    #[test]
    fn a_limit_is_reported_once_for_each_owner() {
        let mut index = index();
        assert!(index.report_limit(owner(1)));
        assert!(!index.report_limit(owner(1)));
        assert!(index.report_limit(owner(2)));
        index.remove_owner(owner(1));
        assert!(index.report_limit(owner(1)));
    }
}
