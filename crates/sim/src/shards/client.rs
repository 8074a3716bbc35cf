//! A client at one transport address: it asks for one thing at a time, repeats what is not answered, and sends data meanwhile.

mod answers;
mod draft;

use std::net::SocketAddr;

use turnbuckle_wire::{Method, TransactionId};

pub(super) use self::draft::origin;
use self::draft::{ACCESS_TOKEN, ORIGIN, bind, peer_of, shows_token};
use super::dtls::Sessions;
use super::pass::Pass;
use super::payload::{LEN_MIN, Payload, Sender};
use super::wire::WireId;
use crate::message::{Attribute, Credentials, Draft, REALM, channel_data};
use crate::queue::{MS, SECOND};
use crate::random::Seeded;
use crate::violation::{Violation, ensure};

/// How long a client waits before it repeats a request.
const REPEAT: u64 = 500 * MS;
/// The same by TCP, where a request is lost only with what a shard has no room for.
const REPEAT_STREAM: u64 = 5 * SECOND;
/// UDP and TCP in REQUESTED-TRANSPORT.
const UDP: u8 = 17;
const TCP: u8 = 6;
/// IPv4 and IPv6 in REQUESTED-ADDRESS-FAMILY (RFC 8656 §18.6).
const FAMILIES: [u8; 2] = [1, 2];

/// What a client waits for.
#[derive(Clone, Debug)]
struct Pending {
    transaction: TransactionId,
    draft: Draft,
    bytes: Vec<u8>,
    since: u64,
    repeat_at: u64,
}

/// A port that was reserved for the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserved {
    pub(super) address: SocketAddr,
    token: [u8; 8],
    /// When the answer came.
    pub(super) since: u64,
    /// Whether the token has been shown to the server.
    pub(super) is_redeemed: bool,
}

/// What sort of client it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// One with an allocation, and nothing else.
    Plain,
    /// One that asks for tickets, and comes back at other addresses.
    Mobile,
    /// One that relays TCP.
    Tcp,
    /// A data connection of one that relays TCP.
    Data,
    /// A connection of who holds another token than the one whose data connection it asks for.
    Thief,
}

/// By what a client is connected.
#[derive(Debug, Default)]
struct Link {
    /// `None` by UDP.
    wire: Option<WireId>,
    /// Its sessions by DTLS over UDP, if it has them.
    sessions: Option<Sessions>,
    /// The proxy that says to the server who the client is, if there is one.
    proxy: Option<SocketAddr>,
    unread: Vec<u8>,
    /// There are no messages any more: it is joined with a peer.
    is_raw: bool,
}

/// Whom a client's user is.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    pub(super) name: &'static str,
    /// `None` for the holders of tokens.
    pub(super) password: Option<&'static str>,
    pub(super) realm: &'static str,
}

/// What the operator has done that a client's answers must show.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Terms {
    /// The client's user is not known from here on.
    pub(super) unknown_since: Option<u64>,
    /// The client's user was not known before this.
    pub(super) known_since: u64,
    /// No allocations are made from here on.
    pub(super) draining_since: Option<u64>,
}

/// When the server last lost something of the client's. What was asked for before may be among it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    /// Allocations of a shard that failed.
    pub(super) allocations: u64,
    /// The sockets of reserved ports, which a process does not leave to the next one.
    pub(super) reservations: u64,
    /// What shards know of clients whose allocation another shard has: it is the time at which they have told each other anew.
    pub(super) homes: u64,
    /// Sessions by DTLS, when no shard stood still any more.
    pub(super) sessions: u64,
}

