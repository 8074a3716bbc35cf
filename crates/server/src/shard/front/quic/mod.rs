//! The front of clients by QUIC (RFC 9000), on the sockets for datagrams that TURN has.
//!
//! Which datagrams are QUIC's is told as RFC 9443 §2.1 says. A first byte of 192 to 255 is a long header. One of 64 to 127 is ChannelData of an
//! allocation on the 5-tuple; where there is none, or where the client has a connection of QUIC too, it is a short header if its connection id has
//! a valid tag. Whatever is left is what it was without QUIC.
//!
//! - Nothing is kept of a client before its address is proven by a Retry token. What has proven nothing waits in a queue of limited length, and a turn
//!   works on it for a bounded time. What answers it is charged to the budget that all strangers have.
//! - A connection is entered in a [`Book`](crate::shard::book::Book) as a session of DTLS is (`connections`).
//! - Its connection ids name the shard that has it. A datagram that the kernel gave to another shard is handed over.
//! - A turn handles a share of what connections receive. The rest waits, so that bulk delays nobody who uses TURN (`backlog`). While there are calls,
//!   what they have leaves before that.
//! - What it carries is HTTP/3 (`http3`), whose requests for tunnels `requests` answers and `door` keeps.
//!
//! Invariant: each datagram is counted in once. Then it is answered by one, counted under one reason, or waits.

mod backlog;
mod connections;
mod door;
mod host;
mod http3;
mod lookups;
mod requests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use turnbuckle_datapath::{Received, Run, SendQueue, Waker};
use turnbuckle_engine::{ClientTuple, Endpoint as Listener, Time, Transport};
use turnbuckle_masque::h3::Code;
use turnbuckle_quic::{
    ConnectionName, Dropped, Endpoint, Event, Ids, Keys, Limits, Path, Settings, Totals, Via,
};

use self::backlog::Backlog;
use self::connections::{Connections, Overdue};
use self::door::Door;
use self::host::{Budget, Sockets};
pub(crate) use self::host::{Given, Surroundings};
use self::http3::Http3;
use super::{Destination, Front, TunnelEvent, Wrapping};
use crate::counters::{CloseReason, QuicDrop, ShardCounters};
use crate::resolve::Resolver;
use crate::shard::book::BookLimits;
use crate::shard::hub::Hub;
use crate::tls::current;

/// Steps of the timer wheel per turn.
const TIMEOUTS_PER_TURN: u32 = 256;
/// Bytes of a datagram that every path must carry (RFC 9000 §14), with which connections begin.
const DATAGRAM_LEN: u16 = 1200;
/// Time after which a connection on which nothing comes ends: longer than a tunnel may relay nothing. Without tunnels it ends before, as other
/// strangers do.
const IDLE: Duration = Duration::from_secs(135);
/// Up to what larger ones are tried: with the headers of IPv6 they fill the frames of Ethernet.
const DATAGRAM_LEN_MAX: u16 = 1452;
/// Bidirectional streams that a client may have open before it has shown who it is.
const STREAMS: u32 = 8;

/// What a shard needs to know to serve QUIC.
#[derive(Clone)]
pub(crate) struct QuicService {
    pub(crate) surroundings: Surroundings,
    /// All shards have the same ones.
    pub(crate) keys: Keys,
    pub(crate) book: BookLimits,
    /// Resolves the names of tunnels' targets; `None` serves no tunnels.
    pub(crate) resolver: Option<Resolver>,
    /// Whether tunnels may be bound.
    pub(crate) serves_bound: bool,
    /// The kernel is to give datagrams to the shard that their connection id names.
    pub(crate) is_steered: bool,
}

/// Which datagrams of a client may be QUIC's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Sight {
    /// None.
    Nothing,
    /// Those with a long header.
    Long,
    /// Those with a short header too.
    All,
}

/// What a datagram is.
enum Target {
    /// No packet of QUIC.
    Foreign,
    /// For this shard, or for whichever takes it.
    Here,
    /// For the shard of this number.
    Elsewhere(u8),
}

/// The front of clients by QUIC.
pub(in crate::shard) struct QuicFront {
    counters: Arc<ShardCounters>,
    service: Option<QuicService>,
    /// The connections; `None` refuses QUIC.
    quic: Option<Box<Quic>>,
}

