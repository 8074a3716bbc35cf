//! A TURN client without sockets or clocks: one allocation with one peer, kept alive until it is released.
//!
//! Time and bytes are arguments; what is to be sent comes out of [`Client::poll_transmit`]. One request is under way at a time, repeated
//! as RFC 8489 §6.2.1 says. It is written on the codec alone, so that it cannot share a mistake with a relay's rules.

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use turnbuckle_wire::{
    AddressFamily, AttributeType, Class, Message, MessageWriter, Method, TransactionId,
};

use crate::plan::{Event, Failure, Path, Plan, Relay, TCP, UDP};
use crate::proof::Proof;
use crate::request::{Request, Step};
use crate::time::{Nanos, SECOND};

/// How long after the last refresh the next one is begun: permissions last 5 minutes, channels 10 (RFC 8656 §9, §12).
const PERMISSION_EVERY: Nanos = 240 * SECOND;
const CHANNEL_EVERY: Nanos = 240 * SECOND;
/// The time between requests that are not needed.
const OFTEN: Nanos = SECOND / 30;
/// A request is refused for good after so many new nonces.
const CHALLENGES_MAX: u32 = 3;
/// A TCP connection is opened once and lasts as long as the allocation.
const NEVER: Nanos = Nanos::MAX - 1;
const REQUEST_MAX: usize = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    Allocating,
    /// Permission, channel or connection, the first time.
    Opening,
    /// At another address, with a ticket.
    Moving,
    Ready,
    Releasing,
    Done,
}

/// What the server has granted.
#[derive(Clone, Debug)]
struct Granted {
    /// Where the server sees the client.
    mapped: Option<SocketAddr>,
    relayed: Option<SocketAddr>,
    /// Of the other address family, if the plan requests it.
    relayed_second: Option<SocketAddr>,
    /// What to show the server from another address.
    ticket: Option<Vec<u8>>,
    refresh_at: Nanos,
}

/// The path to the peer.
#[derive(Clone, Debug)]
struct Way {
    peer: Option<(SocketAddr, Path)>,
    /// The path to the second peer is open.
    is_second_open: bool,
    /// The companion has been named, or there is none.
    is_companion_named: bool,
    /// CONNECTION-ID of the Connect response.
    connection: Option<u32>,
    /// When it is to be requested again.
    due: Nanos,
    /// How often it has been requested.
    count: u32,
}

/// One client.
#[derive(Debug)]
pub struct Client {
    plan: Arc<Plan>,
    random: SmallRng,
    stage: Stage,
    request: Option<Request>,
    proof: Proof,
    granted: Granted,
    way: Way,
    release_wanted: bool,
}

impl Client {
    /// Returns a client that has sent nothing yet. `seed` makes its transaction ids its own.
    pub fn new(plan: Arc<Plan>, seed: u64) -> Self {
        Self {
            random: SmallRng::seed_from_u64(seed),
            stage: Stage::Idle,
            request: None,
            proof: Proof::new(plan.credentials.clone()),
            granted: Granted {
                mapped: None,
                relayed: None,
                relayed_second: None,
                ticket: None,
                refresh_at: Nanos::MAX,
            },
            way: Way {
                peer: plan.peer,
                is_second_open: false,
                is_companion_named: plan.companion.is_none(),
                connection: None,
                due: Nanos::MAX,
                count: 0,
            },
            plan,
            release_wanted: false,
        }
    }

    /// Returns the client that this one becomes at another transport address, by the ticket it got (RFC 8016 §3.2), or by `ticket`. Until the
    /// successor is [`Event::Ready`], this one goes on; after that it is to be dropped and not released.
    pub fn successor(&self, ticket: &[u8], seed: u64) -> Self {
        Self {
            plan: Arc::clone(&self.plan),
            random: SmallRng::seed_from_u64(seed),
            stage: Stage::Idle,
            request: None,
            proof: self.proof.clone(),
            granted: Granted {
                ticket: Some(ticket.to_vec()),
                ..self.granted.clone()
            },
            way: self.way.clone(),
            release_wanted: false,
        }
    }

    /// Returns the ticket that the server gave last; `None` without mobility.
    pub fn ticket(&self) -> Option<&[u8]> {
        self.granted.ticket.as_deref()
    }

    /// Begins to allocate, or to take over another client's allocation.
    pub fn start(&mut self, now: Nanos) {
        if self.granted.ticket.is_some() {
            self.stage = Stage::Moving;
            self.begin(now, Method::REFRESH);
        } else {
            self.stage = Stage::Allocating;
            self.begin(now, Method::ALLOCATE);
        }
    }

    /// Deletes the allocation with the next request.
    pub fn release(&mut self, now: Nanos) {
        self.release_wanted = true;
        if self.request.is_none() {
            self.next_request(now);
        }
    }

