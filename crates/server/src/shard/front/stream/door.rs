//! Tunnels of UDP in HTTP on connections of this front: requests by HTTP/1.1 Upgrade, and the capsules that follow (RFC 9298).
//!
//! What a request says is read by `turnbuckle_masque`; whether it is granted is the engine's to say, by the same users, quotas and peer
//! policy as for TURN. A name is resolved before the answer, and the address that the policy has allowed is the one that is used (V-15).
//!
//! Invariant: a request counts as one message, in and out, when it is answered. A capsule counts as one, in when it is whole, or as soon
//! as it is clear that it is passed over. One that registers a context counts as a request does, and one that closes a context not at all.
//!
//! A request whose user is unknown waits once for the user database, as a STUN request does (`shard/parking.rs`), and is kept here meanwhile.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_datapath::{Payload, Run, SendQueue, StreamId, Waker};
use turnbuckle_engine::{AllocationId, Time, Transport, TunnelEnd};
use turnbuckle_masque::bind::{Answer, Contexts, Unread};
use turnbuckle_masque::http1::{self, HEAD_LEN_MAX, Read};
use turnbuckle_masque::{Asked, BoundPiece, Capsules, Granted, Passed, Piece, Refusal};

use super::connections::{Connections, StreamConnection};
use super::http::Reply;
use super::visit::State;
use crate::counters::{CloseReason, ShardCounters, StreamDrop};
use crate::resolve::{Question, Replies, Resolver, WAIT_MAX};
use crate::shard::front::TunnelEvent;
use crate::shard::front::tunnels::{self, Begun, FAILURES_MAX, Identified, granted};
use crate::shard::hub::Hub;

/// Bytes of capsules that may come before the tunnel is open.
const EARLY_MAX: usize = 16 * 1024;

/// What is served.
#[derive(Clone)]
pub(crate) struct TunnelService {
    /// Whether connections without TLS may ask.
    pub(crate) serves_plain: bool,
    /// Whether tunnels may be bound.
    pub(crate) serves_bound: bool,
    pub(crate) resolver: Resolver,
}

/// The tunnels of a shard's connections.
pub(super) struct Door {
    counters: Arc<ShardCounters>,
    service: Option<TunnelService>,
    replies: Option<Arc<Replies>>,
    /// The connections that wait for an answer of the resolver, with the numbers of their requests, by when they have waited long enough.
    waiting: VecDeque<(Time, StreamId, u64)>,
    /// Connections that have sent capsules before their tunnels were open, which are open now.
    early: Vec<StreamId>,
    /// Connections whose users the database has been asked about.
    users_asked: Vec<StreamId>,
    /// The number of the last request that waits for the resolver.
    last_number: u64,
}

impl Door {
    pub(super) fn new(service: Option<TunnelService>, counters: Arc<ShardCounters>) -> Self {
        Self {
            counters,
            service,
            replies: None,
            waiting: VecDeque::new(),
            early: Vec::new(),
            users_asked: Vec::new(),
            last_number: 0,
        }
    }

    /// Sets what wakes the shard when a name is resolved.
    pub(super) fn connect(&mut self, waker: Waker) {
        self.replies = Some(Replies::new(waker));
    }

    /// Returns whether `bytes`, the beginning of an HTTP request, may ask for a tunnel here: `None` until that is clear.
    pub(super) fn serves(&self, transport: Transport, bytes: &[u8]) -> Option<bool> {
        if !self.serves_over(transport) {
            return Some(false);
        }
        match http1::read(bytes) {
            Read::Later => None,
            Read::Other => Some(false),
            Read::Refused(_) | Read::Asked { .. } => Some(true),
        }
    }

    /// Returns the reply to a request of HTTP that is for something else than a tunnel. Where there are no tunnels, it has none.
    pub(super) fn other_path(&self, transport: Transport, bytes: &[u8]) -> Reply {
        if !self.serves_over(transport) {
            return Reply::Silence;
        }
        match bytes.len() >= HEAD_LEN_MAX || bytes.windows(4).any(|it| it == b"\r\n\r\n") {
            true => Reply::Text(http1::refused(Refusal::NotFound, "", true)),
            false => Reply::Later,
        }
    }

