//! An engine made again from the changes of another one: after a restart, in a new process, in a test.
//!
//! What the records say is put in place as it was, names included; deadlines that have passed meanwhile are found by the timers. An
//! allocation whose socket, listener or port is not there any more ends as [`EndCause::Lost`].

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;
use std::sync::Arc;

use turnbuckle_wire::ChannelNumber;

use crate::allocate::RESERVATION_MIN;
use crate::allocation::{Allocation, Entry, Rare, Relay};
use crate::change::{Change, Created, EndCause, Ended, Path, Resumed, Usage};
use crate::channel::Channels;
use crate::commons::Commons;
use crate::config::Config;
use crate::engine::Engine;
use crate::id::{AllocationId, ClientTuple, Connection, Endpoint, Family, Transport};
use crate::mobility::{LastResume, Mobility};
use crate::permission::Permissions;
use crate::ports::PortLease;
use crate::random::Random;
use crate::reservation::ReservationToken;
use crate::time::{Now, Time};
use crate::tombstone::Deed;

/// What the changes say about one allocation that has not ended.
struct Record {
    created: Created,
    /// By [`Family::index`]; `None` for a family it has no more, or never had.
    expires: [Option<Time>; 2],
    usage: Usage,
    permissions: BTreeMap<IpAddr, Time>,
    channels: BTreeMap<ChannelNumber, (SocketAddr, Time)>,
    /// The 5-tuple that it was created on.
    first: Path,
    /// The last resume.
    resumed: Option<Resumed>,
    /// Whether the path it opened has carried no data yet.
    has_new_path: bool,
}

impl Path {
    fn of(created: &Created) -> Self {
        Self {
            server: created.server,
            client: created.client,
            transport: created.transport,
            connection: created.connection,
        }
    }
}

impl Record {
    fn new(created: Created) -> Self {
        let mut expires = [None, None];
        for relayed in &created.relays {
            expires[Family::of(&relayed.local).index()] = Some(created.expires);
        }
        let (permissions, channels) = (BTreeMap::new(), BTreeMap::new());
        Self {
            first: Path::of(&created),
            created,
            expires,
            usage: Usage::default(),
            permissions,
            channels,
            resumed: None,
            has_new_path: false,
        }
    }

    fn extend(&mut self, family: Option<Family>, expires: Time, usage: Usage) {
        for held in [Family::V4, Family::V6] {
            if family.is_none_or(|family| family == held) {
                let slot = &mut self.expires[held.index()];
                *slot = slot.map(|_| expires);
            }
        }
        self.usage = usage;
    }

    /// The 5-tuples of the client: its own, and the new path beside it.
    fn paths(&self) -> impl Iterator<Item = Path> + use<> {
        let new_path = self.resumed.as_ref().filter(|_| self.has_new_path);
        let new_path = new_path.map(|resumed| Path {
            server: resumed.server,
            client: resumed.client,
            transport: resumed.transport,
            connection: resumed.connection,
        });
        core::iter::once(Path::of(&self.created)).chain(new_path)
    }

    /// Where the request that created it came from, if it has moved since.
    fn created_from(&self) -> Option<Path> {
        (self.first != Path::of(&self.created)).then_some(self.first)
    }

    fn end_family(&mut self, family: Family) {
        self.expires[family.index()] = None;
        self.permissions
            .retain(|peer, _| peer.is_ipv4() != (family == Family::V4));
        self.channels
            .retain(|_, (peer, _)| Family::of(peer) != family);
    }
}

