//! Clients that come by DTLS 1.2 over the UDP listeners: what their datagrams hold, and what stands for ours.
//!
//! A datagram whose first byte is 20 to 63 comes here (RFC 7983 §7). What happens to it depends on how much its sender has shown:
//!
//! - A hello without a valid cookie is answered with one at once, shorter than the hello. Nothing is kept (RFC 6347 §4.2.1).
//! - A hello with a valid cookie may begin a session. It waits in a queue of limited length with everything that belongs to handshakes, and a
//!   turn works on that queue for a bounded time, because a signature takes as long as relaying hundreds of datagrams.
//! - Records of a session are deciphered at once, into memory that is kept: on this way nothing is allocated here. What OpenSSL does is
//!   in docs/decisions.
//! - Everything else is dropped, with a reason. No alert answers it, because the source address may be forged.
//!
//! A session belongs to a client's address. A hello with another random number from the same address, and a cookie, is a client that has
//! begun anew: the old session ends (RFC 6347 §4.2.8). The same random number is a repetition and belongs to the session that it began.

mod context;
mod cookie;
mod hello;
pub(in crate::shard) mod records;
mod session;
mod sessions;

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_engine::{ClientTuple, Connection, Endpoint, Time};

pub(crate) use context::{CurrentDtls, context};
pub(crate) use cookie::CookieKey;
pub(crate) use hello::{APPLICATION_DATA, ClientHello, HANDSHAKE, Record};
pub(crate) use session::{DtlsSession, Opening, Progress, Wire};
pub(crate) use sessions::{Address, DtlsLimits};

use crate::counters::{CloseReason, DtlsDrop, ShardCounters};
use crate::log::Seal;
use crate::shard::book::SourceCounts;
use cookie::Subject;
use hello::{Claim, claims, write_hello_verify_request};
use session::RECORD_LEN_MAX;
use sessions::{Overdue, Sessions};

/// Bytes of a datagram of a handshake.
const HANDSHAKE_DATAGRAM_LEN_MAX: usize = 16 * 1024;
/// Bytes of a handshake message, by its type (RFC 5246 §7.4): of a hello, of a chain of certificates, of any other.
const HELLO_LEN_MAX: usize = 8 * 1024;
const CERTIFICATES_LEN_MAX: usize = 32 * 1024;
const MESSAGE_LEN_MAX: usize = 4 * 1024;
/// Datagrams of handshakes that may wait, and their bytes; and those of one source, so that nobody fills the queue alone.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES_MAX: usize = 1024 * 1024;
const WAITING_PER_SOURCE_MAX: u32 = 64;

/// What a shard needs to know to serve DTLS.
#[derive(Clone)]
pub(crate) struct DtlsService {
    pub(crate) context: Arc<dyn Opening>,
    pub(crate) cookies: CookieKey,
    pub(crate) limits: DtlsLimits,
}

/// DTLS of one shard.
pub(crate) struct Dtls {
    service: DtlsService,
    counters: Arc<ShardCounters>,
    /// The listeners and their addresses.
    listeners: Vec<(Endpoint, SocketAddr)>,
    sessions: Sessions,
    wire: Wire,
    /// Where a record is deciphered to.
    room: Box<[u8]>,
    /// A message that is about to be sealed.
    message: Vec<u8>,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Who has a hello among those that wait.
    beginning: HashSet<Address>,
    /// Where those that wait come from.
    waiting_sources: SourceCounts,
    /// Clients whose session has ended and that have not been reported to the hub yet.
    ended: Vec<ClientTuple>,
}

/// A datagram of a handshake.
struct Waiting {
    address: Address,
    datagram: Vec<u8>,
    /// It is a hello with a valid cookie that may begin a session.
    begins: bool,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is answered by what was written.
    Answered,
    /// It was for DTLS itself, which perhaps has written what it has to say to that.
    Control,
    Dropped(DtlsDrop),
    /// So many messages of this client were in it.
    Messages(ClientTuple, usize),
}

/// Messages that came out of records, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    pub(crate) bytes: Vec<u8>,
    /// Where each one ends.
    pub(crate) ends: Vec<usize>,
}

impl Plain {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn push(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.ends.push(self.bytes.len());
    }
}