    /// Opens the path to a peer that was not known at the start. Another [`Event::Ready`] reports when data may flow.
    ///
    /// # Panics
    /// When the client has no allocation, or has a peer already.
    pub fn open(&mut self, now: Nanos, peer: SocketAddr, path: Path) {
        assert!(
            self.stage == Stage::Ready && self.way.peer.is_none(),
            "one peer, after the allocation"
        );
        self.way.peer = Some((peer, path));
        self.stage = Stage::Opening;
        if self.request.is_none() {
            self.next_request(now);
        }
    }

    /// Returns to whom data goes, and how.
    pub fn peer(&self) -> Option<(SocketAddr, Path)> {
        self.way.peer
    }

    /// Returns whether data may flow.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// Returns the client's address as the server sees it, if the server says so.
    pub fn mapped(&self) -> Option<SocketAddr> {
        self.granted.mapped
    }

    /// Returns the relayed transport address of the other family, once there is one.
    pub fn relayed_second(&self) -> Option<SocketAddr> {
        self.granted.relayed_second
    }

    /// Returns the second peer of the plan and the way to it, if the server gave an address of its family.
    pub fn second_peer(&self) -> Option<(SocketAddr, Path)> {
        self.plan
            .second_peer
            .filter(|_| self.granted.relayed_second.is_some())
    }

    /// Returns the connection that the server opened to the peer of a [`Path::Connection`].
    pub fn connection(&self) -> Option<u32> {
        self.way.connection
    }

    /// Returns a ConnectionBind request for another connection to the server (RFC 6062 §4.3), with its transaction.
    pub fn connection_bind(&mut self, connection: u32) -> (TransactionId, Vec<u8>) {
        let transaction = TransactionId::new(self.random.random());
        let bytes = self.write(Method::CONNECTION_BIND, transaction, |writer| {
            writer.connection_id(connection);
        });
        (transaction, bytes)
    }

    /// Takes the answer to a ConnectionBind request; returns whether the connection carries data from now on. `None` says that the request
    /// is to be made anew, the nonce having become old.
    ///
    /// # Errors
    /// Why it does not.
    pub fn connection_bound(&mut self, message: &Message<'_>) -> Result<Option<()>, Failure> {
        match (message.class(), message.error_code()) {
            (Class::Success, _) if self.proof.is_of_server(message) => Ok(Some(())),
            (Class::Error, Ok(Some(error)))
                if error.code == 438 && self.proof.take(message, &mut self.random) =>
            {
                Ok(None)
            }
            (Class::Error, Ok(Some(error))) => Err(Failure::Refused(error.code)),
            _ => Err(Failure::BadAnswer),
        }
    }

    /// Returns the relayed transport address, once there is one.
    pub fn relayed(&self) -> Option<SocketAddr> {
        self.granted.relayed
    }

    /// Returns when [`poll_transmit`](Self::poll_transmit) is to be called next.
    pub fn next_timeout(&self) -> Option<Nanos> {
        match &self.request {
            Some(request) => Some(request.due()),
            None if self.stage == Stage::Ready => Some(self.granted.refresh_at.min(self.way.due)),
            None => None,
        }
    }

    /// Returns what is to be sent to the server now, if anything, and the event that the passing of time caused.
    pub fn poll_transmit(&mut self, now: Nanos) -> (Option<&[u8]>, Option<Event>) {
        if self.request.is_none() && self.stage == Stage::Ready {
            self.next_request(now);
        }
        match self.request.as_mut().map(|request| request.step(now)) {
            None | Some(Step::Wait) => return (None, None),
            Some(Step::TimedOut) => return (None, Some(self.fail(Failure::Timeout))),
            Some(Step::Send) => {}
        }
        (self.request.as_ref().map(Request::bytes), None)
    }

    /// Handles a STUN message from the server. A response that matches no request changes nothing.
    pub fn handle(&mut self, now: Nanos, message: &Message<'_>) -> Option<Event> {
        let request = self
            .request
            .take_if(|request| request.transaction == message.transaction_id())?;
        match message.class() {
            Class::Success => self.succeeded(now, &request, message),
            Class::Error => self.refused(now, request, message),
            Class::Request | Class::Indication => {
                self.request = Some(request);
                None
            }
        }
    }

