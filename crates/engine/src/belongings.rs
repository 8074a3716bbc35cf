//! What the allocations of an engine have of what all engines share, kept while that engine is built anew.
//!
//! An engine whose host has failed in the middle of a message is not used any more. The ports, units of quotas and rates of its allocations are not given
//! back: they are the next engine's ([`crate::Engine::restore`]), and nobody else gets them in between. What the next engine does not take is given back
//! when this is dropped.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use crate::account::Account;
use crate::allocation::Entry;
use crate::allocation::lease::Lease;
use crate::allocations::Allocations;
use crate::id::AllocationId;
use crate::ports::PortLease;

/// Ports, units of quotas and rates of the allocations of an engine that is gone.
#[derive(Debug, Default)]
pub struct Belongings {
    /// By the address on this host. Which allocation had a port in the end may not be on record.
    leases: BTreeMap<SocketAddr, PortLease>,
    accounts: BTreeMap<AllocationId, Account>,
}

impl Belongings {
    /// Takes what all allocations have.
    pub(crate) fn of(mut allocations: Allocations) -> Self {
        let mut belongings = Self::default();
        for slot in 0..allocations.table.slot_count() {
            let id = allocations.table.id_at(slot);
            let Some((id, Entry::Live(allocation))) =
                id.and_then(|id| Some((id, allocations.table.take(id)?)))
            else {
                continue;
            };
            for relay in allocation.relays.into_iter().flatten() {
                if let Lease::Own(lease) = relay.lease {
                    belongings.leases.insert(lease.local(), lease);
                }
            }
            belongings.accounts.insert(id, allocation.account);
        }
        belongings
    }

    /// Takes out the port of an address.
    pub(crate) fn lease(&mut self, local: SocketAddr) -> Option<PortLease> {
        // guard: V-63-panic-ports
        self.leases.remove(&local)
    }

    /// Takes out what an allocation was charged with.
    pub(crate) fn account(&mut self, id: AllocationId) -> Option<Account> {
        // guard: V-63-panic-rate
        self.accounts.remove(&id)
    }
}
