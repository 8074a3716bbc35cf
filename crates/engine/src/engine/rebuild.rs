//! An engine made again from the changes of another one: after a restart, in a new process, in a test.
//!
//! What the records say is put in place as it was, names included; deadlines that have passed meanwhile are found by the timers. An
//! allocation whose socket, listener or port is not there any more ends as [`EndCause::Lost`]. Its port may be of an address that new
//! ones do not get ([`crate::RelayConfig::former`]).

mod record;

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::sync::Arc;

use self::record::Record;
use crate::account::Account;
use crate::address::PeerAddress;
use crate::allocation::channels::Channels;
use crate::allocation::lease::Lease;
use crate::allocation::mobility::{LastResume, Mobility};
use crate::allocation::permissions::Permissions;
use crate::allocation::relay::Relay;
use crate::allocation::{Allocation, Entry, Rare};
use crate::belongings::Belongings;
use crate::change::{Change, Created, EndCause, Ended, Path, Reserved};
use crate::commons::Commons;
use crate::config::Config;
use crate::credential::User;
use crate::ending;
use crate::engine::Engine;
use crate::id::{
    AllocationId, ClientTuple, Connection, Endpoint, Family, RelayHandle, RelayProtocol, Transport,
};
use crate::judging;
use crate::mobility;
use crate::random::Random;
use crate::reservation::{RESERVATION_MIN, Reservation, ReservationToken, ReservedPort};
use crate::time::{Now, Time};
use crate::tombstone::Effect;

impl<R: Random> Engine<R> {
    /// Builds an engine that behaves as the one that recorded these changes.
    ///
    /// `changes` are all changes of one engine in their order. Those of allocations that have ended may be missing altogether.
    /// `listeners` are the UDP sockets. `endpoint_of` names the socket that is bound to a relay address. Totals begin at the values
    /// that the last refresh recorded.
    pub fn rebuild(
        config: Arc<Config>,
        commons: Arc<Commons>,
        random: R,
        now: Now,
        listeners: impl IntoIterator<Item = (Endpoint, SocketAddr)>,
        changes: impl IntoIterator<Item = Change>,
        mut endpoint_of: impl FnMut(SocketAddr) -> Option<Endpoint>,
    ) -> Self {
        let mut engine = Self::new(config, commons, random);
        for (endpoint, local) in listeners {
            engine.add_listener(endpoint, local);
        }
        let belongings = Belongings::default();
        engine.restore(now, changes, belongings, |local, _| endpoint_of(local));
        engine
    }

    /// Ends this engine, and leaves what its allocations have of what all engines share to the next one. To be called when its host has failed:
    /// nothing else of it is used.
    pub fn leave(self) -> Belongings {
        Belongings::of(self.allocations)
    }

    /// Puts in place what the changes of another engine say, as [`Self::rebuild`] does. To be called once, when the listeners are known and
    /// before the first message. `belongings` are those of that engine if it was one of this process. `endpoint_of` names the socket that is bound
    /// to a relay address; what arrives there is for the handle.
    pub fn restore(
        &mut self,
        now: Now,
        changes: impl IntoIterator<Item = Change>,
        mut belongings: Belongings,
        mut endpoint_of: impl FnMut(SocketAddr, RelayHandle) -> Option<Endpoint>,
    ) {
        let engine = self;
        let mut records = BTreeMap::new();
        let mut owners = BTreeMap::new();
        let mut reservations = Vec::new();
        for change in changes {
            if change.is_of_tunnel() {
                continue;
            }
            if let Change::Created(created) = &change {
                let reserved = created.reservation;
                reservations.extend(reserved.map(|it| (it, Arc::clone(&created.user))));
                engine.spend_again(created.brought.redeemed, created.created);
            }
            // records of what has ended may be all that is left
            if let Change::Ended(ended) = &change {
                // guard: V-22-redeemed
                engine.spend_again(ended.redeemed, ended.created);
            }
            engine.replay(&mut records, &mut owners, change);
        }
        for (id, mut record) in records {
            record.claims.retain(|peer| owners.get(peer) == Some(&id));
            if !engine.carry_over(id, &record, now.time, &mut belongings, &mut endpoint_of) {
                engine.allocations.table.retire(id);
                engine.report_lost(id, record, now.time);
            }
        }
        // Their timers are in a queue. A snapshot has them in the order of its places.
        reservations.sort_by_key(|(reserved, _)| reserved.expires);
        for (reserved, user) in reservations {
            engine.reserve_again(&reserved, &user, now.time, &mut belongings);
        }
    }

