//! What all engines of a server share: ports, quotas, reservations, names of connections, the budget for strangers. Their locks are never
//! taken for a relayed datagram.

use core::net::IpAddr;
use std::sync::{Arc, Mutex};

use crate::auth::Calendar;
use crate::bandwidth::{BandwidthLedger, Meters};
use crate::config::{Config, RelayAddress};
use crate::mobility::paths::MobilePaths;
use crate::ports::{PortCounts, PortPools};
use crate::quota::QuotaLedger;
use crate::redirect::alternates::Rotation;
use crate::reservation::Reservations;
use crate::tcp::ledger::ConnectionLedger;
use crate::time::Time;
use crate::tombstone::{SharedTombstones, Tombstones};
use crate::unverified::UnverifiedBudget;

/// Port pools, quota ledger, reservations and connections of a whole server.
#[derive(Debug)]
pub struct Commons {
    pub(crate) ports: Arc<PortPools>,
    pub(crate) quota: Arc<QuotaLedger>,
    pub(crate) reservations: Reservations,
    pub(crate) rotation: Rotation,
    pub(crate) bandwidth: Arc<BandwidthLedger>,
    pub(crate) connections: Arc<ConnectionLedger>,
    pub(crate) releases: SharedTombstones,
    pub(crate) unverified: UnverifiedBudget,
    pub(crate) mobile_paths: MobilePaths,
    /// By which credentials and nonces are judged.
    pub(crate) calendar: Calendar,
}

impl Commons {
    /// Builds the pools for `config`, all free.
    pub fn new(config: &Config) -> Arc<Self> {
        let limits = &config.limits;
        Arc::new(Self {
            ports: PortPools::of(&config.relays),
            quota: QuotaLedger::new(config),
            reservations: Reservations::new(limits.reservations),
            rotation: Rotation::default(),
            bandwidth: BandwidthLedger::new(config),
            connections: ConnectionLedger::new(config.relays.tcp.as_ref()),
            releases: Mutex::new(Tombstones::new(
                limits.tombstones,
                config.auth.nonce_lifetime.replay_memory(),
            )),
            unverified: UnverifiedBudget::new(&config.unverified),
            mobile_paths: MobilePaths::default(),
            calendar: Calendar::default(),
        })
    }

    /// Sets the quotas, rates and budgets of `config`. Allocations that exist stay, even if they are more, and keep the rate they began with; so do
    /// connections of TCP relays. The table of strangers keeps its size.
    pub fn reconfigure(&self, config: &Config) {
        self.quota.set_bounds(config);
        self.bandwidth.set_rates(config);
        self.connections.set_limits(config.relays.tcp.as_ref());
        self.unverified.set_rates(&config.unverified);
    }

    /// Takes the buckets that rates are measured with from `meters`, for allocations to come. What was set first stays.
    pub fn set_meters(&self, meters: Arc<dyn Meters>) {
        self.bandwidth.set_meters(meters);
    }

    /// Relays new allocations from `relays` alone from now on; existing allocations keep their addresses. The host passes the same
    /// addresses to every engine with [`crate::Engine::add_relays`].
    pub fn set_relays(&self, relays: &[RelayAddress]) {
        self.ports.set(relays);
    }

    /// Returns the ports of each relay address.
    pub fn ports(&self) -> impl Iterator<Item = (RelayAddress, PortCounts)> {
        self.ports.counts()
    }

    /// Returns the local addresses that new allocations relay from.
    pub fn relays(&self) -> impl Iterator<Item = IpAddr> {
        self.ports.in_use()
    }

    /// Returns the bucket that `source` has in the budget for strangers, or `None` before there is an engine. All sources of one
    /// bucket share its budget.
    pub fn unverified_bucket(&self, source: IpAddr) -> Option<usize> {
        self.unverified.index(source)
    }

    /// Returns how many buckets of the budget for strangers have not drained, and how many there are. It looks at all of them.
    pub fn unverified_buckets(&self, now: Time) -> (u64, u64) {
        let count = self.unverified.bucket_count();
        (self.unverified.occupied(now), count as u64)
    }

    /// Returns how many ports are leased and wait for a token.
    pub fn reserved_ports(&self) -> usize {
        self.reservations.len()
    }

    /// Returns how many allocations and reserved ports are charged to `quota_name` of `realm`.
    pub fn quota_used(&self, realm: &str, quota_name: &str) -> u32 {
        self.quota.of_name(realm, quota_name)
    }

    /// Returns the bytes per second that are reserved for allocations that have a rate.
    pub fn bandwidth_reserved(&self) -> u64 {
        self.bandwidth.reserved()
    }

    /// Returns how many allocations and reserved ports are charged to all users.
    pub fn quota_used_total(&self) -> u32 {
        self.quota.total()
    }

    /// Returns how many peer data connections all engines have, and how many of those a Connect request began and no ConnectionBind has joined.
    pub fn peer_connections(&self) -> (usize, u32) {
        (self.connections.len(), self.connections.pending())
    }
}