    fn serves_over(&self, transport: Transport) -> bool {
        let service = self.service.as_ref();
        service.is_some_and(|it| it.serves_plain || transport == Transport::Tls)
    }

    /// Handles `bytes`, which lie in `payload` and of which at most `count_max` datagrams are relayed. Returns where what was handled ends, and
    /// whether there is more to be handled.
    ///
    /// # Errors
    ///
    /// Why the connection has to be closed, after what is queued for it.
    pub(super) fn received(
        &mut self,
        connection: &mut StreamConnection,
        (bytes, count_max): (&[u8], usize),
        payload: &impl Payload,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Result<(usize, bool), CloseReason> {
        let mut start = 0;
        loop {
            let rest = &bytes[start..];
            let visit = connection.visit.get_or_insert_default();
            match &mut visit.state {
                State::Asking => match http1::read(rest) {
                    Read::Later => break,
                    Read::Other => return Err(self.refuse(connection, Refusal::NotFound, tx)),
                    Read::Refused(refusal) => return Err(self.refuse(connection, refusal, tx)),
                    Read::Asked { asked, len } => {
                        start += len;
                        self.identify(connection, asked, true, hub, tx)?;
                    }
                },
                State::Open {
                    tunnel,
                    capsules,
                    contexts,
                } if visit.early.is_empty() => {
                    let (from, all) = ((*tunnel, start), (rest, count_max));
                    let (end, is_cut) = match contexts {
                        None => self.relayed(capsules, from, all, payload, hub, tx)?,
                        Some(contexts) => {
                            let open = (connection.id, capsules, &mut **contexts);
                            self.bound_relayed(open, from, all, payload, hub, tx)?
                        }
                    };
                    return Ok((start + end, is_cut));
                }
                State::Open { .. } => {
                    visit.early.extend_from_slice(rest);
                    self.early_relayed(connection, hub, tx)?;
                    return Ok((bytes.len(), false));
                }
                State::Identifying { .. } | State::Resolving { .. } | State::Opening => {
                    // guard: V-92-early-bytes
                    if visit.early.len() + rest.len() > EARLY_MAX {
                        self.counters.datagrams.client_in.add(1);
                        self.counters.dropped(StreamDrop::MessageTooLong, 1);
                        return Err(CloseReason::Malformed);
                    }
                    visit.early.extend_from_slice(rest);
                    return Ok((bytes.len(), false));
                }
            }
        }
        Ok((start, false))
    }

    /// Relays the payloads in `bytes`, which begin at `offset` of `payload`. Returns where the last of them ends, and whether there are more than
    /// `count_max`.
    fn relayed(
        &self,
        capsules: &mut Capsules,
        (tunnel, offset): (AllocationId, usize),
        (bytes, count_max): (&[u8], usize),
        payload: &impl Payload,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Result<(usize, bool), CloseReason> {
        let (mut start, mut left) = (0, count_max);
        loop {
            if left == 0 {
                return Ok((start, true));
            }
            match capsules.next(&bytes[start..], left) {
                Err(_) => {
                    self.counters.datagrams.client_in.add(1);
                    self.counters.dropped(StreamDrop::MalformedCapsule, 1);
                    return Err(CloseReason::Malformed);
                }
                Ok(Piece::Incomplete { .. }) => return Ok((start, false)),
                Ok(Piece::Passed { len, why }) => {
                    start += len;
                    if let Some(why) = why {
                        left -= 1;
                        self.counters.datagrams.client_in.add(1);
                        self.counters.dropped(passed(why), 1);
                    }
                }
                Ok(Piece::Datagrams(datagrams)) => {
                    left -= datagrams.count;
                    let count = datagrams.count as u64;
                    // mutant: shards-count-no-capsules
                    self.counters.datagrams.client_in.add(count);
                    let run = Run {
                        start: offset + start + datagrams.start,
                        stride: datagrams.stride,
                        len: datagrams.len,
                        last_len: datagrams.last_len,
                        count: datagrams.count,
                    };
                    hub.tunnelled(tunnel, None, run, payload, tx);
                    start += datagrams.end;
                }
            }
        }
    }

    /// Does the same for a bound tunnel, and answers what registers contexts.
    fn bound_relayed(
        &self,
        (stream, capsules, contexts): (StreamId, &mut Capsules, &mut Contexts),
        (tunnel, offset): (AllocationId, usize),
        (bytes, count_max): (&[u8], usize),
        payload: &impl Payload,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Result<(usize, bool), CloseReason> {
        let dropped = |reason| {
            self.counters.datagrams.client_in.add(1);
            self.counters.dropped(reason, 1);
        };
        let malformed = || {
            dropped(StreamDrop::MalformedCapsule);
            CloseReason::Malformed
        };
        let mut start = 0;
        for _ in 0..count_max {
            let rest = &bytes[start..];
            match capsules.next_bound(rest).map_err(|_| malformed())? {
                BoundPiece::Incomplete { .. } => return Ok((start, false)),
                BoundPiece::Passed { len, why } => {
                    start += len;
                    if let Some(why) = why {
                        dropped(passed(why));
                    }
                }
                BoundPiece::Datagram(datagram) => {
                    let place = offset + start + datagram.start;
                    start += datagram.end;
                    let datagram = &rest[datagram];
                    match contexts.read(datagram) {
                        Ok((to, head_len)) => {
                            let run = Run::single(place + head_len, datagram.len() - head_len);
                            self.counters.datagrams.client_in.add(1);
                            hub.tunnelled(tunnel, Some(to), run, payload, tx);
                        }
                        Err(Unread::Address) => dropped(StreamDrop::AddressMissing),
                        Err(Unread::UnknownContext) => dropped(StreamDrop::ContextUnknown),
                        Err(Unread::Malformed(_)) => return Err(malformed()),
                    }
                }
                BoundPiece::Context(kind, value) => {
                    start += value.end;
                    let value = &rest[value];
                    let answer = match contexts.received(kind, value).map_err(|_| malformed())? {
                        Answer::None => None,
                        Answer::Capsule(capsule) => Some(capsule),
                        Answer::Judge { context, peer } => {
                            let is_allowed = hub.engine.may_name(tunnel, peer);
                            contexts.judged(context, is_allowed)
                        }
                    };
                    if let Some(capsule) = answer {
                        self.answer(stream, &capsule, tx);
                    }
                }
            }
        }
        Ok((start, true))
    }

    /// Relays what has come before the tunnel of a connection was open, and what has come behind it.
    fn early_relayed(
        &self,
        connection: &mut StreamConnection,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Result<(), CloseReason> {
        let Some(visit) = &mut connection.visit else {
            return Ok(());
        };
        if let State::Open {
            tunnel,
            capsules,
            contexts,
        } = &mut visit.state
        {
            let staged = tx.stage(&visit.early);
            let (from, all) = ((*tunnel, 0), (&visit.early[..], usize::MAX));
            let (end, _) = match contexts {
                None => self.relayed(capsules, from, all, &staged, hub, tx)?,
                Some(contexts) => {
                    let open = (connection.id, capsules, &mut **contexts);
                    self.bound_relayed(open, from, all, &staged, hub, tx)?
                }
            };
            visit.early.drain(..end);
        }
        Ok(())
    }

    /// Finds out who asks for a tunnel, and begins it. The user database is asked once about whom is not known, if it `may_ask`.
    fn identify(
        &mut self,
        connection: &mut StreamConnection,
        asked: Asked,
        may_ask: bool,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Result<(), CloseReason> {
        let client = connection.client;
        let visit = connection.visit.get_or_insert_default();
        let is_secure = client.transport == Transport::Tls;
        let realm = (hub.engine).realm_of_authority(is_secure, &asked.authority);
        let whence = (&*realm, client.remote.ip());
        let user = match tunnels::identify(&asked, whence, may_ask, || Some(client), hub) {
            Identified::Known(user) => user,
            Identified::Waits(_) => {
                let asked = Box::new(asked);
                visit.state = State::Identifying { asked };
                return Ok(());
            }
            Identified::Refused(Refusal::Unauthorized) => {
                visit.state = State::Asking;
                visit.failures += 1;
                // What has come behind a request that had to wait was for its tunnel.
                let is_last = visit.failures >= FAILURES_MAX || !visit.early.is_empty();
                let text = http1::refused(Refusal::Unauthorized, &realm, is_last);
                self.answer(connection.id, text.as_bytes(), tx);
                return match is_last {
                    true => Err(CloseReason::Http),
                    false => Ok(()),
                };
            }
            Identified::Refused(why) => return Err(self.refuse(connection, why, tx)),
        };
        let serves_bound = self.service.as_ref().is_some_and(|it| it.serves_bound);
        let (session, port) = (&mut visit.session, asked.target.port);
        let name = match tunnels::begin(session, client, asked.target, &user, serves_bound, hub) {
            Ok(Begun::Named(name)) => name,
            Ok(Begun::Opening(_)) => {
                visit.state = State::Opening;
                return Ok(());
            }
            Err(why) => return Err(self.refuse(connection, why, tx)),
        };
        let (Some(service), Some(replies)) = (&self.service, &self.replies) else {
            return Err(self.refuse(connection, Refusal::DnsError, tx));
        };
        self.last_number += 1;
        let number = self.last_number;
        let is_put = service.resolver.ask(Question {
            name,
            user: format!("{}\n{}", user.realm, user.quota_name).into(),
            stream: connection.id,
            number,
            replies: Arc::clone(replies),
        });
        if !is_put {
            return Err(self.refuse(connection, Refusal::Crowded, tx));
        }
        visit.state = State::Resolving { number, port };
        let until = hub.now.time + WAIT_MAX;
        self.waiting.push_back((until, connection.id, number));
        Ok(())
    }

    /// Begins a tunnel to the first of the resolved `addresses` that may be reached.
    fn open(
        &self,
        connection: &mut StreamConnection,
        addresses: impl IntoIterator<Item = Option<SocketAddr>>,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) -> Result<(), CloseReason> {
        let client = connection.client;
        let visit = connection.visit.get_or_insert_default();
        match tunnels::open(visit.session.as_ref(), client, addresses, hub) {
            Ok(()) => {
                visit.state = State::Opening;
                Ok(())
            }
            Err(why) => Err(self.refuse(connection, why, tx)),
        }
    }

    /// Goes on with requests whose users the database has been asked about. Takes what the resolver has found, and ends what has waited too long
    /// for it. Relays what came before tunnels were open.
    pub(super) fn work(
        &mut self,
        connections: &mut Connections,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) {
        for stream in std::mem::take(&mut self.early) {
            if let Some(connection) = connections.get_mut(stream)
                && let Err(reason) = self.early_relayed(connection, hub, tx)
            {
                end(connection, reason, tx);
            }
        }
        for stream in std::mem::take(&mut self.users_asked) {
            let Some(connection) = connections.get_mut(stream) else {
                continue;
            };
            let visit = connection.visit.get_or_insert_default();
            let State::Identifying { asked } = std::mem::take(&mut visit.state) else {
                continue;
            };
            if let Err(reason) = self.identify(connection, *asked, false, hub, tx) {
                end(connection, reason, tx);
            }
        }
        if self.waiting.is_empty() {
            return;
        }
        let answers = self.replies.as_ref().map(|replies| replies.take());
        for answer in answers.unwrap_or_default() {
            let waits = resolving(connections, answer.stream, answer.number);
            let Some((connection, port)) = waits else {
                continue; // it has waited long enough, or is gone
            };
            let addresses = answer.addresses.into_iter();
            let addresses = addresses.map(|ip| Some(SocketAddr::new(ip, port)));
            if let Err(reason) = self.open(connection, addresses, hub, tx) {
                end(connection, reason, tx);
            }
        }
        while let Some(&(until, stream, number)) = self.waiting.front() {
            let waits = resolving(connections, stream, number);
            if until > hub.now.time && waits.is_some() {
                break;
            }
            self.waiting.pop_front();
            if let Some((connection, _)) = waits {
                let reason = self.refuse(connection, Refusal::DnsTimeout, tx);
                end(connection, reason, tx);
            }
        }
    }

    /// Returns when [`Self::work`] has something to do by itself.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let until = self.waiting.front().map(|&(until, ..)| until);
        match self.early.is_empty() && self.users_asked.is_empty() {
            true => until,
            false => Some(Time::ZERO),
        }
    }

    /// Takes note of what has become of a connection's tunnel.
    pub(super) fn changed(
        &mut self,
        connection: &mut StreamConnection,
        event: TunnelEvent,
        tx: &mut SendQueue,
    ) {
        let Some(visit) = &mut connection.visit else {
            return;
        };
        match event {
            TunnelEvent::Opened { tunnel, target } => {
                let granted = granted(target);
                let is_bound = matches!(granted, Granted::Bound { .. });
                visit.state = State::Open {
                    tunnel,
                    capsules: Capsules::default(),
                    contexts: is_bound.then(Box::default),
                };
                if !visit.early.is_empty() {
                    self.early.push(connection.id);
                }
                self.answer(connection.id, http1::opened(&granted).as_bytes(), tx);
            }
            TunnelEvent::UserAsked => self.users_asked.push(connection.id),
            TunnelEvent::Ended(TunnelEnd::NotOpened) => {
                let text = http1::refused(Refusal::NoCapacity, "", true);
                self.answer(connection.id, text.as_bytes(), tx);
                end(connection, CloseReason::Http, tx);
            }
            // RFC 9298 §3.1: without a socket there is no stream.
            TunnelEvent::Ended(
                TunnelEnd::Cancelled
                | TunnelEnd::Forbidden
                | TunnelEnd::Idle
                | TunnelEnd::Unreachable
                | TunnelEnd::UserGone,
            ) => {
                end(connection, CloseReason::TunnelEnded, tx);
            }
        }
    }

    /// Answers a request that is the last of its connection, and not for want of credentials. Returns why the connection is closed.
    fn refuse(
        &self,
        connection: &StreamConnection,
        refusal: Refusal,
        tx: &mut SendQueue,
    ) -> CloseReason {
        let text = http1::refused(refusal, "", true);
        self.answer(connection.id, text.as_bytes(), tx);
        CloseReason::Http
    }

    fn answer(&self, stream: StreamId, bytes: &[u8], tx: &mut SendQueue) {
        let datagrams = &self.counters.datagrams;
        datagrams.client_in.add(1);
        datagrams.client_out.queued(1);
        tx.stream_reply(stream, bytes);
    }
}

/// Returns the connection whose request of this number waits for the resolver, and the port that it asks for.
fn resolving(
    connections: &mut Connections,
    stream: StreamId,
    number: u64,
) -> Option<(&mut StreamConnection, u16)> {
    let connection = connections.get_mut(stream)?;
    match connection.visit.as_deref()?.state {
        State::Resolving { number: it, port } if it == number => Some((connection, port)),
        _ => None,
    }
}

/// Has a connection closed after what is queued for it.
fn end(connection: &mut StreamConnection, reason: CloseReason, tx: &mut SendQueue) {
    connection.closing.get_or_insert(reason);
    tx.close_stream(connection.id);
}

/// Returns the reason under which a capsule counts that is passed over.
fn passed(why: Passed) -> StreamDrop {
    match why {
        Passed::UnknownCapsule => StreamDrop::CapsuleUnknown,
        Passed::UnknownContext => StreamDrop::ContextUnknown,
    }
}
