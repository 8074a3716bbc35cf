//! The model's memory: what RFC 8656 lists ([`super::state`]), and what a run has to know beside it: requests whose sockets are being
//! opened, transactions that are over, what a server may not have noticed yet.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::proof::quota_name;
use super::rules::{Rules, SECOND};
use super::state::{Allocation, Reservation, Tuple};

/// An Allocate request whose relay sockets are being opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The shard that serves the client.
    pub shard: usize,
    /// Who asked.
    pub user: String,
    /// The request's transaction.
    pub transaction: [u8; 12],
    /// What it asks for, as far as that can be had.
    pub asked: Asked,
    /// When the request arrived.
    pub since: u64,
    /// Ports that were found in use by others; they stay out of play until this is over.
    pub in_use: Vec<SocketAddr>,
    /// Addresses whose socket is being opened.
    pub opening: Vec<SocketAddr>,
    /// Addresses whose socket is open.
    pub opened: Vec<SocketAddr>,
}

/// Holds what an Allocate request asks for, as far as that can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Whether each family (IPv4, IPv6) is asked for and can be had.
    pub wanted: [bool; 2],
    /// The family that was asked for and cannot be had, with its error code.
    pub missing: Option<(bool, u16)>,
    /// Whether the port must be even, and whether the next one is reserved.
    pub even: Option<bool>,
    /// The reserved address that was redeemed.
    pub redeemed: Option<SocketAddr>,
    /// The seconds of lifetime it will be granted.
    pub lifetime_s: u64,
    /// Whether it asks for a ticket (RFC 8016).
    pub mobile: bool,
}

/// A finished transaction that must not act again (V-22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// It had created an allocation that has ended since, or it ended one.
    Over,
    /// It ended one family of the allocation with this serial number.
    EndedFamily(u64),
}

/// Holds everything that a TURN server remembers.
///
/// What has run out stays until the server says that it has noticed, so that two points of view
/// exist: [`Model::at`] drops what is over at this very moment, as the RFC has it, and the model
/// itself is what a server may still believe until its timer fires.
#[derive(Clone, Debug)]
pub struct Model {
    /// What the operator decided.
    pub rules: Rules,
    /// Allocations by 5-tuple.
    pub allocations: BTreeMap<Tuple, Allocation>,
    /// Requests waiting for sockets by 5-tuple.
    pub pending: BTreeMap<Tuple, Pending>,
    /// Reserved ports by token.
    pub reservations: BTreeMap<[u8; 8], Reservation>,
    /// Tokens that were used.
    pub redeemed: BTreeMap<[u8; 8], Reservation>,
    /// Tickets that were given out, and the serial number of the allocation of each.
    pub tickets: BTreeMap<Vec<u8>, u64>,
    /// Finished transactions and when they are forgotten.
    pub finished: BTreeMap<(Tuple, [u8; 12]), (Finished, u64)>,
    /// Relayed addresses that count as somebody's besides those above: what is over, and what a
    /// server may not have noticed yet.
    pub lingering: BTreeSet<SocketAddr>,
}

/// How long a finished transaction is remembered: as long as a nonce can live.
pub(super) const FINISHED: u64 = 3600 * SECOND;