    /// Shows the 5-tuples of clients by UDP that have moved. The kernel may have given them to another shard of the host.
    pub fn each_roamer(&self, mut show: impl FnMut(ClientTuple)) {
        let table = &self.allocations.table;
        let ids = (0..table.slot_count()).filter_map(|slot| table.id_at(slot));
        for allocation in ids.filter_map(|id| self.allocations.live(id)) {
            let paths = allocation.paths().filter(|_| allocation.has_moved());
            paths
                .filter(|path| path.transport == Transport::Udp)
                .for_each(&mut show);
        }
    }

    /// Keeps the port of a reservation, unless it has been redeemed: then it is taken, or the token spent.
    fn reserve_again(
        &mut self,
        reserved: &Reserved,
        user: &Arc<User>,
        now: Time,
        belongings: &mut Belongings,
    ) {
        let expires = reserved.expires;
        let commons = &self.rules.commons;
        if commons.reservations.holds(reserved.token, now) {
            // It has outlived the engine that made it, which alone knew when it ends.
            self.allocations.reservation_deadlines.push_back(expires);
            return;
        }
        let lease = belongings.lease(reserved.local);
        if now < expires
            && let Some(lease) = lease.or_else(|| commons.ports.lease_exact(reserved.local))
            && let Some(quota) = commons.quota.take_again(user)
        {
            let reservation = Reservation {
                port: ReservedPort { held: None, lease },
                quota,
                expires,
            };
            if commons
                .reservations
                .put(reserved.token, reservation)
                .is_ok()
            {
                self.allocations.reservation_deadlines.push_back(expires);
            }
        }
    }

    /// Takes note that an allocation created at `created` has redeemed a token: it works once.
    fn spend_again(&self, redeemed: Option<ReservationToken>, created: Time) {
        if let Some(token) = redeemed {
            let until = created + self.rules.config.lifetimes.reservation.max(RESERVATION_MIN);
            self.rules.commons.reservations.spend(token, until);
        }
    }

    /// Applies one change to the records.
    fn replay(
        &mut self,
        records: &mut BTreeMap<AllocationId, Record>,
        owners: &mut BTreeMap<PeerAddress, AllocationId>,
        change: Change,
    ) {
        match change {
            Change::Created(created) => {
                records.insert(created.allocation, Record::new(*created));
            }
            Change::Refreshed {
                allocation,
                family,
                expires,
                usage,
            } => {
                if let Some(record) = records.get_mut(&allocation) {
                    record.extend(family, expires, usage);
                }
            }
            Change::FamilyEnded {
                allocation,
                family,
                cause,
                time,
            } => {
                let Some(record) = records.get_mut(&allocation) else {
                    return;
                };
                record.end_family(family);
                if let EndCause::Released(transaction) = cause {
                    for path in record.paths() {
                        if let Some(client) = self.client_tuple(path) {
                            let effect = Effect::EndedFamily(allocation);
                            ending::record_release(
                                client,
                                transaction,
                                effect,
                                true,
                                time,
                                &self.rules,
                                &mut self.allocations,
                            );
                        }
                    }
                }
            }
            Change::Ended(ended) => {
                records.remove(&ended.allocation);
                self.allocations.table.retire(ended.allocation);
                // mutant: rebuild-forgets-where-it-began
                if let Some(first) = ended.created_from.and_then(|path| self.client_tuple(path)) {
                    self.allocations.tombstones.record(
                        first,
                        ended.created_by,
                        Effect::Over,
                        ended.time,
                    );
                }
                if let Some(client) = self.client_tuple(ended.path) {
                    self.allocations
                        .tombstones
                        // mutant: rebuild-forgets-tombstones
                        .record(client, ended.created_by, Effect::Over, ended.time);
                    if let EndCause::Released(transaction) = ended.cause {
                        ending::record_release(
                            client,
                            transaction,
                            Effect::Over,
                            true,
                            ended.time,
                            &self.rules,
                            &mut self.allocations,
                        );
                    }
                }
            }
            Change::Reauthorized { allocation, user } => {
                if let Some(record) = records.get_mut(&allocation) {
                    record.created.user = user;
                }
            }
            Change::Resumed(resumed) => {
                if let Some(record) = records.get_mut(&resumed.allocation) {
                    record.resumed = Some(*resumed);
                    record.has_new_path = true;
                }
            }
            Change::Moved(moved) => {
                let Some(record) = records.get_mut(&moved.allocation) else {
                    return;
                };
                let created = &mut record.created;
                let old = self.client_tuple(created.path);
                if let Some(old) = old {
                    self.allocations.tombstones.record(
                        old,
                        created.transaction,
                        Effect::Over,
                        moved.time,
                    );
                }
                created.path = moved.path;
                record.has_new_path = false;
            }
            Change::PermissionInstalled {
                allocation,
                peer,
                expires,
                ..
            } => {
                if let Some(record) = records.get_mut(&allocation) {
                    record.permissions.insert(peer, expires);
                }
            }
            Change::PermissionExpired { allocation, peer } => {
                if let Some(record) = records.get_mut(&allocation) {
                    record.permissions.remove(&peer);
                    record.release();
                }
            }
            Change::ChannelInstalled {
                allocation,
                number,
                peer,
                expires,
            } => {
                if let Some(record) = records.get_mut(&allocation) {
                    record.channels.insert(number, (peer, expires));
                }
            }
            // connections end with the process that held them
            Change::PeerBound { .. }
            | Change::PeerConnected { .. }
            | Change::PeerDisconnected { .. }
            | Change::PeerLimitReached { .. } => {}
            Change::PeerClaimed { allocation, peer } => {
                if let Some(record) = records.get_mut(&allocation) {
                    let peer = PeerAddress::new(peer);
                    record.claims.insert(peer);
                    // mutant: rebuild-forgets-claims
                    owners.insert(peer, allocation);
                }
            }
            Change::ChannelExpired { allocation, number } => {
                if let Some(record) = records.get_mut(&allocation) {
                    record.channels.remove(&number);
                    record.release();
                }
            }
        }
    }