/// QUIC of one shard.
struct Quic {
    endpoint: Endpoint<Http3>,
    ids: Ids,
    shard: u8,
    /// What connections have received and no turn has handled.
    backlog: Backlog,
    connections: Connections,
    door: Door,
    surroundings: Surroundings,
    /// The certificates that the endpoint has.
    served: Option<Arc<ServerConfig>>,
    /// What the endpoint's clock shows when the shard's shows zero.
    epoch: Instant,
    /// What the endpoint's clock shows in this turn.
    now: Instant,
    /// What has been counted.
    counted: Totals,
}

impl QuicFront {
    pub(in crate::shard) fn new(
        service: Option<QuicService>,
        counters: Arc<ShardCounters>,
    ) -> Self {
        Self {
            counters,
            service,
            quic: None,
        }
    }

    /// Begins to serve, as shard number `shard`, which `waker` wakes.
    pub(in crate::shard) fn begin(&mut self, shard: usize, waker: Waker) {
        let shard = u8::try_from(shard).ok();
        if let Some((service, shard)) = self.service.clone().zip(shard) {
            let mut quic = Quic::new(service, shard);
            quic.door.connect(waker);
            self.quic = Some(Box::new(quic));
        }
    }

    /// Notes the time of a turn that begins, and whether there are calls by TURN that it should not keep.
    pub(in crate::shard) fn turn_started(&mut self, now: Time, has_calls: bool) {
        if let Some(quic) = &mut self.quic {
            quic.now = quic.instant(now);
            let share = quic.backlog.turn_started(has_calls);
            quic.endpoint.limit_turn(share);
            quic.door.turn_started(has_calls);
        }
    }

    /// Returns whether the end of this turn has work that calls by TURN should not wait for.
    pub(in crate::shard) fn keeps_calls(&self) -> bool {
        let quic = self.quic.as_ref().filter(|quic| quic.backlog.defers());
        quic.is_some_and(|quic| {
            quic.backlog.len() > 0 || quic.endpoint.has_ready() || quic.door.keeps_payloads()
        })
    }

    /// Refuses new connections from now on, or takes them again.
    pub(in crate::shard) fn refuse(&mut self, refuses: bool) {
        if let Some(quic) = &mut self.quic {
            quic.endpoint.refuse(refuses);
            if refuses {
                quic.go_away();
            }
        }
    }

    /// Returns which datagrams of a client may be QUIC's.
    #[inline]
    pub(in crate::shard) fn sight(&self, client: SocketAddr, has_allocation: bool) -> Sight {
        match &self.quic {
            None => Sight::Nothing,
            // guard: V-84-both
            Some(quic) if has_allocation && !quic.connections.has(client) => Sight::Long,
            Some(_) => Sight::All,
        }
    }

    /// Takes the datagrams of QUIC that begin at `start`, in datagrams of `segment` bytes. Returns where something else begins; `None` if that is at
    /// `start`.
    #[inline]
    pub(in crate::shard) fn received(
        &mut self,
        client: ClientTuple,
        sight: Sight,
        (bytes, segment): (&[u8], usize),
        start: usize,
        hub: &mut Hub,
    ) -> Option<usize> {
        let quic = self.quic.as_mut()?;
        let end_of = |start: usize| bytes.len().min(start + segment);
        let mut end = end_of(start);
        match quic.target(sight, &bytes[start..end]) {
            Target::Foreign => return None,
            Target::Elsewhere(shard) => {
                hub.hand_over(shard, client, &bytes[start..end]);
                return Some(end);
            }
            Target::Here => {}
        }
        while end < bytes.len() {
            let next = end_of(end);
            if !matches!(quic.target(sight, &bytes[end..next]), Target::Here) {
                break;
            }
            end = next;
        }
        quic.take_in(client, &bytes[start..end], segment, hub);
        Some(end)
    }

