//! An honest TURN client: it authenticates, retransmits, refreshes and relays.
//!
//! The client follows RFC 8489 §6.2.1 and §9.2.5 and RFC 8656 §7 to §12 as far as a server can
//! tell. What it does next is drawn at random ([`script`]); what it must do (answer a
//! challenge, retransmit) it does.

mod script;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use turnbuckle_wire::{AttributeType, Class, Message, Method, TransactionId};

use crate::features::{Feature, Features};
use crate::message::{Attribute, Credentials, Draft, REALM, offers_sha256};
use crate::model::Tuple;
use crate::plan;
use crate::queue::{MS, SECOND};
use crate::random::Seeded;

/// What a client wants done.
#[derive(Debug)]
pub enum Effect {
    /// Send a datagram to the client's listener.
    Send(Vec<u8>),
    /// Send a datagram the way that the client used before it moved.
    SendOld(Vec<u8>),
    /// Call [`Client::retransmit`] after this many nanoseconds.
    Retransmit(u64, TransactionId),
}

/// Holds what clients exchange outside of TURN, as WebRTC peers do by signalling.
#[derive(Debug, Default)]
pub struct Signalling {
    /// Relayed addresses somebody holds.
    pub relayed: Vec<SocketAddr>,
    /// Reservation tokens not yet used.
    pub tokens: Vec<[u8; 8]>,
    /// Mobility tickets that were given out, stolen or not.
    pub tickets: Vec<Vec<u8>>,
}

/// A client and its one allocation.
#[derive(Debug)]
pub struct Client {
    number: usize,
    features: Features,
    random: Seeded,
    /// The address the server sees.
    pub address: SocketAddr,
    /// The listener the client uses.
    pub listener: SocketAddr,
    /// Where it came from before it moved, which may still work.
    pub previous: Option<Tuple>,
    /// What it proves its identity with, once challenged.
    pub credentials: Credentials,
    sha256: bool,
    outstanding: BTreeMap<[u8; 12], Transaction>,
    allocation: Option<Held>,
}

/// What the client believes it holds.
#[derive(Debug, Default)]
struct Held {
    relayed: Vec<SocketAddr>,
    expires: u64,
    permissions: BTreeMap<SocketAddr, u64>,
    channels: BTreeMap<u16, (SocketAddr, u64)>,
    /// The ticket with which it may move (RFC 8016).
    ticket: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Transaction {
    draft: Draft,
    bytes: Vec<u8>,
    tries: u32,
    challenges: u32,
    integrity: bool,
    credentials: Credentials,
}

/// RFC 8489 §6.2.1: first retransmission after 500 ms, then doubling, 7 sends in all.
const RTO: u64 = 500 * MS;
const TRIES_MAX: u32 = 7;

impl Client {
    /// Makes a client that has not yet sent anything.
    #[must_use]
    pub fn new(
        number: usize,
        features: Features,
        user: (String, String),
        mut random: Seeded,
    ) -> Self {
        let v6 = random.one_in(3);
        let sha256 = features.has(Feature::Sha256) && random.one_in(2);
        Self {
            number,
            features,
            address: plan::client(number, v6, random.between_u16(1024, 60_000)),
            listener: plan::LISTENERS[usize::from(v6)],
            previous: None,
            credentials: Credentials {
                user: user.0,
                password: user.1,
                realm: REALM.to_owned(),
                nonce: Vec::new(),
                algorithms: None,
                anonymous: false,
                mac_key: None,
            },
            sha256,
            random,
            outstanding: BTreeMap::new(),
            allocation: None,
        }
    }

    /// Moves the client behind another NAT mapping; it does not notice.
    pub fn rebind(&mut self) {
        let v6 = self.address.is_ipv6();
        self.address = plan::client(self.number, v6, self.random.between_u16(1024, 60_000));
    }

    /// Returns the 5-tuple that the client uses.
    #[must_use]
    pub fn tuple(&self) -> Tuple {
        Tuple {
            server: self.listener,
            client: self.address,
        }
    }

