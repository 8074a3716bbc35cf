//! A client by QUIC with tunnels in HTTP/3 (RFC 9298), and what has to be true of all that it hears.
//!
//! Its connections end when it wants so, when it gets no tunnel on one, or when their shard or the process fails. Nothing else may end one: not another
//! address, not loss, and not that datagrams come to a shard which does not have the connection.

use std::net::SocketAddr;

use turnbuckle_masque::h3::{Code, Happened};
use turnbuckle_quic::{Bytes, Closed};

use super::super::super::client::Terms;
use super::super::super::payload::{LEN_MIN, Payload, Sender};
use super::super::super::quic::{Link, News};
use super::super::places::{LIMITS, PEER_PORT, USERS, listener_of, peer_at};
use super::super::rules::Rules;
use super::super::tunnel::{Wish, draw_address};
use super::scene::Scene;
use crate::plan;
use crate::random::Seeded;
use crate::violation::{Violation, ensure};

/// Tunnels that a client has at the same time.
const TUNNELS_MAX: usize = 4;
/// Requests without a tunnel that a server bears.
const FRUITLESS_MAX: u32 = 100;
/// Streams that the tunnels of a client are never on.
const NO_STREAM: u64 = 4_000_000;

/// How far a tunnel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for a connection, or for a stream.
    Wanted,
    /// It is asked for on this stream.
    Asked(u64),
    /// It is open on this stream.
    Open(u64),
}

/// A tunnel that the client has, or wants to have.
#[derive(Debug)]
struct Tunnel {
    /// Who it is to peers.
    owner: u32,
    target: SocketAddr,
    state: State,
    /// Since when it is wanted, or asked for. A tunnel that is open has been asked for at that time.
    since: u64,
    /// Its relayed address. Nobody is told of it: the first that is seen is it.
    relay: Option<SocketAddr>,
}

/// A connection, or the attempt at one.
#[derive(Clone, Copy, Debug)]
struct Standing {
    since: u64,
    /// The server has said that it serves tunnels: there is nothing left of the handshake.
    is_settled: bool,
    /// The shard that has it, as its connection ids say.
    home: Option<usize>,
    /// When its shard failed, or the process.
    lost_at: Option<u64>,
    /// There was a time at which no allocations were made.
    has_drained: bool,
    /// Requests since the last one that was granted.
    fruitless: u32,
}

/// What a client does.
#[derive(Debug)]
pub(super) enum Act {
    Nothing,
    /// It finds itself at another address.
    Moves,
    /// It is gone without a word, and another one comes in its place.
    Vanishes,
}

/// A client.
pub(super) struct QuicClient {
    pub(super) address: SocketAddr,
    pub(super) link: Link,
    /// When the link has something to do by itself, if that is queued.
    pub(super) due: Option<u64>,
    /// The number of its user, and whether it shows a wrong password.
    user: (usize, bool),
    standing: Option<Standing>,
    tunnels: Vec<Tunnel>,
    random: Seeded,
}

impl QuicClient {
    pub(super) fn new(address: SocketAddr, user: usize, mut random: Seeded) -> Self {
        Self {
            address,
            link: Link::new(random.fork("link")),
            due: None,
            user: (user, random.one_in(12)),
            standing: None,
            tunnels: Vec::new(),
            random,
        }
    }

    /// Returns since when it has waited for an answer, or for hearing that its connection is lost.
    pub(super) fn waits_since(&self) -> Option<u64> {
        let tunnels = self.tunnels.iter();
        let waiting = tunnels.filter(|it| !matches!(it.state, State::Open(_)));
        let lost_at = self.standing.and_then(|it| it.lost_at);
        waiting.map(|it| it.since).chain(lost_at).min()
    }

    /// Takes note that a shard has failed, or the whole process if it is `None`.
    pub(super) fn lose(&mut self, now: u64, shard: Option<usize>) {
        if let Some(standing) = &mut self.standing
            && (shard.is_none() || standing.home.is_none() || standing.home == shard)
        {
            standing.lost_at.get_or_insert(now);
        }
    }

