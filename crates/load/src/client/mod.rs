//! A TURN client without sockets or clocks: one allocation with one peer, kept alive until it is released.
//!
//! Time and bytes are arguments; what is to be sent comes out of [`Client::poll_transmit`]. One request is under way at a time, repeated
//! as RFC 8489 §6.2.1 says. It is written on the codec alone, so that it cannot share a mistake with a relay's rules.

mod credentials;
#[cfg(test)]
mod tests;
mod token;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use turnbuckle_wire::{
    AddressFamily, AttributeType, ChannelNumber, Class, IntegrityKey, Message, MessageWriter,
    Method, PasswordAlgorithm, TransactionId,
};

pub use self::credentials::Credentials;
use self::token::Token;

/// Nanoseconds of the caller's monotonic clock.
pub type Nanos = u64;

const SECOND: Nanos = 1_000_000_000;
/// RFC 8489 §6.2.1: RTO, Rc, Rm.
const RTO: Nanos = SECOND / 2;
const SENDS_MAX: u32 = 7;
const LAST_WAIT: Nanos = 16 * RTO;
/// RFC 8489 §6.2.2, Ti: a request over a connection is sent once.
const RELIABLE_WAIT: Nanos = 39_500_000_000;
/// How long after the last refresh the next one is begun: permissions last 5 minutes, channels 10 (RFC 8656 §9, §12).
const PERMISSION_EVERY: Nanos = 240 * SECOND;
const CHANNEL_EVERY: Nanos = 240 * SECOND;
/// The time between requests that are not needed.
const OFTEN: Nanos = SECOND / 30;
/// A request is refused for good after so many new nonces.
const CHALLENGES_MAX: u32 = 3;
/// IANA's numbers, for REQUESTED-TRANSPORT.
const UDP: u8 = 17;
const TCP: u8 = 6;
/// A TCP connection is opened once and lasts as long as the allocation.
const NEVER: Nanos = Nanos::MAX - 1;
const REQUEST_MAX: usize = 1_024;

/// How data is to be sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// ChannelData on this channel.
    Channel(ChannelNumber),
    /// Send indications.
    Indications,
    /// A TCP connection (RFC 6062), of an allocation with [`Relay::Tcp`]: the server connects to the peer, and then
    /// [`Client::connection_bind`] makes another connection to the server its other half.
    Connection,
}

/// What the relayed transport address is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relay {
    /// Datagrams.
    #[default]
    Udp,
    /// Connections (RFC 6062).
    Tcp,
}

/// What a client is told at start.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Who it is.
    pub credentials: Credentials,
    /// REQUESTED-TRANSPORT.
    pub relay: Relay,
    /// To whom data is to go; `None` for an allocation alone, or until [`Client::open`].
    pub peer: Option<(SocketAddr, Path)>,
    /// ADDITIONAL-ADDRESS-FAMILY (RFC 8656 §7.1): a relayed address of each family.
    pub is_dual: bool,
    /// Another peer, of IPv6, for a dual allocation; reached in the same way as the first one.
    pub second_peer: Option<(SocketAddr, Path)>,
    /// An empty MOBILITY-TICKET in the Allocate request (RFC 8016 §3.1.1); the allocation can then go on elsewhere, see
    /// [`Client::successor`].
    pub mobility: bool,
    /// DONT-FRAGMENT in the Allocate request: the server is to promise that it can (RFC 8656 §7.1).
    pub dont_fragment: bool,
    /// REQUESTED-ADDRESS-FAMILY of the relayed address, where it is to differ from the server's default, IPv4.
    pub family: Option<AddressFamily>,
    /// LIFETIME asked for, seconds; the server's default without it.
    pub lifetime: Option<u32>,
    /// ORIGIN of every request, for servers that tell realms apart by it.
    pub origin: Option<String>,
    /// Send indications go without a permission; the server will drop them, unless it is told to do without as well.
    pub asks_for_no_permission: bool,
    /// Permissions, channels and lifetimes are asked for again and again, some ten times a second each.
    pub asks_often: bool,
    /// Requests go over a connection, which repeats by itself what is lost.
    pub is_reliable: bool,
}