    /// Returns whether a datagram from a listener reaches it.
    #[must_use]
    pub fn receives_on(&self, path: Tuple) -> bool {
        path == self.tuple() || Some(path) == self.previous
    }

    /// Goes to another network, of another family perhaps, and asks for its allocation there (RFC 8016 §3.2.1).
    fn travel(&mut self, ticket: Vec<u8>) -> Vec<Effect> {
        self.previous = Some(self.tuple());
        let v6 = self.address.is_ipv6() ^ self.random.one_in(3);
        self.address = plan::client(self.number, v6, self.random.between_u16(1024, 60_000));
        self.listener = plan::LISTENERS[usize::from(v6)];
        self.refresh_with(ticket)
    }

    /// Starts over on another local port, as an application that restarts.
    fn restart(&mut self) {
        self.allocation = None;
        self.previous = None;
        self.outstanding.clear();
        self.rebind();
    }

    /// Draws how long the client waits before it does something again.
    pub fn pause(&mut self) -> u64 {
        match self.random.below(20) {
            0..=9 => self.random.between(1, 200) * MS,
            10..=15 => self.random.between(1, 20) * SECOND,
            16..=18 => self.random.between(20, 150) * SECOND,
            _ if self.features.has(Feature::Neglect) => self.random.between(100, 900) * SECOND,
            _ => self.random.between(20, 150) * SECOND,
        }
    }

    /// Sends an unanswered request once more.
    pub fn retransmit(&mut self, id: TransactionId) -> Vec<Effect> {
        let Some(transaction) = self.outstanding.get_mut(id.as_bytes()) else {
            return Vec::new();
        };
        transaction.tries += 1;
        if transaction.tries >= TRIES_MAX {
            self.outstanding.remove(id.as_bytes());
            return Vec::new();
        }
        let wait = RTO << transaction.tries;
        vec![
            Effect::Send(transaction.bytes.clone()),
            Effect::Retransmit(wait, id),
        ]
    }

    /// Takes a datagram from the listener.
    pub fn receive(&mut self, now: u64, bytes: &[u8], signalling: &mut Signalling) -> Vec<Effect> {
        let Ok(message) = Message::parse(bytes) else {
            return Vec::new();
        };
        let Some(transaction) = self.outstanding.get(message.transaction_id().as_bytes()) else {
            return Vec::new();
        };
        if message.method() != transaction.draft.method {
            return Vec::new();
        }
        match message.class() {
            Class::Success => {
                let key = transaction.credentials.key();
                if transaction.integrity && message.check_integrity(&key).is_err() {
                    return Vec::new(); // damaged on the way: RFC 8489 §9.2.5 discards it
                }
                if let Some(done) = self.outstanding.remove(message.transaction_id().as_bytes()) {
                    self.succeeded(now, &done.draft, &message, signalling);
                }
                Vec::new()
            }
            Class::Error => self.refused(&message),
            Class::Request | Class::Indication => Vec::new(),
        }
    }

    fn refused(&mut self, message: &Message<'_>) -> Vec<Effect> {
        let Some(failed) = self.outstanding.remove(message.transaction_id().as_bytes()) else {
            return Vec::new();
        };
        let code = message
            .error_code()
            .ok()
            .flatten()
            .map_or(0, |error| error.code);
        if code == 437 {
            self.allocation = None;
            if self.random.one_in(2) {
                self.restart();
            }
        }
        let had_ticket = failed.draft.ticket().is_some();
        if had_ticket
            && code == 400
            && let Some(previous) = self.previous.take()
        {
            // Perhaps the old network still works.
            (self.address, self.listener) = (previous.client, previous.server);
        }
        let Some(nonce) = message.raw(AttributeType::NONCE) else {
            return Vec::new();
        };
        if !matches!(code, 401 | 438) || failed.challenges >= 2 {
            return Vec::new();
        }
        self.credentials.nonce = nonce.to_vec();
        let algorithms = message.raw(AttributeType::PASSWORD_ALGORITHMS);
        let sha256 = algorithms.filter(|list| self.sha256 && offers_sha256(list));
        self.credentials.algorithms = sha256.map(<[u8]>::to_vec);
        self.credentials.anonymous =
            sha256.is_some() && wants_userhash(nonce) && self.random.one_in(3);
        self.send(failed.draft, failed.challenges + 1)
    }