/// What is unusual about a client.
#[derive(Clone, Debug)]
pub(super) struct Special {
    pub(super) sort: Sort,
    /// What it is to ask for before anything else.
    first: Option<Draft>,
    pub(super) ticket: Option<Vec<u8>>,
    /// CONNECTION-ID of a connection to a peer that nobody has asked for yet.
    pub(super) connection: Option<u32>,
    /// The relayed address of a client whose connection it has asked for.
    borrowed: Option<SocketAddr>,
    /// It came back at another address.
    pub(super) has_moved: bool,
    /// What it shows in place of a password.
    pub(super) pass: Option<Pass>,
    pub(super) terms: Terms,
    pub(super) losses: Losses,
    /// Until when its allocation has to be there; 0 if nothing can be said about that.
    lives_until: u64,
    /// Peers that it has been granted, and until when that lasts at least.
    held: Vec<(SocketAddr, u64)>,
}

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    /// Who it is.
    pub(super) owner: u32,
    pub(super) address: SocketAddr,
    credentials: Credentials,
    pending: Option<Pending>,
    pub(super) relayed: Option<SocketAddr>,
    pub(super) reserved: Option<Reserved>,
    /// Whom it has asked for, and by which channel.
    asked: Vec<(SocketAddr, Option<u16>)>,
    /// Those that it may send to.
    peers: Vec<(SocketAddr, Option<u16>)>,
    /// It has released its allocation, or was refused one.
    pub(super) is_over: bool,
    link: Link,
    pub(super) special: Special,
    random: Seeded,
}

impl Client {
    pub(super) fn new(owner: u32, address: SocketAddr, user: User, random: Seeded) -> Self {
        let credentials = Credentials {
            user: user.name.to_owned(),
            password: user.password.unwrap_or_default().to_owned(),
            realm: user.realm.to_owned(),
            nonce: Vec::new(),
            algorithms: None,
            anonymous: false,
            mac_key: None,
        };
        Self::with(owner, address, credentials, random)
    }

    fn with(owner: u32, address: SocketAddr, credentials: Credentials, random: Seeded) -> Self {
        Self {
            owner,
            address,
            credentials,
            pending: None,
            relayed: None,
            reserved: None,
            asked: Vec::new(),
            peers: Vec::new(),
            is_over: false,
            link: Link::default(),
            special: Special {
                sort: Sort::Plain,
                first: None,
                ticket: None,
                connection: None,
                borrowed: None,
                has_moved: false,
                pass: None,
                terms: Terms::default(),
                losses: Losses::default(),
                lives_until: 0,
                held: Vec::new(),
            },
            random,
        }
    }

    /// Returns the same client by a connection, if there is one.
    pub(super) fn by(mut self, wire: Option<WireId>, sort: Sort) -> Self {
        self.link.wire = wire;
        self.special.sort = sort;
        self
    }

    /// Returns the same client by sessions of DTLS, if it has them.
    pub(super) fn by_sessions(mut self, sessions: Option<Sessions>) -> Self {
        self.link.sessions = sessions;
        self
    }

    /// Returns the same client through a proxy, if there is one.
    pub(super) fn through(mut self, proxy: Option<SocketAddr>) -> Self {
        self.link.proxy = proxy;
        self
    }

    /// Returns the same client with what it shows in place of a password, if that is so.
    pub(super) fn showing(mut self, pass: Option<Pass>) -> Self {
        if let Some(pass) = pass {
            self.hold(pass);
        }
        self
    }

    /// Takes a token in place of what it has shown before.
    fn hold(&mut self, pass: Pass) {
        self.credentials.user = pass.key_name.to_owned();
        self.credentials.mac_key = Some(pass.mac_key);
        self.special.pass = Some(pass);
    }

    /// Returns the same client on a connection of its own, on which it asks for a data connection that belongs to who holds another token. It shows its own
    /// with that, which no client does, so that nothing but the token tells it from the one who may ask.
    pub(super) fn stealing(mut self, wire: WireId, connection: u32) -> Self {
        let mut first = bind(connection);
        if let Some(pass) = &self.special.pass {
            first = first.with(Attribute::Raw(ACCESS_TOKEN, pass.token.clone()));
        }
        self.special.first = Some(first);
        self.by(Some(wire), Sort::Thief)
    }

    /// Returns whether it can show a new token for what it has.
    pub(super) fn may_renew(&self) -> bool {
        let is_holder = self.special.pass.is_some() && self.relayed.is_some();
        let is_free = self.pending.is_none() && self.special.first.is_none() && !self.is_over;
        is_holder && is_free && !matches!(self.special.sort, Sort::Data | Sort::Thief)
    }

