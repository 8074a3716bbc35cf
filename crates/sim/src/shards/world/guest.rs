//! A client of HTTP with one tunnel of UDP on a connection of its own (RFC 9298), to one target or bound, and what has to be true of all that it hears.
//!
//! What must not arrive anywhere says that a stranger has sent it. No peer may get that.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use turnbuckle_masque::bind::{CONNECT_UDP_BIND, ContextCapsule, PROXY_PUBLIC_ADDRESS};
use turnbuckle_wire::{CapsuleHeader, UDP_CONTEXT, Varint};

use super::super::client::{Terms, User};
use super::super::payload::{LEN_MIN, Payload, Sender};
use super::super::wire::WireId;
use super::places::{BOUNDED_REALM, PEER_PORT, peer_at};
use super::quota::Quota;
use super::rules::Rules;
use super::tunnel::{Wish, draw_address};
use crate::plan;
use crate::random::Seeded;
use crate::violation::{Coverage, Violation, ensure};

/// A context that no client registers: clients' are even.
const NO_CONTEXT: u64 = 1_000_001;
/// The IP version of a context without an address, and those of addresses (§3.1 of the draft).
const NO_ADDRESS: u8 = 0;
const V4: u8 = 4;
const V6: u8 = 6;

/// How far a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It has asked for nothing.
    Begun,
    /// It waits for an answer since then.
    Waits(u64),
    /// Its tunnel is open.
    Open,
    /// There is no tunnel, or no more.
    Over,
}

/// How far a context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Asked,
    Open,
    /// Its client has closed it, and may still be sent what was on its way.
    Closed,
}

/// A context that a client has registered.
#[derive(Clone, Copy, Debug)]
struct Context {
    /// `None` if each datagram has an address of its own.
    peer: Option<SocketAddr>,
    standing: Standing,
    /// When it was asked for.
    since: u64,
}

/// A client.
#[derive(Debug)]
pub(super) struct Guest {
    /// Who it is.
    pub(super) owner: u32,
    pub(super) wire: WireId,
    wish: Wish,
    pub(super) terms: Terms,
    state: State,
    /// The relayed addresses of its tunnel, as far as they are known.
    relays: Vec<SocketAddr>,
    contexts: BTreeMap<u64, Context>,
    unread: Vec<u8>,
    random: Seeded,
}

impl Guest {
    pub(super) fn new(owner: u32, wire: WireId, user: User, mut random: Seeded) -> Self {
        let is_bound = random.one_in(2);
        Self {
            owner,
            wire,
            wish: Wish {
                user,
                target: (!is_bound).then(|| draw_address(&mut random)),
                is_password_wrong: random.one_in(12),
            },
            terms: Terms::default(),
            state: State::Begun,
            relays: Vec::new(),
            contexts: BTreeMap::new(),
            unread: Vec::new(),
            random,
        }
    }

    /// Returns since when it has waited for an answer.
    pub(super) fn waits_since(&self) -> Option<u64> {
        match self.state {
            State::Waits(since) => Some(since),
            State::Begun | State::Open | State::Over => None,
        }
    }

    /// Returns whether it has no tunnel, and asks for none.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Returns the relayed addresses that are known to be its tunnel's, if that is open.
    pub(super) fn relays(&self) -> impl Iterator<Item = SocketAddr> {
        let is_open = self.state == State::Open;
        self.relays.iter().copied().filter(move |_| is_open)
    }

    /// Takes note that its connection is gone.
    pub(super) fn disconnected(&mut self) {
        self.state = State::Over;
    }

    /// Returns whether an address is one of its tunnel's. A tunnel to one target has one, of which nobody is told: the first that is seen is it.
    pub(super) fn has_relay(&mut self, address: SocketAddr) -> bool {
        if self.wish.target.is_some() && self.relays.is_empty() {
            self.relays.push(address);
        }
        self.relays.contains(&address)
    }

