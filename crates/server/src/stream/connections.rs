//! The connections of a shard: which client each one is, and until when it has to have done what.
//!
//! Invariant: a connection has one timer, which fires no later than its deadline; at that moment the deadline is looked at again. So
//! moving a deadline further away, which every message does, costs nothing.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use turnbuckle_datapath::StreamId;
use turnbuckle_engine::{
    ClientTuple, Connection as ConnectionName, ConnectionId, Endpoint, PeerEnd, Time, Transport,
    Wheel,
};

use crate::counters::CloseReason;
use crate::log::Seal;
use crate::serial::serial;
use crate::sources::SourceCounts;
use crate::tls::Session;

/// How long connections may take for what, and how many may take it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLimits {
    /// From the first byte of a TLS handshake to its end.
    pub(crate) handshake: Duration,
    /// From the connection, or the end of the handshake, to the end of the first message.
    pub(crate) first_message: Duration,
    /// From the first byte of a message to its last.
    pub(crate) message: Duration,
    /// Without an allocation, from one message to the next.
    pub(crate) idle: Duration,
    /// Connections of one shard from which no message has come yet; beyond it the oldest goes.
    pub(crate) unproven: usize,
    /// The same from one address or IPv6 prefix; beyond it new ones are not taken.
    pub(crate) unproven_per_address: u32,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In a TLS handshake.
    Handshake,
    /// No message has come.
    Silent,
    /// A message has come.
    Proven,
}

/// What the next bytes of a connection have to show first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// For whom the proxy speaks that it comes from.
    Header,
    /// Whether it is TLS.
    Transport,
    /// Whether it is HTTP.
    Application,
    /// Nothing more: there are messages.
    Messages,
}

/// One connection.
pub(crate) struct Connection {
    pub(crate) id: StreamId,
    pub(crate) client: ClientTuple,
    /// Under which it counts while it has proven nothing.
    source: IpAddr,
    /// Set when the first bytes have shown that it is TLS.
    pub(crate) tls: Option<Box<Session>>,
    pub(crate) awaited: Awaited,
    phase: Phase,
    /// When the phase began; for a proven connection, when its last message came.
    since: Time,
    /// When the message began that is not complete.
    begun: Option<Time>,
    /// When the timer fires.
    check: Time,
    /// Why it is being closed.
    pub(crate) closing: Option<CloseReason>,
    /// Set when it is a client data connection of a TCP relay.
    pub(crate) joined: Option<Box<Joined>>,
    /// Whether it is about to go to another shard.
    pub(crate) is_departing: bool,
    /// What protects it, if the log wants to know.
    pub(crate) seal: Option<Seal>,
}

/// What a client data connection is joined with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    /// The peer data connection.
    pub(crate) peer: StreamId,
    /// The engine's name of it.
    pub(crate) connection: ConnectionId,
    /// Which side ended what it sends first, and when something came last since then.
    pub(crate) ended: Option<(PeerEnd, Time)>,
}

impl Joined {
    /// Notes that bytes came, from either side.
    #[inline]
    pub(crate) fn progressed(&mut self, now: Time) {
        if let Some((_, last)) = &mut self.ended {
            *last = now;
        }
    }
}

/// All connections of a shard.
pub(crate) struct Connections {
    limits: StreamLimits,
    places: Vec<Option<Connection>>,
    wheel: Wheel,
    /// Connections that had not proven themselves when they were put here, oldest first.
    unproven: VecDeque<StreamId>,
    unproven_count: usize,
    /// Where these come from.
    unproven_sources: SourceCounts,
}

impl Connections {
    pub(crate) fn new(limits: StreamLimits) -> Self {
        Self {
            limits,
            places: Vec::new(),
            wheel: Wheel::new(Time::ZERO),
            unproven: VecDeque::new(),
            unproven_count: 0,
            unproven_sources: SourceCounts::default(),
        }
    }

    /// Whether so many connections from this address have proven nothing that no more are taken.
    pub(crate) fn is_crowded_by(&self, address: IpAddr) -> bool {
        // guard: V-47-address
        self.unproven_sources.count(address) >= self.limits.unproven_per_address
    }