impl Dtls {
    pub(crate) fn new(service: DtlsService, counters: Arc<ShardCounters>) -> Self {
        Self {
            sessions: Sessions::new(service.limits),
            service,
            counters,
            listeners: Vec::new(),
            wire: Wire::default(),
            room: vec![0; RECORD_LEN_MAX].into(),
            message: Vec::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            beginning: HashSet::new(),
            waiting_sources: SourceCounts::default(),
            ended: Vec::new(),
        }
    }

    /// Sets other limits.
    pub(crate) fn set_limits(&mut self, limits: DtlsLimits) {
        self.sessions.set_limits(limits);
    }

    /// Makes a listener known.
    pub(crate) fn add_listener(&mut self, listener: Endpoint, local: SocketAddr) {
        self.listeners.push((listener, local));
    }

    /// Returns the datagrams that the last call has written, in order.
    pub(crate) fn written(&self) -> impl Iterator<Item = &[u8]> {
        self.wire.datagrams()
    }

    /// Takes a datagram, and appends what its records hold to `plain`.
    pub(crate) fn received(
        &mut self,
        now: Time,
        address: Address,
        datagram: &[u8],
        plain: &mut Plain,
    ) -> Arrival {
        self.wire.clear();
        let name = self.sessions.find(address);
        let known = name.and_then(|name| self.sessions.get_mut(name));
        if datagram.first() != Some(&APPLICATION_DATA)
            && let Some(hello) = ClientHello::first(datagram)
            && known
                .as_ref()
                .is_none_or(|entry| entry.random != hello.random)
        {
            return self.first_contact(now, address, &hello, datagram);
        }
        let Some(entry) = known else {
            return Arrival::Dropped(match Record::first(datagram) {
                Some(_) => DtlsDrop::NoSession,
                None => DtlsDrop::Malformed,
            });
        };
        if entry.session.is_handshaking() {
            // OpenSSL would keep what comes before its keys; the client will send it again.
            if datagram.first() == Some(&APPLICATION_DATA) {
                return Arrival::Dropped(DtlsDrop::Rejected);
            }
            let name = entry.client.connection;
            if let Err(reason) = self.may_wait(address, datagram) {
                return Arrival::Dropped(reason);
            }
            return match self.sessions.admit(name, datagram) {
                Ok(part) => self.wait(address, part, false),
                Err(reason) => Arrival::Dropped(reason),
            };
        }
        let client = entry.client;
        self.deliver(now, client, datagram, plain)
    }

    /// Handles a hello from a client that has no session or begins a new one.
    fn first_contact(
        &mut self,
        now: Time,
        address: Address,
        hello: &ClientHello<'_>,
        datagram: &[u8],
    ) -> Arrival {
        let listener = self
            .listeners
            .iter()
            .find(|(name, _)| *name == address.listener);
        let Some(&(_, local)) = listener else {
            return Arrival::Dropped(DtlsDrop::ServiceDisabled);
        };
        let subject = Subject {
            local,
            remote: address.client,
            random: &hello.random,
        };
        let cookies = &self.service.cookies;
        // guard: V-42-cookie
        if !cookies.is_valid(now, subject, hello.cookie) {
            let cookie = cookies.cookie(now, subject);
            self.wire.write_datagram(|out| {
                write_hello_verify_request(out, hello.sequence, &cookie);
            });
            return Arrival::Answered;
        }
        if !self.sessions.may_have_room() {
            return Arrival::Dropped(DtlsDrop::Crowded);
        }
        // guard: V-42-queue
        if self.beginning.contains(&address) {
            // The one that waits will be answered.
            return Arrival::Control;
        }
        match self.may_wait(address, datagram) {
            Ok(()) => self.wait(address, datagram, true),
            Err(reason) => Arrival::Dropped(reason),
        }
    }

    /// Returns whether a datagram of a handshake is taken into the queue.
    ///
    /// # Errors
    ///
    /// Why it is not.
    fn may_wait(&self, address: Address, datagram: &[u8]) -> Result<(), DtlsDrop> {
        if datagram.len() > HANDSHAKE_DATAGRAM_LEN_MAX || claims(datagram).any(claims_too_much) {
            return Err(DtlsDrop::Malformed);
        }
        // guard: V-42-waiting
        if self.waiting_sources.count(address.client.ip()) >= WAITING_PER_SOURCE_MAX {
            return Err(DtlsDrop::CrowdedAddress);
        }
        if self.waiting.len() >= WAITING_MAX
            || self.waiting_bytes + datagram.len() > WAITING_BYTES_MAX
        {
            return Err(DtlsDrop::Crowded);
        }
        Ok(())
    }

