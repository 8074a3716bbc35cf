//! The sessions of a shard: which client each one is. How far it is and how long it may take, the [`Book`] says; while a session shakes hands its timer
//! fires more often, for OpenSSL to send again what may be lost.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use turnbuckle_engine::{ClientTuple, Connection, Endpoint, Time, Transport};

use super::hello::{before_protected, claims};
use super::session::DtlsSession;
use crate::counters::{CloseReason, DtlsDrop};
use crate::shard::book::{Book, BookLimits, Due, Phase, Standing};
use crate::shard::name;

/// How long sessions may take for what, and how many there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DtlsLimits {
    /// For each, and for those without an allocation.
    pub(crate) book: BookLimits,
    /// Sessions of one shard.
    pub(crate) sessions: usize,
}

/// Whose a session is: a client of one listener that came by itself, or through one proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) listener: Endpoint,
    pub(crate) client: SocketAddr,
    /// The proxy that says whose the datagrams are. Through another one it is another client, because only a configured proxy
    /// may say where a session's answers go.
    pub(crate) proxy: Option<SocketAddr>,
}

impl Address {
    /// Returns where what is for the client is sent to.
    pub(crate) fn destination(&self) -> SocketAddr {
        // guard: proxy-dtls-answer
        self.proxy.unwrap_or(self.client)
    }
}

/// Datagrams that one handshake may take, with a client's chain of certificates and everything sent three times.
pub(super) const HANDSHAKE_DATAGRAMS_MAX: u32 = 48;
/// Numbers that a client's handshake messages may have; it sends four, and a Finished that is protected (RFC 6347 §4.2.4).
const MESSAGES_MAX: usize = 8;
/// Protected records that may come before the handshake is over: a Finished may overtake what is in front of it, and be sent again.
const EARLY_RECORDS_MAX: usize = 2;
/// What OpenSSL keeps of one of these: a whole buffer (`dtls1_buffer_record`).
const EARLY_RECORD_LEN: usize = 17 * 1024;

/// How often a session in its handshake is asked whether something is to be sent again.
const RETRANSMISSION_CHECK: Duration = Duration::from_millis(250);

/// One session and its client.
pub(super) struct Entry {
    pub(super) session: Box<dyn DtlsSession>,
    pub(super) client: ClientTuple,
    pub(super) address: Address,
    /// Of the hello that it began with: another hello from the same address is another client's.
    pub(super) random: [u8; 32],
    /// Datagrams that its handshake may still take.
    handshake_left: u32,
    /// The length that each of its handshake messages claims to have.
    claimed: [usize; MESSAGES_MAX],
    /// Protected records that came before the handshake was over.
    early: usize,
    standing: Standing,
}

/// What a timer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    /// The time of this session is over.
    Over(Connection, CloseReason),
    /// This one may have to send something again.
    Retransmit(Connection),
}

/// All sessions of a shard.
pub(super) struct Sessions {
    /// How many there may be.
    len_max: usize,
    places: Vec<Option<Entry>>,
    free: Vec<u32>,
    // Addresses are chosen by clients: the hash is keyed (V-53).
    by_address: HashMap<Address, Connection>,
    book: Book<Connection>,
}

impl Sessions {
    pub(super) fn new(limits: DtlsLimits) -> Self {
        Self {
            len_max: limits.sessions,
            places: Vec::new(),
            free: Vec::new(),
            by_address: HashMap::new(),
            book: Book::new(limits.book, Some(RETRANSMISSION_CHECK)),
        }
    }

    /// Sets other limits.
    pub(super) fn set_limits(&mut self, limits: DtlsLimits) {
        self.len_max = limits.sessions;
        self.book.set_limits(limits.book);
    }

    /// Returns the session of a client.
    #[inline]
    pub(super) fn find(&self, address: Address) -> Option<Connection> {
        self.by_address.get(&address).copied()
    }

    #[inline]
    pub(super) fn get(&self, name: Connection) -> Option<&Entry> {
        let place = self.places.get(index(name) as usize)?;
        place
            .as_ref()
            .filter(|entry| entry.client.connection == name)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, name: Connection) -> Option<&mut Entry> {
        at(&mut self.places, name)
    }

    /// Returns whether there is room for one more.
    pub(super) fn has_room(&self) -> bool {
        self.by_address.len() < self.len_max
    }

    /// Returns whether there is, or one without an allocation may have to make it.
    pub(super) fn may_have_room(&self) -> bool {
        self.has_room() || self.book.crowd_len() > 0
    }

    /// Returns the bytes that are left of the budget of handshakes.
    #[cfg(test)]
    pub(super) fn handshake_budget(&self) -> usize {
        self.book.handshake_budget()
    }

    /// Returns how many have no allocation.
    #[cfg(test)]
    pub(super) fn unallocated_count(&self) -> usize {
        self.book.crowd_len()
    }