    /// Takes a connection in. Returns one that has to go for it: the oldest from which nothing has come.
    pub(crate) fn add(
        &mut self,
        now: Time,
        id: StreamId,
        listener: Endpoint,
        remote: SocketAddr,
        awaited: Awaited,
    ) -> Option<StreamId> {
        while let Some(&oldest) = self.unproven.front()
            && !self.is_unproven(oldest)
        {
            self.unproven.pop_front();
        }
        // guard: V-47-crowd
        let crowded = self.unproven_count >= self.limits.unproven;
        let evicted = crowded.then(|| self.unproven.pop_front()).flatten();
        if let Some(evicted) = evicted {
            // No longer counted, although it is there until the flush.
            self.discount(evicted);
            self.close(evicted, CloseReason::Crowded);
        }
        if self.places.len() <= id.index() {
            self.places.resize_with(id.index() + 1, || None);
        }
        let check = now + self.limits.first_message;
        self.wheel.schedule(key(id), check);
        self.unproven.push_back(id);
        self.unproven_count += 1;
        let source = remote.ip();
        self.unproven_sources.add(source);
        self.places[id.index()] = Some(Connection {
            id,
            client: ClientTuple {
                listener,
                remote,
                transport: Transport::Tcp,
                connection: name(id),
            },
            source,
            tls: None,
            awaited,
            phase: Phase::Silent,
            since: now,
            begun: None,
            check,
            closing: None,
            joined: None,
            is_departing: false,
            seal: None,
        });
        evicted
    }

    /// Takes in a connection that another shard had, from which messages have come. Returns who it is here.
    pub(crate) fn adopt(
        &mut self,
        now: Time,
        id: StreamId,
        client: ClientTuple,
        tls: Option<Box<Session>>,
    ) -> ClientTuple {
        if self.places.len() <= id.index() {
            self.places.resize_with(id.index() + 1, || None);
        }
        let client = ClientTuple {
            connection: name(id),
            ..client
        };
        let check = now + self.limits.idle;
        self.wheel.schedule(key(id), check);
        self.places[id.index()] = Some(Connection {
            id,
            client,
            source: client.remote.ip(),
            tls,
            awaited: Awaited::Messages,
            phase: Phase::Proven,
            since: now,
            begun: None,
            check,
            closing: None,
            joined: None,
            is_departing: false,
            seal: None,
        });
        client
    }

    /// Notes that a connection is a client data connection from now on. Returns whether it is there.
    pub(crate) fn join(&mut self, id: StreamId, joined: Joined) -> bool {
        self.discount(id);
        let Some(connection) = self.get_mut(id) else {
            return false;
        };
        connection.phase = Phase::Proven;
        connection.begun = None;
        connection.joined = Some(Box::new(joined));
        true
    }

