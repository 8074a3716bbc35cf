//! The allocations of an engine, with all that is found or ends by their names.

use std::collections::{BTreeMap, VecDeque};

use turnbuckle_wire::Method;

use crate::allocation::tunnel::Tunnel;
use crate::allocation::{Allocation, Entry};
use crate::auth::Proof;
use crate::config::Config;
use crate::id::{AllocationId, ClientTuple};
use crate::peer_index::PeerIndex;
use crate::random::Random;
use crate::reject::Reject;
use crate::request::Request;
use crate::table::Table;
use crate::tcp::table::PeerConnections;
use crate::time::Time;
use crate::timers::Wheel;
use crate::tombstone::Tombstones;

/// All state that an engine keeps about clients.
pub(crate) struct Allocations {
    pub(crate) table: Table<Entry>,
    /// One timer an allocation, by the index of its slot.
    pub(crate) wheel: Wheel,
    /// Peer data connections of TCP allocations.
    pub(crate) connections: PeerConnections,
    /// Second paths to allocations, each in its allocation too.
    pub(crate) new_paths: BTreeMap<ClientTuple, AllocationId>,
    /// Whose the peers of shared relay sockets are.
    pub(crate) claims: PeerIndex,
    pub(crate) tombstones: Tombstones,
    /// The times at which this engine's reservations expire, in order: all have the same lifetime.
    pub(crate) reservation_deadlines: VecDeque<Time>,
    /// Allocate requests and tunnels that wait for a relay socket.
    pub(crate) pending: usize,
    /// Tunnels in use.
    pub(crate) tunnels: usize,
    /// As [`crate::Statistics::channel_numbers_reserved`].
    pub(crate) channel_numbers_reserved: u64,
}

impl Allocations {
    pub(crate) fn new(config: &Config, random: &mut impl Random) -> Self {
        let table = Table::new(random);
        Self {
            claims: PeerIndex::new(table.seeds().clone()),
            table,
            wheel: Wheel::new(Time::ZERO),
            connections: PeerConnections::default(),
            new_paths: BTreeMap::new(),
            tombstones: Tombstones::new(
                config.limits.tombstones,
                config.auth.nonce_lifetime.replay_memory(),
            ),
            reservation_deadlines: VecDeque::new(),
            pending: 0,
            tunnels: 0,
            channel_numbers_reserved: 0,
        }
    }

    /// Returns the allocation of a client, by the one hash lookup of each received message.
    #[inline]
    pub(crate) fn client(&self, client: &ClientTuple) -> Option<AllocationId> {
        match self.table.find(client) {
            None if !self.new_paths.is_empty() => self.new_paths.get(client).copied(),
            found => found,
        }
    }

    /// Returns whether any allocation has a new path beside its old one.
    #[inline]
    pub(crate) fn has_new_paths(&self) -> bool {
        !self.new_paths.is_empty()
    }

    pub(crate) fn live(&self, id: AllocationId) -> Option<&Allocation> {
        match self.table.at(id)? {
            Entry::Live(allocation) => Some(allocation),
            Entry::Pending(_) | Entry::Tunnel(_) => None,
        }
    }

    #[inline]
    pub(crate) fn live_mut(&mut self, id: AllocationId) -> Option<&mut Allocation> {
        match self.table.at_mut(id)? {
            Entry::Live(allocation) => Some(allocation),
            Entry::Pending(_) | Entry::Tunnel(_) => None,
        }
    }

    /// Returns the allocation that a request other than Allocate is about (RFC 8656 §5).
    pub(crate) fn of_request(
        &self,
        request: &Request<'_>,
        proof: &Proof,
        config: &Config,
    ) -> Result<AllocationId, Reject> {
        let id = self
            .client(&request.from)
            .ok_or(Reject::AllocationMismatch)?;
        let allocation = self.live(id).ok_or(Reject::AllocationMismatch)?;
        let owner = allocation.account.user();
        let is_owner = match request.message.method() {
            Method::REFRESH => owner.may_become(&proof.user),
            _ => owner.is_same_as(&proof.user),
        };
        // guard: V-28-owner
        if is_owner {
            allocation.check_origin(request, config)?;
            Ok(id)
        } else {
            Err(Reject::WrongCredentials)
        }
    }

    /// Returns the tunnel of this name, if it is one.
    pub(crate) fn tunnel(&self, id: AllocationId) -> Option<&Tunnel> {
        match self.table.at(id)? {
            Entry::Tunnel(tunnel) => Some(tunnel),
            Entry::Live(_) | Entry::Pending(_) => None,
        }
    }

    /// Makes sure the timer of an allocation fires by `deadline`.
    pub(crate) fn wake_by(&mut self, id: AllocationId, deadline: Time) {
        let Some(Entry::Live(allocation)) = self.table.at_mut(id) else {
            return;
        };
        // mutant: timer-forgotten
        if deadline < allocation.wake {
            allocation.wake = deadline;
            self.wheel.schedule(id.index, deadline);
        }
    }
}
