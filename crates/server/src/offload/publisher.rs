//! Shows the kernel the channels of one shard that it may relay, and takes over what it has relayed and dropped.
//!
//! The engine says what may be relayed ([`Engine::flow`]); this compares it with what is published, for each channel that a change is about. It is called
//! before anything leaves the shard. So when a client or an operator learns that something has ended, the kernel has ended it already; and what the
//! kernel relays, the engine would have relayed at that moment.
//!
//! A request costs the same however many channels its client has. What it names is compared at once. A line never ends later than its channel's
//! permission and relayed transport address, so a change that gives one of these a longer lifetime is about no line: a line gets the longer one when it
//! is about to end, or with its channel's next binding. Channels that may begin to be published together wait, [`OFFERS_MAX`] of them for each call.
//!
//! A line that was revoked is kept until its counts are final ([`GRACE`]): they belong to the allocation, and the line must not be another one's by then.
//! The end of an allocation is told only after that, so that its totals are exact.
//!
//! What the kernel drops at listeners belongs to no shard: whichever comes first takes it over, once.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::ops::Bound::{Excluded, Included};
use std::sync::Arc;
use std::time::Duration;

use turnbuckle_datapath::offload::{Carried, GRACE, Line, Refused, Route, Routes};
use turnbuckle_engine::{
    AddressRange, AllocationId, Change, DropReason, Ended, Engine, Flow, Framing, Random,
    RelayHandle, Time, Traffic, Unasked,
};
use turnbuckle_wire::ChannelNumber;

use crate::counters::{ShardCounters, UdpDrop};

/// Time between two readings of what was relayed.
const READING: Duration = Duration::from_secs(5);

/// Published channels that are read in one call.
const READ_MAX: usize = 256;

/// A line that ends within this time is compared when it is read.
const ABOUT_TO_END: Duration = Duration::from_secs(15);

/// Channels that wait to be published of which so many are in one call.
const OFFERS_MAX: usize = 64;

/// The channel numbers that no other one is below or above.
const LOWEST: ChannelNumber = ChannelNumber::MIN;
const HIGHEST: ChannelNumber = ChannelNumber::MAX_RFC5766;

/// Names a channel of the shard.
type Channel = (AllocationId, ChannelNumber);

/// The published channels of a shard.
pub(crate) struct Publisher {
    routes: Box<dyn Routes + Send>,
    counters: Arc<ShardCounters>,
    /// Source addresses whose datagrams begin with a header of the PROXY protocol, which the kernel does not read.
    proxies: Vec<AddressRange>,
    published: BTreeMap<Channel, Published>,
    /// When lines end, by allocation.
    ends: BTreeSet<(AllocationId, Time, ChannelNumber)>,
    due: Due,
    /// In the order of their turns.
    revoked: VecDeque<Revoked>,
    /// How many of these each allocation has.
    revoked_by_allocation: BTreeMap<AllocationId, usize>,
    /// Ends of allocations that wait for their counts.
    ended: BTreeMap<AllocationId, Ended>,
    /// When a reading was begun.
    read: Time,
    /// From which channel on the present reading goes on.
    reading: Option<Channel>,
    /// Comparisons so far.
    #[cfg(test)]
    compared: usize,
}

/// What has to be compared with what is published.
#[derive(Default)]
struct Due {
    /// Channels that a change was about.
    changed: BTreeSet<Channel>,
    /// Allocations of which a permission has expired.
    expired: BTreeSet<AllocationId>,
    /// Permissions that are new: channels may have waited for them.
    permitted: BTreeSet<(AllocationId, IpAddr)>,
    /// Allocations of which all channels may have to be published: those that were taken over, before the next relay's program runs.
    anew: BTreeSet<AllocationId>,
    /// Channels that wait to be compared, [`OFFERS_MAX`] at a time.
    waiting: BTreeSet<Channel>,
}

/// A channel that the kernel relays.
struct Published {
    flow: Flow,
    to_peer: Counted,
    to_client: Counted,
}