    /// Takes note that the operator has forbidden further allocations.
    pub(super) fn drained(&mut self) {
        if let Some(standing) = &mut self.standing {
            standing.has_drained = true;
        }
    }

    /// Notes to which shard its datagrams are addressed.
    pub(super) fn speaks_to(&mut self, home: usize) {
        if let Some(standing) = &mut self.standing {
            standing.home = Some(home);
        }
    }

    /// Returns whether an address is the relayed one of the tunnel that this `owner` names; `None` if there is none.
    pub(super) fn has_relay(&mut self, owner: u32, address: SocketAddr) -> Option<bool> {
        let mut tunnels = self.tunnels.iter_mut();
        let tunnel = tunnels.find(|it| it.owner == owner)?;
        Some(*tunnel.relay.get_or_insert(address) == address)
    }

    /// Returns the relayed addresses that are known to be those of open tunnels.
    pub(super) fn relays(&self) -> impl Iterator<Item = SocketAddr> {
        let open = self.tunnels.iter();
        let open = open.filter(|it| matches!(it.state, State::Open(_)));
        open.filter_map(|it| it.relay)
    }

    /// Decides whether it wants another tunnel, as one does that has none.
    pub(super) fn wants_more(&mut self) -> bool {
        let count = self.tunnels.len();
        count == 0 || (count < TUNNELS_MAX && self.random.one_in(15))
    }

    /// Wants another tunnel, whose client is called `owner`.
    pub(super) fn want(&mut self, now: u64, owner: u32) {
        let target = draw_address(&mut self.random);
        self.tunnels.push(Tunnel {
            owner,
            target,
            state: State::Wanted,
            since: now,
            relay: None,
        });
    }

    /// Does the next thing.
    pub(super) fn act(&mut self, scene: &mut Scene<'_>) -> Act {
        let now = scene.now;
        let Some(standing) = self.standing else {
            if self.random.one_in(3) {
                self.link.connect(now, listener_of(self.address));
                self.standing = Some(Standing {
                    since: now,
                    is_settled: false,
                    home: None,
                    lost_at: None,
                    has_drained: self.terms(scene.rules).draining_since.is_some(),
                    fruitless: 0,
                });
            }
            return Act::Nothing;
        };
        self.ask(now);
        match self.random.below(60) {
            0 => self.link.close(now),
            1 => return Act::Vanishes,
            2 => self.give_up(now),
            // Who moves before the server has the last of the handshake has to begin anew (RFC 9000 §9).
            3..9 if standing.is_settled => return Act::Moves,
            _ => scene.payloads += self.send(now),
        }
        Act::Nothing
    }

    /// Asks for the tunnels that it wants, as far as the server lets it.
    fn ask(&mut self, now: u64) {
        for at in 0..self.tunnels.len() {
            let Tunnel {
                owner,
                target,
                state,
                ..
            } = self.tunnels[at];
            if state != State::Wanted {
                continue;
            }
            let credentials = self.wish(target).credentials();
            let Some(stream) = self.link.ask(now, owner, target, credentials) else {
                return;
            };
            let tunnel = &mut self.tunnels[at];
            (tunnel.state, tunnel.since) = (State::Asked(stream), now);
            if let Some(standing) = &mut self.standing {
                standing.is_settled = true;
                standing.fruitless += 1;
            }
        }
    }

    fn give_up(&mut self, now: u64) {
        let at = self.random.index(self.tunnels.len().max(1));
        let stream = self.tunnels.get(at).and_then(Tunnel::stream);
        if let Some(stream) = stream {
            self.link.give_up(now, stream);
            self.tunnels.remove(at);
        }
    }

