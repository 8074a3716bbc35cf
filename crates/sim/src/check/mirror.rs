//! The change stream, replayed: what a journal, a kernel table or a second server would believe.
//!
//! If the stream left something out, or said it late, this copy would differ from the model.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use turnbuckle_engine::{AllocationId, Change, EndCause, Family, Traffic, Usage};

use crate::model::{Allocation, Model, Reservation, Tuple};
use crate::queue::SECOND;
use crate::server::Server;
use crate::violation::{Violation, ensure};

/// Holds allocations as the change stream reports them.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    held: BTreeMap<(usize, AllocationId), Copy>,
}

#[derive(Debug)]
struct Copy {
    tuple: Tuple,
    is_mobile: bool,
    new_path: Option<Tuple>,
    user: String,
    relays: BTreeMap<SocketAddr, u64>,
    permissions: BTreeMap<IpAddr, u64>,
    channels: BTreeMap<u16, (SocketAddr, u64)>,
    /// What the allocation relayed, counted here.
    usage: Usage,
    /// What the stream said at the last refresh: all that survives a crash.
    recorded: Usage,
}

impl Copy {
    fn is(&self, held: &Allocation) -> bool {
        self.user == held.user
            && self.is_mobile == held.mobility.is_some()
            && self.new_path == held.new_path()
            && self.relays == held.relays
            && self.permissions == held.permissions
            && self.channels == held.channels
    }

    fn release_family(&mut self, v6: bool) {
        self.relays.retain(|relay, _| relay.is_ipv6() != v6);
        self.permissions.retain(|peer, _| peer.is_ipv6() != v6);
        self.channels.retain(|_, (peer, _)| peer.is_ipv6() != v6);
    }
}

/// When something is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: u64,
    /// When the server last came to life: what ran out before could not end earlier.
    pub(super) alive_since: u64,
}

impl Moment {
    /// Checks I6: nothing ends before its time, and nothing a second after it.
    fn due(self, expires: Option<u64>, change: &Change) -> Result<(), Violation> {
        let Self { now, alive_since } = self;
        let due = expires
            .is_some_and(|expires| expires <= now && now <= expires.max(alive_since) + SECOND);
        ensure(due, "I6", || {
            format!("at {now} {change:?}, due at {expires:?}")
        })
    }
}

/// Counts one datagram.
pub(super) fn add(traffic: &mut Traffic, bytes: usize) {
    traffic.datagrams += 1;
    traffic.bytes += bytes as u64;
}

impl Mirror {
    /// Counts traffic of the allocation that `client` has, if it has one.
    pub(super) fn count_usage(&mut self, client: Tuple, count: impl FnOnce(&mut Usage)) {
        let mut held = self.held.values_mut();
        if let Some(copy) = held.find(|copy| copy.tuple == client) {
            count(&mut copy.usage);
        }
    }

    /// Records the totals as they are, as a snapshot of the server's state does.
    pub(super) fn record_usage(&mut self) {
        for copy in self.held.values_mut() {
            copy.recorded = copy.usage;
        }
    }

    /// Has the totals go on from what the journal says, as they do after a crash.
    pub(super) fn forget_usage(&mut self) {
        for copy in self.held.values_mut() {
            copy.usage = copy.recorded;
        }
    }

    /// Takes the changes of a step into the copy, lets the model forget what the engine has ended,
    /// and compares the two.
    pub(super) fn follow(
        &mut self,
        at: Moment,
        changes: &[Change],
        shard: usize,
        (server, model): (&Server, &mut Model),
    ) -> Result<(), Violation> {
        for change in changes {
            self.follow_one(at, change, shard, (server, model))?;
        }
        self.compare(model)
    }

    fn compare(&self, model: &Model) -> Result<(), Violation> {
        for (tuple, held) in &model.allocations {
            let mut copies = self.held.values().filter(|copy| copy.tuple == *tuple);
            let copy = copies.next();
            ensure(copy.is_some_and(|copy| copy.is(held)), "changes", || {
                format!("the stream says {copy:?}, the model {held:?}")
            })?;
        }
        ensure(
            self.held.len() == model.allocations.len(),
            "changes",
            || format!("the stream has {:?}", self.held.keys()),
        )
    }