    /// Shows a new token for what it has (RFC 7635 §9). Returns what is sent to the server.
    pub(super) fn renew(&mut self, now: u64, pass: Pass) -> Vec<u8> {
        self.hold(Pass {
            is_renewal: true,
            ..pass
        });
        self.ask(now, Draft::request(Method::REFRESH))
    }

    /// Returns the same client at another address, to which it comes with its ticket.
    pub(super) fn moved(&mut self, address: SocketAddr, wire: Option<WireId>) -> Option<Self> {
        let ticket = self.special.ticket.take()?;
        let random = self.random.fork("moved");
        let first = Draft::request(Method::REFRESH).with(Attribute::Ticket(ticket));
        Some(Self {
            owner: self.owner,
            address,
            credentials: self.credentials.clone(),
            pending: None,
            relayed: self.relayed,
            reserved: self.reserved,
            asked: self.asked.clone(),
            peers: Vec::new(),
            is_over: false,
            link: Link {
                wire,
                ..Link::default()
            },
            special: Special {
                first: Some(first),
                ticket: None,
                has_moved: true,
                lives_until: 0,
                ..self.special.clone()
            },
            random,
        })
    }

    /// Makes a data connection for what this client has been told of.
    pub(super) fn data_connection(&mut self, address: SocketAddr, wire: WireId) -> Option<Self> {
        let connection = self.special.connection.take()?;
        let first = bind(connection);
        let random = self.random.fork("data");
        let mut data = Self::with(self.owner, address, self.credentials.clone(), random);
        data.special.terms = self.special.terms;
        data.special.pass = self.special.pass.clone();
        data.relayed = self.relayed;
        data.link.wire = Some(wire);
        data.special.sort = Sort::Data;
        data.special.first = Some(first);
        Some(data)
    }

    /// Returns whether it comes by UDP alone: what it is granted does not end with a connection or a session.
    fn has_no_connection(&self) -> bool {
        self.link.wire.is_none() && self.link.sessions.is_none()
    }

    /// Returns whether it comes by DTLS.
    pub(super) fn has_sessions(&self) -> bool {
        self.link.sessions.is_some()
    }

    /// Returns the datagram for a message, or what has to come before it; `None` if that is under way.
    pub(super) fn sealed(&mut self, now: u64, message: Vec<u8>) -> Option<Vec<u8>> {
        match &mut self.link.sessions {
            Some(sessions) => sessions.seal(now, &message),
            None => Some(message),
        }
    }

    /// Begins a session anew now and then, and one whose server does not answer any more: it has to have lost it then.
    pub(super) fn notice_silence(&mut self, now: u64) -> Result<(), Violation> {
        let waits_since = self.waits_since();
        let Some(sessions) = &mut self.link.sessions else {
            return Ok(());
        };
        if self.random.one_in(300) {
            sessions.begin_anew(now);
        }
        let ended = sessions.begin_anew_if_silent(now, waits_since);
        self.may_have_ended(ended)
    }

    /// Checks that a session which has ended began before a shard failed: nobody else ends one but the client.
    fn may_have_ended(&self, begun_at: Option<u64>) -> Result<(), Violation> {
        ensure(
            begun_at.is_none_or(|it| it <= self.special.losses.sessions),
            "sessions",
            || format!("the session of {} has ended", self.address),
        )
    }

    /// Returns the peers that this client, if it comes by UDP alone, has been granted on the relayed address `relayed` and has not given up.
    pub(super) fn held(&self, relayed: SocketAddr, now: u64) -> impl Iterator<Item = SocketAddr> {
        let is_known = !self.is_over && self.has_no_connection() && self.relayed == Some(relayed);
        let held = self.special.held.iter().filter(move |_| is_known);
        held.filter(move |(_, until)| now < *until)
            .map(|(peer, _)| *peer)
    }

    /// Gives up the peers that the operator's rules refuse since they have changed.
    pub(super) fn give_up(&mut self, is_refused: impl Fn(SocketAddr) -> bool) {
        self.special.held.retain(|(peer, _)| !is_refused(*peer));
    }

