//! Holds the connections of a shard and the client of each. The [`Book`] has their phases and deadlines.
//!
//! A ConnectionBind counts as an allocation does.

use std::net::{IpAddr, SocketAddr};

use turnbuckle_datapath::StreamId;
use turnbuckle_engine::{
    ClientTuple, Connection as ConnectionName, Endpoint, PeerEnd, Time, Transport,
};
use turnbuckle_masque::bind::Contexts;

use super::door::Visit;
use super::frame::Frame;
use super::tls::TlsSession;
use crate::counters::CloseReason;
use crate::log::Seal;
use crate::shard::book::{Book, BookLimits, Due, Phase, Standing};
use crate::shard::name;
use crate::shard::peer::tcp::table::Joined;

/// What the next bytes of a connection have to show first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The client's address, from the header of the proxy that the connection comes from.
    Header,
    /// Whether it is TLS.
    Transport,
    /// Whether it is HTTP.
    Application,
    /// Nothing more: there are messages.
    Messages,
    /// Nothing more: there are requests for tunnels, then capsules.
    Tunnels,
}

/// One connection.
pub(super) struct Connection {
    pub(super) id: StreamId,
    pub(super) client: ClientTuple,
    standing: Standing,
    /// Set when the first bytes have shown that it is TLS.
    pub(super) tls: Option<Box<TlsSession>>,
    pub(super) awaited: Awaited,
    /// Why it is being closed.
    pub(super) closing: Option<CloseReason>,
    /// Set when it is a client data connection of a TCP relay.
    pub(super) joined: Option<Box<Joined>>,
    /// Whether it is about to go to another shard.
    pub(super) is_leaving: bool,
    /// What protects it, if the log wants to know.
    pub(super) seal: Option<Seal>,
    /// Set when it asks for tunnels.
    pub(super) visit: Option<Box<Visit>>,
}

impl Connection {
    /// Returns what the client has registered, if it has a bound tunnel.
    pub(super) fn contexts(&self) -> Option<&Contexts> {
        self.visit.as_ref()?.contexts()
    }

    /// Returns how many bytes the message has whose beginning `rest` is, if that is known.
    pub(super) fn announced_len(&self, rest: &[u8]) -> Option<usize> {
        match self.awaited {
            Awaited::Messages => Frame::announced_len(rest),
            Awaited::Tunnels => self.visit.as_deref()?.announced_len(rest),
            Awaited::Application | Awaited::Header | Awaited::Transport => None,
        }
    }
}

/// All connections of a shard.
pub(super) struct Connections {
    places: Vec<Option<Connection>>,
    book: Book<StreamId>,
}

impl Connections {
    pub(super) fn new(limits: BookLimits) -> Self {
        Self {
            places: Vec::new(),
            book: Book::new(limits, None),
        }
    }

    /// Sets other limits.
    pub(super) fn set_limits(&mut self, limits: BookLimits) {
        self.book.set_limits(limits);
    }

    /// Finds the connection that has to go before one more is taken, as [`Book::displaced_by`] says, and notes it as closing. `has_allocation` tells
    /// which have got one meanwhile.
    pub(super) fn make_room(
        &mut self,
        source: Option<IpAddr>,
        mut has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<StreamId> {
        while let Some((id, reason)) = self.book.displaced_by(source, false) {
            let connection = at(&mut self.places, id)?;
            // No longer counted, although it is there until the flush.
            self.book.discount(&mut connection.standing);
            if !(connection.is_leaving || has_allocation(&connection.client)) {
                connection.closing.get_or_insert(reason);
                return Some(id);
            }
        }
        None
    }

    /// Takes a connection in, for which there is room.
    pub(super) fn add(
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
            connection: new_name(id),
        };
        let who = (id, remote.ip());
        let standing = self.book.enter(now, key(id), who, Phase::Silent);
        self.put(id, client, standing, None, awaited);
    }

    /// Takes in a connection that another shard had, from which messages have come. Returns who it is here.
    pub(super) fn adopt(
        &mut self,
        now: Time,
        id: StreamId,
        client: ClientTuple,
        tls: Option<Box<TlsSession>>,
    ) -> ClientTuple {
        let client = ClientTuple {
            connection: new_name(id),
            ..client
        };
        let who = (id, client.remote.ip());
        let standing = self.book.enter(now, key(id), who, Phase::Proven);
        self.put(id, client, standing, tls, Awaited::Messages);
        client
    }