    /// Does the next thing: returns what is sent to the server.
    pub(super) fn act(&mut self, now: u64, quota: &mut Quota) -> Vec<u8> {
        match (self.state, self.wish.target) {
            (State::Begun, _) => {
                self.state = State::Waits(now);
                quota.asked(self.wire, now);
                self.request()
            }
            (State::Open, Some(target)) => self.data(UDP_CONTEXT, target, &[]),
            (State::Open, None) => self.act_bound(now),
            (State::Waits(_) | State::Over, _) => Vec::new(),
        }
    }

    fn request(&mut self) -> Vec<u8> {
        let (name, password) = self.wish.credentials();
        let pair = STANDARD.encode(format!("{name}:{password}"));
        let (path, bound) = match self.wish.target {
            Some(target) => {
                let ip = target.ip().to_string().replace(':', "%3A");
                (format!("{ip}/{}", target.port()), String::new())
            }
            None => ("%2A/%2A".to_owned(), format!("{CONNECT_UDP_BIND}: ?1\r\n")),
        };
        let host = match self.wish.user.realm {
            BOUNDED_REALM => BOUNDED_REALM,
            _ => "relay.test",
        };
        let head = format!(
            "GET /.well-known/masque/udp/{path}/ HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n\
             Upgrade: connect-udp\r\nCapsule-Protocol: ?1\r\n{bound}\
             Proxy-Authorization: Basic {pair}\r\n\r\n"
        );
        let mut bytes = head.into_bytes();
        // Some do not wait for the answer.
        if let Some(target) = self.wish.target.filter(|_| self.random.one_in(3)) {
            bytes.extend(self.data(UDP_CONTEXT, target, &[]));
        }
        bytes
    }

    /// Registers or closes contexts, or sends data in those that it has.
    fn act_bound(&mut self, now: u64) -> Vec<u8> {
        let next = 2 + 2 * self.contexts.len() as u64;
        let open = self.contexts.iter();
        let open: Vec<_> = open
            .filter(|(_, context)| context.standing == Standing::Open)
            .map(|(&id, &context)| (id, context.peer))
            .collect();
        match self.random.below(10) {
            0..3 => {
                let peer = match self.random.one_in(4) {
                    true => None,
                    false => Some(draw_address(&mut self.random)),
                };
                // One that there is may not be registered again.
                let mut contexts = self.contexts.values();
                if contexts.any(|it| it.peer == peer && it.standing != Standing::Closed) {
                    return Vec::new();
                }
                let context = Context {
                    peer,
                    standing: Standing::Asked,
                    since: now,
                };
                self.contexts.insert(next, context);
                let rest = peer.map_or_else(|| vec![NO_ADDRESS], written);
                registration(ContextCapsule::Assign, next, &rest)
            }
            3 => {
                let Some(&(id, peer)) = self.random.choose(&open) else {
                    return Vec::new();
                };
                if let Some(context) = self.contexts.get_mut(&id) {
                    context.standing = Standing::Closed;
                }
                let mut bytes = registration(ContextCapsule::Close, id, &[]);
                bytes.extend(self.lost(id, peer));
                bytes
            }
            4 => self.lost(NO_CONTEXT, None),
            _ => match self.random.choose(&open).copied() {
                Some((id, Some(peer))) => self.data(id, peer, &[]),
                Some((id, None)) => {
                    let to = draw_address(&mut self.random);
                    self.data(id, to, &written(to))
                }
                None => Vec::new(),
            },
        }
    }

    /// Returns data for somebody, several datagrams at once, now and then one that has to be lost.
    fn data(&mut self, context: u64, to: SocketAddr, head: &[u8]) -> Vec<u8> {
        if self.random.one_in(10) {
            return self.lost(NO_CONTEXT, None);
        }
        let sender = match plan::place(to) {
            plan::Place::Peer(_) => Sender::Client(self.owner),
            _ => Sender::Stranger,
        };
        let len = self.random.choose(&[LEN_MIN, LEN_MIN, 61, 200]).copied();
        let payload = Payload { to, sender }.write(len.unwrap_or(LEN_MIN));
        let one = datagram(context, head, &payload);
        one.repeat(1 + self.random.index(6))
    }

