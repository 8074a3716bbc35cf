//! Allocations as an operator sees them, one after the other by their place in the table.
//!
//! A list is read in parts, and allocations come and go in between. Each has its place for life, so a reader that goes on at the next place sees
//! each allocation that is there all the time exactly once.

use core::net::IpAddr;
use core::num::NonZeroU32;
use std::sync::Arc;

use crate::allocation::Allocation;
use crate::change::{Path, Relayed, Usage};
use crate::credential::User;
use crate::id::{AllocationId, ClientTuple, RelayProtocol};
use crate::time::Time;

/// An allocation in use.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    pub(crate) id: AllocationId,
    pub(crate) path: Path,
    pub(crate) allocation: &'a Allocation,
}

impl<'a> Session<'a> {
    /// Its name.
    pub const fn id(&self) -> AllocationId {
        self.id
    }

    /// The client's 5-tuple.
    pub const fn path(&self) -> &Path {
        &self.path
    }

    /// The client's 5-tuple, as the host names it.
    pub const fn client(&self) -> &'a ClientTuple {
        &self.allocation.client
    }

    /// Whose it is.
    pub fn user(&self) -> &'a Arc<User> {
        self.allocation.account.user()
    }

    /// The relayed transport addresses, one or two.
    pub fn relays(&self) -> impl Iterator<Item = Relayed> + use<'a> {
        self.allocation
            .relays
            .iter()
            .flatten()
            .map(|relay| relay.addresses())
    }

    /// What runs between the relayed transport addresses and peers.
    pub fn protocol(&self) -> RelayProtocol {
        self.allocation.protocol()
    }

    /// When it was created.
    pub const fn created(&self) -> Time {
        self.allocation.created
    }

    /// When it ends unless it is refreshed.
    pub fn expires(&self) -> Time {
        self.allocation.expires()
    }

    /// How fast it may relay in each direction, in bytes of payload per second; `None` for no bound.
    pub fn bytes_per_s(&self) -> Option<NonZeroU32> {
        self.allocation.account.rate()
    }

    /// What it has relayed up to now.
    pub const fn usage(&self) -> &'a Usage {
        &self.allocation.usage
    }

    /// Whether it may move to another 5-tuple (RFC 8016).
    pub const fn is_mobile(&self) -> bool {
        self.allocation.mobility.is_some()
    }

    /// The peers that it has a permission for, in the order of their addresses.
    pub fn peers(&self) -> impl Iterator<Item = IpAddr> + use<'a> {
        self.allocation.permissions.peers()
    }

    /// How many channels are bound.
    pub fn channel_count(&self) -> usize {
        self.allocation.channels.len()
    }
}
