//! The connections of a shard: which client each one is, and until when it has to have done what.
//!
//! Invariant: a connection has one timer, which fires no later than its deadline; at that moment the deadline is looked at again. So
//! moving a deadline further away, which every message does, costs nothing.
//!
//! A connection without an allocation counts against the limits of its shard and of its source, however much it says: one message that anybody can
//! send proves nothing. It is counted from its first moment until its client is seen to have an allocation, and again when
//! that is gone. A ConnectionBind counts as an allocation does.

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
use crate::sources::{Crowd, CrowdLimits, CrowdPlace, Exceeded};
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
    /// Without an allocation, whatever is said.
    pub(crate) unallocated: Duration,
    /// Connections of one shard without an allocation.
    pub(crate) crowd: CrowdLimits,
}

/// Bytes of a handshake that each connection may have waiting for the rest of a message; a client without a certificate needs no more.
const HANDSHAKE_SHARE: usize = 8 * 1024;
/// What all connections of a shard may have waiting beyond their shares.
const HANDSHAKE_BUDGET: usize = 4 * 1024 * 1024;

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
    /// Where it is counted while it has no allocation.
    place: Option<CrowdPlace>,
    /// Since when.
    unallocated_since: Time,
    /// Bytes that it has taken from the budget of handshakes.
    borrowed: usize,
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
    /// Those without an allocation.
    crowd: Crowd<StreamId>,
    /// What is left of the budget of handshakes, in bytes.
    handshake_budget: usize,
}

impl Connections {
    pub(crate) fn new(limits: StreamLimits) -> Self {
        Self {
            limits,
            places: Vec::new(),
            wheel: Wheel::new(Time::ZERO),
            crowd: Crowd::new(limits.crowd),
            handshake_budget: HANDSHAKE_BUDGET,
        }
    }