    /// Returns a datagram in a context that there is not.
    fn lost(&mut self, context: u64, peer: Option<SocketAddr>) -> Vec<u8> {
        let to = peer.unwrap_or_else(|| draw_address(&mut self.random));
        let sender = Sender::Stranger;
        datagram(
            context,
            &written(to),
            &Payload { to, sender }.write(LEN_MIN),
        )
    }

    /// Takes what came on its connection by now.
    pub(super) fn take(
        &mut self,
        now: u64,
        bytes: &[u8],
        (rules, quota): (&Rules, &mut Quota),
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        self.unread.extend_from_slice(bytes);
        if let State::Waits(since) = self.state {
            let mut heads = self.unread.windows(4);
            let Some(end) = heads.position(|it| it == b"\r\n\r\n") else {
                return Ok(());
            };
            let head: Vec<u8> = self.unread.drain(..end + 4).collect();
            let head = String::from_utf8_lossy(&head);
            let status = self.take_answer(since, &head, rules, coverage)?;
            quota.answered(self.wire, status, now)?;
        }
        while self.state == State::Open
            && let Some((kind, value)) = self.capsule()
        {
            match (kind, ContextCapsule::of_kind(kind)) {
                (CapsuleHeader::DATAGRAM, _) => self.take_datagram(&value, coverage)?,
                (_, Some(kind)) if self.wish.target.is_none() => {
                    self.take_context(kind, &value, rules, coverage)?;
                }
                _ => return Err(self.broken(&format!("got a capsule of type {kind}"))),
            }
        }
        Ok(())
    }

    /// Takes a capsule, if one is whole.
    fn capsule(&mut self) -> Option<(u64, Vec<u8>)> {
        let (kind, kind_len) = Varint::read(&self.unread)?;
        let (len, len_len) = Varint::read(&self.unread[kind_len..])?;
        let start = kind_len + len_len;
        let end = start + usize::try_from(len).ok()?;
        let value = self.unread.get(start..end)?.to_vec();
        self.unread.drain(..end);
        Some((kind, value))
    }