    /// Puts one allocation in place, if all it needs is there.
    fn carry_over(
        &mut self,
        id: AllocationId,
        record: &Record,
        now: Time,
        belongings: &mut Belongings,
        endpoint_of: &mut impl FnMut(SocketAddr, RelayHandle) -> Option<Endpoint>,
    ) -> bool {
        let Record {
            created,
            expires,
            usage,
            permissions,
            channels,
            claims,
            first,
            resumed,
            has_new_path,
        } = record;
        let mut relays = [None, None];
        for relayed in &created.relays {
            let family = Family::of(&relayed.local);
            let index = family.index();
            let Some(expires) = expires[index] else {
                continue;
            };
            let handle = RelayHandle {
                allocation: id,
                family,
            };
            let endpoint = match created.protocol {
                RelayProtocol::Udp => endpoint_of(relayed.local, handle),
                // The connections of its peers have ended with the process that held them.
                RelayProtocol::Tcp => None,
            };
            let lease = self.lease_again(relayed.local, endpoint, belongings);
            match (endpoint, lease) {
                (Some(endpoint), Some(lease)) => {
                    relays[index] = Some(Relay::new(endpoint, expires, lease));
                }
                (Some(endpoint), None) => self.out.outbox.close_relay(endpoint),
                (None, _) => {}
            }
        }
        let held = expires.iter().flatten().count();
        let client = self.client_tuple(created.path);
        // a connection has ended with the process that held it: a client that can move resumes with its ticket
        let parked = client.is_none() && created.brought.is_mobile && self.rules.tickets.is_some();
        let client = client.or_else(|| self.parked_tuple(id, created).filter(|_| parked));
        let mobility = created.brought.is_mobile.then(|| {
            let resume = resumed.as_ref().and_then(|resumed| {
                let client = self.client_tuple(resumed.path)?;
                Some(LastResume {
                    client,
                    transaction: resumed.transaction,
                    until: resumed.until,
                })
            });
            Box::new(Mobility {
                first: self.client_tuple(*first),
                // mutant: rebuild-forgets-ticket
                number: resumed.as_ref().map_or(1, |resumed| resumed.number),
                // mutant: rebuild-forgets-new-path
                new_path: resume.filter(|_| *has_new_path).map(|resume| resume.client),
                is_parked: parked,
                resumed: resume,
            })
        });
        let account = self.account_again(id, created, belongings);
        let (Some(client), Some(account), true) =
            (client, account, relays.iter().flatten().count() == held)
        else {
            for relay in relays.iter().flatten() {
                relay.close(&mut self.out.outbox);
            }
            return false;
        };
        let rare = Rare {
            origin: created.brought.origin,
            token: created.reservation.map(|reserved| reserved.token),
            redeemed: created.brought.redeemed,
            missing_family: created.missing_family,
        };
        let mut allocation = Allocation {
            client,
            relays,
            permissions: Permissions::default(),
            channels: Channels::default(),
            usage: *usage,
            wake: Time::ZERO,
            created: created.created,
            account,
            transaction: created.transaction,
            mobility,
            rare: rare.boxed(),
        };
        for (&peer, &expires) in permissions {
            // mutant: rebuild-forgets-permissions
            allocation.permissions.install(peer, expires);
        }
        for (&number, &(peer, expires)) in channels {
            match self.rules.policies.of(&created.user).check(peer) {
                Ok(peer) => allocation.channels.install(number, peer, expires),
                Err(_) => self.out.changes.push_back(Change::ChannelExpired {
                    allocation: id,
                    number,
                }),
            }
        }
        allocation.wake = allocation.nearest_deadline();
        let (wake, endpoints) = (allocation.wake, endpoints(&allocation));
        if !self
            .allocations
            .table
            .insert_at(id, Entry::Live(allocation))
        {
            for endpoint in endpoints.into_iter().flatten() {
                self.out.outbox.close_relay(endpoint);
            }
            return false;
        }
        for &peer in claims {
            self.allocations.claims.insert(peer, id);
        }
        // mutant: rebuild-forgets-timers
        self.allocations.wheel.schedule(id.index, wake);
        mobility::announce_paths(id, &self.rules, &self.allocations);
        self.carry_over_path(id, parked, now);
        judging::enforce(id, now, &self.rules, &mut self.allocations, &mut self.out);
        true
    }