    /// Finds the connection that has to go before one more is taken, and notes it as closing: the oldest from `source` if that has as many without
    /// an allocation as it may have, else, if the shard has, the oldest of the source with the most. Without a source the shard's limit
    /// counts alone. `has_allocation` tells which of them have got one meanwhile.
    pub(crate) fn make_room(
        &mut self,
        source: Option<IpAddr>,
        mut has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<StreamId> {
        while let Some((id, exceeded)) = self.crowd.displaced_by(source) {
            let stays = self
                .get(id)
                .is_none_or(|it| it.is_departing || has_allocation(&it.client));
            // No longer counted, although it is there until the flush.
            self.discount(id);
            if !stays {
                self.close(
                    id,
                    match exceeded {
                        Exceeded::Source => CloseReason::CrowdedAddress,
                        Exceeded::Total => CloseReason::Crowded,
                    },
                );
                return Some(id);
            }
        }
        None
    }

    /// Takes a connection in, for which there is room.
    pub(crate) fn add(
        &mut self,
        now: Time,
        id: StreamId,
        listener: Endpoint,
        remote: SocketAddr,
        awaited: Awaited,
    ) {
        let client = ClientTuple {
            listener,
            remote,
            transport: Transport::Tcp,
            connection: name(id),
        };
        let check = now + self.limits.first_message;
        self.put(now, check, id, client);
        if let Some(connection) = self.get_mut(id) {
            connection.awaited = awaited;
            connection.phase = Phase::Silent;
        }
    }

    /// Takes in a connection that another shard had, from which messages have come. Returns who it is here.
    pub(crate) fn adopt(
        &mut self,
        now: Time,
        id: StreamId,
        client: ClientTuple,
        tls: Option<Box<Session>>,
    ) -> ClientTuple {
        let client = ClientTuple {
            connection: name(id),
            ..client
        };
        let check = now + self.limits.idle;
        self.put(now, check, id, client);
        if let Some(connection) = self.get_mut(id) {
            connection.tls = tls;
        }
        client
    }

    /// Puts a connection without an allocation where it belongs; messages have come from it, unless the caller says otherwise.
    fn put(&mut self, now: Time, check: Time, id: StreamId, client: ClientTuple) {
        if self.places.len() <= id.index() {
            self.places.resize_with(id.index() + 1, || None);
        }
        self.wheel.schedule(key(id), check);
        let place = self.crowd.add(client.remote.ip(), id);
        self.places[id.index()] = Some(Connection {
            id,
            client,
            place: Some(place),
            unallocated_since: now,
            borrowed: 0,
            tls: None,
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
            // guard: V-30-name
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
        self.give_back(id);
        let place = self.places.get_mut(id.index())?;
        let connection = place.take_if(|connection| connection.id == id)?;
        self.wheel.cancel(key(id));
        Some(connection)
    }

    /// Notes for whom a connection speaks, which counts for that one from now on. Returns the connection that has to make room, as
    /// [`make_room`](Self::make_room) does.
    pub(crate) fn introduce(
        &mut self,
        id: StreamId,
        remote: SocketAddr,
        has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<StreamId> {
        self.discount(id);
        let displaced = self.make_room(Some(remote.ip()), has_allocation);
        let place = self.crowd.add(remote.ip(), id);
        if let Some(connection) = self.get_mut(id) {
            connection.client.remote = remote;
            connection.place = Some(place);
        } else {
            self.crowd.remove(place);
        }
        displaced
    }

    /// Notes what a reading has brought: whole messages or none, and whether another one has begun.
    #[inline]
    pub(crate) fn progressed(&mut self, now: Time, id: StreamId, messages: bool, is_begun: bool) {
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

    /// Notes whether the client of a connection has an allocation.
    #[inline]
    pub(crate) fn allocated(&mut self, now: Time, client: &ClientTuple, has_allocation: bool) {
        let Some(connection) = self.of_client(client) else {
            return;
        };
        let id = connection.id;
        let is_elsewhere = connection.joined.is_some() || connection.closing.is_some();
        if connection.place.is_none() == has_allocation || is_elsewhere {
            return;
        }
        if has_allocation {
            return self.discount(id);
        }
        let place = self.crowd.add(connection.client.remote.ip(), id);
        if let Some(connection) = self.get_mut(id) {
            connection.place = Some(place);
            connection.unallocated_since = now;
            self.watch(id);
        }
    }

    /// Notes how many bytes of a handshake wait for the rest of a message. Returns whether they may: beyond its share a connection
    /// takes them from a budget of all.
    pub(crate) fn keep_of_handshake(&mut self, id: StreamId, bytes: usize) -> bool {
        self.give_back(id);
        // guard: V-48-budget
        let wanted = bytes.saturating_sub(HANDSHAKE_SHARE);
        let Some(left) = self.handshake_budget.checked_sub(wanted) else {
            return false;
        };
        if let Some(connection) = self.get_mut(id) {
            connection.borrowed = wanted;
            self.handshake_budget = left;
        }
        true
    }

    /// Gives back what a connection has taken from the budget of handshakes.
    fn give_back(&mut self, id: StreamId) {
        if let Some(connection) = self.get_mut(id) {
            let borrowed = std::mem::take(&mut connection.borrowed);
            self.handshake_budget += borrowed;
        }
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
        self.give_back(id);
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
            if deadline <= now
                && matches!(reason, CloseReason::Idle | CloseReason::Unallocated)
                && has_allocation(&connection.client)
            {
                if let Some(place) = connection.place.take() {
                    self.crowd.remove(place);
                }
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

    /// Counts a connection no longer among those without an allocation, if it was.
    #[inline]
    fn discount(&mut self, id: StreamId) {
        if let Some(place) = self.get_mut(id).and_then(|it| it.place.take()) {
            self.crowd.remove(place);
        }
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
        let (deadline, reason) = match (self.phase, self.begun) {
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
        };
        let latest = self.unallocated_since + limits.unallocated;
        // guard: V-47-time
        if self.place.is_some() && latest < deadline {
            return (latest, CloseReason::Unallocated);
        }
        (deadline, reason)
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
        unallocated: Duration::from_secs(600),
        crowd: CrowdLimits {
            total: 4096,
            per_source: 1024,
        },
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
        connections.add(second(0), id, LISTENER, remote(1), Awaited::Transport);
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
        assert_eq!(connections.crowd.len(), 0);
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

    /// Limits of `total` connections and of `per_source` from one source.
    fn crowded(total: usize, per_source: usize) -> Connections {
        Connections::new(StreamLimits {
            crowd: CrowdLimits { total, per_source },
            ..LIMITS
        })
    }

    fn at(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().unwrap(), 1)
    }

    /// Takes connection `n` in. Returns the one that made room, which is gone.
    fn arrive(connections: &mut Connections, n: u32, remote: SocketAddr) -> Option<u32> {
        let displaced = connections.make_room(Some(remote.ip()), |_| false);
        let id = StreamId::from_u32(n);
        connections.add(second(0), id, LISTENER, remote, Awaited::Transport);
        let gone = connections.remove(displaced?)?;
        assert!(matches!(
            gone.closing,
            Some(CloseReason::Crowded | CloseReason::CrowdedAddress)
        ));
        Some(gone.id.to_u32())
    }

    /// H3: a message that anybody can send frees nobody from the limits.
    #[test]
    fn a_message_without_proof_holds_no_place() {
        let mut connections = crowded(3, 100);
        let crowd = at("192.0.2.1");
        for n in 0..3 {
            assert_eq!(arrive(&mut connections, n, crowd), None);
            let id = StreamId::from_u32(n);
            let client = connections.get(id).unwrap().client;
            connections.allocated(second(1), &client, false);
            connections.progressed(second(1), id, true, false);
        }
        for n in 3..9 {
            assert_eq!(arrive(&mut connections, n, crowd), Some(n - 3));
        }
        assert_eq!(connections.crowd.len(), 3);
    }

    /// H3: twenty bytes now and then do not keep a connection for ever.
    #[test]
    fn without_an_allocation_a_connection_ends_however_much_it_says() {
        let (mut connections, id) = one();
        let speak = |connections: &mut Connections, n, has_allocation| {
            if let Some(client) = connections.get(id).map(|it| it.client) {
                connections.allocated(second(n), &client, has_allocation);
            }
            connections.progressed(second(n), id, true, false);
            closed(connections, second(n), has_allocation)
        };
        for n in (0..600).step_by(50) {
            assert_eq!(speak(&mut connections, n, false), []);
        }
        // With an allocation there is no end, and the time begins anew when it is gone.
        for n in (600..5000).step_by(50) {
            assert_eq!(speak(&mut connections, n, true), []);
        }
        for n in (5000..5600).step_by(50) {
            assert_eq!(speak(&mut connections, n, false), []);
        }
        assert_eq!(
            speak(&mut connections, 5602, false),
            [(id, CloseReason::Unallocated)]
        );
    }

    /// M6: who holds one place keeps it, however fast others come.
    #[test]
    fn a_slow_client_outlasts_a_flood_of_connections() {
        let mut connections = crowded(100, 1000);
        let slow = StreamId::from_u32(0);
        assert_eq!(arrive(&mut connections, 0, at("203.0.113.7")), None);
        for n in 1..20_000_u32 {
            let from = SocketAddr::from(([192, 0, 2, u8::try_from(n % 4).unwrap()], 1));
            // As the data path does, a place is used again.
            let place = n % 100 + 1;
            connections.remove(StreamId::from_u32(place));
            arrive(&mut connections, place, from);
        }
        assert!(connections.get(slow).is_some_and(|it| it.closing.is_none()));
    }

    #[test]
    fn a_client_with_an_allocation_is_not_displaced_even_if_nobody_has_noted_it_yet() {
        let mut connections = crowded(2, 100);
        let from = at("192.0.2.1");
        for n in 0..2 {
            arrive(&mut connections, n, from);
        }
        let first = connections.get(StreamId::from_u32(0)).unwrap().client;
        let displaced = connections.make_room(Some(from.ip()), |client| *client == first);
        assert_eq!(displaced, None, "there is room as soon as it is noted");
        assert_eq!(connections.crowd.len(), 1);
        arrive(&mut connections, 2, from);
        assert_eq!(arrive(&mut connections, 3, from), Some(1));
        // Without its allocation it counts again.
        connections.allocated(second(9), &first, false);
        assert_eq!(connections.crowd.len(), 3);
    }

    #[test]
    fn connections_of_one_address_do_not_keep_others_out() {
        let mut connections = crowded(100, 2);
        let (here, other) = (at("192.0.2.1"), at("192.0.2.2"));
        for n in 0..2 {
            assert_eq!(arrive(&mut connections, n, here), None);
        }
        assert_eq!(arrive(&mut connections, 2, other), None);
        assert_eq!(arrive(&mut connections, 3, at("::ffff:192.0.2.1")), Some(0));
        for n in [1, 3, 2] {
            connections.remove(StreamId::from_u32(n));
        }
        assert_eq!(connections.crowd.len(), 0);
        // Of IPv6 the first 64 bits count; a proxy's connections count for whom it speaks.
        let mut gone = Vec::new();
        for (n, host) in [(3, "2001:db8::1"), (4, "2001:db8::2"), (5, "2001:db8::3")] {
            assert_eq!(connections.make_room(None, |_| false), None);
            let id = StreamId::from_u32(n);
            connections.add(second(0), id, LISTENER, other, Awaited::Header);
            gone.extend(connections.introduce(id, at(host), |_| false));
        }
        assert_eq!(gone, [StreamId::from_u32(3)]);
        assert_eq!(connections.crowd.displaced_by(Some(other.ip())), None);
        let next = connections.make_room(Some(at("2001:db8:0:1::1").ip()), |_| false);
        assert_eq!(next, None);
    }

    /// M5: what handshakes keep waiting is bounded for the shard, and each connection has a share that nobody takes from it.
    #[test]
    fn handshakes_share_a_budget_and_give_it_back() {
        let mut connections = crowded(4096, 4096);
        let mut taken = 0;
        for n in 0..1000 {
            arrive(&mut connections, n, at("192.0.2.1"));
            let id = StreamId::from_u32(n);
            assert!(connections.keep_of_handshake(id, HANDSHAKE_SHARE));
            for _ in 0..2 {
                taken += usize::from(connections.keep_of_handshake(id, 4 * HANDSHAKE_SHARE));
            }
        }
        assert_eq!(taken / 2, HANDSHAKE_BUDGET / (3 * HANDSHAKE_SHARE));
        let first = StreamId::from_u32(0);
        connections.remove(first);
        connections.keep_of_handshake(StreamId::from_u32(1), 0);
        connections.handshake_done(second(1), StreamId::from_u32(2));
        for n in 3..1000 {
            connections.remove(StreamId::from_u32(n));
        }
        assert_eq!(connections.handshake_budget, HANDSHAKE_BUDGET);
    }
}