    /// Returns its connection.
    pub(super) fn wire(&self) -> Option<WireId> {
        self.link.wire
    }

    /// Returns the proxy through which it comes.
    pub(super) fn proxy(&self) -> Option<SocketAddr> {
        self.link.proxy
    }

    /// Returns where datagrams for it are sent.
    pub(super) fn hears_at(&self) -> SocketAddr {
        self.link.proxy.unwrap_or(self.address)
    }

    /// Takes note that the shard that has its allocation has failed.
    pub(super) fn lose(&mut self) {
        self.special.held.clear();
        self.special.lives_until = 0;
    }

    /// Takes the terms that hold since the operator has changed who is known.
    pub(super) fn take_terms(&mut self, terms: Terms) {
        self.special.terms = terms;
        if terms.unknown_since.is_some() {
            self.special.lives_until = 0;
        }
    }

    /// Returns a message to one of its peers as somebody else would write it.
    pub(super) fn impersonated(&mut self) -> Option<Vec<u8>> {
        let &(to, _) = self.random.choose(&self.peers)?;
        let sender = Sender::Stranger;
        let bytes = Payload { to, sender }.write(LEN_MIN);
        Some(Draft::send(to, &bytes).write(TransactionId::from([7; 12]), None))
    }

    /// Takes note that its connection is gone.
    pub(super) fn disconnected(&mut self) {
        self.pending = None;
        self.is_over = true;
    }

    /// Returns since when it has waited for an answer.
    pub(super) fn waits_since(&self) -> Option<u64> {
        self.pending.as_ref().map(|pending| pending.since)
    }

    /// Returns whether it wants to hear from this peer.
    fn has_asked_for(&self, peer: SocketAddr) -> bool {
        self.asked.iter().any(|(it, _)| it.ip() == peer.ip())
    }

    /// Does the next thing: returns what is sent to the server. `peer` is whom it may take an interest in, `token` what another client of the same
    /// user has reserved.
    pub(super) fn act(
        &mut self,
        now: u64,
        peer: SocketAddr,
        token: Option<[u8; 8]>,
    ) -> Vec<Vec<u8>> {
        let repeat = self.repeat();
        if let Some(pending) = &mut self.pending {
            if pending.repeat_at > now {
                return self.data();
            }
            pending.repeat_at = now + repeat;
            return vec![pending.bytes.clone()];
        }
        if self.is_over || self.link.is_raw {
            return Vec::new();
        }
        if let Some(first) = self.special.first.take() {
            return vec![self.ask(now, first)];
        }
        let draft = match self.relayed {
            None => self.allocation(token),
            Some(_) => match self.random.below(12) {
                0 => Draft::request(Method::REFRESH).with(Attribute::Lifetime(0)),
                1 => Draft::request(Method::REFRESH),
                2..=4 => Draft::request(Method::CREATE_PERMISSION).with(Attribute::Peer(peer)),
                5 if self.special.sort == Sort::Tcp => {
                    Draft::request(Method::CONNECT).with(Attribute::Peer(peer))
                }
                5..=6 if self.special.sort != Sort::Tcp => {
                    let number = 0x4000 + self.random.between_u16(0, 0xFFF);
                    Draft::request(Method::CHANNEL_BIND)
                        .with(Attribute::Channel(number))
                        .with(Attribute::Peer(peer))
                }
                _ => return self.data(),
            },
        };
        vec![self.ask(now, draft)]
    }