    /// Leases the port of an allocation again, when the port is free or was reserved by another engine. A shared relay socket that the
    /// host has is this engine's from then on.
    fn lease_again(
        &mut self,
        local: SocketAddr,
        endpoint: Option<Endpoint>,
        belongings: &mut Belongings,
    ) -> Option<Lease> {
        let shared = self.rules.config.relays.shared.as_ref();
        if shared.is_some_and(|shared| shared.all().any(|it| it == local)) {
            let index = Family::of(&local).index();
            if self.rules.shared[index].is_none() {
                self.add_shared_relay(endpoint?, local);
            }
            let relay = self.rules.shared[index].as_ref()?;
            return (relay.local == local).then(|| Lease::Shared(Arc::clone(relay)));
        }
        let commons = &self.rules.commons;
        let own = belongings.lease(local);
        own.or_else(|| commons.ports.lease_exact(local))
            .or_else(|| commons.reservations.redeem_exact(local))
            .map(Lease::Own)
    }

    /// Charges an allocation again with what it was charged with.
    fn account_again(
        &self,
        id: AllocationId,
        created: &Created,
        belongings: &mut Belongings,
    ) -> Option<Account> {
        let own = belongings.account(id);
        let own = own.and_then(|account| account.taken_up(&created.user));
        own.filter(|account| account.rate() == created.bytes_per_s)
            .or_else(|| {
                let commons = &self.rules.commons;
                let quota = commons.quota.take_again(&created.user)?;
                let shaper = created.bytes_per_s;
                let shaper = shaper.map(|rate| commons.bandwidth.reserve_again(rate));
                Some(Account::new(quota, shaper))
            })
    }

    /// Returns the 5-tuple of a client, if it can continue. A connection has ended with the process that held it.
    fn client_tuple(&self, path: Path) -> Option<ClientTuple> {
        let listener = self.rules.listeners.named(path.server)?;
        (path.transport == Transport::Udp).then_some(ClientTuple {
            listener,
            remote: path.client,
            transport: path.transport,
            // guard: proxy-rebuilt
            connection: path.connection,
        })
    }

    /// Restores the second path of an allocation. It is the only path if the first one was a connection.
    fn carry_over_path(&mut self, id: AllocationId, is_parked: bool, now: Time) {
        let mobility = self
            .allocations
            .live(id)
            .and_then(|allocation| allocation.mobility.as_deref());
        let Some(path) = mobility.and_then(|mobility| mobility.new_path) else {
            return;
        };
        self.allocations.new_paths.insert(path, id);
        if is_parked {
            mobility::move_over(id, now, &self.rules, &mut self.allocations, &mut self.out);
        }
    }

    /// Stands for the connection of a client that has to come back. No connection is named so, and one address may have had several.
    fn parked_tuple(&self, id: AllocationId, created: &Created) -> Option<ClientTuple> {
        let listener = self.rules.listeners.named(created.path.server)?;
        Some(ClientTuple {
            listener,
            remote: created.path.client,
            transport: created.path.transport,
            connection: Connection::new(u32::MAX, id.to_u64()),
        })
    }

    fn report_lost(&mut self, id: AllocationId, record: Record, now: Time) {
        let created_from = record.created_from();
        let Record { created, usage, .. } = record;
        if let Some(client) = self.client_tuple(created.path) {
            self.allocations
                .tombstones
                .record(client, created.transaction, Effect::Over, now);
        }
        self.out.changes.push_back(Change::Ended(Box::new(Ended {
            allocation: id,
            path: created.path,
            user: created.user,
            tunnel_to: None,
            cause: EndCause::Lost,
            created: created.created,
            time: now,
            created_by: created.transaction,
            redeemed: created.brought.redeemed,
            created_from,
            totals: usage,
        })));
    }
}

/// Returns the sockets that are the allocation's own.
fn endpoints(allocation: &Allocation) -> [Option<Endpoint>; 2] {
    [Family::V4, Family::V6].map(|family| {
        let relay = allocation.relay(family);
        let own = relay.filter(|relay| !relay.lease.is_shared());
        own.map(|relay| relay.endpoint)
    })
}
