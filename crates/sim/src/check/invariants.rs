//! The invariants I1 to I10 that are not part of comparing one answer.
//!
//! I1, I2, I8 and I10 are checked where a datagram or an answer leaves (`mod.rs`, `answer.rs`);
//! I6 also where something ends (`mirror.rs`). The rest is here, after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use turnbuckle_engine::{Rate, UnverifiedLimits};

use super::Watched;
use super::answer::OPENING_MAX;
use crate::message::REALM;
use crate::model::quota_name;
use crate::queue::SECOND;
use crate::violation::{Violation, ensure};

/// Bytes of the longest answer to a source that proved nothing, in this world.
const UNVERIFIED_REPLY_MAX: u32 = 200;

/// What was seen so far from outside: sources of relayed data, bytes to unproven addresses.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// I10: the relayed addresses that peers saw, by allocation and family.
    sources: BTreeMap<(u64, bool), SocketAddr>,
    /// I3: what each source that proved nothing was sent.
    unverified: BTreeMap<u128, Bucket>,
    /// The same by the bucket that sources have a share in, of which the engine says which it is.
    unverified_by_bucket: BTreeMap<Option<usize>, Bucket>,
    limits: UnverifiedLimits,
}

/// A leaky bucket that drains evenly; the engine's drains in steps, so the two differ by one step.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    at: u64,
    excess: Level,
    bytes: Level,
}

/// Bytes in units of a billionth.
#[derive(Clone, Copy, Debug, Default)]
struct Level(u128);

impl Level {
    fn drained(self, nanos: u64, rate: Rate) -> Self {
        // Rounded up as the engine's is: to what is drained in a tenth of a second.
        let per_s = u128::from(rate.per_s.div_ceil(10)) * 10;
        Self(self.0.saturating_sub(per_s * u128::from(nanos)))
    }

    fn filled(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u128 * u128::from(SECOND))
    }

    /// Returns whether this is within `rate`, with the slack of one step.
    fn is_within(self, rate: Rate) -> bool {
        let burst = u128::from(rate.burst) + u128::from(rate.per_s.div_ceil(10));
        self.0 <= burst * u128::from(SECOND)
    }

    /// Returns whether so many bytes more may be beyond `rate`, with the slack of one step.
    fn may_be_full(self, rate: Rate, bytes: u32) -> bool {
        let wanted = u128::from(bytes) + u128::from(rate.per_s.div_ceil(10));
        self.0 + wanted * u128::from(SECOND) > u128::from(rate.burst) * u128::from(SECOND)
    }
}

impl Bucket {
    fn drained(self, now: u64, limits: &UnverifiedLimits) -> Self {
        let nanos = now - self.at;
        Self {
            at: now,
            excess: self.excess.drained(nanos, limits.excess),
            bytes: self.bytes.drained(nanos, limits.bytes),
        }
    }

    fn charge(
        &mut self,
        now: u64,
        limits: &UnverifiedLimits,
        request_len: usize,
        reply_len: usize,
    ) {
        *self = self.drained(now, limits);
        self.bytes = self.bytes.filled(reply_len);
        self.excess = self.excess.filled(reply_len.saturating_sub(request_len));
    }
}