    /// Takes what other shards have handed over, works on what has waited as long as a turn may, and does what timers are about. Returns whether the
    /// engine may have commands then, which are to be carried out before [`flush`](Self::flush).
    pub(in crate::shard) fn work(&mut self, hub: &mut Hub, tx: &mut SendQueue) -> bool {
        let Some(quic) = &mut self.quic else {
            return false;
        };
        for (client, datagram) in hub.across.take_quic() {
            quic.take_in(client, &datagram, datagram.len(), hub);
        }
        while let Some(batch) = quic.backlog.next() {
            quic.handle(batch.client, &batch.bytes, batch.segment, hub);
            quic.backlog.recycle(batch);
        }
        let now = quic.now;
        if quic.endpoint.waiting_count() > 0 {
            // guard: V-64-quic
            quic.follow_certificates();
            let mut strangers = Budget::with_time(hub, quic.surroundings.spell());
            quic.endpoint.serve_strangers(now, &mut strangers);
        }
        quic.endpoint.handle_timeouts(now);
        quic.take_events(hub, tx);
        quic.attend(hub);
        quic.close_overdue(hub.now.time);
        true
    }

    /// Sends what is due. Returns whether the engine may have commands then.
    pub(in crate::shard) fn flush(&mut self, hub: &mut Hub, tx: &mut SendQueue) -> bool {
        let Some(quic) = &mut self.quic else {
            return false;
        };
        quic.take_early(hub, tx);
        quic.send(&self.counters, tx);
        quic.take_events(hub, tx);
        let waiting = quic.endpoint.waiting_count() + quic.backlog.len();
        let waiting = waiting as u64;
        self.counters.connections.quic_waiting.set(waiting);
        true
    }

    /// Returns when [`work`](Self::work) has something to do.
    pub(in crate::shard) fn next_timeout(&self) -> Option<Time> {
        let quic = self.quic.as_ref()?;
        if quic.backlog.len() > 0 {
            return Some(Time::ZERO); // now
        }
        let due = quic.endpoint.next_deadline(quic.now);
        let due = due.map(|due| Time::ZERO + due.saturating_duration_since(quic.epoch));
        let due = due.into_iter().chain(quic.connections.next_timeout());
        due.chain(quic.door.next_timeout()).min()
    }

    /// Returns how many connections there are, those included that are being closed.
    pub(in crate::shard) fn connection_count(&self) -> usize {
        let quic = self.quic.as_ref();
        quic.map_or(0, |quic| quic.endpoint.connection_count())
    }

    /// Sets other limits. Handshakes have as long as they had at the start.
    pub(in crate::shard) fn set_limits(&mut self, limits: BookLimits) {
        if let Some(quic) = &mut self.quic {
            quic.connections.set_limits(limits);
        }
    }

    /// Ends all connections, because the relay ends.
    pub(in crate::shard) fn stop(&mut self, hub: &mut Hub, tx: &mut SendQueue) {
        let Some(quic) = &mut self.quic else {
            return;
        };
        let waiting = quic.backlog.clear() as u64;
        hub.counters.dropped(QuicDrop::SocketClosed, waiting);
        quic.connections.stop();
        quic.endpoint
            .stop(quic.now, Code::NO_ERROR.0, "the relay ends");
        // There is no next turn.
        quic.endpoint.limit_turn(usize::MAX);
        quic.send(&self.counters, tx);
        quic.take_events(hub, tx);
        self.counters.connections.quic_waiting.set(0);
        self.counters.connections.quic_queued.set(0);
    }
}

impl Quic {
    fn new(service: QuicService, shard: u8) -> Self {
        let QuicService {
            surroundings,
            keys,
            book,
            resolver,
            serves_bound,
            ..
        } = service;
        let ids = keys.ids();
        let settings = Settings {
            keys,
            shard,
            seed: surroundings.seed(),
            wall_clock: surroundings.wall_clock(),
            path: Path {
                mtu_initial: DATAGRAM_LEN,
                mtu_max: Some(DATAGRAM_LEN_MAX),
                ..Path::default()
            },
            limits: Limits {
                handshake: book.handshake,
                idle: IDLE,
                streams: STREAMS,
                ..Limits::default()
            },
        };
        let serves = resolver.is_some();
        let epoch = Instant::now();
        let mut quic = Self {
            endpoint: Endpoint::new(settings, move |_| Http3::new(serves)),
            ids,
            shard,
            backlog: Backlog::new(),
            connections: Connections::new(book),
            door: Door::new(resolver, serves_bound),
            surroundings,
            served: None,
            epoch,
            now: epoch,
            counted: Totals::default(),
        };
        match quic.surroundings {
            Surroundings::Machine(_) => quic.follow_certificates(),
            Surroundings::Given(_) => quic.endpoint.serve_clear(),
        }
        quic
    }