/// What became of the allocation with the last bytes or the last passing of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Data may flow.
    Ready,
    /// The allocation is gone, as asked.
    Released,
    /// It cannot be had, or was lost.
    Failed(Failure),
}

/// Why there is no allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// The server's error code.
    Refused(u16),
    /// No answer to any of the repetitions.
    Timeout,
    /// An answer without what it must have.
    BadAnswer,
    /// An allocation, but without the ticket that was asked for (RFC 8016 §3.1.2).
    NoTicket,
    /// The connection to the server could not be had, or was lost.
    Disconnected,
    /// No keys could be agreed on, or the server's certificate is not to be trusted.
    Handshake,
}

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

/// A request under way.
#[derive(Debug)]
struct Request {
    method: Method,
    transaction: TransactionId,
    bytes: Vec<u8>,
    sends: u32,
    due: Nanos,
    challenges: u32,
}

/// One client.
#[derive(Debug)]
pub struct Client {
    plan: Arc<Plan>,
    random: SmallRng,
    stage: Stage,
    request: Option<Request>,
    realm: Vec<u8>,
    nonce: Vec<u8>,
    /// PASSWORD-ALGORITHMS of the challenge, to be sent back as they came (RFC 8489 §9.2.5), and the choice among them.
    algorithms: Vec<u8>,
    algorithm: Option<PasswordAlgorithm>,
    key: Option<IntegrityKey>,
    /// What stands for a password, once the server has said whose tokens it takes.
    token: Option<Token>,
    /// Where the server sees the client.
    mapped: Option<SocketAddr>,
    relayed: Option<SocketAddr>,
    /// Of the other address family, if the plan asks for it.
    relayed_second: Option<SocketAddr>,
    peer: Option<(SocketAddr, Path)>,
    /// The way to the second peer is open.
    is_second_open: bool,
    /// CONNECTION-ID of the Connect response.
    connection: Option<u32>,
    /// What to show the server from another address.
    ticket: Option<Vec<u8>>,
    refresh_at: Nanos,
    path_at: Nanos,
    /// Times that the path was asked for.
    path_count: u32,
    release_wanted: bool,
}

impl Client {
    /// A client that has sent nothing yet. `seed` makes its transaction ids its own.
    pub fn new(plan: Arc<Plan>, seed: u64) -> Self {
        Self {
            peer: plan.peer,
            plan,
            random: SmallRng::seed_from_u64(seed),
            stage: Stage::Idle,
            request: None,
            realm: Vec::new(),
            nonce: Vec::new(),
            algorithms: Vec::new(),
            algorithm: None,
            key: None,
            token: None,
            mapped: None,
            relayed: None,
            relayed_second: None,
            is_second_open: false,
            connection: None,
            ticket: None,
            refresh_at: Nanos::MAX,
            path_at: Nanos::MAX,
            path_count: 0,
            release_wanted: false,
        }
    }

    /// The client that this one becomes at another transport address, by the ticket it got (RFC 8016 §3.2), or by `ticket`. Until the
    /// successor is [`Event::Ready`], this one goes on; after that it is to be dropped and not released.
    pub fn successor(&self, ticket: &[u8], seed: u64) -> Self {
        Self {
            plan: Arc::clone(&self.plan),
            random: SmallRng::seed_from_u64(seed),
            stage: Stage::Idle,
            request: None,
            realm: self.realm.clone(),
            nonce: self.nonce.clone(),
            algorithms: self.algorithms.clone(),
            algorithm: self.algorithm,
            key: self.key.clone(),
            token: self.token.clone(),
            mapped: self.mapped,
            relayed: self.relayed,
            relayed_second: self.relayed_second,
            peer: self.peer,
            is_second_open: self.is_second_open,
            connection: self.connection,
            ticket: Some(ticket.to_vec()),
            refresh_at: self.refresh_at,
            path_at: self.path_at,
            path_count: self.path_count,
            release_wanted: false,
        }
    }

    /// The ticket that the server gave last; `None` without mobility.
    pub fn ticket(&self) -> Option<&[u8]> {
        self.ticket.as_deref()
    }