    fn succeeded(
        &mut self,
        now: u64,
        draft: &Draft,
        message: &Message<'_>,
        signalling: &mut Signalling,
    ) {
        let lifetime = u64::from(message.lifetime().ok().flatten().unwrap_or(0)) * SECOND;
        let ticket = message.mobility_ticket().map(<[u8]>::to_vec);
        signalling.tickets.extend(ticket.clone());
        if let (Some(held), Some(ticket)) = (&mut self.allocation, &ticket) {
            held.ticket = Some(ticket.clone());
        }
        match draft.method {
            Method::ALLOCATE => {
                let relayed: Vec<SocketAddr> = message
                    .xor_relayed_addresses()
                    .filter_map(Result::ok)
                    .collect();
                signalling.relayed.extend(&relayed);
                if let Ok(Some(token)) = message.reservation_token() {
                    signalling.tokens.push(token);
                }
                self.allocation = Some(Held {
                    relayed,
                    expires: now + lifetime,
                    ticket,
                    ..Held::default()
                });
            }
            Method::REFRESH if lifetime == 0 => {
                let one_family = draft
                    .attributes
                    .iter()
                    .any(|attribute| matches!(attribute, Attribute::Family(_)));
                if !one_family {
                    self.allocation = None;
                }
            }
            Method::REFRESH => {
                if let Some(held) = &mut self.allocation {
                    held.expires = now + lifetime;
                }
            }
            _ => {
                if let Some(held) = &mut self.allocation {
                    held.installed(now, draft);
                }
            }
        }
    }

    /// Writes a request with the credentials at hand and starts its transaction.
    fn send(&mut self, mut draft: Draft, challenges: u32) -> Vec<Effect> {
        let id = self.transaction_id();
        draft.fingerprint = self.random.one_in(2);
        let integrity = !self.credentials.nonce.is_empty() && draft.method != Method::BINDING;
        let bytes = draft.write(id, integrity.then_some(&self.credentials));
        let transaction = Transaction {
            draft,
            bytes: bytes.clone(),
            tries: 0,
            challenges,
            integrity,
            credentials: self.credentials.clone(),
        };
        self.outstanding.insert(*id.as_bytes(), transaction);
        vec![Effect::Send(bytes), Effect::Retransmit(RTO, id)]
    }

    /// Writes an indication.
    fn indicate(&mut self, mut draft: Draft) -> Vec<Effect> {
        draft.fingerprint = self.random.one_in(4);
        let id = self.transaction_id();
        vec![Effect::Send(draft.write(id, None))]
    }

    fn transaction_id(&mut self) -> TransactionId {
        let mut id = [0; 12];
        self.random.fill_bytes(&mut id);
        TransactionId::new(id)
    }
}

/// Returns whether a nonce cookie has the "username anonymity" bit set (RFC 8489 §9.2).
fn wants_userhash(nonce: &[u8]) -> bool {
    // The second of 24 bits lies in the first of four base64 characters.
    let features = nonce
        .strip_prefix(b"obMatJos2")
        .and_then(|rest| rest.first());
    features.is_some_and(|character| matches!(character, b'Q'..=b'Z' | b'a'..=b'f' | b'w'..=b'z' | b'0'..=b'9' | b'+' | b'/'))
}

impl Held {
    fn installed(&mut self, now: u64, draft: &Draft) {
        let mut channel = None;
        for attribute in &draft.attributes {
            match attribute {
                Attribute::Channel(number) => channel = Some(*number),
                Attribute::Peer(peer) => {
                    self.permissions.insert(*peer, now + 300 * SECOND);
                    if let Some(number) = channel {
                        self.channels.insert(number, (*peer, now + 600 * SECOND));
                    }
                }
                _ => {}
            }
        }
    }
}