    /// Takes one change into the copy.
    pub(super) fn follow_one(
        &mut self,
        at: Moment,
        change: &Change,
        shard: usize,
        (server, model): (&Server, &mut Model),
    ) -> Result<(), Violation> {
        let now = at.now;
        match change {
            Change::Created(created) => {
                let tuple = Tuple {
                    server: created.path.server,
                    client: created.path.client,
                };
                let expires = created.expires.as_nanos();
                let relays = created.relays.iter().map(|relay| (relay.external, expires));
                let copy = Copy {
                    tuple,
                    is_mobile: created.brought.is_mobile,
                    new_path: None,
                    user: created.user.name.to_string(),
                    relays: relays.collect(),
                    permissions: BTreeMap::new(),
                    channels: BTreeMap::new(),
                    usage: Usage::default(),
                    recorded: Usage::default(),
                };
                let fresh = self.held.insert((shard, created.allocation), copy);
                ensure(fresh.is_none(), "changes", || format!("{change:?} twice"))?;
                if let Some(reserved) = &created.reservation {
                    let waiting = model.reservations.values();
                    let address = server.outside(reserved.local);
                    let expires = reserved.expires.as_nanos();
                    let known =
                        |held: &Reservation| held.address == address && held.expires == expires;
                    ensure({ waiting }.any(known), "changes", || {
                        format!("{reserved:?}")
                    })?;
                }
            }
            Change::Ended(ended) => {
                let copy = self.held.remove(&(shard, ended.allocation));
                let Some(copy) = copy else {
                    return Err(Violation::new("changes", format!("{change:?} of nothing")));
                };
                let client = Tuple {
                    server: ended.path.server,
                    client: ended.path.client,
                };
                ensure(client == copy.tuple, "changes", || {
                    format!("{client:?} ended for {:?}", copy.tuple)
                })?;
                ensure(ended.totals == copy.usage, "usage", || {
                    format!("{:?} at the end, counted {:?}", ended.totals, copy.usage)
                })?;
                match ended.cause {
                    EndCause::Expired => {
                        at.due(copy.relays.values().copied().max(), change)?;
                        model.end(copy.tuple, None, now);
                    }
                    EndCause::Released(_) => {}
                    EndCause::Cancelled | EndCause::Disconnected | EndCause::Lost => {
                        model.end(copy.tuple, None, now);
                    }
                    EndCause::Forbidden
                    | EndCause::Idle
                    | EndCause::Unreachable
                    | EndCause::UserGone => {
                        return Err(Violation::new("model", format!("{change:?}")));
                    }
                }
            }
            Change::Resumed(resumed) => {
                let (server, client) = (resumed.path.server, resumed.path.client);
                let copy = self.copy(shard, resumed.allocation, change)?;
                copy.new_path = Some(Tuple { server, client });
            }
            Change::Moved(moved) => {
                let (server, client) = (moved.path.server, moved.path.client);
                let copy = self.copy(shard, moved.allocation, change)?;
                copy.tuple = Tuple { server, client };
                copy.new_path = None;
            }
            Change::Reauthorized { .. } => {
                // the model's servers know no tokens
                return Err(Violation::new("model", format!("{change:?}")));
            }
            Change::FamilyEnded {
                allocation,
                family,
                cause,
                ..
            } => {
                let v6 = *family == Family::V6;
                let copy = self.copy(shard, *allocation, change)?;
                let tuple = copy.tuple;
                let mut relays = copy.relays.iter();
                let expires = relays.find(|(relay, _)| relay.is_ipv6() == v6);
                let expires = expires.map(|(_, expires)| *expires);
                copy.release_family(v6);
                match cause {
                    EndCause::Expired => {
                        at.due(expires, change)?;
                        model.end_family(tuple, v6, None, now);
                    }
                    EndCause::Released(_) => {}
                    EndCause::Cancelled | EndCause::Disconnected | EndCause::Lost => {
                        model.end_family(tuple, v6, None, now)
                    }
                    EndCause::Forbidden
                    | EndCause::Idle
                    | EndCause::Unreachable
                    | EndCause::UserGone => {
                        return Err(Violation::new("model", format!("{change:?}")));
                    }
                }
            }
            Change::PermissionInstalled {
                allocation,
                peer,
                expires,
                ..
            } => {
                let copy = self.copy(shard, *allocation, change)?;
                copy.permissions.insert(*peer, expires.as_nanos());
            }
            Change::PeerClaimed { .. } | Change::PeerLimitReached { .. } => {
                ensure(false, "changes", || {
                    format!("{change:?} without shared relay sockets")
                })?;
            }
            Change::PeerBound { .. }
            | Change::PeerConnected { .. }
            | Change::PeerDisconnected { .. } => {
                ensure(false, "changes", || {
                    format!("{change:?} without TCP relays")
                })?;
            }
            Change::PermissionExpired { allocation, peer } => {
                let copy = self.copy(shard, *allocation, change)?;
                let tuple = copy.tuple;
                let expires = copy.permissions.remove(peer);
                at.due(expires, change)?;
                // The same step may have installed it anew.
                if let Some(held) = model.allocations.get_mut(&tuple) {
                    held.permissions
                        .retain(|ip, expires| ip != peer || *expires > now);
                }
            }
            Change::ChannelInstalled {
                allocation,
                number,
                peer,
                expires,
            } => {
                let copy = self.copy(shard, *allocation, change)?;
                copy.channels
                    .insert(number.get(), (*peer, expires.as_nanos()));
            }
            Change::ChannelExpired { allocation, number } => {
                let copy = self.copy(shard, *allocation, change)?;
                let tuple = copy.tuple;
                let expires = copy.channels.remove(&number.get());
                at.due(expires.map(|(_, expires)| expires), change)?;
                if let Some(held) = model.allocations.get_mut(&tuple) {
                    let other = |bound: &u16| *bound != number.get();
                    held.channels
                        .retain(|bound, (_, expires)| other(bound) || *expires > now);
                }
            }
            Change::Refreshed {
                allocation,
                family,
                expires,
                usage,
            } => {
                let copy = self.copy(shard, *allocation, change)?;
                ensure(*usage == copy.usage, "usage", || {
                    format!("{usage:?} at a refresh, counted {:?}", copy.usage)
                })?;
                copy.recorded = *usage;
                for (relay, end) in &mut copy.relays {
                    if family.is_none_or(|family| family == Family::of(relay)) {
                        *end = expires.as_nanos();
                    }
                }
            }
        }
        Ok(())
    }

