//! Sessions of a shard: their numbers, and what is reported of them.
//!
//! Nothing here runs for relayed data. A session's usage is looked at once a second, some places of the table at a time, and only if somebody
//! consumes events.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use turnbuckle_engine::{
    AllocationId, Change, Created, EndCause, Engine, Now, Path, Random, Session as Held, Time,
    Transport, Usage, User,
};

use super::front::Front;
use crate::counters::ShardCounters;
use crate::handle::{
    ClientSide, EventKind, EventSender, Identity, PEERS_LISTED_MAX, Session, SessionPeers,
    SessionTime, number_of_shard,
};
use crate::log::Seal;

/// Datagrams after which the usage of a session is reported, as coturn does.
const USAGE_INTERVAL: u64 = 4096;

/// Time between two looks at the usage of a session, at about.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Places of the table that one turn looks at, before what it has to send leaves.
const PLACES_PER_LOOK: u32 = 256;

/// The sessions of a shard.
pub(crate) struct Sessions {
    shard: usize,
    /// The number of each session, and how its client is reached.
    held: HashMap<AllocationId, (u64, Transport)>,
    counters: Arc<ShardCounters>,
    outlet: Option<Outlet>,
}

impl Sessions {
    /// Begins without sessions. Events go to `events`, if there is a consumer.
    pub(crate) fn new(
        shard: usize,
        counters: Arc<ShardCounters>,
        events: Option<EventSender>,
    ) -> Self {
        Self {
            shard,
            held: HashMap::new(),
            counters,
            outlet: events.map(Outlet::new),
        }
    }

    /// Has events go to `events` from now on. Sessions that are there are told of as if they began, some places of the table at a time.
    pub(in crate::shard) fn consume(&mut self, events: EventSender) {
        self.outlet = Some(Outlet {
            unseen_from: Some(0),
            ..Outlet::new(events)
        });
    }

    /// Gives a new session its number. The number is one of this shard.
    pub(in crate::shard) fn begin(&mut self, created: &Created, number: u64) {
        let transport = created.path.transport;
        self.held.insert(created.allocation, (number, transport));
        let begun = &self.counters.sessions.sessions_begun;
        begun.of(transport.into()).add(1);
    }

    /// Takes back a session of the process before, which has relayed this much by now.
    pub(in crate::shard) fn restored(
        &mut self,
        created: &Created,
        number: u64,
        usage: Usage,
        now: Time,
    ) {
        self.begin(created, number);
        let number = number_of_shard(self.shard, number);
        if let Some(outlet) = &mut self.outlet {
            outlet.begin(created, number, None, usage, now);
        }
    }

    /// Returns the number of a session among those of this shard.
    pub(in crate::shard) fn number(&self, allocation: AllocationId) -> u64 {
        let held = self.held.get(&allocation);
        held.map_or(0, |(number, _)| *number)
    }

    /// Returns the number of a session among those of all shards.
    pub(in crate::shard) fn public_number(&self, allocation: AllocationId) -> u64 {
        number_of_shard(self.shard, self.number(allocation))
    }

    /// Makes the events of a change to the session with this number among those of this shard, and forgets one that has ended. `seal` is what
    /// protects a new session's client.
    pub(in crate::shard) fn show(
        &mut self,
        change: &Change,
        number: u64,
        seal: Option<Seal>,
        now: Time,
    ) {
        if let Some(outlet) = &mut self.outlet {
            outlet.show(change, number_of_shard(self.shard, number), seal, now);
        }
        let allocation = change.allocation();
        let counters = &self.counters.sessions;
        let moved_to = match change {
            Change::Ended(_) => None,
            Change::Moved(moved) => Some(moved.path.transport),
            _ => return,
        };
        let Some((number, was)) = self.held.remove(&allocation) else {
            return;
        };
        counters.sessions_over.of(was.into()).add(1);
        if let Some(transport) = moved_to {
            counters.sessions_begun.of(transport.into()).add(1);
            self.held.insert(allocation, (number, transport));
        }
        if let Change::Ended(ended) = change {
            counters.lasted(ended.time.since(ended.created));
        }
    }