    /// Sends to the target of a tunnel, which may not be open yet, or by none. Returns how many payloads there was room for.
    fn send(&mut self, now: u64) -> u64 {
        let at = self.random.index(self.tunnels.len().max(1));
        let tunnel = self.tunnels.get(at);
        let Some((owner, to, stream)) =
            tunnel.and_then(|it| Some((it.owner, it.target, it.stream()?)))
        else {
            return 0;
        };
        let is_lost = self.random.one_in(10);
        let sender = match plan::place(to) {
            plan::Place::Peer(_) if !is_lost => Sender::Client(owner),
            _ => Sender::Stranger,
        };
        let lens = [LEN_MIN, LEN_MIN, 61, 200, 1000];
        let len = self.random.choose(&lens).copied().unwrap_or(LEN_MIN);
        let payload = Payload { to, sender }.write(len);
        let stream = if is_lost { NO_STREAM } else { stream };
        let count = 1 + self.random.index(6);
        let sent = (0..count).filter(|_| self.link.send_payload(now, stream, &payload));
        sent.count() as u64
    }

    /// Takes a datagram of the server's.
    pub(super) fn receive(&mut self, bytes: &[u8], scene: &mut Scene<'_>) -> Result<(), Violation> {
        let server = listener_of(self.address);
        self.link.receive(scene.now, server, bytes);
        self.take_news(scene)
    }

    /// Takes what has happened on its connection.
    pub(super) fn take_news(&mut self, scene: &mut Scene<'_>) -> Result<(), Violation> {
        for news in self.link.news(scene.now) {
            match news {
                News::Connected => scene.count("connections by QUIC", 0),
                News::Tunnel(happened) => self.take_answer(happened, scene)?,
                News::Payload(owner, bytes) => self.take_payload(owner, &bytes, scene)?,
                News::Broken(why) => return Err(self.broken(why)),
                News::Ended(cause) => self.take_end(&cause, scene)?,
            }
        }
        Ok(())
    }

    fn take_answer(
        &mut self,
        happened: Happened<u32>,
        scene: &mut Scene<'_>,
    ) -> Result<(), Violation> {
        let (owner, status) = match happened {
            Happened::Opened(owner) => (owner, Some(200)),
            Happened::Refused(owner, status) => (owner, Some(status)),
            Happened::Ended(owner) => (owner, None),
        };
        let mut tunnels = self.tunnels.iter();
        let Some(at) = tunnels.position(|it| it.owner == owner) else {
            return Ok(()); // the client has given it up
        };
        let Tunnel {
            target,
            since,
            state,
            ..
        } = self.tunnels[at];
        let (wish, terms) = (self.wish(target), self.terms(scene.rules));
        let is_right = match (status, state) {
            (Some(status), State::Asked(_)) => {
                scene.count("answers to requests by QUIC", status);
                wish.may_get(status, since, terms, scene.rules)
            }
            (None, State::Open(_)) => {
                scene.count("tunnels by QUIC that end", 0);
                self.may_be_over(&self.tunnels[at], scene)
            }
            // Who is told to go away has its requests rejected (RFC 9114 §5.2).
            (None, State::Asked(_)) => self.standing.is_some_and(|it| it.has_drained),
            _ => false,
        };
        ensure(is_right, "tunnels", || {
            format!("{self:?} heard {happened:?}, where it wants {wish:?}")
        })?;
        if status == Some(200)
            && let State::Asked(stream) = state
        {
            self.tunnels[at].state = State::Open(stream);
            if let Some(standing) = &mut self.standing {
                standing.fruitless = 0;
            }
            return Ok(());
        }
        if let Some(stream) = self.tunnels.remove(at).stream() {
            self.link.give_up(scene.now, stream);
        }
        Ok(())
    }

    fn take_payload(
        &mut self,
        owner: u32,
        bytes: &Bytes,
        scene: &mut Scene<'_>,
    ) -> Result<(), Violation> {
        let tunnel = self.tunnels.iter_mut().find(|it| it.owner == owner);
        let Some(tunnel) = tunnel else {
            return Ok(()); // the client has given it up
        };
        scene.count("tunnelled data to clients by QUIC", 0);
        let payload = Payload::read(bytes);
        let is_right = payload.is_some_and(|Payload { to, sender }| {
            let Sender::Peer(number) = sender else {
                return false;
            };
            peer_at(number, PEER_PORT) == tunnel.target && *tunnel.relay.get_or_insert(to) == to
        });
        ensure(is_right, "tunnels", || {
            format!("{tunnel:?} got {payload:?}")
        })
    }

