//! The paths on which nonces for allocations that can move were issued, for all engines. A client that has moved may reach another
//! engine than the one that has its allocation, and a nonce is valid only on the 5-tuple it was issued for.

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::id::AllocationId;
use crate::ticket::Ticket;

/// The client's address and the listener's.
pub(crate) type NoncePath = (SocketAddr, SocketAddr);

/// The number of paths that are kept for one allocation: two that it has, and the one before.
const PATHS_MAX: usize = 3;

/// The paths of all allocations that can move.
#[derive(Debug, Default)]
pub(crate) struct MobilePaths(Mutex<BTreeMap<(u32, AllocationId), Known>>);

#[derive(Debug, Default)]
struct Known {
    /// The number of the ticket that is good.
    number: u32,
    /// The newest first.
    paths: Vec<NoncePath>,
}

impl MobilePaths {
    /// Notes which ticket of an allocation is good, and the paths that it has; those before stay known as far as there is room.
    pub(crate) fn set(
        &self,
        shard: u32,
        id: AllocationId,
        number: u32,
        paths: impl Iterator<Item = NoncePath>,
    ) {
        let mut all = self.lock();
        let known = all.entry((shard, id)).or_default();
        known.number = number;
        let mut next: Vec<NoncePath> = paths.collect();
        for &path in &known.paths {
            if !next.contains(&path) {
                next.push(path);
            }
        }
        next.truncate(PATHS_MAX);
        known.paths = next;
    }

    /// Removes an allocation that has ended.
    pub(crate) fn remove(&self, shard: u32, id: AllocationId) {
        self.lock().remove(&(shard, id));
    }

    /// Returns the paths of the allocation that `ticket` is for. Returns none unless the ticket is the current one or the one
    /// before it, whose request may be repeated.
    pub(crate) fn of(&self, ticket: &Ticket) -> Vec<NoncePath> {
        let all = self.lock();
        let known = all.get(&(ticket.shard, ticket.allocation));
        let numbers = [ticket.number, ticket.number.saturating_add(1)];
        // guard: V-22-old-nonce
        let known = known.filter(|known| numbers.contains(&known.number));
        known.map_or_else(Vec::new, |known| known.paths.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u32, AllocationId), Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
