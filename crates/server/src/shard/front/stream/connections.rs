//! Holds the connections of a shard and the client of each. The [`Book`] has their phases and deadlines.
//!
//! A ConnectionBind counts as an allocation does.

use std::net::{IpAddr, SocketAddr};

use turnbuckle_datapath::StreamId;
use turnbuckle_engine::{ClientTuple, Connection, Endpoint, PeerEnd, Time, Transport};
use turnbuckle_masque::bind::Contexts;

use super::frame::Frame;
use super::tls::TlsSession;
use super::visit::Visit;
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
pub(super) struct StreamConnection {
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

impl StreamConnection {
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
    places: Vec<Option<StreamConnection>>,
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
        self.places[id.index()] = Some(StreamConnection {
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
    pub(super) fn get(&self, id: StreamId) -> Option<&StreamConnection> {
        let place = self.places.get(id.index())?;
        place.as_ref().filter(|connection| connection.id == id)
    }

    /// Returns the connection of a client, who is named here: another shard's client of the same number is not found.
    #[inline]
    pub(super) fn of_client(&self, client: &ClientTuple) -> Option<&StreamConnection> {
        let place = self.places.get(client.connection.place as usize)?;
        place
            .as_ref()
            // guard: V-30-name
            .filter(|connection| connection.client == *client)
    }

    /// Returns the same, to be changed.
    #[inline]
    pub(super) fn of_client_mut(&mut self, client: &ClientTuple) -> Option<&mut StreamConnection> {
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
    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut StreamConnection> {
        at(&mut self.places, id)
    }

    /// Notes why a connection is about to be closed. The first reason holds.
    pub(super) fn close(&mut self, id: StreamId, reason: CloseReason) {
        if let Some(connection) = self.get_mut(id) {
            connection.closing.get_or_insert(reason);
        }
    }

    /// Forgets a connection.
    pub(super) fn remove(&mut self, id: StreamId) -> Option<StreamConnection> {
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
fn at(places: &mut [Option<StreamConnection>], id: StreamId) -> Option<&mut StreamConnection> {
    let place = places.get_mut(id.index())?;
    place.as_mut().filter(|connection| connection.id == id)
}

/// Returns a name for a connection that has just come.
fn new_name(id: StreamId) -> Connection {
    name::connection(key(id))
}

/// Returns the place of a connection; indexes are below 2^22.
fn key(id: StreamId) -> u32 {
    u32::try_from(id.index()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