/// A channel that it relays no longer.
struct Revoked {
    allocation: AllocationId,
    /// What its data was charged to.
    meter: Option<NonZeroU32>,
    to_peer: Option<Counted>,
    to_client: Option<Counted>,
    /// The time of the turn in which it was revoked.
    turn: Time,
    /// The time of a later turn, which began after it was revoked.
    since: Option<Time>,
}

/// A line, and what was taken over of its counts.
#[derive(Clone, Copy)]
struct Counted {
    line: Line,
    taken: Carried,
}

impl Publisher {
    pub(crate) fn new(routes: Box<dyn Routes + Send>, counters: Arc<ShardCounters>) -> Self {
        Self {
            routes,
            counters,
            proxies: Vec::new(),
            published: BTreeMap::new(),
            ends: BTreeSet::new(),
            due: Due::default(),
            revoked: VecDeque::new(),
            revoked_by_allocation: BTreeMap::new(),
            ended: BTreeMap::new(),
            read: Time::ZERO,
            reading: None,
            #[cfg(test)]
            compared: 0,
        }
    }

    /// Leaves channels of these sources to the shard from the next comparison on.
    pub(crate) fn set_proxies(&mut self, sources: &[AddressRange]) {
        sources.clone_into(&mut self.proxies);
    }

    /// Notes a change. Returns `true` for the end of an allocation that is to be told later, by [`Self::publish`].
    pub(crate) fn note(&mut self, change: &Change) -> bool {
        match change {
            Change::ChannelExpired { allocation, number }
            | Change::ChannelInstalled {
                allocation, number, ..
            } => {
                self.due.changed.insert((*allocation, *number));
            }
            Change::PermissionExpired { allocation, .. } => {
                self.due.expired.insert(*allocation);
            }
            Change::PermissionInstalled {
                allocation,
                peer,
                expires,
                is_new,
            } => {
                self.note_lifetime(*allocation, *expires);
                if *is_new {
                    self.due.permitted.insert((*allocation, *peer));
                }
            }
            Change::Refreshed {
                allocation,
                expires,
                ..
            } => self.note_lifetime(*allocation, *expires),
            Change::FamilyEnded { allocation, .. } => {
                self.note_all(*allocation);
            }
            Change::Moved(moved) => {
                self.note_all(moved.allocation);
                self.due.anew.insert(moved.allocation);
            }
            Change::Ended(ended) => return self.note_end(ended),
            _ => {}
        }
        false
    }

    /// Notes an allocation that was taken over with its channels.
    pub(crate) fn restored(&mut self, allocation: AllocationId) {
        self.due.anew.insert(allocation);
    }

    /// Has the lines of an allocation compared that end later than something of it does now.
    fn note_lifetime(&mut self, id: AllocationId, expires: Time) {
        let later = (
            Excluded((id, expires, HIGHEST)),
            Included((id, Time::MAX, HIGHEST)),
        );
        let later = self.ends.range(later);
        self.due
            .changed
            .extend(later.map(|&(id, _, number)| (id, number)));
    }

    /// Has all lines of an allocation compared. Returns whether there are any.
    fn note_all(&mut self, id: AllocationId) -> bool {
        let mut all = self
            .published
            .range((id, LOWEST)..=(id, HIGHEST))
            .peekable();
        let is_any = all.peek().is_some();
        self.due.changed.extend(all.map(|(&channel, _)| channel));
        is_any
    }

    fn note_end(&mut self, ended: &Ended) -> bool {
        let id = ended.allocation;
        let is_late = self.note_all(id) || self.revoked_by_allocation.contains_key(&id);
        if is_late {
            self.ended.insert(id, ended.clone());
        }
        is_late
    }

    /// Has everything compared again, because the rules have changed.
    pub(crate) fn reconsider(&mut self) {
        self.due.changed.extend(self.published.keys());
    }