    /// Returns the session that has to go before one more begins, as [`Book::displaced_by`] says, and why. `has_allocation` tells which have got one
    /// meanwhile.
    pub(super) fn displaced_by(
        &mut self,
        source: IpAddr,
        mut has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<(Connection, CloseReason)> {
        loop {
            let (name, reason) = self.book.displaced_by(Some(source), !self.has_room())?;
            let entry = at(&mut self.places, name)?;
            self.book.discount(&mut entry.standing);
            if !has_allocation(&entry.client) {
                return Some((name, reason));
            }
        }
    }

    /// Takes a session in; there is none of this client.
    pub(super) fn add(
        &mut self,
        now: Time,
        address: Address,
        session: Box<dyn DtlsSession>,
        random: [u8; 32],
    ) -> ClientTuple {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
        });
        let name = name::connection(place);
        self.by_address.insert(address, name);
        let who = (name, address.client.ip());
        let standing = self.book.enter(now, place, who, Phase::Handshake);
        let client = ClientTuple {
            listener: address.listener,
            remote: address.client,
            transport: Transport::Dtls,
            connection: name,
        };
        self.places[place as usize] = Some(Entry {
            session,
            client,
            address,
            random,
            handshake_left: HANDSHAKE_DATAGRAMS_MAX,
            claimed: [0; MESSAGES_MAX],
            early: 0,
            standing,
        });
        client
    }

    /// Forgets a session.
    pub(super) fn remove(&mut self, name: Connection) -> Option<Entry> {
        let place = self.places.get_mut(index(name) as usize)?;
        let mut entry = place.take_if(|entry| entry.client.connection == name)?;
        self.book.strike(&mut entry.standing);
        self.by_address.remove(&entry.address);
        self.free.push(index(name));
        Some(entry)
    }

    /// Returns the names of all.
    pub(super) fn names(&self) -> Vec<Connection> {
        let entries = self.places.iter().flatten();
        entries.map(|entry| entry.client.connection).collect()
    }

    /// Notes that keys are agreed on.
    pub(super) fn handshake_done(&mut self, now: Time, name: Connection) {
        if let Some(entry) = at(&mut self.places, name) {
            self.book.handshake_done(now, &mut entry.standing);
        }
    }

    /// Notes that a message came.
    #[inline]
    pub(super) fn received(&mut self, now: Time, name: Connection) {
        if let Some(entry) = at(&mut self.places, name) {
            let standing = &mut entry.standing;
            self.book.progressed(now, standing, true, false);
        }
    }

    /// Notes whether the client of a session has an allocation.
    #[inline]
    pub(super) fn allocated(&mut self, now: Time, name: Connection, has_allocation: bool) {
        if let Some(entry) = at(&mut self.places, name) {
            let who = (name, entry.client.remote.ip());
            let standing = &mut entry.standing;
            self.book.allocated(now, standing, who, has_allocation);
        }
    }

    /// Returns the part of a datagram that a session takes in its handshake, charged for what it may keep of it.
    ///
    /// # Errors
    ///
    /// Why nothing of it is taken: it is one too many, no client sends such messages, or the memory for handshakes is used up.
    pub(super) fn admit<'a>(
        &mut self,
        name: Connection,
        datagram: &'a [u8],
    ) -> Result<&'a [u8], DtlsDrop> {
        let entry = at(&mut self.places, name).ok_or(DtlsDrop::NoSession)?;
        let left = entry.handshake_left.checked_sub(1);
        let handshake_left = left.ok_or(DtlsDrop::Rejected)?;
        // Without keys OpenSSL would keep each of them in a buffer of its own.
        // guard: V-42-early
        let (part, early) = before_protected(datagram, EARLY_RECORDS_MAX - entry.early);
        if part.is_empty() {
            return Err(DtlsDrop::Rejected);
        }
        let mut claimed = entry.claimed;
        for claim in claims(part) {
            let len = claimed.get_mut(usize::from(claim.sequence));
            let len = len.ok_or(DtlsDrop::Malformed)?;
            *len = claim.message_len.max(*len);
        }
        let early = entry.early + early;
        let kept = claimed.iter().sum::<usize>() + early * EARLY_RECORD_LEN;
        if !self.book.borrow(&mut entry.standing, kept) {
            return Err(DtlsDrop::Crowded);
        }
        entry.handshake_left = handshake_left;
        entry.claimed = claimed;
        entry.early = early;
        Ok(part)
    }

    /// Returns the next session that its timer is about. `has_allocation` tells who may be idle.
    pub(super) fn pop_due(
        &mut self,
        now: Time,
        budget: &mut u32,
        mut has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<Overdue> {
        while let Some(place) = self.book.pop_due(now, budget) {
            let Some(Some(entry)) = self.places.get_mut(place as usize) else {
                continue;
            };
            let client = entry.client;
            let standing = &mut entry.standing;
            match self
                .book
                .judge(now, standing, None, || has_allocation(&client))
            {
                Due::Over(reason) => return Some(Overdue::Over(client.connection, reason)),
                Due::Handshake => return Some(Overdue::Retransmit(client.connection)),
                Due::Later => {}
            }
        }
        None
    }

    /// Returns when [`pop_due`](Self::pop_due) has something to do.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.book.next_timeout()
    }
}

/// Returns the session of this name, if it is there.
#[inline]
fn at(places: &mut [Option<Entry>], name: Connection) -> Option<&mut Entry> {
    let place = places.get_mut(index(name) as usize)?;
    place
        .as_mut()
        .filter(|entry| entry.client.connection == name)
}

/// Returns the place of a session.
fn index(name: Connection) -> u32 {
    name.place
}