    /// Returns a point of the endpoint's clock. It is derived, because the shard's clock has been read for this turn.
    fn instant(&self, now: Time) -> Instant {
        self.epoch + now.since(Time::ZERO)
    }

    /// Says what a datagram is.
    #[inline]
    fn target(&self, sight: Sight, datagram: &[u8]) -> Target {
        let is_long = match datagram.first() {
            Some(192..) => true,
            Some(64..=127) if sight == Sight::All => false,
            _ => return Target::Foreign,
        };
        match self.ids.shard_of_datagram(datagram) {
            // guard: V-86-handover
            Some(shard) if shard != self.shard => Target::Elsewhere(shard),
            // guard: V-84-tag
            None if !is_long => Target::Foreign,
            _ => Target::Here,
        }
    }

    /// Handles datagrams, or has them wait for their turn.
    fn take_in(&mut self, client: ClientTuple, bytes: &[u8], segment: usize, hub: &Hub) {
        // Strangers have a queue and a time of their own, so that a flood of them takes no room from connections.
        let is_stranger = |datagram: usize| bytes[datagram] >= 192;
        let mut start = 0;
        while start < bytes.len() {
            let strange = is_stranger(start);
            let mut end = start;
            while end < bytes.len() && is_stranger(end) == strange {
                end = bytes.len().min(end + segment);
            }
            let run = &bytes[start..end];
            start = end;
            if strange {
                self.handle(client, run, segment, hub);
                continue;
            }
            let datagrams = run.len().div_ceil(segment);
            let at_once = self.backlog.admit(datagrams);
            let (now, later) = run.split_at(run.len().min(at_once * segment));
            if !now.is_empty() {
                self.handle(client, now, segment, hub);
            }
            if !later.is_empty() {
                let lost = self.backlog.put(client, later, segment) as u64;
                hub.counters.dropped(QuicDrop::Backlog, lost);
            }
        }
    }

    fn handle(&mut self, client: ClientTuple, bytes: &[u8], segment: usize, hub: &Hub) {
        // guard: V-83-own
        if !hub.engine.is_possible_source(client.remote) {
            let datagrams = bytes.len().div_ceil(segment) as u64;
            return hub.counters.dropped(QuicDrop::SourceInvalid, datagrams);
        }
        let via = Via(client.listener.0);
        let mut strangers = Budget::without_time(hub);
        self.endpoint
            .handle(self.now, client.remote, via, bytes, segment, &mut strangers);
    }

    /// Has connections that begin use the certificates that hold now.
    fn follow_certificates(&mut self) {
        let Surroundings::Machine(tls) = &self.surroundings else {
            return;
        };
        let next = current(tls);
        let served = self.served.as_ref();
        if !served.is_some_and(|served| Arc::ptr_eq(&next, served)) {
            // They were built for TLS 1.3, which is all that is asked of them. An endpoint without certificates discards what would begin a connection.
            let _ = self.endpoint.serve(Arc::clone(&next));
            self.served = Some(next);
        }
    }