    /// Publishes and revokes what has changed, and takes over what was relayed. `end` gets ends of allocations whose counts are final.
    pub(crate) fn publish<R: Random>(
        &mut self,
        now: Time,
        engine: &mut Engine<R>,
        end: impl FnMut(Change),
    ) {
        for id in std::mem::take(&mut self.due.expired) {
            let over = self
                .ends
                .range((id, Time::ZERO, LOWEST)..=(id, now, HIGHEST));
            self.due
                .changed
                .extend(over.map(|&(id, _, number)| (id, number)));
        }
        let changed = std::mem::take(&mut self.due.changed).into_iter();
        let (known, new): (Vec<_>, Vec<_>) =
            changed.partition(|channel| self.published.contains_key(channel));
        // What ends comes first.
        for channel in known.into_iter().chain(new) {
            self.compare(now, channel, engine);
        }
        for id in std::mem::take(&mut self.due.anew) {
            let mut all = Vec::new();
            engine.flows(now, id, |flow| all.push((id, flow.channel)));
            for channel in all {
                self.compare(now, channel, engine);
            }
        }
        self.publish_waiting(now, engine);
        self.collect(now, engine, end);
        if now >= self.read + READING {
            self.read = now;
            self.reading = self.published.keys().next().copied();
            self.take_refused();
        }
        self.take_some(now, engine);
    }

    /// Publishes some of the channels that may be published by now, though no change named them.
    fn publish_waiting<R: Random>(&mut self, now: Time, engine: &Engine<R>) {
        for (id, ip) in std::mem::take(&mut self.due.permitted) {
            engine.channels_of(id, ip, |number| {
                if !self.published.contains_key(&(id, number)) {
                    self.due.waiting.insert((id, number));
                }
            });
        }
        for _ in 0..OFFERS_MAX {
            let Some(channel) = self.due.waiting.pop_first() else {
                return;
            };
            self.compare(now, channel, engine);
        }
    }

