//! Shows the kernel the channels of one shard that it may relay, and takes over what it has relayed and dropped.
//!
//! The engine says what may be relayed ([`Engine::flows`]); this compares it with what is published, for each allocation that has changed. It is called
//! before anything leaves the shard. So when a client or an operator learns that something has ended, the kernel has ended it already; and what the
//! kernel relays, the engine would have relayed at that moment.
//!
//! A line that was revoked is kept until its counts are final ([`GRACE`]): they belong to the allocation, and the line must not be another one's by then.
//! The end of an allocation is told only after that, so that its totals are exact.
//!
//! What the kernel drops at listeners belongs to no shard: whichever comes first takes it over, once.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use turnbuckle_datapath::offload::{Carried, GRACE, Line, Refused, Route, Routes};
use turnbuckle_engine::{
    AddressRange, AllocationId, Change, DropReason, Ended, Engine, Flow, Framing, Random,
    RelayHandle, Time, Traffic, Unasked,
};

use crate::counters::{ShardCounters, UdpDrop};

/// Time between two readings of what was relayed.
const READING: Duration = Duration::from_secs(5);

/// The published channels of a shard.
pub(crate) struct Publisher {
    routes: Box<dyn Routes + Send>,
    counters: Arc<ShardCounters>,
    /// Source addresses whose datagrams begin with a header of the PROXY protocol, which the kernel does not read.
    proxies: Vec<AddressRange>,
    published: BTreeMap<AllocationId, Vec<Published>>,
    /// Allocations that have changed since they were compared.
    changed: BTreeSet<AllocationId>,
    revoked: Vec<Revoked>,
    /// Ends of allocations that wait for their counts.
    ended: BTreeMap<AllocationId, Ended>,
    read: Time,
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
            changed: BTreeSet::new(),
            revoked: Vec::new(),
            ended: BTreeMap::new(),
            read: Time::ZERO,
        }
    }

    /// Leaves channels of these sources to the shard from the next comparison on.
    pub(crate) fn set_proxies(&mut self, sources: &[AddressRange]) {
        sources.clone_into(&mut self.proxies);
    }

    /// Notes a change. Returns `true` for the end of an allocation that is to be told later, by [`Self::publish`].
    pub(crate) fn note(&mut self, change: &Change) -> bool {
        let (Change::ChannelExpired { allocation, .. }
        | Change::ChannelInstalled { allocation, .. }
        | Change::FamilyEnded { allocation, .. }
        | Change::PermissionExpired { allocation, .. }
        | Change::PermissionInstalled { allocation, .. }
        | Change::Refreshed { allocation, .. }) = change
        else {
            return match change {
                Change::Ended(ended) => self.note_end(ended),
                Change::Moved(moved) => {
                    self.changed.insert(moved.allocation);
                    false
                }
                _ => false,
            };
        };
        self.changed.insert(*allocation);
        false
    }

    /// Notes an allocation that was taken over with its channels.
    pub(crate) fn restored(&mut self, allocation: AllocationId) {
        self.changed.insert(allocation);
    }

    fn note_end(&mut self, ended: &Ended) -> bool {
        let id = ended.allocation;
        self.changed.insert(id);
        let is_late =
            self.published.contains_key(&id) || self.revoked.iter().any(|it| it.allocation == id);
        if is_late {
            self.ended.insert(id, ended.clone());
        }
        is_late
    }

    /// Has everything compared again, because the rules have changed.
    pub(crate) fn reconsider(&mut self) {
        self.changed.extend(self.published.keys());
    }

    /// Publishes and revokes what has changed, and takes over what was relayed. `end` gets ends of allocations whose counts are final.
    pub(crate) fn publish<R: Random>(
        &mut self,
        now: Time,
        engine: &mut Engine<R>,
        mut end: impl FnMut(Change),
    ) {
        for id in std::mem::take(&mut self.changed) {
            self.compare(now, id, engine);
        }
        let is_any_final = self.collect(now, engine);
        if now >= self.read + READING {
            self.read = now;
            self.take_all(engine);
            self.take_refused();
        }
        // An end that is told later has revoked channels, so it is due only when some of those are final.
        if is_any_final && !self.ended.is_empty() {
            let revoked: BTreeSet<_> = self.revoked.iter().map(|it| it.allocation).collect();
            let is_final = |id: &AllocationId, _: &mut Ended| !revoked.contains(id);
            for (_, ended) in self.ended.extract_if(.., is_final) {
                end(Change::Ended(Box::new(ended)));
            }
        }
    }

    /// Returns when [`Self::publish`] has something to do by itself.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let final_at = |it: &Revoked| it.since.unwrap_or(it.turn) + GRACE;
        let reading = Some(self.read + READING);
        self.revoked.iter().map(final_at).chain(reading).min()
    }

    /// Makes what is published for an allocation what may be relayed.
    fn compare<R: Random>(&mut self, now: Time, id: AllocationId, engine: &Engine<R>) {
        let mut wanted = Vec::new();
        engine.flows(now, id, |flow| {
            let client = flow.client.ip().to_canonical();
            // guard: offload-proxy
            if !self.proxies.iter().any(|range| range.contains(client)) {
                wanted.push(flow);
            }
        });
        let mut kept = Vec::new();
        for mut published in self.published.remove(&id).unwrap_or_default() {
            let same = wanted
                .iter()
                .position(|flow| is_same(flow, &published.flow));
            match same.map(|index| wanted.swap_remove(index)) {
                Some(flow) => {
                    if flow.expires != published.flow.expires {
                        for way in [published.to_client, published.to_peer] {
                            self.routes.set_expiry(way.line, flow.expires.as_nanos());
                        }
                        published.flow = flow;
                    }
                    kept.push(published);
                }
                None => self.revoke(
                    now,
                    id,
                    &published.flow,
                    Some(published.to_peer),
                    Some(published.to_client),
                ),
            }
        }
        for flow in wanted {
            kept.extend(self.offer(now, id, flow));
        }
        if !kept.is_empty() {
            self.published.insert(id, kept);
        }
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
        self.revoked.push(Revoked {
            allocation,
            meter: flow.meter,
            to_peer,
            to_client,
            turn: now,
            since: None,
        });
    }

    /// Takes over the counts of lines that are final, and gives the lines back. Returns whether there were any.
    fn collect<R: Random>(&mut self, now: Time, engine: &mut Engine<R>) -> bool {
        for revoked in &mut self.revoked {
            if now > revoked.turn {
                revoked.since.get_or_insert(now);
            }
        }
        // guard: offload-grace
        let is_final = |it: &mut Revoked| it.since.is_some_and(|since| now >= since + GRACE);
        let ready: Vec<Revoked> = self.revoked.extract_if(.., is_final).collect();
        let is_any = !ready.is_empty();
        for revoked in ready {
            self.retire(revoked, engine);
        }
        is_any
    }

    fn retire<R: Random>(&mut self, revoked: Revoked, engine: &mut Engine<R>) {
        let Revoked {
            allocation,
            meter,
            mut to_peer,
            mut to_client,
            ..
        } = revoked;
        let traffic = self.take(to_peer.as_mut(), to_client.as_mut(), meter);
        self.account(allocation, &traffic, engine);
        for way in [to_peer, to_client].into_iter().flatten() {
            self.routes.free(way.line);
        }
    }

    /// Takes over what all published channels have relayed up to now.
    fn take_all<R: Random>(&mut self, engine: &mut Engine<R>) {
        let mut all = std::mem::take(&mut self.published);
        for (&id, channels) in &mut all {
            for channel in channels {
                let ways = (&mut channel.to_peer, &mut channel.to_client);
                let traffic = self.take(Some(ways.0), Some(ways.1), channel.flow.meter);
                self.account(id, &traffic, engine);
            }
        }
        self.published = all;
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

    /// Returns what two lines have relayed, and what was dropped beyond their rate, since this was asked last. What was dropped is that of all lines with
    /// the meter, which are one allocation's.
    fn take(
        &mut self,
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
            let now = self.routes.carried(way.line);
            let taken = std::mem::replace(&mut way.taken, now);
            Traffic {
                datagrams: now.datagrams.wrapping_sub(taken.datagrams),
                bytes: now.bytes.wrapping_sub(taken.bytes),
            }
        };
        let (to_peers, to_client) = (relayed(to_peer), relayed(to_client));
        let beyond = meter.map(|meter| self.routes.take_beyond(meter));
        let beyond = beyond.unwrap_or_default();
        Unasked {
            to_peers,
            to_client,
            beyond_to_peers: traffic(beyond.labelled),
            beyond_to_client: traffic(beyond.plain),
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
        let all = self.published.iter();
        let mut all = all.flat_map(|(&id, them)| them.iter().map(move |it| (id, it.flow)));
        all.find_map(|(id, flow)| {
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
        self.take_all(engine);
        let published = std::mem::take(&mut self.published);
        self.stop(engine, end);
        // Their next hops and meters stay claimed.
        drop(published);
    }

    fn revoke_all(&mut self) {
        for (id, channels) in std::mem::take(&mut self.published) {
            for channel in channels {
                let Published {
                    flow,
                    to_peer,
                    to_client,
                } = channel;
                self.revoke(Time::ZERO, id, &flow, Some(to_peer), Some(to_client));
            }
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
            let traffic = self.take(ways.0, ways.1, revoked.meter);
            // The allocation's own counts have failed with the engine. Those of the shard outlive it.
            self.count(&traffic);
            for way in [revoked.to_peer, revoked.to_client].into_iter().flatten() {
                self.routes.free(way.line);
            }
        }
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

    use super::*;
    use crate::counters::Accounting;

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
        publisher.revoked.push(Revoked {
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
}