    /// Puts a connection where it belongs.
    fn put(
        &mut self,
        id: StreamId,
        client: ClientTuple,
        standing: Standing,
        tls: Option<Box<TlsSession>>,
        awaited: Awaited,
    ) {
        if self.places.len() <= id.index() {
            self.places.resize_with(id.index() + 1, || None);
        }
        self.places[id.index()] = Some(Connection {
            id,
            client,
            standing,
            tls,
            awaited,
            closing: None,
            joined: None,
            is_leaving: false,
            seal: None,
            visit: None,
        });
    }

    /// Notes that a connection is a client data connection from now on. Returns whether it is there.
    pub(super) fn join(&mut self, id: StreamId, joined: Joined) -> bool {
        let Some(connection) = at(&mut self.places, id) else {
            return false;
        };
        self.book.exempt(&mut connection.standing);
        connection.joined = Some(Box::new(joined));
        true
    }

    /// Notes that one side of a relay has ended what it sends.
    pub(super) fn half_closed(&mut self, now: Time, id: StreamId, by: PeerEnd) {
        let Some(connection) = at(&mut self.places, id) else {
            return;
        };
        if let Some(joined) = &mut connection.joined {
            let (first, _) = joined.ended.unwrap_or((by, now));
            joined.ended = Some((first, now));
            let deadline = now + self.book.idle();
            self.book.watch_until(&mut connection.standing, deadline);
        }
    }

    #[inline]
    pub(super) fn get(&self, id: StreamId) -> Option<&Connection> {
        let place = self.places.get(id.index())?;
        place.as_ref().filter(|connection| connection.id == id)
    }

    /// Returns the connection of a client, who is named here: another shard's client of the same number is not found.
    #[inline]
    pub(super) fn of_client(&self, client: &ClientTuple) -> Option<&Connection> {
        let place = self.places.get(client.connection.place as usize)?;
        place
            .as_ref()
            // guard: V-30-name
            .filter(|connection| connection.client == *client)
    }

    /// Returns the same, to be changed.
    #[inline]
    pub(super) fn of_client_mut(&mut self, client: &ClientTuple) -> Option<&mut Connection> {
        let place = self.places.get_mut(client.connection.place as usize)?;
        place
            .as_mut()
            .filter(|connection| connection.client == *client)
    }