    /// Begins to allocate, or to go on with what another client had.
    pub fn start(&mut self, now: Nanos) {
        if self.ticket.is_some() {
            self.stage = Stage::Moving;
            self.begin(now, Method::REFRESH);
        } else {
            self.stage = Stage::Allocating;
            self.begin(now, Method::ALLOCATE);
        }
    }

    /// Gives the allocation back with the next request.
    pub fn release(&mut self, now: Nanos) {
        self.release_wanted = true;
        if self.request.is_none() {
            self.next_request(now);
        }
    }

    /// Opens the way to a peer that was not known at the start. Another [`Event::Ready`] says when data may flow.
    ///
    /// # Panics
    /// When the client has no allocation, or has a peer already.
    pub fn open(&mut self, now: Nanos, peer: SocketAddr, path: Path) {
        assert!(
            self.stage == Stage::Ready && self.peer.is_none(),
            "one peer, after the allocation"
        );
        self.peer = Some((peer, path));
        self.stage = Stage::Opening;
        if self.request.is_none() {
            self.next_request(now);
        }
    }

    /// To whom data goes, and how.
    pub fn peer(&self) -> Option<(SocketAddr, Path)> {
        self.peer
    }

    /// Whether data may flow.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// The client's address as the server sees it, if the server says so.
    pub fn mapped(&self) -> Option<SocketAddr> {
        self.mapped
    }

    /// The relayed transport address of the other family, once there is one.
    pub fn relayed_second(&self) -> Option<SocketAddr> {
        self.relayed_second
    }

    /// The second peer of the plan and the way to it, if the server gave an address of its family.
    pub fn second_peer(&self) -> Option<(SocketAddr, Path)> {
        self.plan
            .second_peer
            .filter(|_| self.relayed_second.is_some())
    }

    /// The connection that the server opened to the peer of a [`Path::Connection`].
    pub fn connection(&self) -> Option<u32> {
        self.connection
    }

    /// A ConnectionBind request for another connection to the server (RFC 6062 §4.3), with its transaction.
    pub fn connection_bind(&mut self, connection: u32) -> (TransactionId, Vec<u8>) {
        let transaction = TransactionId::new(self.random.random());
        let bytes = self.write(Method::CONNECTION_BIND, transaction, |writer| {
            writer.connection_id(connection);
        });
        (transaction, bytes)
    }

    /// Takes the answer to a ConnectionBind request: whether the connection carries data from now on. `None` says that the request
    /// is to be made anew, the nonce having become old.
    ///
    /// # Errors
    /// Why it does not.
    pub fn connection_bound(&mut self, message: &Message<'_>) -> Result<Option<()>, Failure> {
        match (message.class(), message.error_code()) {
            (Class::Success, _) if self.is_proved(message) => Ok(Some(())),
            (Class::Error, Ok(Some(error))) if error.code == 438 && self.accept(message) => {
                Ok(None)
            }
            (Class::Error, Ok(Some(error))) => Err(Failure::Refused(error.code)),
            _ => Err(Failure::BadAnswer),
        }
    }

    /// The relayed transport address, once there is one.
    pub fn relayed(&self) -> Option<SocketAddr> {
        self.relayed
    }

    /// When [`poll_transmit`](Self::poll_transmit) is to be called next.
    pub fn next_timeout(&self) -> Option<Nanos> {
        match &self.request {
            Some(request) => Some(request.due),
            None if self.stage == Stage::Ready => Some(self.refresh_at.min(self.path_at)),
            None => None,
        }
    }

    /// What is to be sent to the server now, if anything, and what the passing of time brought about.
    pub fn poll_transmit(&mut self, now: Nanos) -> (Option<&[u8]>, Option<Event>) {
        if self.request.is_none() && self.stage == Stage::Ready {
            self.next_request(now);
        }
        let sends_max = if self.plan.is_reliable { 1 } else { SENDS_MAX };
        let is_exhausted = |request: &Request| request.due <= now && request.sends == sends_max;
        if self.request.as_ref().is_some_and(is_exhausted) {
            return (None, Some(self.fail(Failure::Timeout)));
        }
        let Some(request) = self.request.as_mut().filter(|request| request.due <= now) else {
            return (None, None);
        };
        request.sends += 1;
        request.due = now
            + if self.plan.is_reliable {
                RELIABLE_WAIT
            } else if request.sends == SENDS_MAX {
                LAST_WAIT
            } else {
                RTO << (request.sends - 1)
            };
        (Some(&request.bytes), None)
    }