    /// Returns whether events are made.
    pub(in crate::shard) fn has_consumer(&self) -> bool {
        self.outlet.is_some()
    }

    /// Reports the usage of sessions that have relayed much since the last report, if it is time to look.
    pub(in crate::shard) fn look<R: Random>(
        &mut self,
        now: Time,
        engine: &Engine<R>,
        front: &impl Front,
    ) {
        let Some(outlet) = &mut self.outlet else {
            return;
        };
        let number = |id| {
            let held = self.held.get(&id);
            held.map(|(number, _)| number_of_shard(self.shard, *number))
        };
        outlet.catch_up(now, engine, front, number);
        outlet.look(now, engine);
        outlet.events.ring();
    }

    /// Returns when [`Self::look`] is due, if there is a session to look at.
    pub(in crate::shard) fn next_look(&self) -> Option<Time> {
        let outlet = self.outlet.as_ref()?;
        if outlet.unseen_from.is_some() {
            return Some(Time::ZERO);
        }
        (!outlet.reported.is_empty()).then_some(outlet.next_look)
    }

    /// Returns what an operator is shown of a session.
    pub(in crate::shard) fn describe(
        &self,
        held: &Held<'_>,
        seal: Option<Seal>,
        now: Now,
    ) -> Session {
        let user = held.user();
        Session {
            number: self.public_number(held.id()),
            realm: user.realm.clone(),
            user: user.name.clone(),
            user_id: user.quota_name.clone(),
            origin: held.origin().copied(),
            client: client_side(held.path(), seal),
            relays: held.relays().collect(),
            protocol: held.protocol(),
            time: SessionTime {
                age: now.time.since(held.created()),
                expires_in: held.expires().since(now.time),
            },
            usage: *held.usage(),
            is_mobile: held.is_mobile(),
            peers: SessionPeers {
                allowed: held.peers().take(PEERS_LISTED_MAX).collect(),
                tunnel_to: held.tunnel_to(),
                bytes_per_s: held.bytes_per_s(),
            },
        }
    }
}

/// What was reported of a session.
struct Reported {
    session: Arc<Identity>,
    usage: Usage,
}

/// Makes events of changes.
struct Outlet {
    events: EventSender,
    reported: HashMap<AllocationId, Reported>,
    /// When usage is looked at next, and from which place of the table.
    next_look: Time,
    look_from: u32,
    /// The first place of the table whose session may have begun before there was a consumer; `None` when all are told of.
    unseen_from: Option<u32>,
}

impl Outlet {
    fn new(mut events: EventSender) -> Self {
        events.send(EventKind::Restarted);
        events.ring();
        Self {
            events,
            reported: HashMap::new(),
            next_look: Time::ZERO,
            look_from: 0,
            unseen_from: None,
        }
    }

    /// Tells of sessions that began before there was a consumer, in some places of the table. What they have relayed until now is not reported.
    fn catch_up<R: Random>(
        &mut self,
        now: Time,
        engine: &Engine<R>,
        front: &impl Front,
        number: impl Fn(AllocationId) -> Option<u64>,
    ) {
        let Some(from) = self.unseen_from else {
            return;
        };
        let end = engine.session_slots();
        let last = from.saturating_add(PLACES_PER_LOOK).min(end);
        for slot in from..last {
            let Some(held) = engine.session_at(slot) else {
                continue;
            };
            let Some(number) =
                number(held.id()).filter(|_| !self.reported.contains_key(&held.id()))
            else {
                continue;
            };
            let seal = front.protection(held.client());
            let session = identity(number, held.user(), client_side(held.path(), seal));
            let reported = Reported {
                session: Arc::clone(&session),
                usage: *held.usage(),
            };
            self.reported.insert(held.id(), reported);
            self.events.send(EventKind::Created {
                session,
                lifetime: held.expires().since(now),
            });
        }
        self.unseen_from = (last < end).then_some(last);
    }