    fn succeeded(&mut self, now: Nanos, request: &Request, message: &Message<'_>) -> Option<Event> {
        // What the server cannot prove to have written is no answer (RFC 8489 §9.2.5).
        if !self.proof.is_of_server(message) {
            return Some(self.fail(Failure::BadAnswer));
        }
        match request.method {
            Method::ALLOCATE => {
                let (Ok(Some(lifetime)), Some((first, second))) =
                    (message.lifetime(), self.relayed_addresses(message))
                else {
                    return Some(self.fail(Failure::BadAnswer));
                };
                self.granted.relayed = Some(first);
                self.granted.relayed_second = second;
                self.granted.mapped = message.xor_mapped_address().ok().flatten();
                self.granted.ticket = message.mobility_ticket().map(<[u8]>::to_vec);
                if self.plan.terms.mobility && self.granted.ticket.is_none() {
                    return Some(self.fail(Failure::NoTicket));
                }
                if self.plan.terms.is_dual && second.is_none() {
                    let mut reasons = message.address_error_codes().filter_map(Result::ok);
                    let code = reasons.next().map_or(440, |reason| reason.code);
                    return Some(self.fail(Failure::Refused(code)));
                }
                self.refreshed(now, lifetime);
                self.stage = Stage::Opening;
            }
            Method::REFRESH if self.stage == Stage::Moving => {
                let (Ok(Some(lifetime)), Some(ticket)) =
                    (message.lifetime(), message.mobility_ticket())
                else {
                    return Some(self.fail(Failure::BadAnswer));
                };
                self.granted.ticket = Some(ticket.to_vec());
                self.refreshed(now, lifetime);
                self.stage = Stage::Ready;
                self.next_request(now);
                return Some(Event::Ready);
            }
            Method::REFRESH if self.stage == Stage::Releasing => {
                self.stage = Stage::Done;
                return Some(Event::Released);
            }
            Method::REFRESH => {
                let Ok(Some(lifetime)) = message.lifetime() else {
                    return Some(self.fail(Failure::BadAnswer));
                };
                self.refreshed(now, lifetime);
                if self.plan.asks_often && self.way.due <= now {
                    self.way.due = now + self.path_every();
                }
            }
            Method::CONNECT => {
                let Ok(Some(connection)) = message.connection_id() else {
                    return Some(self.fail(Failure::BadAnswer));
                };
                self.way.connection = Some(connection);
                self.way.due = NEVER;
            }
            _ if !self.way.is_companion_named => self.way.is_companion_named = true,
            _ if self.second_peer().is_some() && !self.way.is_second_open => {
                self.way.is_second_open = true;
            }
            _ => {
                self.way.due = now + self.path_every();
                // The next round begins with the second one again.
                self.way.is_second_open = false;
            }
        }
        let was_opening = self.stage == Stage::Opening;
        self.next_request(now);
        if was_opening && self.request.is_none() {
            self.stage = Stage::Ready;
            return Some(Event::Ready);
        }
        None
    }

    fn refused(&mut self, now: Nanos, request: Request, message: &Message<'_>) -> Option<Event> {
        let Ok(Some(error)) = message.error_code() else {
            return Some(self.fail(Failure::BadAnswer));
        };
        let is_challenge = matches!(error.code, 401 | 438) && request.challenges < CHALLENGES_MAX;
        // A 401 to a request that had credentials means that they are wrong.
        if !is_challenge
            || (error.code == 401 && self.proof.has_key())
            || !self.proof.take(message, &mut self.random)
        {
            if request.method == Method::REFRESH && self.stage == Stage::Releasing {
                self.stage = Stage::Done;
                // 437: it was deleted already, for example because an answer was lost.
                if error.code == 437 {
                    return Some(Event::Released);
                }
            }
            return Some(self.fail(Failure::Refused(error.code)));
        }
        self.begin(now, request.method);
        if let Some(next) = &mut self.request {
            next.challenges = request.challenges + 1;
        }
        None
    }

    /// Returns the relayed addresses of an Allocate response: that of the first peer's family, and that of the second's.
    fn relayed_addresses(&self, message: &Message<'_>) -> Option<(SocketAddr, Option<SocketAddr>)> {
        let mut addresses = message.xor_relayed_addresses().filter_map(Result::ok);
        if !self.plan.terms.is_dual {
            return Some((addresses.next()?, None));
        }
        // In either order (RFC 8656 §7.3).
        let (second, first): (Vec<_>, Vec<_>) = addresses.partition(SocketAddr::is_ipv6);
        Some((*first.first()?, second.first().copied()))
    }

    fn fail(&mut self, failure: Failure) -> Event {
        self.stage = Stage::Done;
        self.request = None;
        Event::Failed(failure)
    }

    fn refreshed(&mut self, now: Nanos, lifetime: u32) {
        // A minute before the end, or half way for short lifetimes.
        let lifetime = u64::from(lifetime);
        let margin = (lifetime / 2).min(60);
        self.granted.refresh_at = now + (lifetime - margin) * SECOND;
    }

    fn path_every(&self) -> Nanos {
        match self.way.peer {
            Some((_, Path::Channel(_) | Path::Indications)) if self.plan.asks_often => OFTEN,
            Some((_, Path::Channel(_))) => CHANNEL_EVERY.min(PERMISSION_EVERY),
            Some((_, Path::Connection)) => NEVER,
            _ => PERMISSION_EVERY,
        }
    }