    fn take_answer(
        &mut self,
        since: u64,
        head: &str,
        rules: &Rules,
        coverage: &mut Coverage,
    ) -> Result<u16, Violation> {
        let status: u16 = head
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3)?.parse().ok())
            .ok_or_else(|| self.broken(&format!("was answered {head:?}")))?;
        coverage.count("answers to requests for tunnels", status);
        let is_right = self.wish.may_get(status, since, self.terms, rules);
        ensure(is_right, "tunnels", || {
            format!("{self:?} was answered {status}")
        })?;
        if status != 101 {
            self.state = State::Over;
            return Ok(status);
        }
        self.state = State::Open;
        let is_bound = self.wish.target.is_none();
        coverage.count("tunnels opened", u16::from(is_bound));
        if is_bound {
            let mut lines = head.lines();
            let field = lines.find_map(|line| line.strip_prefix(PROXY_PUBLIC_ADDRESS));
            let addresses = field.unwrap_or_default().trim_start_matches(':').split(',');
            let addresses = addresses.map(|it| it.trim().trim_matches('"').parse());
            let relays: Result<Vec<_>, _> = addresses.collect();
            self.relays = relays.map_err(|_| self.broken(&format!("was answered {head:?}")))?;
        }
        Ok(status)
    }

    fn take_datagram(&mut self, value: &[u8], coverage: &mut Coverage) -> Result<(), Violation> {
        let Some((context, len)) = Varint::read(value) else {
            return Err(self.broken("got a datagram without a context"));
        };
        let rest = &value[len..];
        let (source, rest) = match (self.wish.target, self.contexts.get(&context)) {
            (Some(target), _) if context == UDP_CONTEXT => (target, rest),
            (None, Some(context)) if context.standing != Standing::Asked => match context.peer {
                Some(peer) => (peer, rest),
                None => read(rest).ok_or_else(|| self.broken("got a datagram of nobody"))?,
            },
            _ => return Err(self.broken(&format!("got a datagram in context {context}"))),
        };
        let payload = Payload::read(rest);
        let is_from_source = payload.is_some_and(|payload| match payload.sender {
            Sender::Peer(number) => peer_at(number, PEER_PORT) == source,
            // Another client, from its relayed address.
            Sender::Client(_) => plan::place(source) == plan::Place::Relay,
            Sender::Stranger => false,
        });
        let is_ours = payload.is_some_and(|payload| self.has_relay(payload.to));
        coverage.count(
            "tunnelled data to clients",
            u16::from(self.wish.target.is_none()),
        );
        ensure(is_ours && is_from_source, "tunnels", || {
            format!("{self:?} got {payload:?} of {source}")
        })
    }

    fn take_context(
        &mut self,
        kind: ContextCapsule,
        value: &[u8],
        rules: &Rules,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let id = Varint::read(value).filter(|&(_, len)| len == value.len());
        let asked = id.and_then(|(id, _)| self.contexts.get(&id).map(|it| (id, *it)));
        let Some((id, context)) = asked.filter(|(_, it)| it.standing == Standing::Asked) else {
            return Err(self.broken(&format!("was sent {kind:?} {value:?}")));
        };
        let since = context.since;
        let (is_right, standing) = match kind {
            ContextCapsule::Ack => {
                let is_refused = |peer| self.wish.is_refused(peer, since, rules);
                (!context.peer.is_some_and(is_refused), Standing::Open)
            }
            ContextCapsule::Close => {
                let may_be =
                    |peer| self.wish.may_be_refused(peer, since, rules) || self.is_far(peer);
                (context.peer.is_some_and(may_be), Standing::Closed)
            }
            ContextCapsule::Assign => (false, Standing::Closed),
        };
        let is_open = u16::from(standing == Standing::Open);
        coverage.count("contexts answered", is_open);
        ensure(is_right, "tunnels", || {
            format!("{self:?} was sent {kind:?} of {context:?}")
        })?;
        self.contexts.insert(
            id,
            Context {
                standing,
                ..context
            },
        );
        Ok(())
    }

    /// Returns whether its tunnel has no address of the family of this one.
    fn is_far(&self, peer: SocketAddr) -> bool {
        let mut relays = self.relays.iter();
        !relays.any(|it| it.is_ipv4() == peer.is_ipv4())
    }

    fn broken(&self, what: &str) -> Violation {
        Violation::new("tunnels", format!("{self:?} {what}"))
    }
}

fn number(number: u64) -> Vec<u8> {
    let number = Varint::new(number).expect("a small number");
    number.as_bytes().to_vec()
}

fn capsule(kind: u64, value: &[u8]) -> Vec<u8> {
    [&number(kind)[..], &number(value.len() as u64), value].concat()
}

fn registration(kind: ContextCapsule, context: u64, rest: &[u8]) -> Vec<u8> {
    capsule(kind.kind(), &[&number(context)[..], rest].concat())
}

fn datagram(context: u64, head: &[u8], payload: &[u8]) -> Vec<u8> {
    let value = [&number(context)[..], head, payload].concat();
    capsule(CapsuleHeader::DATAGRAM, &value)
}

/// Writes an address as it stands before a payload.
fn written(address: SocketAddr) -> Vec<u8> {
    let mut bytes = match address.ip() {
        IpAddr::V4(ip) => [&[V4][..], &ip.octets()].concat(),
        IpAddr::V6(ip) => [&[V6][..], &ip.octets()].concat(),
    };
    bytes.extend(address.port().to_be_bytes());
    bytes
}

/// Reads the address before a payload.
fn read(bytes: &[u8]) -> Option<(SocketAddr, &[u8])> {
    let (version, rest) = bytes.split_first()?;
    let (ip, rest): (IpAddr, _) = match *version {
        V4 => rest
            .split_first_chunk::<4>()
            .map(|(ip, rest)| ((*ip).into(), rest))?,
        V6 => rest
            .split_first_chunk::<16>()
            .map(|(ip, rest)| ((*ip).into(), rest))?,
        _ => return None,
    };
    let (port, rest) = rest.split_first_chunk::<2>()?;
    Some((SocketAddr::new(ip, u16::from_be_bytes(*port)), rest))
}