    /// Returns when [`Self::publish`] has something to do by itself.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        if !self.due.waiting.is_empty() || self.reading.is_some() {
            return Some(self.read); // at once
        }
        let first = self.revoked.front();
        let is_final = first.map(|it| it.since.unwrap_or(it.turn) + GRACE);
        is_final.into_iter().chain([self.read + READING]).min()
    }

    /// Makes what is published of a channel what may be relayed.
    fn compare<R: Random>(&mut self, now: Time, channel: Channel, engine: &Engine<R>) {
        #[cfg(test)]
        {
            self.compared += 1;
        }
        let (id, number) = channel;
        let mut wanted = engine.flow(now, id, number);
        // guard: offload-proxy
        if wanted.is_some_and(|flow| self.is_of_proxy(&flow)) {
            wanted = None;
        }
        if let Entry::Occupied(mut known) = self.published.entry(channel) {
            let published = known.get_mut();
            let before = published.flow.expires;
            if let Some(flow) = wanted
                && is_same(&flow, &published.flow)
            {
                if flow.expires != before {
                    for way in [published.to_client, published.to_peer] {
                        self.routes.set_expiry(way.line, flow.expires.as_nanos());
                    }
                    published.flow = flow;
                    self.ends.remove(&(id, before, number));
                    self.ends.insert((id, flow.expires, number));
                }
                return;
            }
            let Published {
                flow,
                to_peer,
                to_client,
            } = known.remove();
            self.ends.remove(&(id, before, number));
            self.revoke(now, id, &flow, Some(to_peer), Some(to_client));
        }
        if let Some(flow) = wanted
            && let Some(published) = self.offer(now, id, flow)
        {
            self.ends.insert((id, flow.expires, number));
            self.published.insert(channel, published);
        }
    }

    fn is_of_proxy(&self, flow: &Flow) -> bool {
        let client = flow.client.ip().to_canonical();
        self.proxies.iter().any(|range| range.contains(client))
    }

    /// Publishes a channel, first from the peer to the client. Returns `None` if there is no room.
    fn offer(&mut self, now: Time, id: AllocationId, flow: Flow) -> Option<Published> {
        let [to_peer, to_client] = routes(&flow);
        let to_client = self.publish_one(&to_client);
        let to_peer = to_client.and_then(|_| self.publish_one(&to_peer));
        if let (Some(to_peer), Some(to_client)) = (to_peer, to_client) {
            return Some(Published {
                flow,
                to_peer,
                to_client,
            });
        }
        self.counters.offload.table_full.add(1);
        if to_client.is_some() {
            self.revoke(now, id, &flow, None, to_client);
        }
        None
    }

    fn publish_one(&mut self, route: &Route) -> Option<Counted> {
        let line = self.routes.publish(route)?;
        Some(Counted {
            line,
            taken: Carried::default(),
        })
    }

    /// Ends what is published of a channel, first from the client to the peer.
    fn revoke(
        &mut self,
        now: Time,
        allocation: AllocationId,
        flow: &Flow,
        to_peer: Option<Counted>,
        to_client: Option<Counted>,
    ) {
        for way in [to_peer, to_client].into_iter().flatten() {
            self.routes.revoke(way.line);
        }
        *self.revoked_by_allocation.entry(allocation).or_default() += 1;
        self.revoked.push_back(Revoked {
            allocation,
            meter: flow.meter,
            to_peer,
            to_client,
            turn: now,
            since: None,
        });
    }

    /// Takes over the counts of lines that are final, and gives the lines back. `end` gets the ends of allocations that have waited for that.
    fn collect<R: Random>(
        &mut self,
        now: Time,
        engine: &mut Engine<R>,
        mut end: impl FnMut(Change),
    ) {
        let new = self.revoked.iter_mut().rev();
        for revoked in new.take_while(|it| it.since.is_none()) {
            if now > revoked.turn {
                revoked.since = Some(now);
            }
        }
        // guard: offload-grace
        let is_final = |it: &mut Revoked| it.since.is_some_and(|since| now >= since + GRACE);
        while let Some(revoked) = self.revoked.pop_front_if(is_final) {
            let id = revoked.allocation;
            self.retire(revoked, engine);
            let Entry::Occupied(mut left) = self.revoked_by_allocation.entry(id) else {
                continue;
            };
            *left.get_mut() -= 1;
            if *left.get() == 0 {
                left.remove();
                let ended = self.ended.remove(&id);
                ended.map(Box::new).map(Change::Ended).map(&mut end);
            }
        }
    }

    fn retire<R: Random>(&mut self, revoked: Revoked, engine: &mut Engine<R>) {
        let Revoked {
            allocation,
            meter,
            mut to_peer,
            mut to_client,
            ..
        } = revoked;
        let traffic = take(
            &mut *self.routes,
            to_peer.as_mut(),
            to_client.as_mut(),
            meter,
        );
        self.account(allocation, &traffic, engine);
        for way in [to_peer, to_client].into_iter().flatten() {
            self.routes.free(way.line);
        }
    }

    /// Takes over what the next published channels have relayed up to now, up to [`READ_MAX`] of them.
    fn take_some<R: Random>(&mut self, now: Time, engine: &mut Engine<R>) {
        let Some(from) = self.reading.take() else {
            return;
        };
        let mut taken = Vec::new();
        for (&channel, published) in self.published.range_mut(from..) {
            if taken.len() == READ_MAX {
                self.reading = Some(channel);
                break;
            }
            if published.flow.expires < now + ABOUT_TO_END {
                self.due.waiting.insert(channel);
            }
            let (to_peer, to_client) = (&mut published.to_peer, &mut published.to_client);
            let meter = published.flow.meter;
            let traffic = take(&mut *self.routes, Some(to_peer), Some(to_client), meter);
            taken.push((channel.0, traffic));
        }
        for (id, traffic) in taken {
            self.account(id, &traffic, engine);
        }
    }

    /// Takes over what the kernel has dropped at listeners.
    fn take_refused(&mut self) {
        let Refused { unknown, unmarked } = self.routes.take_refused();
        if unknown + unmarked > 0 {
            self.counters.offload.kernel_dropped.add(unknown + unmarked);
            self.counters.dropped(UdpDrop::ProtocolUnknown, unknown);
            self.counters.dropped(DropReason::MalformedStun, unmarked);
        }
    }

    fn account<R: Random>(&mut self, id: AllocationId, traffic: &Unasked, engine: &mut Engine<R>) {
        self.count(traffic);
        match self.ended.get_mut(&id) {
            Some(ended) => ended.totals.absorb(traffic),
            None => engine.absorb(id, traffic),
        }
    }

    /// Adds to the shard's counters what was relayed and dropped.
    fn count(&self, traffic: &Unasked) {
        let counters = &self.counters.offload;
        counters.kernel_to_peers.add(traffic.to_peers.datagrams);
        counters.kernel_to_peers_bytes.add(traffic.to_peers.bytes);
        counters.kernel_to_clients.add(traffic.to_client.datagrams);
        counters
            .kernel_to_clients_bytes
            .add(traffic.to_client.bytes);
        let beyond = traffic.beyond_to_peers.datagrams + traffic.beyond_to_client.datagrams;
        if beyond > 0 {
            counters.kernel_dropped.add(beyond);
            self.counters.dropped(DropReason::BandwidthExceeded, beyond);
        }
    }

    /// Returns a published channel that the engine would not relay now, or not so, in words.
    pub(crate) fn disagreement<R: Random>(
        &self,
        now: Time,
        engine: &mut Engine<R>,
    ) -> Option<String> {
        self.published.iter().find_map(|(&(id, _), published)| {
            let flow = published.flow;
            if flow.expires <= now {
                return None; // The kernel does not relay it any more either.
            }
            refusal(now, id, &flow, engine).map(|why| format!("{flow:?} is published; {why}"))
        })
    }

    /// Ends everything, and waits until the counts are final. To be called when the shard ends.
    pub(crate) fn stop<R: Random>(&mut self, engine: &mut Engine<R>, mut end: impl FnMut(Change)) {
        self.revoke_all();
        if !self.revoked.is_empty() {
            std::thread::sleep(GRACE);
        }
        for revoked in std::mem::take(&mut self.revoked) {
            self.retire(revoked, engine);
        }
        self.take_refused();
        let ended = std::mem::take(&mut self.ended).into_values();
        ended.map(Box::new).map(Change::Ended).for_each(&mut end);
    }

    /// Leaves what is published to the next relay, with the program: it goes on until that one has published it again. Takes over what was relayed
    /// so far.
    pub(crate) fn leave<R: Random>(mut self, engine: &mut Engine<R>, end: impl FnMut(Change)) {
        self.reading = self.published.keys().next().copied();
        while self.reading.is_some() {
            self.take_some(self.read, engine);
        }
        let published = std::mem::take(&mut self.published);
        self.stop(engine, end);
        // Their next hops and meters stay claimed.
        drop(published);
    }

    fn revoke_all(&mut self) {
        for ((id, _), channel) in std::mem::take(&mut self.published) {
            let Published {
                flow,
                to_peer,
                to_client,
            } = channel;
            self.revoke(Time::ZERO, id, &flow, Some(to_peer), Some(to_client));
        }
    }
}