    fn allocation(&mut self, token: Option<[u8; 8]>) -> Draft {
        let mut draft = Draft::request(Method::ALLOCATE);
        let token = token.filter(|_| self.special.sort == Sort::Plain);
        // A token says itself which family its port is of (RFC 8656 §7.2).
        if token.is_none() && self.random.one_in(2) {
            let family = self.random.choose(&FAMILIES).copied();
            draft = draft.with(Attribute::Family(family.unwrap_or(1)));
        }
        match self.special.sort {
            Sort::Tcp => return draft.with(Attribute::Transport(TCP)),
            Sort::Mobile => {
                let draft = draft.with(Attribute::Transport(UDP));
                return draft.with(Attribute::Ticket(Vec::new()));
            }
            Sort::Data | Sort::Plain | Sort::Thief => {}
        }
        let draft = draft.with(Attribute::Transport(UDP));
        match token {
            Some(token) => draft.with(Attribute::Token(token)),
            None if self.random.one_in(3) => draft.with(Attribute::EvenPort(true)),
            None => draft,
        }
    }

    /// Begins a request.
    fn ask(&mut self, now: u64, draft: Draft) -> Vec<u8> {
        let mut transaction = [0; 12];
        self.random.fill_bytes(&mut transaction);
        let transaction = TransactionId::from(transaction);
        let has_nonce = !self.credentials.nonce.is_empty();
        let realm = &self.credentials.realm;
        let mut bytes = draft.clone();
        if realm != REALM {
            bytes = bytes.with(Attribute::Raw(ORIGIN, origin(realm).into()));
        }
        if let Some(pass) = self.special.pass.as_ref().filter(|_| shows_token(&draft)) {
            bytes = bytes.with(Attribute::Raw(ACCESS_TOKEN, pass.token.clone()));
        }
        let bytes = bytes.write(transaction, has_nonce.then_some(&self.credentials));
        let since = self.pending.as_ref().map_or(now, |pending| pending.since);
        self.asked.extend(peer_of(&draft));
        if draft.attributes.contains(&Attribute::Lifetime(0)) {
            self.special.held.clear();
            self.special.lives_until = 0;
        }
        self.pending = Some(Pending {
            transaction,
            draft,
            bytes: bytes.clone(),
            since,
            repeat_at: now + self.repeat(),
        });
        bytes
    }

    fn repeat(&self) -> u64 {
        match self.link.wire {
            None => REPEAT,
            Some(_) => REPEAT_STREAM,
        }
    }

    /// Releases what it has, and asks for a connection that is none of its own in the same breath: as an attacker does whose connection has at
    /// another shard the number that somebody else's has here.
    pub(super) fn attack(
        &mut self,
        now: u64,
        connection: u32,
        relayed: Option<SocketAddr>,
    ) -> Vec<u8> {
        self.special.borrowed = relayed;
        let release = Draft::request(Method::REFRESH).with(Attribute::Lifetime(0));
        let mut bytes = self.ask(now, release);
        self.pending = None;
        bytes.extend(self.ask(now, bind(connection)));
        self.special.ticket = None;
        bytes
    }

    /// Returns data for one of its peers, several datagrams at once.
    fn data(&mut self) -> Vec<Vec<u8>> {
        if self.special.sort == Sort::Tcp || self.is_over || self.link.is_raw {
            return Vec::new();
        }
        let Some(&(to, channel)) = self.random.choose(&self.peers) else {
            return Vec::new();
        };
        let payload = Payload {
            to,
            sender: Sender::Client(self.owner),
        };
        let len = *self
            .random
            .choose(&[LEN_MIN, LEN_MIN, LEN_MIN, 61, 200])
            .unwrap_or(&LEN_MIN);
        let bytes = payload.write(len);
        let message = match channel {
            Some(number) => {
                let mut message = channel_data(number, &bytes);
                message.resize(message.len().next_multiple_of(4), 0);
                message
            }
            None => {
                let mut transaction = [0; 12];
                self.random.fill_bytes(&mut transaction);
                Draft::send(to, &bytes).write(TransactionId::from(transaction), None)
            }
        };
        vec![message; 1 + self.random.index(6)]
    }

    /// Takes the token of the port that is reserved for it, to be shown by another client.
    pub(super) fn hand_on_token(&mut self, now: u64) -> Option<[u8; 8]> {
        let reserved = self.reserved.as_mut()?;
        if reserved.is_redeemed || now > reserved.since + 20 * SECOND {
            return None;
        }
        reserved.is_redeemed = true;
        Some(reserved.token)
    }
}