    /// Notes that one side of a relay has ended what it sends.
    pub(crate) fn half_closed(&mut self, now: Time, id: StreamId, by: PeerEnd) {
        if let Some(connection) = self.get_mut(id)
            && let Some(joined) = &mut connection.joined
        {
            let (first, _) = joined.ended.unwrap_or((by, now));
            joined.ended = Some((first, now));
            self.watch(id);
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: StreamId) -> Option<&Connection> {
        let place = self.places.get(id.index())?;
        place.as_ref().filter(|connection| connection.id == id)
    }

    /// The connection of a client, who is named here: another shard's client of the same number is not found.
    #[inline]
    pub(crate) fn of_client(&self, client: &ClientTuple) -> Option<&Connection> {
        let place = self.places.get(client.connection.place as usize)?;
        place
            .as_ref()
            .filter(|connection| connection.client == *client)
    }

    /// The same, to be changed.
    #[inline]
    pub(crate) fn of_client_mut(&mut self, client: &ClientTuple) -> Option<&mut Connection> {
        let place = self.places.get_mut(client.connection.place as usize)?;
        place
            .as_mut()
            .filter(|connection| connection.client == *client)
    }

    /// Whether no message has come from a connection yet.
    #[inline]
    pub(crate) fn is_stranger(&self, id: StreamId) -> bool {
        let connection = self.get(id);
        connection.is_some_and(|connection| connection.phase != Phase::Proven)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: StreamId) -> Option<&mut Connection> {
        let place = self.places.get_mut(id.index())?;
        place.as_mut().filter(|connection| connection.id == id)
    }

    /// Notes why a connection is about to be closed. The first reason holds.
    pub(crate) fn close(&mut self, id: StreamId, reason: CloseReason) {
        if let Some(connection) = self.get_mut(id) {
            connection.closing.get_or_insert(reason);
        }
    }

    /// Forgets a connection.
    pub(crate) fn remove(&mut self, id: StreamId) -> Option<Connection> {
        self.discount(id);
        let place = self.places.get_mut(id.index())?;
        let connection = place.take_if(|connection| connection.id == id)?;
        self.wheel.cancel(key(id));
        Some(connection)
    }

    /// Notes for whom a connection that has proven nothing speaks. Returns whether it may stay: not when too many others from there have proven
    /// nothing either.
    pub(crate) fn introduce(&mut self, id: StreamId, remote: SocketAddr) -> bool {
        let has_room = !self.is_crowded_by(remote.ip());
        let is_counted = self.is_unproven(id);
        let Some(connection) = self.get_mut(id) else {
            return true;
        };
        connection.client.remote = remote;
        let new = remote.ip();
        let old = std::mem::replace(&mut connection.source, new);
        if is_counted {
            self.unproven_sources.remove(old);
            self.unproven_sources.add(new);
        }
        has_room
    }

    /// Notes what a reading has brought: whole messages or none, and whether another one has begun.
    #[inline]
    pub(crate) fn progressed(&mut self, now: Time, id: StreamId, messages: bool, is_begun: bool) {
        if messages {
            self.discount(id);
        }
        let Some(connection) = self.get_mut(id) else {
            return;
        };
        if connection.joined.is_some() {
            return; // what comes on it are no messages
        }
        if messages {
            connection.phase = Phase::Proven;
            connection.since = now;
            connection.begun = is_begun.then_some(now);
        } else if is_begun && connection.phase == Phase::Proven && connection.begun.is_none() {
            connection.begun = Some(now);
        } else {
            return;
        }
        self.watch(id);
    }

    /// Notes that a connection speaks TLS.
    pub(crate) fn secure(&mut self, now: Time, id: StreamId, session: Session) {
        let Some(connection) = self.get_mut(id) else {
            return;
        };
        connection.tls = Some(Box::new(session));
        connection.client.transport = Transport::Tls;
        connection.phase = Phase::Handshake;
        connection.since = now;
        self.watch(id);
    }

    /// Notes that the handshake of a connection is over.
    pub(crate) fn handshake_done(&mut self, now: Time, id: StreamId) {
        let Some(connection) = self.get_mut(id) else {
            return;
        };
        if connection.phase == Phase::Handshake {
            connection.phase = Phase::Silent;
            connection.since = now;
            self.watch(id);
        }
    }

    /// Makes sure that the timer fires no later than the deadline.
    fn watch(&mut self, id: StreamId) {
        let limits = self.limits;
        let Some(connection) = self.get_mut(id) else {
            return;
        };
        let (deadline, _) = connection.deadline(&limits);
        if deadline < connection.check {
            connection.check = deadline;
            self.wheel.schedule(key(id), deadline);
        }
    }

    /// The next connection whose time is over, noted as closing. `has_allocation` tells who may be idle.
    pub(crate) fn pop_due(
        &mut self,
        now: Time,
        budget: &mut u32,
        mut has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<StreamId> {
        while let Some(index) = self.wheel.pop_due(now, budget) {
            let limits = self.limits;
            let Some(Some(connection)) = self.places.get_mut(index as usize) else {
                continue;
            };
            let (mut deadline, reason) = connection.deadline(&limits);
            if deadline <= now && reason == CloseReason::Idle && has_allocation(&connection.client)
            {
                deadline = now + limits.idle;
            }
            if deadline <= now {
                connection.closing.get_or_insert(reason);
                return Some(connection.id);
            }
            connection.check = deadline;
            self.wheel.schedule(index, deadline);
        }
        None
    }

    /// When [`pop_due`](Self::pop_due) has something to do.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.wheel.next_timeout()
    }

    /// Counts a connection no longer among those that have proven nothing, if it was; its phase has to change with that.
    #[inline]
    fn discount(&mut self, id: StreamId) {
        if !self.is_unproven(id) {
            return;
        }
        let Some(connection) = self.get(id) else {
            return;
        };
        let source = connection.source;
        self.unproven_count -= 1;
        self.unproven_sources.remove(source);
    }

    /// Whether a connection counts against the bound on those that have proven nothing.
    fn is_unproven(&self, id: StreamId) -> bool {
        self.get(id).is_some_and(|connection| {
            connection.phase != Phase::Proven && connection.closing != Some(CloseReason::Crowded)
        })
    }
}

impl Connection {
    /// Until when something has to have happened, and what is the matter if it has not.
    fn deadline(&self, limits: &StreamLimits) -> (Time, CloseReason) {
        if let Some(joined) = &self.joined {
            // Nothing has to be sent on it as long as both sides may; the allocation bounds its life.
            let deadline = joined
                .ended
                .map_or(Time::MAX, |(_, last)| last + limits.idle);
            return (deadline, CloseReason::Stalled);
        }
        match (self.phase, self.begun) {
            // guard: V-48-half
            (Phase::Handshake, _) => (self.since + limits.handshake, CloseReason::HandshakeLate),
            (Phase::Silent, _) => {
                let reason = match self.awaited {
                    Awaited::Header => CloseReason::ProxyLate,
                    _ => CloseReason::FirstMessageLate,
                };
                // guard: V-47-silence
                (self.since + limits.first_message, reason)
            }
            // guard: V-47-half
            (Phase::Proven, Some(begun)) => (begun + limits.message, CloseReason::MessageLate),
            (Phase::Proven, None) => (self.since + limits.idle, CloseReason::Idle),
        }
    }
}

/// A name for a connection that has just come.
fn name(id: StreamId) -> ConnectionName {
    ConnectionName::new(key(id), serial())
}

/// The timer of a connection; indexes are below 2^22.
fn key(id: StreamId) -> u32 {
    u32::try_from(id.index()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTENER: Endpoint = Endpoint(1);
    const LIMITS: StreamLimits = StreamLimits {
        handshake: Duration::from_secs(5),
        first_message: Duration::from_secs(10),
        message: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        unproven: 4096,
        unproven_per_address: 1024,
    };

    fn remote(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    fn second(n: u64) -> Time {
        Time::from_secs(1000 + n)
    }

    /// What is closed at `now`.
    fn closed(
        connections: &mut Connections,
        now: Time,
        has_allocation: bool,
    ) -> Vec<(StreamId, CloseReason)> {
        let mut budget = 10_000;
        std::iter::from_fn(|| {
            let id = connections.pop_due(now, &mut budget, |_| has_allocation)?;
            let connection = connections.remove(id)?;
            Some((id, connection.closing?))
        })
        .collect()
    }

    fn one() -> (Connections, StreamId) {
        let mut connections = Connections::new(LIMITS);
        let id = StreamId::from_u32(3);
        assert_eq!(
            connections.add(second(0), id, LISTENER, remote(1), Awaited::Transport),
            None
        );
        (connections, id)
    }

    //= MUX-07
    #[test]
    fn a_client_that_says_nothing_is_closed_after_ten_seconds() {
        let (mut connections, id) = one();
        // Bytes alone do not help, only messages do (V-47).
        for n in 0..9 {
            connections.progressed(second(n), id, false, true);
            assert_eq!(closed(&mut connections, second(n), false), []);
        }
        assert_eq!(
            closed(&mut connections, second(11), false),
            [(id, CloseReason::FirstMessageLate)]
        );
    }

    #[test]
    fn a_message_that_is_not_completed_closes_after_ten_seconds_even_with_an_allocation() {
        let (mut connections, id) = one();
        connections.progressed(second(1), id, true, false);
        assert_eq!(closed(&mut connections, second(40), true), []);
        connections.progressed(second(41), id, false, true);
        connections.progressed(second(49), id, false, true);
        assert_eq!(closed(&mut connections, second(50), true), []);
        assert_eq!(
            closed(&mut connections, second(52), true),
            [(id, CloseReason::MessageLate)]
        );
    }

    #[test]
    fn messages_that_go_on_keep_a_connection_open_although_each_reading_ends_in_the_middle_of_one()
    {
        let (mut connections, id) = one();
        for n in 0..600 {
            connections.progressed(second(n), id, true, true);
            assert_eq!(closed(&mut connections, second(n), false), []);
        }
    }

    //= STUN-008
    #[test]
    fn without_an_allocation_a_connection_may_be_idle_for_a_minute_and_with_one_for_ever() {
        let (mut connections, id) = one();
        connections.progressed(second(1), id, true, false);
        assert_eq!(closed(&mut connections, second(60), false), []);
        assert_eq!(closed(&mut connections, second(90), true), []);
        assert_eq!(closed(&mut connections, second(5000), true), []);
        assert_eq!(
            closed(&mut connections, second(5100), false),
            [(id, CloseReason::Idle)]
        );
    }

    //= TCP-25
    #[test]
    fn a_data_connection_may_be_idle_for_ever_until_one_side_has_ended_what_it_sends() {
        let (mut connections, id) = one();
        connections.progressed(second(1), id, true, false);
        let joined = Joined {
            peer: StreamId::from_u32(9),
            connection: ConnectionId(7),
            ended: None,
        };
        assert!(connections.join(id, joined));
        assert_eq!(connections.unproven_count, 0);
        for n in [90, 5_000, 1_000_000] {
            assert_eq!(closed(&mut connections, second(n), false), []);
        }
        connections.half_closed(second(1_000_000), id, PeerEnd::PeerClosed);
        connections.half_closed(second(1_000_001), id, PeerEnd::ClientClosed);
        // bytes of the other way put it off
        for n in 1_000_001..1_000_200 {
            let joined = connections.get_mut(id).unwrap().joined.as_mut().unwrap();
            assert_eq!(joined.ended.unwrap().0, PeerEnd::PeerClosed, "the first");
            joined.progressed(second(n));
            assert_eq!(closed(&mut connections, second(n), false), []);
        }
        assert_eq!(
            closed(&mut connections, second(1_000_262), false),
            [(id, CloseReason::Stalled)]
        );
    }

    #[test]
    fn the_oldest_of_too_many_silent_connections_makes_room() {
        let mut connections = Connections::new(StreamLimits {
            unproven: 3,
            ..LIMITS
        });
        let id = StreamId::from_u32;
        for n in 0..3 {
            assert_eq!(
                connections.add(second(0), id(n), LISTENER, remote(1), Awaited::Transport),
                None
            );
        }
        // One that has spoken does not count, and one that is gone does not either.
        connections.progressed(second(1), id(0), true, false);
        assert_eq!(
            connections.add(second(1), id(3), LISTENER, remote(1), Awaited::Transport),
            None
        );
        connections.remove(id(1));
        assert_eq!(
            connections.add(second(1), id(4), LISTENER, remote(1), Awaited::Transport),
            None
        );
        // Silent now: 2, 3, 4.
        for (added, evicted) in [(5, 2), (6, 3), (7, 4), (8, 5)] {
            let gone = connections.add(
                second(2),
                id(added),
                LISTENER,
                remote(1),
                Awaited::Transport,
            );
            assert_eq!(gone, Some(id(evicted)));
            let connection = connections.remove(id(evicted)).unwrap();
            assert_eq!(connection.closing, Some(CloseReason::Crowded));
        }
        assert_eq!(connections.unproven_count, 3);
        assert!(connections.get(id(0)).is_some());
    }

    #[test]
    fn silent_connections_of_one_address_do_not_keep_others_out() {
        let mut connections = Connections::new(StreamLimits {
            unproven_per_address: 2,
            ..LIMITS
        });
        let id = StreamId::from_u32;
        let at = |text: &str| SocketAddr::new(text.parse().unwrap(), 1);
        let add = |connections: &mut Connections, n, remote| {
            let evicted = connections.add(second(0), id(n), LISTENER, remote, Awaited::Transport);
            assert_eq!(evicted, None);
        };
        let (crowd, other) = (at("192.0.2.1"), at("192.0.2.2"));
        for n in 0..2 {
            assert!(!connections.is_crowded_by(crowd.ip()));
            add(&mut connections, n, crowd);
        }
        assert!(connections.is_crowded_by(crowd.ip()));
        assert!(connections.is_crowded_by("::ffff:192.0.2.1".parse().unwrap()));
        assert!(!connections.is_crowded_by(other.ip()));
        // Whoever speaks or goes makes room, once each.
        connections.progressed(second(1), id(0), true, false);
        assert!(!connections.is_crowded_by(crowd.ip()));
        connections.progressed(second(2), id(0), true, false);
        connections.remove(id(0));
        add(&mut connections, 2, crowd);
        assert!(connections.is_crowded_by(crowd.ip()));
        for n in [1, 2] {
            connections.remove(id(n));
        }
        assert_eq!(connections.unproven_count, 0);
        assert!(connections.unproven_sources.is_empty());
        // Of IPv6 the first 64 bits count; a proxy's connections count for whom it speaks.
        for (n, host) in [(3, "2001:db8::1"), (4, "2001:db8::2"), (5, "2001:db8::3")] {
            add(&mut connections, n, other);
            assert_eq!(connections.introduce(id(n), at(host)), n < 5);
        }
        assert!(!connections.is_crowded_by(other.ip()));
        assert!(connections.is_crowded_by("2001:db8::3".parse().unwrap()));
        assert!(!connections.is_crowded_by("2001:db8:0:1::1".parse().unwrap()));
    }
}