impl Drop for Publisher {
    /// Revokes all routes, so that a shard that fails leaves nothing behind that the kernel would go on to relay.
    fn drop(&mut self) {
        // mutant: shards-fail-without-revoking
        self.revoke_all();
        if self.revoked.is_empty() {
            return;
        }
        std::thread::sleep(GRACE);
        for mut revoked in std::mem::take(&mut self.revoked) {
            let ways = (revoked.to_peer.as_mut(), revoked.to_client.as_mut());
            let traffic = take(&mut *self.routes, ways.0, ways.1, revoked.meter);
            // The allocation's own counts have failed with the engine. Those of the shard outlive it.
            self.count(&traffic);
            for way in [revoked.to_peer, revoked.to_client].into_iter().flatten() {
                self.routes.free(way.line);
            }
        }
    }
}

/// Returns what two lines have relayed, and what was dropped beyond their rate, since this was asked last. What was dropped is that of all lines with
/// the meter, which are one allocation's.
fn take(
    routes: &mut (dyn Routes + Send),
    to_peer: Option<&mut Counted>,
    to_client: Option<&mut Counted>,
    meter: Option<NonZeroU32>,
) -> Unasked {
    let traffic = |carried: Carried| Traffic {
        datagrams: carried.datagrams,
        bytes: carried.bytes,
    };
    let relayed = |way: Option<&mut Counted>| {
        let Some(way) = way else {
            return Traffic::default();
        };
        let now = routes.carried(way.line);
        let taken = std::mem::replace(&mut way.taken, now);
        Traffic {
            datagrams: now.datagrams.wrapping_sub(taken.datagrams),
            bytes: now.bytes.wrapping_sub(taken.bytes),
        }
    };
    let (to_peers, to_client) = (relayed(to_peer), relayed(to_client));
    let beyond = meter.map(|meter| routes.take_beyond(meter));
    let beyond = beyond.unwrap_or_default();
    Unasked {
        to_peers,
        to_client,
        beyond_to_peers: traffic(beyond.labelled),
        beyond_to_client: traffic(beyond.plain),
    }
}