impl Model {
    /// Makes the model of a server without allocations.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            allocations: BTreeMap::new(),
            pending: BTreeMap::new(),
            reservations: BTreeMap::new(),
            redeemed: BTreeMap::new(),
            tickets: BTreeMap::new(),
            finished: BTreeMap::new(),
            lingering: BTreeSet::new(),
        }
    }

    /// Returns what exists at this very moment; borrowed when nothing has run out.
    #[must_use]
    pub fn at(&self, now: u64) -> Cow<'_, Self> {
        let mut first = self.deadlines();
        let doubtful = self.reservations.values().any(|held| !held.certain);
        if first.all(|deadline| deadline > now) && !doubtful {
            return Cow::Borrowed(self);
        }
        drop(first);
        let mut exact = self.clone();
        for allocation in exact.allocations.values_mut() {
            allocation.permissions.retain(|_, expires| *expires > now);
            allocation.channels.retain(|_, (_, expires)| *expires > now);
            let over: Vec<_> = allocation
                .relays
                .iter()
                .filter(|(_, end)| **end <= now)
                .collect();
            let over: Vec<_> = over.into_iter().map(|(relay, _)| relay.is_ipv6()).collect();
            for v6 in over {
                allocation.release_family(v6);
            }
        }
        exact.allocations.retain(|_, held| !held.relays.is_empty());
        exact
            .reservations
            .retain(|_, held| held.expires > now && held.certain);
        Cow::Owned(exact)
    }

    /// Returns every moment at which something runs out.
    pub fn deadlines(&self) -> impl Iterator<Item = u64> {
        let held = self.allocations.values().flat_map(Allocation::deadlines);
        held.chain(self.reservations.values().map(|held| held.expires))
    }

    /// Forgets reservations and transactions that are over for longer than `grace`.
    pub fn forget(&mut self, now: u64, grace: u64) {
        self.reservations
            .retain(|_, held| held.expires + grace > now);
        self.redeemed.retain(|_, held| held.expires > now);
        self.finished.retain(|_, (_, until)| *until > now);
    }

    /// Ends an allocation; its transaction must not create another.
    pub fn end(&mut self, tuple: Tuple, released_by: Option<[u8; 12]>, now: u64) {
        if let Some(held) = self.allocations.remove(&tuple) {
            let paths = [Some(tuple), held.new_path()].into_iter().flatten();
            let released = paths.zip(released_by.into_iter().cycle());
            for transaction in released.chain([(tuple, held.transaction)]) {
                self.finished
                    .insert(transaction, (Finished::Over, now + FINISHED));
            }
        }
    }

    /// Ends one family of a dual allocation.
    pub fn end_family(&mut self, tuple: Tuple, v6: bool, released_by: Option<[u8; 12]>, now: u64) {
        if let Some(held) = self.allocations.get_mut(&tuple) {
            held.release_family(v6);
            if let Some(id) = released_by {
                let finished = (Finished::EndedFamily(held.serial), now + FINISHED);
                for path in [Some(tuple), held.new_path()].into_iter().flatten() {
                    self.finished.insert((path, id), finished);
                }
            }
        }
    }

    /// Returns every relayed address that is in use: what is reserved or about to be used has no socket that data could go to.
    #[must_use]
    pub fn in_use(&self) -> BTreeSet<SocketAddr> {
        let live = self.allocations.values();
        live.flat_map(|held| held.relays.keys().copied()).collect()
    }

    /// Returns every relayed address that is in use, reserved or about to be used.
    #[must_use]
    pub fn taken(&self) -> BTreeSet<SocketAddr> {
        self.taken_with(|_| true)
    }

    /// Returns [`Model::taken`] without reservations that may be gone by `now`.
    #[must_use]
    pub fn taken_for_certain(&self, now: u64) -> BTreeSet<SocketAddr> {
        self.taken_with(|held| held.certain && held.expires > now)
    }

    fn taken_with(&self, counts: impl Fn(&Reservation) -> bool) -> BTreeSet<SocketAddr> {
        let live = self
            .allocations
            .values()
            .flat_map(|held| held.relays.keys().copied());
        let reserved = self.reservations.values().filter(|held| counts(held));
        let pending = self.pending.values().flat_map(Pending::taken);
        live.chain(reserved.map(|held| held.address))
            .chain(pending)
            .collect()
    }

    /// Makes all reservations uncertain: after a crash any may be lost, and a redeemed one may be back if its port is free.
    pub fn doubt_reservations(&mut self, now: u64) {
        let redeemed = std::mem::take(&mut self.redeemed);
        self.reservations.extend(redeemed);
        self.reservations.retain(|_, held| held.expires > now);
        for held in self.reservations.values_mut() {
            held.certain = false;
        }
    }

    /// Uses up the reservation of an address.
    pub fn redeem(&mut self, address: SocketAddr) {
        let token = self
            .reservations
            .iter()
            .find(|(_, held)| held.address == address);
        if let Some(token) = token.map(|(token, _)| *token)
            && let Some(held) = self.reservations.remove(&token)
        {
            self.redeemed.insert(token, held);
        }
    }

    /// Returns what everyone with this quota name, or everyone, is charged for: allocations, pending ones, and ports that they have reserved;
    /// none of those that may be gone at `certain_at`.
    #[must_use]
    pub fn charged_to(&self, name: Option<&str>, certain_at: Option<u64>) -> usize {
        let live = self.allocations.values().map(|held| &held.user);
        let pending = self.pending.values();
        let pending = pending.flat_map(|held| std::iter::repeat_n(&held.user, held.units()));
        let reserved = self.reservations.values();
        let reserved = reserved
            .filter(|held| certain_at.is_none_or(|now| held.certain && held.expires > now))
            .map(|held| &held.user);
        live.chain(pending)
            .chain(reserved)
            .filter(|user| name.is_none_or(|name| quota_name(user) == name))
            .count()
    }

    /// Returns the allocation that holds the relayed address `relay`, and its 5-tuple.
    #[must_use]
    pub fn by_relay(&self, relay: SocketAddr) -> Option<(Tuple, &Allocation)> {
        self.allocations
            .iter()
            .find(|(_, held)| held.relays.contains_key(&relay))
            .map(|(tuple, held)| (*tuple, held))
    }
}

impl Pending {
    /// Returns what it is charged for: the allocation, and the port that is reserved beside it.
    #[must_use]
    pub fn units(&self) -> usize {
        1 + usize::from(self.asked.even == Some(true))
    }

    /// Returns the addresses that nobody else may be given for as long as this waits.
    pub fn taken(&self) -> impl Iterator<Item = SocketAddr> {
        let reserve = self.asked.even == Some(true);
        let asked = self.opening.iter().chain(&self.opened);
        let beside = asked
            .clone()
            .filter(move |_| reserve)
            .map(|even| SocketAddr::new(even.ip(), even.port() | 1));
        asked.chain(&self.in_use).copied().chain(beside)
    }
}