impl Ledger {
    pub(super) fn new(limits: UnverifiedLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Checks I10: a peer sees one source address for the life of an allocation.
    pub(super) fn seen_by_peer(
        &mut self,
        serial: Option<u64>,
        relay: SocketAddr,
    ) -> Result<(), Violation> {
        let Some(serial) = serial else {
            return Err(Violation::new(
                "I10",
                format!("{relay} sends for no allocation"),
            ));
        };
        let seen = self
            .sources
            .entry((serial, relay.is_ipv6()))
            .or_insert(relay);
        ensure(*seen == relay, "I10", || {
            format!("allocation {serial} was {seen}, is {relay}")
        })
    }

    /// Checks I3: charges an answer to a source that proved nothing, and to the bucket that it shares with others.
    pub(super) fn unverified_reply(
        &mut self,
        now: u64,
        source: IpAddr,
        shared: Option<usize>,
        request_len: usize,
        reply_len: usize,
    ) -> Result<(), Violation> {
        let limits = &self.limits;
        let shared = self.unverified_by_bucket.entry(shared).or_default();
        shared.charge(now, limits, request_len, reply_len);
        let bucket = self.unverified.entry(key(source)).or_default();
        bucket.charge(now, limits, request_len, reply_len);
        let within = bucket.bytes.is_within(limits.bytes) && bucket.excess.is_within(limits.excess);
        ensure(within, "I3", || {
            format!("{source} was sent {bucket:?}, limits {limits:?}")
        })?;
        // Who shares a bucket is drawn by lot, so it may happen, but not to many.
        let (sources, buckets) = (self.unverified.len(), self.unverified_by_bucket.len());
        let few = limits.buckets as usize / 2;
        ensure(2 * buckets + 2 >= sources.min(few), "I3", || {
            format!("{sources} sources share {buckets} buckets")
        })
    }

    /// Returns whether the engine may refuse an answer for want of budget: the bucket that the source shares has no room for one. A source
    /// whose bucket has room is refused nothing, whatever others do.
    pub(super) fn may_be_over_budget(&self, now: u64, shared: Option<usize>) -> bool {
        let limits = &self.limits;
        self.unverified_by_bucket
            .get(&shared)
            .is_some_and(|bucket| {
                let bucket = bucket.drained(now, limits);
                bucket.bytes.may_be_full(limits.bytes, UNVERIFIED_REPLY_MAX)
                    || bucket
                        .excess
                        .may_be_full(limits.excess, UNVERIFIED_REPLY_MAX)
            })
    }

    /// Forgets whom answers were charged to: after a restart the engines remember nobody.
    pub(super) fn restart(&mut self) {
        self.unverified.clear();
        self.unverified_by_bucket.clear();
    }
}

/// Returns the source as the budget sees it: an IPv4 address or an IPv6 /64.
fn key(source: IpAddr) -> u128 {
    match source.to_canonical() {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits() >> 64 << 64,
    }
}

impl Watched {
    /// Checks what must hold at every moment.
    pub(super) fn invariants(&self, now: u64) -> Result<(), Violation> {
        self.ports(now)?;
        self.quotas(now)?;
        self.timers(now)?;
        self.memory()?;
        self.held(now)?;
        self.sockets()
    }

    /// Checks I4: free + leased = pool, and nothing is leased that the model does not know of.
    fn ports(&self, now: u64) -> Result<(), Violation> {
        let retained = self.model.taken();
        let certain = self.model.taken_for_certain(now);
        for (relay, counts) in self.server.commons.ports() {
            let ip = relay.external.unwrap_or(relay.local);
            let count = |taken: &BTreeSet<SocketAddr>| {
                let of_ip = taken.iter().filter(|address| address.ip() == ip);
                u32::try_from(of_ip.count()).unwrap_or(u32::MAX)
            };
            ensure(counts.free + counts.leased == counts.size, "I4", || {
                format!("{ip}: {counts:?}")
            })?;
            let bounds = count(&certain)..=count(&retained);
            ensure(bounds.contains(&counts.leased), "I4", || {
                format!("{ip}: {counts:?}, expected {bounds:?} leased: {retained:?}")
            })?;
        }
        Ok(())
    }

    /// Checks I5: the ledger counts exactly what exists; of reservations a crash may have lost some.
    fn quotas(&self, now: u64) -> Result<(), Violation> {
        let commons = &self.server.commons;
        let names = self.secrets.passwords.keys().map(|user| quota_name(user));
        let by_name = names.map(|name| (Some(name), commons.quota_used(REALM, name)));
        let in_all = (None, commons.quota_used_total());
        for (name, used) in by_name.chain([in_all]) {
            let certain = self.model.charged_to(name, Some(now));
            let held = certain..=self.model.charged_to(name, None);
            let is_held = usize::try_from(used).is_ok_and(|used| held.contains(&used));
            ensure(is_held, "I5", || {
                let whose = name.unwrap_or("all");
                format!("{whose}: charged {used}, holds {held:?}")
            })?;
        }
        for shard in 0..self.server.shard_count() {
            let statistics = self.server.statistics(shard);
            let live = self
                .model
                .allocations
                .values()
                .filter(|held| held.shard == shard);
            let pending = self
                .model
                .pending
                .values()
                .filter(|held| held.shard == shard);
            let found = (statistics.allocations, statistics.pending);
            let expected = (live.count(), pending.count());
            ensure(found == expected, "I5", || {
                format!("shard {shard} counts {found:?}, holds {expected:?}")
            })?;
        }
        Ok(())
    }