/// Returns what the engine says of a channel that it does not relay as the kernel would, in words.
pub(crate) fn refusal<R: Random>(
    now: Time,
    id: AllocationId,
    flow: &Flow,
    engine: &mut Engine<R>,
) -> Option<String> {
    let peer = flow.peer.address();
    let to_peer = engine.route_channel_data(now, id, flow.channel.get(), 0, 0);
    let family = u64::from(peer.is_ipv6()) << 31;
    let relay = RelayHandle::from_u64(id.to_u64() | family);
    let to_client = engine.route_from_peer(now, relay, peer, 0, 0);
    let is_same = to_peer.is_ok_and(|route| route.peer == flow.peer)
        && to_client.is_ok_and(|route| {
            route.client.remote == flow.client && route.framing == Framing::Channel(flow.channel)
        });
    (!is_same).then(|| format!("{to_peer:?}, {to_client:?}"))
}

/// Returns the routes of a channel: to its peer, and to its client.
fn routes(flow: &Flow) -> [Route; 2] {
    let label = Some(flow.channel.get());
    let expires_ns = flow.expires.as_nanos();
    let peer = flow.peer.address();
    let to_peer = Route {
        from: flow.client,
        to: flow.listener,
        label,
        new_from: flow.relay,
        new_to: peer,
        new_label: None,
        expires_ns,
        meter: flow.meter,
    };
    let to_client = Route {
        from: peer,
        to: flow.relay,
        label: None,
        new_from: flow.listener,
        new_to: flow.client,
        new_label: label,
        expires_ns,
        meter: flow.meter,
    };
    [to_peer, to_client]
}

/// Returns whether two flows are one, up to the time at which they end.
fn is_same(one: &Flow, other: &Flow) -> bool {
    let expires = other.expires;
    Flow { expires, ..*one } == *other
}

#[cfg(test)]
mod tests {
    use turnbuckle_datapath::offload::Beyond;
    use turnbuckle_engine::{Commons, Endpoint, Relayed};

    use super::*;
    use crate::configured::configured;
    use crate::control::keys::KeyRing;
    use crate::counters::Accounting;
    use crate::random::Randomness;
    use crate::survive::takeover::tests::call;
    use crate::translate;

    /// A kernel that has relayed and dropped as much as this since it was asked last.
    struct Busy;

    impl Routes for Busy {
        fn publish(&mut self, _: &Route) -> Option<Line> {
            None
        }

        fn set_expiry(&mut self, _: Line, _: u64) {}

        fn revoke(&mut self, _: Line) {}

        fn carried(&self, line: Line) -> Carried {
            let datagrams = 10 + u64::from(line.index);
            Carried {
                datagrams,
                bytes: 100 * datagrams,
            }
        }