    /// Brings the book up to date, and takes what has come on connections.
    fn take_events(&mut self, hub: &mut Hub, tx: &mut SendQueue) {
        let now = hub.now.time;
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::Begun(name, remote) => {
                    hub.counters.opened();
                    if let Some((displaced, reason)) = self.connections.displaced_by(remote.ip()) {
                        self.close(displaced, reason);
                    }
                    self.connections.begun(now, name, remote);
                    let via = self.endpoint.via(name).unwrap_or_default();
                    self.door.begun(name, Listener(via.0), remote);
                }
                Event::Connected(name) => self.connections.connected(now, name),
                Event::Moved(name, remote) => self.connections.moved(name, remote),
                Event::Stirred(name) => self.take(name, hub, tx),
                Event::Ended(name, cause) => {
                    self.door.ended(name, hub);
                    let broken = self
                        .endpoint
                        .with(self.now, name, |_, http| http.broken_rule());
                    if let Some(reason) = broken.flatten() {
                        self.connections.closes(name, reason);
                    }
                    if let Some(reason) = self.connections.ended(name, cause) {
                        hub.counters.closed(reason);
                    }
                }
            }
        }
    }

    /// Closes the connections whose time is over.
    fn close_overdue(&mut self, now: Time) {
        let mut budget = TIMEOUTS_PER_TURN;
        let instant = self.now;
        loop {
            let (endpoint, door) = (&mut self.endpoint, &self.door);
            let has_requested = |name| {
                let asked = endpoint.with(instant, name, |_, http| http.has_requested());
                asked == Some(true)
            };
            let has_tunnels = |name| door.has_tunnels(name);
            let overdue = self
                .connections
                .pop_due(now, &mut budget, has_requested, has_tunnels);
            let Some(Overdue { name, reason }) = overdue else {
                return;
            };
            self.close(name, reason);
        }
    }

    fn close(&mut self, name: ConnectionName, reason: CloseReason) {
        self.connections.closes(name, reason);
        let (code, words) = http3::code_of(reason);
        self.endpoint.with(self.now, name, |connection, _| {
            connection.close(code.0, words);
        });
    }

    /// Queues what is due, and counts what has become of all datagrams.
    fn send(&mut self, counters: &ShardCounters, tx: &mut SendQueue) {
        let mut sockets = Sockets { tx, datagrams: 0 };
        self.endpoint.transmit(self.now, &mut sockets);
        let sent = sockets.datagrams;
        self.count_carried(counters);
        let totals = *self.endpoint.totals();
        let before = std::mem::replace(&mut self.counted, totals);
        if totals == before && sent == 0 {
            return;
        }
        // What answers a datagram without a connection is that datagram's way out. All else begins here.
        let answered = totals.answered - before.answered;
        counters.datagrams.client_out.queued(sent);
        counters.datagrams.begun.add(sent - answered);
        let taken = totals.delivered + totals.begun - before.delivered - before.begun;
        let opened = totals.carrying - before.carrying;
        counters.datagrams.opened.add(opened);
        counters.dropped(QuicDrop::Control, taken - opened);
        for reason in Dropped::ALL {
            let dropped = totals.of(reason) - before.of(reason);
            if dropped > 0 {
                counters.dropped(reason_of(reason), dropped);
            }
        }
        let panicked = totals.panicked - before.panicked;
        counters.connections.quic_panics.add(panicked);
    }
}

/// No client by QUIC has an allocation, so that it has tunnels alone.
impl Front for QuicFront {
    fn serves(&self, transport: Transport) -> bool {
        transport == Transport::Quic
    }

    fn has_client(&self, client: &ClientTuple) -> bool {
        let quic = self.quic.as_ref();
        quic.is_some_and(|quic| quic.door.has_client(client))
    }

    fn forward(
        &mut self,
        _: Destination,
        _: &Received<'_>,
        run: Run,
        _: Wrapping<'_>,
        _: &mut SendQueue,
    ) {
        self.counters.dropped(QuicDrop::NoTunnel, run.count as u64);
    }

    fn reply(&mut self, _: ClientTuple, _: &[u8], _: &mut SendQueue) {
        self.counters.dropped(QuicDrop::NoTunnel, 1);
    }

    fn forward_tunnelled(
        &mut self,
        to: Destination,
        message: &Received<'_>,
        run: Run,
        source: Option<SocketAddr>,
        _: &mut SendQueue,
    ) -> bool {
        let Some(quic) = &mut self.quic else {
            return false;
        };
        quic.forward(&to.client, message, run, source, &self.counters);
        true
    }

    fn wants(&mut self, client: &ClientTuple, source: SocketAddr) -> bool {
        let quic = self.quic.as_mut();
        quic.is_some_and(|quic| quic.wants(client, source))
    }

    fn tunnel_changed(&mut self, client: &ClientTuple, event: TunnelEvent, _: &mut SendQueue) {
        if let Some(quic) = &mut self.quic {
            let now = Time::ZERO + quic.now.saturating_duration_since(quic.epoch);
            quic.changed(client, event, now);
        }
    }
}

const fn reason_of(reason: Dropped) -> QuicDrop {
    match reason {
        Dropped::Crowded => QuicDrop::Crowded,
        Dropped::Discarded => QuicDrop::Discarded,
        Dropped::Full => QuicDrop::Full,
        Dropped::OtherShard => QuicDrop::SourceInvalid,
        Dropped::Stopped => QuicDrop::SocketClosed,
        Dropped::Unaffordable => QuicDrop::UnverifiedBudget,
    }
}

#[cfg(test)]
mod tests;