    /// Puts a datagram of a handshake in the queue.
    fn wait(&mut self, address: Address, datagram: &[u8], begins: bool) -> Arrival {
        if begins {
            self.beginning.insert(address);
        }
        self.waiting_sources.add(address.client.ip());
        self.waiting_bytes += datagram.len();
        self.waiting.push_back(Waiting {
            address,
            datagram: datagram.to_vec(),
            begins,
        });
        Arrival::Control
    }

    /// Returns whether datagrams of handshakes wait.
    pub(crate) fn has_work(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Works on the datagram that waits longest, and appends what it holds behind the end of the handshake to `plain`. Returns whom
    /// that is from, and what was written goes to.
    pub(crate) fn shake_hands(
        &mut self,
        now: Time,
        plain: &mut Plain,
        has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<(Address, Arrival)> {
        self.wire.clear();
        let Waiting {
            address,
            datagram,
            begins,
        } = self.waiting.pop_front()?;
        self.waiting_bytes -= datagram.len();
        self.waiting_sources.remove(address.client.ip());
        if begins {
            self.beginning.remove(&address);
        }
        let arrival = match self.session_for(now, address, &datagram, begins, has_allocation) {
            Some(client) => self.deliver(now, client, &datagram, plain),
            None => Arrival::Control,
        };
        Some((address, arrival))
    }

    /// Returns the session that a datagram from the queue belongs to, or begins.
    fn session_for(
        &mut self,
        now: Time,
        address: Address,
        datagram: &[u8],
        begins: bool,
        has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<ClientTuple> {
        let found = self.sessions.find(address);
        let known = found.and_then(|name| self.sessions.get(name));
        if !begins {
            return known.map(|entry| entry.client);
        }
        let hello = ClientHello::first(datagram)?;
        if let Some(entry) = known {
            let client = entry.client;
            if entry.random == hello.random {
                return Some(client);
            }
            self.end(client.connection, CloseReason::Replaced);
        }
        let source = address.client.ip();
        if let Some((displaced, reason)) = self.sessions.displaced_by(source, has_allocation) {
            self.end(displaced, reason);
        }
        if !self.sessions.has_room() {
            return None;
        }
        let session = self.service.context.open(&hello)?;
        self.counters.opened();
        Some(self.sessions.add(now, address, session, hello.random))
    }

    /// Gives a datagram to its session.
    fn deliver(
        &mut self,
        now: Time,
        client: ClientTuple,
        datagram: &[u8],
        plain: &mut Plain,
    ) -> Arrival {
        let name = client.connection;
        let Some(entry) = self.sessions.get_mut(name) else {
            return Arrival::Control;
        };
        let session = &mut entry.session;
        let was_handshaking = session.is_handshaking();
        let kept = plain.ends.len();
        let (wire, room) = (&mut self.wire, &mut self.room);
        let progress = session.receive(now, datagram, wire, room, &mut |message| {
            plain.push(message);
        });
        let is_done = was_handshaking && !session.is_handshaking();
        if progress == Progress::Closed {
            session.close_notify(&mut self.wire);
        }
        if is_done {
            self.sessions.handshake_done(now, name);
        }
        let count = plain.ends.len() - kept;
        if count > 0 {
            self.sessions.received(now, name);
        }
        match progress {
            Progress::Open => {}
            Progress::Closed => self.end(name, CloseReason::Remote),
            Progress::Failed if was_handshaking => self.end(name, CloseReason::HandshakeFailed),
            Progress::Failed => self.end(name, CloseReason::TlsFailed),
        }
        let is_data = datagram.first() == Some(&APPLICATION_DATA);
        match count {
            0 if is_data && progress == Progress::Open => Arrival::Dropped(DtlsDrop::Rejected),
            0 => Arrival::Control,
            _ => Arrival::Messages(client, count),
        }
    }

    /// Notes whether the client of a session has an allocation.
    #[inline]
    pub(crate) fn allocated(&mut self, now: Time, name: Connection, has_allocation: bool) {
        self.sessions.allocated(now, name, has_allocation);
    }

    /// Forgets what was written.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.wire.clear();
    }

    /// Writes the record that holds a message, in three parts, a datagram of its own.
    ///
    /// # Errors
    ///
    /// The session is gone, or the message is longer than a record can be.
    #[inline]
    pub(crate) fn seal(&mut self, name: Connection, parts: [&[u8]; 3]) -> Result<(), DtlsDrop> {
        let entry = self.sessions.get_mut(name);
        let session = &mut entry.ok_or(DtlsDrop::SocketClosed)?.session;
        self.message.clear();
        for part in parts {
            self.message.extend_from_slice(part);
        }
        if self.message.len() > RECORD_LEN_MAX {
            return Err(DtlsDrop::DatagramTooLarge);
        }
        let sealed = session.seal(&self.message, &mut self.wire);
        sealed.map_err(|_| DtlsDrop::SocketClosed)
    }

    /// Returns the datagrams that were written since [`begin`](Self::begin), back to back, and how long the first is.
    #[inline]
    pub(crate) fn sealed(&self) -> Option<(&[u8], usize)> {
        let first = *self.wire.ends.first()?;
        Some((&self.wire.outgoing, first))
    }

    /// Returns when [`pop_due`](Self::pop_due) has something to do.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.sessions.next_timeout()
    }

    /// Does what one timer is about: sends the flight of a handshake again, or ends a session. Returns whom what was written goes to.
    pub(crate) fn pop_due(
        &mut self,
        now: Time,
        budget: &mut u32,
        has_allocation: impl FnMut(&ClientTuple) -> bool,
    ) -> Option<Address> {
        self.wire.clear();
        match self.sessions.pop_due(now, budget, has_allocation)? {
            Overdue::Over(name, reason) => self.close(name, reason),
            Overdue::Retransmit(name) => {
                let entry = self.sessions.get_mut(name)?;
                let address = entry.address;
                if entry.session.retransmit(now, &mut self.wire) == Progress::Failed {
                    self.end(name, CloseReason::HandshakeFailed);
                }
                Some(address)
            }
        }
    }

    /// Returns whether a session is this client's.
    pub(crate) fn has_client(&self, client: &ClientTuple) -> bool {
        let entry = self.sessions.get(client.connection);
        entry.is_some_and(|entry| entry.client == *client)
    }

    /// Returns the cipher suite and version of a session.
    pub(crate) fn seal_of(&self, name: Connection) -> Option<Seal> {
        self.sessions.get(name)?.session.protection()
    }

    /// Returns where what is for the client of a session is sent to.
    #[inline]
    pub(crate) fn destination(&self, name: Connection) -> Option<SocketAddr> {
        Some(self.sessions.get(name)?.address.destination())
    }

    /// Returns the names of all sessions.
    pub(crate) fn names(&self) -> Vec<Connection> {
        self.sessions.names()
    }

    /// Ends a session with an alert. Returns whom that goes to.
    pub(crate) fn close(&mut self, name: Connection, reason: CloseReason) -> Option<Address> {
        self.wire.clear();
        let entry = self.sessions.get_mut(name)?;
        let address = entry.address;
        entry.session.close_notify(&mut self.wire);
        self.end(name, reason);
        Some(address)
    }

    /// Takes the next client whose session has ended. Each is returned once.
    pub(crate) fn pop_ended(&mut self) -> Option<ClientTuple> {
        self.ended.pop()
    }

    fn end(&mut self, name: Connection, reason: CloseReason) {
        if let Some(entry) = self.sessions.remove(name) {
            self.counters.closed(reason);
            self.ended.push(entry.client);
        }
    }
}

/// Returns whether a handshake message claims to be longer than a client's messages are.
fn claims_too_much(claim: Claim) -> bool {
    let len_max = match claim.kind {
        hello::CLIENT_HELLO => HELLO_LEN_MAX,
        hello::CERTIFICATE => CERTIFICATES_LEN_MAX,
        _ => MESSAGE_LEN_MAX,
    };
    // guard: V-42-length
    claim.message_len > len_max
}

#[cfg(test)]
mod tests;