        fn take_beyond(&mut self, meter: NonZeroU32) -> Beyond {
            let dropped = |datagrams| Carried {
                datagrams,
                bytes: 100 * datagrams,
            };
            Beyond {
                labelled: dropped(meter.get().into()),
                plain: dropped(1),
            }
        }

        fn take_refused(&mut self) -> Refused {
            Refused::default()
        }

        fn free(&mut self, _: Line) {}
    }

    #[test]
    fn what_the_kernel_has_relayed_and_dropped_for_a_shard_that_fails_is_counted() {
        let counters = Arc::<ShardCounters>::default();
        let mut publisher = Publisher::new(Box::new(Busy), Arc::clone(&counters));
        let counted = |index, datagrams| {
            let line = Line {
                is_v6: false,
                index,
            };
            // What was taken over before is not counted again.
            let taken = Carried {
                datagrams,
                bytes: 100 * datagrams,
            };
            Some(Counted { line, taken })
        };
        publisher.revoked.push_back(Revoked {
            allocation: AllocationId::from_u64(7),
            meter: NonZeroU32::new(5),
            to_peer: counted(0, 4),
            to_client: counted(1, 8),
            turn: Time::ZERO,
            since: None,
        });
        drop(publisher);
        let offload = &counters.offload;
        assert_eq!(offload.kernel_to_peers.get(), 6);
        assert_eq!(offload.kernel_to_peers_bytes.get(), 600);
        assert_eq!(offload.kernel_to_clients.get(), 3);
        assert_eq!(offload.kernel_to_clients_bytes.get(), 300);
        assert_eq!(offload.kernel_dropped.get(), 6);
        let accounting = Accounting::of([&*counters]);
        assert_eq!(accounting.dropped("bandwidth_exceeded"), 6);
        assert!(accounting.balances(), "{}", accounting.line());
    }

    /// A kernel with room, or without.
    struct Table {
        has_room: bool,
    }

    impl Routes for Table {
        fn publish(&mut self, _: &Route) -> Option<Line> {
            self.has_room.then_some(Line {
                is_v6: false,
                index: 0,
            })
        }

        fn set_expiry(&mut self, _: Line, _: u64) {}

        fn revoke(&mut self, _: Line) {}

        fn carried(&self, _: Line) -> Carried {
            Carried::default()
        }

        fn take_beyond(&mut self, _: NonZeroU32) -> Beyond {
            Beyond::default()
        }

        fn take_refused(&mut self) -> Refused {
            Refused::default()
        }

        fn free(&mut self, _: Line) {}
    }