    /// Begins whatever is due.
    fn next_request(&mut self, now: Nanos) {
        if self.release_wanted && matches!(self.stage, Stage::Opening | Stage::Ready) {
            self.stage = Stage::Releasing;
            self.begin(now, Method::REFRESH);
        } else if let Some((_, path)) = self.way.peer
            && (self.stage == Stage::Opening && self.way.due == Nanos::MAX || self.way.due <= now)
            && !(self.plan.asks_for_no_permission && path == Path::Indications)
        {
            let method = match path {
                _ if !self.way.is_companion_named => Method::CREATE_PERMISSION,
                // The first time as it must be, then all that could be asked for in turn.
                _ if self.plan.asks_often && self.way.count % 3 == 1 => Method::CREATE_PERMISSION,
                _ if self.plan.asks_often && self.way.count % 3 == 2 => Method::REFRESH,
                Path::Channel(_) => Method::CHANNEL_BIND,
                Path::Indications => Method::CREATE_PERMISSION,
                Path::Connection => Method::CONNECT,
            };
            // Both peers of a dual allocation are requested in the same way. A companion is named before the first request that counts.
            let is_last = self.second_peer().is_none() || self.way.is_second_open;
            if self.way.is_companion_named && (is_last || method == Method::REFRESH) {
                self.way.count += 1;
            }
            self.begin(now, method);
        } else if self.granted.refresh_at <= now {
            self.begin(now, Method::REFRESH);
        }
    }

    fn begin(&mut self, now: Nanos, method: Method) {
        let transaction = TransactionId::new(self.random.random());
        let bytes = self.write(method, transaction, |writer| self.describe(method, writer));
        let is_reliable = self.plan.is_reliable;
        let request = Request::new(now, method, transaction, bytes, is_reliable);
        self.request = Some(request);
    }

    /// Appends the attributes that say what a request is about.
    fn describe(&self, method: Method, writer: &mut MessageWriter<'_>) {
        match method {
            Method::ALLOCATE => {
                writer.requested_transport(match self.plan.terms.relay {
                    Relay::Udp => UDP,
                    Relay::Tcp => TCP,
                });
                if self.plan.terms.dont_fragment {
                    writer.dont_fragment();
                }
                if self.plan.terms.is_dual {
                    writer.additional_address_family(AddressFamily::V6);
                    // coturn up to 4.6 has another number for it, which may be passed over (RFC 8489 §14).
                    let family = [AddressFamily::V6.number(), 0, 0, 0];
                    writer.bytes(AttributeType::COTURN_ADDITIONAL_ADDRESS_FAMILY, &family);
                } else if let Some(family) = self.plan.terms.family {
                    writer.requested_address_family(family);
                }
                if let Some(lifetime) = self.plan.terms.lifetime {
                    writer.lifetime(lifetime);
                }
                if self.plan.terms.mobility {
                    writer.mobility_ticket(&[]);
                }
            }
            Method::REFRESH => {
                if self.stage == Stage::Releasing {
                    writer.lifetime(0);
                } else if let Some(lifetime) = self.plan.terms.lifetime {
                    writer.lifetime(lifetime);
                }
                if let (Stage::Moving, Some(ticket)) = (self.stage, &self.granted.ticket) {
                    writer.mobility_ticket(ticket);
                }
            }
            _ => {
                let second = self.second_peer().filter(|_| !self.way.is_second_open);
                if let Some((peer, path)) = second.or(self.way.peer) {
                    if let (Method::CHANNEL_BIND, Path::Channel(channel)) = (method, path) {
                        writer.channel_number(channel);
                    }
                    writer.xor_peer_address(peer);
                }
                let companion = self.plan.companion;
                if let Some(companion) = companion.filter(|_| !self.way.is_companion_named) {
                    writer.xor_peer_address(companion);
                }
            }
        }
    }

    /// Writes a request with the credentials known so far.
    fn write(
        &self,
        method: Method,
        transaction: TransactionId,
        describe: impl FnOnce(&mut MessageWriter<'_>),
    ) -> Vec<u8> {
        let mut bytes = vec![0; REQUEST_MAX];
        let mut writer = MessageWriter::new(&mut bytes, Class::Request, method, transaction);
        describe(&mut writer);
        if let Some(origin) = &self.plan.origin {
            writer.origin(origin.as_bytes());
        }
        self.proof.sign(&mut writer);
        writer.fingerprint();
        // Too long only with a name or realm longer than the protocol allows; what is left is no message, and times out.
        let len = writer.finish().unwrap_or(0);
        bytes.truncate(len);
        bytes
    }
}