impl<R: Random> Engine<R> {
    /// An engine that behaves as the one whose changes these are.
    ///
    /// `changes` are all changes of one engine in their order; of allocations that have ended they may be missing altogether.
    /// `listeners` are the UDP sockets; `endpoint_of` names the socket that is bound to a relay address. Totals begin at what the last refresh recorded.
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
        let mut records = BTreeMap::new();
        let mut reservations = Vec::new();
        for change in changes {
            if let Change::Created(created) = &change {
                reservations.extend(created.reservation);
                engine.spend_again(created.redeemed, created.created);
            }
            // records of what has ended may be all that is left
            if let Change::Ended(ended) = &change {
                // guard: V-22-redeemed
                engine.spend_again(ended.redeemed, ended.created);
            }
            engine.replay(&mut records, change);
        }
        for (id, record) in records {
            if !engine.carry_over(id, &record, now.time, &mut endpoint_of) {
                engine.table.retire(id);
                engine.report_lost(id, record, now.time);
            }
        }
        for reserved in reservations {
            // a port that is taken has been redeemed
            if now.time < reserved.expires
                && let Some(lease) = engine.commons.ports.lease_exact(reserved.local)
                && engine
                    .commons
                    .reservations
                    .put(reserved.token, lease, reserved.expires)
                    .is_ok()
            {
                engine.reservation_deadlines.push_back(reserved.expires);
            }
        }
        engine
    }

    /// Takes note that an allocation created at `created` has redeemed a token: it works once.
    fn spend_again(&self, redeemed: Option<ReservationToken>, created: Time) {
        if let Some(token) = redeemed {
            let until = created + self.config.lifetimes.reservation.max(RESERVATION_MIN);
            self.commons.reservations.spend(token, until);
        }
    }

    /// Applies one change to the records.
    fn replay(&mut self, records: &mut BTreeMap<AllocationId, Record>, change: Change) {
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
                            let deed = Deed::EndedFamily(allocation);
                            self.bury_release(client, transaction, deed, true, time);
                        }
                    }
                }
            }
            Change::Ended(ended) => {
                records.remove(&ended.allocation);
                self.table.retire(ended.allocation);
                // mutant: rebuild-forgets-where-it-began
                if let Some(first) = ended.created_from.and_then(|path| self.client_tuple(path)) {
                    self.tombstones
                        .bury(first, ended.created_by, Deed::Over, ended.time);
                }
                let path = Path {
                    server: ended.server,
                    client: ended.client,
                    transport: ended.transport,
                    connection: ended.connection,
                };
                if let Some(client) = self.client_tuple(path) {
                    self.tombstones
                        // mutant: rebuild-forgets-tombstones
                        .bury(client, ended.created_by, Deed::Over, ended.time);
                    if let EndCause::Released(transaction) = ended.cause {
                        self.bury_release(client, transaction, Deed::Over, true, ended.time);
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
                let old = self.client_tuple(Path::of(created));
                if let Some(old) = old {
                    self.tombstones
                        .bury(old, created.transaction, Deed::Over, moved.time);
                }
                created.server = moved.server;
                created.client = moved.client;
                created.transport = moved.transport;
                created.connection = moved.connection;
                record.has_new_path = false;
            }
            Change::PermissionInstalled {
                allocation,
                peer,
                expires,
            } => {
                if let Some(record) = records.get_mut(&allocation) {
                    record.permissions.insert(peer, expires);
                }
            }
            Change::PermissionExpired { allocation, peer } => {
                if let Some(record) = records.get_mut(&allocation) {
                    record.permissions.remove(&peer);
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
            | Change::PeerDisconnected { .. } => {}
            Change::ChannelExpired { allocation, number } => {
                if let Some(record) = records.get_mut(&allocation) {
                    record.channels.remove(&number);
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
        endpoint_of: &mut impl FnMut(SocketAddr) -> Option<Endpoint>,
    ) -> bool {
        let Record {
            created,
            expires,
            usage,
            permissions,
            channels,
            first,
            resumed,
            has_new_path,
        } = record;
        let mut relays = [None, None];
        for relayed in &created.relays {
            let index = Family::of(&relayed.local).index();
            let Some(expires) = expires[index] else {
                continue;
            };
            let endpoint = endpoint_of(relayed.local);
            match (endpoint, self.lease_again(relayed.local)) {
                (Some(endpoint), Some(lease)) => {
                    relays[index] = Some(Relay::new(endpoint, expires, lease));
                }
                (Some(endpoint), None) => self.outbox.close_relay(endpoint),
                (None, _) => {}
            }
        }
        let held = expires.iter().flatten().count();
        let client = self.client_tuple(Path::of(created));
        // a connection has ended with the process that held it: who can move comes back with its ticket
        let parked = client.is_none() && created.is_mobile && self.tickets.is_some();
        let client = client.or_else(|| self.parked_tuple(id, created).filter(|_| parked));
        let mobility = created.is_mobile.then(|| {
            let resume = resumed.as_ref().and_then(|resumed| {
                let client = self.client_tuple(Path {
                    server: resumed.server,
                    client: resumed.client,
                    transport: resumed.transport,
                    connection: resumed.connection,
                })?;
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
        let quota = self.commons.quota.take_again(&created.user);
        let (Some(client), Some(quota), true) =
            (client, quota, relays.iter().flatten().count() == held)
        else {
            for relay in relays.iter().flatten() {
                self.outbox.close_relay(relay.endpoint);
            }
            return false;
        };
        let rare = Rare {
            origin: created.origin,
            token: created.reservation.map(|reserved| reserved.token),
            redeemed: created.redeemed,
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
            quota,
            transaction: created.transaction,
            mobility,
            shaper: created
                .bytes_per_s
                .map(|rate| Box::new(self.commons.bandwidth.reserve_again(rate))),
            rare: rare.boxed(),
        };
        for (&peer, &expires) in permissions {
            // mutant: rebuild-forgets-permissions
            allocation.permissions.install(peer, expires);
        }
        for (&number, &(peer, expires)) in channels {
            match self.policy_of(&created.user).check(peer) {
                Ok(peer) => allocation.channels.install(number, peer, expires),
                Err(_) => self.changes.push_back(Change::ChannelExpired {
                    allocation: id,
                    number,
                }),
            }
        }
        allocation.wake = allocation.nearest_deadline();
        let (wake, endpoints) = (allocation.wake, endpoints(&allocation));
        if !self.table.insert_at(id, Entry::Live(allocation)) {
            for endpoint in endpoints.into_iter().flatten() {
                self.outbox.close_relay(endpoint);
            }
            return false;
        }
        // mutant: rebuild-forgets-timers
        self.wheel.schedule(id.index, wake);
        self.tell_paths(id);
        self.carry_over_path(id, parked, now);
        self.enforce_policy(id);
        true
    }

    /// The port of an allocation that another engine may have reserved, or that nobody has.
    fn lease_again(&self, local: SocketAddr) -> Option<PortLease> {
        let commons = &self.commons;
        commons
            .ports
            .lease_exact(local)
            .or_else(|| commons.reservations.redeem_exact(local))
    }

    /// The 5-tuple of a client, if it can go on: a connection has ended with the process that held it.
    fn client_tuple(&self, path: Path) -> Option<ClientTuple> {
        let mut listeners = self.listeners.iter();
        let &(listener, _) = listeners.find(|&&(_, local)| local == path.server)?;
        (path.transport == Transport::Udp).then_some(ClientTuple {
            listener,
            remote: path.client,
            transport: path.transport,
            // guard: proxy-rebuilt
            connection: path.connection,
        })
    }

    /// The second path of an allocation; its only one, if the first one was a connection.
    fn carry_over_path(&mut self, id: AllocationId, is_parked: bool, now: Time) {
        let mobility = self
            .live(id)
            .and_then(|allocation| allocation.mobility.as_deref());
        let Some(path) = mobility.and_then(|mobility| mobility.new_path) else {
            return;
        };
        self.new_paths.insert(path, id);
        if is_parked {
            self.move_over(id, now);
        }
    }

    /// Stands for the connection of a client that has to come back. No connection is named so, and one address may have had several.
    fn parked_tuple(&self, id: AllocationId, created: &Created) -> Option<ClientTuple> {
        let mut listeners = self.listeners.iter();
        let &(listener, _) = listeners.find(|&&(_, local)| local == created.server)?;
        Some(ClientTuple {
            listener,
            remote: created.client,
            transport: created.transport,
            connection: Connection::new(u32::MAX, id.to_u64()),
        })
    }

    fn report_lost(&mut self, id: AllocationId, record: Record, now: Time) {
        let created_from = record.created_from();
        let Record { created, usage, .. } = record;
        if let Some(client) = self.client_tuple(Path::of(&created)) {
            self.tombstones
                .bury(client, created.transaction, Deed::Over, now);
        }
        self.changes.push_back(Change::Ended(Box::new(Ended {
            allocation: id,
            client: created.client,
            server: created.server,
            transport: created.transport,
            connection: created.connection,
            user: created.user,
            cause: EndCause::Lost,
            created: created.created,
            time: now,
            created_by: created.transaction,
            redeemed: created.redeemed,
            created_from,
            totals: usage,
        })));
    }
}

fn endpoints(allocation: &Allocation) -> [Option<Endpoint>; 2] {
    [Family::V4, Family::V6].map(|family| allocation.relay(family).map(|relay| relay.endpoint))
}