    const CALL: AllocationId = AllocationId::from_u64(7);
    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(93, 184, 216, 34));
    const NOW: Time = Time::from_secs(1_000);

    fn number(index: u16) -> ChannelNumber {
        ChannelNumber::try_from(0x4000 + index).unwrap()
    }

    fn bound(index: u16) -> Change {
        Change::ChannelInstalled {
            allocation: CALL,
            number: number(index),
            peer: (PEER, 5_000 + index).into(),
            expires: NOW + Duration::from_secs(600),
        }
    }

    fn permitted(is_new: bool) -> Change {
        Change::PermissionInstalled {
            allocation: CALL,
            peer: PEER,
            expires: NOW + Duration::from_secs(300),
            is_new,
        }
    }

    /// Returns an engine with a client that has so many channels, and its publisher, which has seen nothing of them.
    fn with_channels(count: u16, has_room: bool) -> (Engine<Randomness>, Publisher) {
        let config = configured(&["--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1"]);
        let [client, listener, local] =
            ["203.0.113.7:5000", "127.0.0.1:3478", "127.0.0.1:50000"].map(|it| it.parse().unwrap());
        let relayed = Relayed {
            local,
            external: local,
        };
        let changes = [
            call(CALL.to_u64(), [client, listener], relayed),
            permitted(true),
        ];
        let config = Arc::new(translate::engine(&config, &KeyRing::new(&config)).unwrap());
        let engine = Engine::rebuild(
            Arc::clone(&config),
            Commons::new(&config),
            Randomness::of_system(),
            turnbuckle_engine::Now {
                time: NOW,
                unix_s: 0,
            },
            [(Endpoint(1), listener)],
            changes.into_iter().chain((0..count).map(bound)),
            |_| Some(Endpoint(2)),
        );
        let routes = Box::new(Table { has_room });
        (engine, Publisher::new(routes, Arc::default()))
    }

    /// Returns how many comparisons a change costs at once.
    fn cost(change: &Change, publisher: &mut Publisher, engine: &mut Engine<Randomness>) -> usize {
        let before = publisher.compared;
        publisher.note(change);
        publisher.publish(NOW, engine, |_| {});
        publisher.compared - before
    }

    #[test]
    fn a_request_costs_the_same_however_many_channels_there_are() {
        for (count, has_room) in [(1, true), (1024, true), (1024, false)] {
            let (mut engine, mut publisher) = with_channels(count, has_room);
            // They begin together, a bounded number at a time.
            publisher.note(&permitted(true));
            let mut left = usize::from(count);
            while left > 0 {
                let some = left.min(OFFERS_MAX);
                let before = publisher.compared;
                publisher.publish(NOW, &mut engine, |_| {});
                assert_eq!(publisher.compared - before, some);
                left -= some;
            }
            let expected = if has_room { usize::from(count) } else { 0 };
            assert_eq!(publisher.published.len(), expected);
            let refreshed = Change::Refreshed {
                allocation: CALL,
                family: None,
                expires: NOW + Duration::from_secs(600),
                usage: turnbuckle_engine::Usage::default(),
            };
            let mut cost = |change: &Change| cost(change, &mut publisher, &mut engine);
            assert_eq!(cost(&bound(count / 2)), 1, "{count} {has_room}");
            assert_eq!(cost(&permitted(false)), 0, "{count} {has_room}");
            assert_eq!(cost(&refreshed), 0, "{count} {has_room}");
        }
    }

    #[test]
    fn a_line_ends_with_a_shorter_lifetime_at_once_and_gets_a_longer_one_before_it_ends() {
        let (mut engine, mut publisher) = with_channels(3, true);
        publisher.restored(CALL);
        publisher.publish(NOW, &mut engine, |_| {});
        let shorter = Change::Refreshed {
            allocation: CALL,
            family: None,
            expires: NOW + Duration::from_secs(200),
            usage: turnbuckle_engine::Usage::default(),
        };
        assert_eq!(cost(&shorter, &mut publisher, &mut engine), 3);
        // As if the client had prolonged its permission meanwhile.
        let soon = NOW + Duration::from_secs(10);
        for ((id, number), published) in &mut publisher.published {
            let long = std::mem::replace(&mut published.flow.expires, soon);
            assert!(publisher.ends.remove(&(*id, long, *number)));
            publisher.ends.insert((*id, soon, *number));
        }
        let before = publisher.compared;
        let reading = NOW + READING;
        publisher.publish(reading, &mut engine, |_| {});
        publisher.publish(reading, &mut engine, |_| {});
        assert_eq!(publisher.compared - before, 3);
        let mut published = publisher.published.values();
        assert!(published.all(|it| it.flow.expires == NOW + Duration::from_secs(300)));
    }

    #[test]
    fn many_published_channels_are_read_in_several_calls() {
        let count = u16::try_from(READ_MAX).expect("a small number") * 2 + 1;
        let (mut engine, mut publisher) = with_channels(count, true);
        publisher.restored(CALL);
        while publisher.published.len() < usize::from(count) {
            publisher.publish(NOW, &mut engine, |_| {});
        }
        let reading = NOW + READING;
        let mut calls = 0;
        loop {
            publisher.publish(reading, &mut engine, |_| {});
            calls += 1;
            if publisher.reading.is_none() {
                break;
            }
            assert!(publisher.next_timeout().is_some_and(|due| due <= reading));
        }
        assert_eq!(calls, 3);
    }
}