    /// Returns whether no message has come from a connection yet.
    #[inline]
    pub(super) fn is_stranger(&self, id: StreamId) -> bool {
        let connection = self.get(id);
        connection.is_some_and(|connection| !connection.standing.is_proven())
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut Connection> {
        at(&mut self.places, id)
    }

    /// Notes why a connection is about to be closed. The first reason holds.
    pub(super) fn close(&mut self, id: StreamId, reason: CloseReason) {
        if let Some(connection) = self.get_mut(id) {
            connection.closing.get_or_insert(reason);
        }
    }

    /// Forgets a connection.
    pub(super) fn remove(&mut self, id: StreamId) -> Option<Connection> {
        let place = self.places.get_mut(id.index())?;
        let mut connection = place.take_if(|connection| connection.id == id)?;
        self.book.strike(&mut connection.standing);
        Some(connection)
    }

    /// Notes for whom a connection speaks, which counts for that one from now on. Returns the connection that has to make room, as
    /// [`make_room`](Self::make_room) does.
    pub(super) fn introduce(
        &mut self,
        id: StreamId,
        remote: SocketAddr,
        has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<StreamId> {
        if let Some(connection) = at(&mut self.places, id) {
            self.book.discount(&mut connection.standing);
        }
        let displaced = self.make_room(Some(remote.ip()), has_allocation);
        if let Some(connection) = at(&mut self.places, id) {
            connection.client.remote = remote;
            self.book.count(&mut connection.standing, (id, remote.ip()));
        }
        displaced
    }

    /// Notes what a reading has brought: whole messages or none, and whether another one has begun.
    #[inline]
    pub(super) fn progressed(&mut self, now: Time, id: StreamId, messages: bool, is_begun: bool) {
        if let Some(connection) = at(&mut self.places, id)
            && connection.joined.is_none()
        {
            let standing = &mut connection.standing;
            self.book.progressed(now, standing, messages, is_begun);
        }
    }

    /// Notes whether the client of a connection has an allocation.
    #[inline]
    pub(super) fn allocated(&mut self, now: Time, client: &ClientTuple, has_allocation: bool) {
        let place = self.places.get_mut(client.connection.place as usize);
        let connection = place.and_then(Option::as_mut);
        if let Some(connection) = connection.filter(|connection| connection.client == *client)
            && connection.joined.is_none()
            && connection.closing.is_none()
        {
            let who = (connection.id, client.remote.ip());
            let standing = &mut connection.standing;
            self.book.allocated(now, standing, who, has_allocation);
        }
    }

    /// Notes how many bytes of a handshake wait for the rest of a message. Returns whether they may.
    pub(super) fn keep_of_handshake(&mut self, id: StreamId, bytes: usize) -> bool {
        let Some(connection) = at(&mut self.places, id) else {
            return true;
        };
        let may_wait = self.book.borrow(&mut connection.standing, bytes);
        if !may_wait {
            // It is about to be closed.
            self.book.give_back(&mut connection.standing);
        }
        may_wait
    }

    /// Notes that a connection uses TLS.
    pub(super) fn secure(&mut self, now: Time, id: StreamId, session: TlsSession) {
        if let Some(connection) = at(&mut self.places, id) {
            connection.tls = Some(Box::new(session));
            connection.client.transport = Transport::Tls;
            self.book.handshake_begun(now, &mut connection.standing);
        }
    }

    /// Notes that the handshake of a connection is over.
    pub(super) fn handshake_done(&mut self, now: Time, id: StreamId) {
        if let Some(connection) = at(&mut self.places, id) {
            self.book.handshake_done(now, &mut connection.standing);
        }
    }

    /// Returns the next connection whose time is over, noted as closing. `has_allocation` tells who may be idle.
    pub(super) fn pop_due(
        &mut self,
        now: Time,
        budget: &mut u32,
        mut has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<StreamId> {
        while let Some(place) = self.book.pop_due(now, budget) {
            let Some(Some(connection)) = self.places.get_mut(place as usize) else {
                continue;
            };
            // Nothing has to be sent on a relayed one as long as both sides may; the allocation bounds its life.
            let idle = self.book.idle();
            let relayed_until = connection
                .joined
                .as_ref()
                .map(|joined| joined.ended.map_or(Time::MAX, |(_, last)| last + idle));
            let client = connection.client;
            let standing = &mut connection.standing;
            let due = self
                .book
                .judge(now, standing, relayed_until, || has_allocation(&client));
            if let Due::Over(reason) = due {
                let reason = match connection.awaited {
                    Awaited::Header if reason == CloseReason::FirstMessageLate => {
                        CloseReason::ProxyLate
                    }
                    _ => reason,
                };
                connection.closing.get_or_insert(reason);
                return Some(connection.id);
            }
        }
        None
    }

    /// Returns when [`pop_due`](Self::pop_due) has something to do.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.book.next_timeout()
    }
}

/// Returns the connection of this name, if it is there.
#[inline]
fn at(places: &mut [Option<Connection>], id: StreamId) -> Option<&mut Connection> {
    let place = places.get_mut(id.index())?;
    place.as_mut().filter(|connection| connection.id == id)
}

/// Returns a name for a connection that has just come.
fn new_name(id: StreamId) -> ConnectionName {
    name::connection(key(id))
}

/// Returns the place of a connection; indexes are below 2^22.
fn key(id: StreamId) -> u32 {
    u32::try_from(id.index()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::book::{CrowdLimits, HANDSHAKE_BUDGET, HANDSHAKE_SHARE};
    use std::time::Duration;
    use turnbuckle_engine::ConnectionId;

    const LISTENER: Endpoint = Endpoint(1);
    const LIMITS: BookLimits = BookLimits {
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
        assert_eq!(connections.book.crowd_len(), 0);
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
        Connections::new(BookLimits {
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
        assert_eq!(connections.book.crowd_len(), 3);
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
        assert_eq!(connections.book.crowd_len(), 1);
        arrive(&mut connections, 2, from);
        assert_eq!(arrive(&mut connections, 3, from), Some(1));
        // Without its allocation it counts again.
        connections.allocated(second(9), &first, false);
        assert_eq!(connections.book.crowd_len(), 3);
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
        assert_eq!(connections.book.crowd_len(), 0);
        // Of IPv6 the first 64 bits count; a proxy's connections count for whom it speaks.
        let mut gone = Vec::new();
        for (n, host) in [(3, "2001:db8::1"), (4, "2001:db8::2"), (5, "2001:db8::3")] {
            assert_eq!(connections.make_room(None, |_| false), None);
            let id = StreamId::from_u32(n);
            connections.add(second(0), id, LISTENER, other, Awaited::Header);
            gone.extend(connections.introduce(id, at(host), |_| false));
        }
        assert_eq!(gone, [StreamId::from_u32(3)]);
        assert_eq!(connections.book.displaced_by(Some(other.ip()), false), None);
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
        assert_eq!(connections.book.handshake_budget(), HANDSHAKE_BUDGET);
    }
}