    /// Checks I6: nothing outlives its time by a second.
    fn timers(&self, now: u64) -> Result<(), Violation> {
        let mut pending = self.model.pending.iter();
        let late = pending.find(|(_, pending)| pending.since + OPENING_MAX + SECOND < now);
        ensure(late.is_none(), "I6", || {
            format!("at {now} still opening: {late:?}")
        })?;
        let mut held = self.model.allocations.iter();
        let late = held.find(|(_, held)| {
            held.deadlines()
                .any(|due| due.max(self.alive_since) + SECOND < now)
        });
        ensure(late.is_none(), "I6", || {
            format!("at {now} still there: {late:?}")
        })
    }

    /// Checks I7: no table grows past what the configuration says.
    fn memory(&self) -> Result<(), Violation> {
        let limits = &self.server.config.limits;
        for shard in 0..self.server.shard_count() {
            let counts = self.server.statistics(shard);
            let within = counts.allocations + counts.pending <= limits.allocations as usize
                && counts.pending <= limits.pending_opens as usize
                && counts.tombstones <= limits.tombstones as usize;
            ensure(within, "I7", || {
                format!("shard {shard}: {counts:?}, limits {limits:?}")
            })?;
        }
        for (tuple, held) in &self.model.allocations {
            let within = held.permissions.len() <= usize::from(limits.permissions_per_allocation)
                && held.channels.len() <= usize::from(limits.channels_per_allocation);
            ensure(within, "I7", || format!("{tuple:?}: {held:?}"))?;
        }
        let reserved = self.server.commons.reserved_ports();
        ensure(reserved <= limits.reservations as usize, "I7", || {
            format!("{reserved} reserved")
        })
    }

    /// Checks that the host holds the ports that are reserved, and no others; a crash may have taken the sockets of earlier reservations.
    fn held(&self, now: u64) -> Result<(), Violation> {
        let (held, taking) = self.server.held();
        let outside = |address| self.server.outside(address);
        let held: BTreeSet<SocketAddr> = held.into_iter().map(outside).collect();
        let taking = taking.into_iter().map(outside);
        let reserved = self.model.reservations.values();
        let certain = reserved
            .clone()
            .filter(|reserved| reserved.certain && reserved.expires > now);
        let expected: BTreeSet<_> = certain.map(|reserved| reserved.address).collect();
        let known: BTreeSet<_> = reserved.map(|reserved| reserved.address).collect();
        let may_be: BTreeSet<_> = known.into_iter().chain(taking).collect();
        let sound = expected.is_subset(&held) && held.is_subset(&may_be);
        ensure(sound, "sockets", || {
            format!("held {held:?}, expected {expected:?}, known {may_be:?}")
        })
    }

    /// Checks that every relay socket belongs to an allocation or to one being made, and the other way round.
    fn sockets(&self) -> Result<(), Violation> {
        let open: Vec<SocketAddr> = {
            let sockets = self.server.sockets();
            let mut open: Vec<_> = sockets
                .map(|socket| self.server.outside(socket.local))
                .collect();
            open.sort_unstable();
            open
        };
        let live = self
            .model
            .allocations
            .values()
            .flat_map(|held| held.relays.keys());
        let opened = self.model.pending.values().flat_map(|held| &held.opened);
        let mut expected: Vec<SocketAddr> = live.chain(opened).copied().collect();
        expected.sort_unstable();
        ensure(open == expected, "sockets", || {
            format!("open {open:?}, expected {expected:?}")
        })
    }
}