    /// Takes the end of its connection.
    fn take_end(&mut self, cause: &Closed, scene: &mut Scene<'_>) -> Result<(), Violation> {
        let Some(standing) = self.standing.take() else {
            return Ok(());
        };
        let kind = match cause {
            Closed::Idle => 0,
            Closed::HandshakeLate => 1,
            Closed::Reset => 2,
            Closed::Remote(_) => 3,
            Closed::Local => 4,
            Closed::Failed(_) => 5,
        };
        scene.count("connections by QUIC that end", kind);
        let is_right = standing.lost_at.is_some()
            || match cause {
                Closed::Local => true,
                _ if !standing.is_settled => *cause != Closed::Reset,
                Closed::Remote(code) => self.may_be_closed(standing, Some(*code), scene),
                // What the server has said when it closed the connection may be lost.
                Closed::Idle | Closed::Reset => self.may_be_closed(standing, None, scene),
                Closed::HandshakeLate | Closed::Failed(_) => false,
            };
        ensure(is_right, "connections", || {
            format!("the connection of {self:?}, {standing:?}, has ended: {cause}")
        })?;
        if standing.is_settled || standing.has_drained {
            self.tunnels.clear();
        }
        Ok(())
    }

    /// Returns whether the server may have closed its connection, with this code if it was heard: because there is no tunnel on it, or because of wrong
    /// credentials or too many requests.
    fn may_be_closed(&self, standing: Standing, code: Option<u64>, scene: &Scene<'_>) -> bool {
        let is = |it: Code| code.is_none_or(|code| code == u64::from(it.0));
        let is_any_open = self.tunnels.iter().any(|it| {
            let is_open = matches!(it.state, State::Open(_));
            is_open && !self.may_be_over(it, scene)
        });
        let patience = u64::try_from(LIMITS.message.as_nanos()).unwrap_or(u64::MAX);
        let is_overdue = scene.now >= standing.since + patience;
        let wish = self.wish(self.address);
        let is_wrong = wish.may_be_unknown(standing.since, self.terms(scene.rules));
        let is_too_much = is_wrong || standing.fruitless >= FRUITLESS_MAX;
        (is(Code::NO_ERROR) && is_overdue && !is_any_open)
            || (is(Code::EXCESSIVE_LOAD) && is_too_much)
    }

    /// Returns whether something has happened for which the server ends a tunnel that is open.
    fn may_be_over(&self, tunnel: &Tunnel, scene: &Scene<'_>) -> bool {
        let wish = self.wish(tunnel.target);
        let since = tunnel.since;
        wish.may_be_unknown(since, self.terms(scene.rules))
            || wish.may_be_refused(tunnel.target, since, scene.rules)
            || scene.has_refused(tunnel.owner)
    }

    fn wish(&self, target: SocketAddr) -> Wish {
        let (user, is_password_wrong) = self.user;
        Wish {
            user: USERS[user],
            target: Some(target),
            is_password_wrong,
        }
    }

    fn terms(&self, rules: &Rules) -> Terms {
        rules.terms(self.user.0)
    }

    fn broken(&self, what: &str) -> Violation {
        Violation::new("connections", format!("{self:?} hears {what}"))
    }
}

impl Tunnel {
    /// Returns the stream that it is on, or is asked for on.
    fn stream(&self) -> Option<u64> {
        match self.state {
            State::Wanted => None,
            State::Asked(stream) | State::Open(stream) => Some(stream),
        }
    }
}

impl std::fmt::Debug for QuicClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuicClient")
            .field("address", &self.address)
            .field("user", &self.user)
            .field("tunnels", &self.tunnels)
            .finish_non_exhaustive()
    }
}