    /// Takes a STUN message from the server. Answers to nothing that is under way change nothing.
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
        if !self.is_proved(message) {
            return Some(self.fail(Failure::BadAnswer));
        }
        match request.method {
            Method::ALLOCATE => {
                let (Ok(Some(lifetime)), Some((first, second))) =
                    (message.lifetime(), self.relayed_addresses(message))
                else {
                    return Some(self.fail(Failure::BadAnswer));
                };
                self.relayed = Some(first);
                self.relayed_second = second;
                self.mapped = message.xor_mapped_address().ok().flatten();
                self.ticket = message.mobility_ticket().map(<[u8]>::to_vec);
                if self.plan.mobility && self.ticket.is_none() {
                    return Some(self.fail(Failure::NoTicket));
                }
                if self.plan.is_dual && second.is_none() {
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
                self.ticket = Some(ticket.to_vec());
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
                if self.plan.asks_often && self.path_at <= now {
                    self.path_at = now + self.path_every();
                }
            }
            Method::CONNECT => {
                let Ok(Some(connection)) = message.connection_id() else {
                    return Some(self.fail(Failure::BadAnswer));
                };
                self.connection = Some(connection);
                self.path_at = NEVER;
            }
            _ if self.second_peer().is_some() && !self.is_second_open => {
                self.is_second_open = true;
            }
            _ => {
                self.path_at = now + self.path_every();
                // The next round begins with the second one again.
                self.is_second_open = false;
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
        if !is_challenge || (error.code == 401 && self.key.is_some()) || !self.accept(message) {
            if request.method == Method::REFRESH && self.stage == Stage::Releasing {
                self.stage = Stage::Done;
                // 437: it was gone already, for example because an answer was lost.
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

    /// Takes over realm, nonce and algorithms of a challenge.
    fn accept(&mut self, message: &Message<'_>) -> bool {
        let Ok(Some(nonce)) = message.nonce() else {
            return false;
        };
        self.nonce = nonce.to_vec();
        if let Ok(Some(realm)) = message.realm() {
            self.realm = realm.to_vec();
        }
        self.algorithms.clear();
        self.algorithm = None;
        if let Some(shared_key) = self.plan.credentials.shared_key() {
            if let Some(server_name) = message.third_party_authorization() {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                self.token = Token::new(
                    shared_key,
                    server_name,
                    now.map_or(0, |now| now.as_secs()),
                    self.random.random(),
                    self.random.random(),
                );
            }
            let token = self.token.as_ref();
            self.key = token.map(|token| IntegrityKey::sha1(&token.mac_key));
            return self.key.is_some();
        }
        if let (Ok(Some(offered)), Some(raw)) = (
            message.password_algorithms(),
            message.raw(AttributeType::PASSWORD_ALGORITHMS),
        ) {
            self.algorithm = [PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5]
                .into_iter()
                .find(|&algorithm| offered.contains(algorithm));
            self.algorithms = raw.to_vec();
        }
        self.key = Some(self.plan.credentials.key(&self.realm, self.algorithm));
        true
    }

    /// Whether the server that has the password wrote this; true before there is one. The key goes by the algorithm, not by the
    /// integrity attribute of the request.
    fn is_proved(&self, message: &Message<'_>) -> bool {
        let mut keys = self.key.iter();
        keys.all(|key| message.check_integrity(key).is_ok())
    }

    /// The relayed addresses of an Allocate response: that of the first peer's family, and that of the second's.
    fn relayed_addresses(&self, message: &Message<'_>) -> Option<(SocketAddr, Option<SocketAddr>)> {
        let mut addresses = message.xor_relayed_addresses().filter_map(Result::ok);
        if !self.plan.is_dual {
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
        self.refresh_at = now + (lifetime - margin) * SECOND;
    }

    fn path_every(&self) -> Nanos {
        match self.peer {
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
        } else if let Some((_, path)) = self.peer
            && (self.stage == Stage::Opening && self.path_at == Nanos::MAX || self.path_at <= now)
            && !(self.plan.asks_for_no_permission && path == Path::Indications)
        {
            let method = match path {
                // The first time as it must be, then all that could be asked for in turn.
                _ if self.plan.asks_often && self.path_count % 3 == 1 => Method::CREATE_PERMISSION,
                _ if self.plan.asks_often && self.path_count % 3 == 2 => Method::REFRESH,
                Path::Channel(_) => Method::CHANNEL_BIND,
                Path::Indications => Method::CREATE_PERMISSION,
                Path::Connection => Method::CONNECT,
            };
            // Both peers of a dual allocation are asked for in the same way.
            if self.second_peer().is_none() || self.is_second_open || method == Method::REFRESH {
                self.path_count += 1;
            }
            self.begin(now, method);
        } else if self.refresh_at <= now {
            self.begin(now, Method::REFRESH);
        }
    }

    fn begin(&mut self, now: Nanos, method: Method) {
        let transaction = TransactionId::new(self.random.random());
        let bytes = self.write(method, transaction, |writer| self.describe(method, writer));
        self.request = Some(Request {
            method,
            transaction,
            bytes,
            sends: 0,
            due: now,
            challenges: 0,
        });
    }

    /// What a request is about.
    fn describe(&self, method: Method, writer: &mut MessageWriter<'_>) {
        match method {
            Method::ALLOCATE => {
                writer.requested_transport(match self.plan.relay {
                    Relay::Udp => UDP,
                    Relay::Tcp => TCP,
                });
                if self.plan.dont_fragment {
                    writer.dont_fragment();
                }
                if self.plan.is_dual {
                    writer.additional_address_family(AddressFamily::V6);
                    // coturn up to 4.6 has another number for it, which may be passed over (RFC 8489 §14).
                    let family = [AddressFamily::V6.number(), 0, 0, 0];
                    writer.bytes(AttributeType::COTURN_ADDITIONAL_ADDRESS_FAMILY, &family);
                } else if let Some(family) = self.plan.family {
                    writer.requested_address_family(family);
                }
                if let Some(lifetime) = self.plan.lifetime {
                    writer.lifetime(lifetime);
                }
                if self.plan.mobility {
                    writer.mobility_ticket(&[]);
                }
            }
            Method::REFRESH => {
                if self.stage == Stage::Releasing {
                    writer.lifetime(0);
                } else if let Some(lifetime) = self.plan.lifetime {
                    writer.lifetime(lifetime);
                }
                if let (Stage::Moving, Some(ticket)) = (self.stage, &self.ticket) {
                    writer.mobility_ticket(ticket);
                }
            }
            _ => {
                let second = self.second_peer().filter(|_| !self.is_second_open);
                if let Some((peer, path)) = second.or(self.peer) {
                    if let (Method::CHANNEL_BIND, Path::Channel(channel)) = (method, path) {
                        writer.channel_number(channel);
                    }
                    writer.xor_peer_address(peer);
                }
            }
        }
    }

    /// A request with whatever credentials there are.
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
        if let Some(key) = &self.key {
            writer
                .username(self.plan.credentials.username().as_bytes())
                .realm(&self.realm)
                .nonce(&self.nonce);
            if let Some(token) = &self.token {
                writer.access_token(token.attribute());
            }
            if let Some(algorithm) = self.algorithm {
                writer
                    .bytes(AttributeType::PASSWORD_ALGORITHMS, &self.algorithms)
                    .password_algorithm(algorithm);
            }
            writer.integrity(key);
        }
        writer.fingerprint();
        // Too long only with a name or realm longer than the protocol allows; what is left is no message, and times out.
        let len = writer.finish().unwrap_or(0);
        bytes.truncate(len);
        bytes
    }
}