    fn copy(
        &mut self,
        shard: usize,
        allocation: AllocationId,
        change: &Change,
    ) -> Result<&mut Copy, Violation> {
        let copy = self.held.get_mut(&(shard, allocation));
        copy.ok_or_else(|| Violation::new("changes", format!("{change:?} of nothing")))
    }
}

/// Returns the number under which a kind of change is counted.
pub(super) fn kind(change: &Change) -> u16 {
    match change {
        Change::ChannelExpired { .. } => 0,
        Change::ChannelInstalled { .. } => 1,
        Change::Created(_) => 2,
        Change::Ended(ended) => match ended.cause {
            EndCause::Expired => 3,
            EndCause::Released(_) => 4,
            EndCause::Lost => 5,
            EndCause::Disconnected => 10,
            EndCause::Cancelled => 17,
            EndCause::Forbidden => 19,
            EndCause::Idle => 20,
            EndCause::Unreachable => 21,
            EndCause::UserGone => 22,
        },
        Change::FamilyEnded { .. } => 6,
        Change::PeerBound { .. } => 11,
        Change::PeerClaimed { .. } => 17,
        Change::PeerLimitReached { .. } => 18,
        Change::PeerConnected { .. } => 12,
        Change::PeerDisconnected { .. } => 13,
        Change::Moved(_) => 14,
        Change::Resumed(_) => 15,
        Change::Reauthorized { .. } => 16,
        Change::PermissionExpired { .. } => 7,
        Change::PermissionInstalled { .. } => 8,
        Change::Refreshed { .. } => 9,
    }
}