    /// Tells of a session of whose usage this much needs no report.
    fn begin(
        &mut self,
        created: &Created,
        number: u64,
        seal: Option<Seal>,
        usage: Usage,
        now: Time,
    ) {
        let session = identity(number, &created.user, client_side(&created.path, seal));
        let reported = Reported {
            session: Arc::clone(&session),
            usage,
        };
        self.reported.insert(created.allocation, reported);
        self.events.send(EventKind::Created {
            session,
            lifetime: created.expires.since(now),
        });
    }

    fn show(&mut self, change: &Change, number: u64, seal: Option<Seal>, now: Time) {
        match change {
            Change::Created(created) => {
                self.begin(created, number, seal, Usage::default(), now);
            }
            Change::Refreshed {
                allocation,
                expires,
                ..
            } => {
                if let Some(reported) = self.reported.get(allocation) {
                    self.events.send(EventKind::Refreshed {
                        session: Arc::clone(&reported.session),
                        lifetime: expires.since(now),
                    });
                }
            }
            Change::Reauthorized { allocation, user } => {
                self.changed(*allocation, |was| {
                    identity(number, user, was.client.clone())
                });
            }
            Change::Moved(moved) => self.changed(moved.allocation, |was| {
                Arc::new(Identity {
                    client: client_side(&moved.path, was.client.seal.clone()),
                    ..was.clone()
                })
            }),
            Change::Ended(ended) => {
                let Some(Reported { session, usage }) = self.reported.remove(&ended.allocation)
                else {
                    if self.unseen_from.is_some() {
                        self.events.lose();
                    }
                    return;
                };
                if let EndCause::Released(_) = ended.cause {
                    self.events.send(EventKind::Refreshed {
                        session: Arc::clone(&session),
                        lifetime: Duration::ZERO,
                    });
                }
                self.events.send(EventKind::Ended {
                    session,
                    cause: ended.cause,
                    since: Box::new(ended.totals.since(&usage)),
                    totals: Box::new(ended.totals),
                });
            }
            Change::ChannelExpired { .. }
            | Change::ChannelInstalled { .. }
            | Change::FamilyEnded { .. }
            | Change::PeerBound { .. }
            | Change::PeerConnected { .. }
            | Change::PeerDisconnected { .. }
            | Change::PermissionExpired { .. }
            | Change::PermissionInstalled { .. }
            | Change::Resumed(_)
            | Change::PeerClaimed { .. }
            | Change::PeerLimitReached { .. } => {}
        }
    }

    fn changed(
        &mut self,
        allocation: AllocationId,
        change: impl FnOnce(&Identity) -> Arc<Identity>,
    ) {
        if let Some(reported) = self.reported.get_mut(&allocation) {
            let session = change(&reported.session);
            reported.session = Arc::clone(&session);
            self.events.send(EventKind::Changed { session });
        }
    }

    fn look<R: Random>(&mut self, now: Time, engine: &Engine<R>) {
        if self.reported.is_empty() || now < self.next_look {
            return;
        }
        let end = engine.session_slots();
        let last = self.look_from.saturating_add(PLACES_PER_LOOK).min(end);
        for slot in self.look_from..last {
            let Some(held) = engine.session_at(slot) else {
                continue;
            };
            let Some(reported) = self.reported.get_mut(&held.id()) else {
                continue;
            };
            let since = held.usage().since(&reported.usage);
            if since.datagrams() >= USAGE_INTERVAL {
                reported.usage = *held.usage();
                self.events.send(EventKind::Used {
                    session: Arc::clone(&reported.session),
                    since: Box::new(since),
                });
            }
        }
        // All places within a second, at even distances: at one go they would keep the thread, and others from its CPU, for many turns.
        self.next_look = now + LOOK_INTERVAL * (last - self.look_from) / end.max(1);
        self.look_from = if last == end { 0 } else { last };
    }
}

fn identity(number: u64, user: &User, client: ClientSide) -> Arc<Identity> {
    Arc::new(Identity {
        number,
        realm: user.realm.clone(),
        user: user.name.clone(),
        quota_name: user.quota_name.clone(),
        client,
    })
}

fn client_side(path: &Path, seal: Option<Seal>) -> ClientSide {
    ClientSide {
        server: path.server,
        address: path.client,
        transport: path.transport,
        seal,
    }
}
