//! What a listener thread does whatever the transport: it speaks TURN for its clients and counts what comes back.
//!
//! It touches no socket: messages come by [`Listener::message`], and leave through a [`Signalling`].

mod outcome;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use turnbuckle_datapath::Settings;
use turnbuckle_wire::{ChannelData, Class, Demux, Message, Method, classify};

pub(super) use self::outcome::Outcome;
use super::access::Access;
use super::figures::Before;
use super::moves::{Moved, Moves};
use super::phase::{MEASURING, OVER, Phase};
use super::sender;
use super::session::{Framing, Leavers, Ready, Via};
use super::track::{ByItself, Track};
use crate::packet::{BY_ITSELF, Header};
use crate::threads::{Clock, OwnLines};
use turnbuckle_client::{Client, Event, Failure, Path, Plan};

/// Clients of one thread that allocate or release at the same time.
const UNDER_WAY: usize = 64;
/// How long a client waits that was refused, before it tries again.
const AFTER_REFUSAL: u64 = 10_000_000;
/// Longest wait for something to arrive: phases are looked at that often.
const WAIT_MAX: Duration = Duration::from_millis(5);

/// Marks the number of a session's second flow, by the second relayed address of a dual allocation. There are never so many clients.
pub(super) const SECOND_FLOW: u32 = 1 << 31;

/// Sequence numbers that are remembered of what a peer sends by itself.
const BY_ITSELF_WINDOW: usize = 4_096;

/// What a listener counts for others to see.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Intact packets of the measured window, each once.
    pub(super) received: AtomicU64,
    /// Everything that arrived, of any kind.
    pub(super) arrived: AtomicU64,
    /// Allocations made.
    pub(super) allocated: AtomicU64,
}

/// What clients do once they have an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    /// Keep it.
    Hold,
    /// Give it back and take another one.
    Cycle,
    /// They have none, and packets go to the peer as they are: straight, or through tunnels of HTTP/3.
    Direct,
    /// They have none; what is sent is junk, and what comes back are answers to it.
    Junk,
}

/// By which a listener's messages leave. Clients are named by their place in the thread.
pub(super) trait Signalling {
    /// Sends a STUN message of a client.
    fn send(&mut self, index: usize, message: &[u8]);

    /// Has a client come from another port with its next message. One that cannot have it, for want of descriptors, keeps its own.
    fn renew(&mut self, index: usize);
}

/// What a listener thread is told.
pub(super) struct Task {
    pub(super) clock: Clock,
    pub(super) phase: Arc<AtomicU8>,
    pub(super) seen: Arc<OwnLines<Seen>>,
    pub(super) settings: Settings,
    pub(super) manner: Manner,
    pub(super) route: Route,
    /// When clients go to another port; by UDP.
    pub(super) moves: Option<Moves>,
    /// Number of the session and plan of each client.
    pub(super) clients: Vec<(u32, Option<Arc<Plan>>)>,
    pub(super) seed: u64,
    /// Sequence numbers remembered per session.
    pub(super) window: usize,
    pub(super) report: Sender<anyhow::Result<Opened>>,
    /// What to send, where this thread is to send as well.
    pub(super) sending: Option<Receiver<sender::Task>>,
}

/// How clients behave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub(super) duty: Duty,
    /// How clients send to each other, two and two; `None` where they have a peer, or none.
    pub(super) pairs: Option<Path>,
    /// Clients that give nothing back.
    pub(super) leavers: Option<Leavers>,
}

/// The way to the server.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) access: Access,
    pub(super) local: IpAddr,
    /// Where messages go: the server, or in a run without one the peer.
    pub(super) to: SocketAddr,
}

/// The clients that may send, once all have an answer.
#[derive(Debug, Default)]
pub(super) struct Opened {
    pub(super) ready: Vec<Ready>,
    pub(super) ports: Vec<u16>,
    pub(super) failures: BTreeMap<Failure, u64>,
}

struct One {
    session: u32,
    /// Whose packets are to come here.
    from: u32,
    before: Option<Before>,
    plan: Option<Arc<Plan>>,
    client: Option<Client>,
    track: Track,
    /// Packets by the second relayed address, where there is one.
    second_track: Option<Track>,
    /// What its peer sends by itself, once something came.
    by_itself: Option<Box<ByItself>>,
    /// An allocation is to be had or held.
    is_busy: bool,
    /// It is in the queue of those that wait for their turn.
    is_waiting: bool,
    /// Not to be tried again before.
    retry_at: u64,
}

pub(super) struct Listener {
    pub(super) clock: Clock,
    phase: Phase,
    seen: Arc<OwnLines<Seen>>,
    manner: Manner,
    clients: Vec<One>,
    /// Clients to look at, by time. May name one too often, never too late.
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    /// Clients that wait for their turn to allocate or release.
    waiting: Vec<usize>,
    /// Clients of a cycle that gave their allocation back: servers answer 437 to a 5-tuple for a while after its allocation ended, so the
    /// next one begins at another port, as another client's would.
    spent: Vec<usize>,
    under_way: usize,
    seed: u64,
    is_over: bool,
    outcome: Outcome,
}

impl Listener {
    /// Takes over the clients of a task, none of which has sent anything.
    pub(super) fn new(task: &mut Task) -> anyhow::Result<Self> {
        let clients = std::mem::take(&mut task.clients);
        let waiting = (0..clients.len()).filter(|&index| clients[index].1.is_some());
        Ok(Self {
            clock: task.clock,
            phase: Phase::new(&task.phase),
            seen: Arc::clone(&task.seen),
            manner: task.manner,
            timers: BinaryHeap::new(),
            waiting: waiting.collect(),
            spent: Vec::new(),
            under_way: 0,
            seed: task.seed,
            is_over: false,
            outcome: Outcome::new()?,
            clients: clients
                .into_iter()
                .map(|(session, plan)| One {
                    session,
                    // Partners are numbered 2n and 2n + 1.
                    from: session ^ u32::from(task.manner.pairs.is_some()),
                    before: None,
                    by_itself: None,
                    second_track: plan
                        .as_ref()
                        .is_some_and(|plan| plan.second_peer.is_some())
                        .then(|| Track::new(task.window)),
                    is_busy: plan.is_some(),
                    is_waiting: plan.is_some(),
                    plan,
                    client: None,
                    track: Track::new(task.window),
                    retry_at: 0,
                })
                .collect(),
        })
    }

    /// Returns whether every client has an allocation, or will not get one. In a cycle there is nothing to wait for.
    pub(super) fn is_open(&self) -> bool {
        let is_busy = |at: usize| self.clients.get(at).is_some_and(|one| one.is_busy);
        let mut clients = self.clients.iter().enumerate();
        self.manner.duty == Duty::Cycle
            || clients.all(|(index, one)| {
                let is_alone = self.manner.pairs.is_some() && !is_busy(index ^ 1);
                let is_ready = one.client.as_ref().is_some_and(Client::is_ready);
                !one.is_busy || self.may_send(one) || is_alone && is_ready
            })
    }

    /// Returns the phase when this turn began.
    pub(super) fn phase(&self) -> u8 {
        self.phase.now()
    }

    /// Returns a client that has, or is to have, an allocation.
    pub(super) fn client(&self, index: usize) -> Option<&Client> {
        self.clients.get(index)?.client.as_ref()
    }

    /// Has a client's allocation go on with `successor` (RFC 8016).
    pub(super) fn replace(&mut self, index: usize, successor: Client, now: u64) {
        if let Some(one) = self.clients.get_mut(index) {
            one.client = Some(successor);
            self.timers.push(Reverse((now, index)));
        }
    }

    /// Takes over how moves ended.
    pub(super) fn moved(&mut self, moved: Moved) {
        self.outcome.moved = moved;
    }

    /// Returns whether packets of this client may flow.
    fn may_send(&self, one: &One) -> bool {
        let mut client = one.client.iter();
        client.any(|client| {
            client.is_ready() && (self.manner.pairs.is_none() || client.peer().is_some())
        })
    }

    /// Returns the clients that may send. `via` tells by what.
    ///
    /// # Errors
    /// Those of `via`.
    pub(super) fn opened(
        &self,
        mut via: impl FnMut(usize) -> anyhow::Result<Via>,
    ) -> anyhow::Result<Opened> {
        let mut opened = Opened {
            failures: self.outcome.allocations.failures.clone(),
            ..Opened::default()
        };
        for (index, one) in self.clients.iter().enumerate() {
            let framing = match &one.plan {
                None => Framing::Bare,
                Some(_) => match one.client.as_ref().and_then(Client::peer) {
                    Some((peer, path)) if self.may_send(one) => Framing::Relayed { peer, path },
                    _ => continue,
                },
            };
            opened.ready.push(Ready {
                via: via(index)?,
                session: one.session,
                framing,
            });
            if let Some((peer, path)) = one.client.as_ref().and_then(Client::second_peer) {
                opened.ready.push(Ready {
                    via: via(index)?,
                    session: one.session | SECOND_FLOW,
                    framing: Framing::Relayed { peer, path },
                });
            }
        }
        Ok(opened)
    }

    /// Returns how long nothing has to be done, if nothing arrives.
    pub(super) fn wait(&self) -> Duration {
        let due = self
            .timers
            .peek()
            .map_or(u64::MAX, |&Reverse((due, _))| due);
        Duration::from_nanos(due.saturating_sub(self.clock.now())).min(WAIT_MAX)
    }

    /// Has a client do the next thing, if it is time.
    fn look_at(&mut self, index: usize, now: u64, signalling: &mut impl Signalling) {
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        let Some(client) = &mut one.client else {
            if one.is_busy && !one.is_waiting && one.retry_at <= now {
                one.is_waiting = true;
                self.waiting.push(index);
            }
            return;
        };
        let (bytes, event) = client.poll_transmit(now);
        if let Some(bytes) = bytes {
            signalling.send(index, bytes);
        }
        if let Some(due) = client.next_timeout() {
            self.timers.push(Reverse((due, index)));
        }
        if let Some(event) = event {
            self.happened(index, event, now);
        }
    }

    fn happened(&mut self, index: usize, event: Event, now: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        let counts = self.manner.duty != Duty::Cycle || self.phase.is_measured();
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        match event {
            Event::Ready => {
                let is_first = one
                    .client
                    .as_ref()
                    .is_none_or(|client| self.manner.pairs.is_none() || client.peer().is_none());
                self.outcome.allocations.allocated += u64::from(counts && is_first);
                if self.manner.pairs.is_some() && is_first && !self.is_over {
                    self.join(index, now);
                    return;
                }
                if self.manner.duty == Duty::Cycle || self.is_over {
                    self.under_way += 1;
                    if let Some(client) = &mut one.client {
                        client.release(now);
                    }
                    self.timers.push(Reverse((now, index)));
                }
            }
            Event::Released => {
                self.outcome.allocations.released += u64::from(counts);
                one.client = None;
                one.is_busy = false;
            }
            Event::Failed(failure) => {
                if counts {
                    self.outcome.allocations.failed(failure);
                }
                one.client = None;
                one.is_busy = false;
            }
        }
        if self.manner.duty == Duty::Cycle && one.client.is_none() && !self.is_over {
            one.is_busy = true;
            let pause = match event {
                Event::Failed(_) => AFTER_REFUSAL,
                Event::Ready | Event::Released => 0,
            };
            one.retry_at = now + pause;
            self.spent.push(index);
            self.timers.push(Reverse((one.retry_at, index)));
        }
    }

    /// Makes two clients that both have an allocation each other's peers. A client whose partner failed stays without one.
    fn join(&mut self, index: usize, now: u64) {
        let Some(path) = self.manner.pairs else {
            return;
        };
        let relayed = |at: usize| {
            let client = self.clients.get(at)?.client.as_ref()?;
            client.relayed().filter(|_| client.is_ready())
        };
        let pair = [index, index ^ 1];
        let [Some(here), Some(there)] = pair.map(relayed) else {
            return;
        };
        for (at, peer) in pair.into_iter().zip([there, here]) {
            if let Some(client) = self.clients.get_mut(at).and_then(|one| one.client.as_mut()) {
                client.open(now, peer, path);
                self.under_way += 1;
                self.timers.push(Reverse((now, at)));
            }
        }
    }

    /// Begins allocations, and at the end releases, as many at a time as are to be under way.
    fn begin_waiting(&mut self, now: u64) {
        while self.under_way < UNDER_WAY {
            let Some(index) = self.waiting.pop() else {
                return;
            };
            let Some(one) = self.clients.get_mut(index) else {
                continue;
            };
            one.is_waiting = false;
            match &mut one.client {
                Some(client) => client.release(now),
                None if self.is_over => continue,
                None => {
                    let Some(plan) = &one.plan else { continue };
                    self.seed = self.seed.wrapping_add(1);
                    let mut client = Client::new(Arc::clone(plan), self.seed);
                    client.start(now);
                    one.client = Some(client);
                    let counts = self.manner.duty != Duty::Cycle || self.phase.is_measured();
                    self.outcome.allocations.attempted += u64::from(counts);
                }
            }
            self.under_way += 1;
            self.timers.push(Reverse((now, index)));
        }
    }

    /// Counts so many more clients that ask for a tunnel.
    pub(super) fn asks_for_tunnels(&mut self, clients: usize) {
        self.outcome.allocations.attempted += clients as u64;
    }

    /// Counts a client's tunnel, or the failure by which it has none, or none any more.
    pub(super) fn tunnel(&mut self, failure: Option<Failure>) {
        match failure {
            None => self.outcome.allocations.allocated += 1,
            Some(failure) => self.outcome.allocations.failed(failure),
        }
    }

    /// Fails a client whose way to the server is gone, and with it what it has there.
    pub(super) fn lost(&mut self, index: usize, failure: Failure, now: u64) {
        let client = self.clients.get_mut(index).map(|one| &mut one.client);
        if client.is_some_and(|client| client.is_some()) {
            self.happened(index, Event::Failed(failure), now);
        }
    }

    /// Begins to give all allocations back.
    pub(super) fn release_all(&mut self) {
        self.is_over = true;
        self.under_way = 0;
        self.waiting.clear();
        for (index, one) in self.clients.iter_mut().enumerate() {
            if self
                .manner
                .leavers
                .is_some_and(|leavers| leavers.has(one.session))
            {
                one.client = None;
            }
            one.is_waiting = one.client.is_some();
            if one.is_waiting {
                self.waiting.push(index);
            }
        }
    }

    pub(super) fn holds_any(&self) -> bool {
        self.clients.iter().any(|one| one.client.is_some())
    }

    pub(super) fn finish(mut self) -> Outcome {
        let tracks = self.clients.iter();
        let tracks = tracks.flat_map(|one| [Some(&one.track), one.second_track.as_ref()]);
        for by_itself in self.clients.iter().filter_map(|one| one.by_itself.as_ref()) {
            let (counts, lost) = by_itself.counts();
            self.outcome.received.add_by_itself(counts, lost);
        }
        for track in tracks.flatten() {
            self.outcome.received.counts.add(track.counts());
        }
        self.outcome
    }

    /// Takes in one message for a client.
    #[inline]
    pub(super) fn message(&mut self, index: usize, bytes: &[u8], now: u64) {
        self.outcome.received.arrived += 1;
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        match self.manner.duty {
            Duty::Hold | Duty::Cycle => {}
            Duty::Direct => return self.packet(index, bytes, now),
            Duty::Junk => return,
        }
        match bytes.first().map(|&first| classify(first)) {
            Some(Demux::ChannelData) => match ChannelData::parse_datagram(bytes) {
                Ok(data) if is_channel_of(one, data.number) => self.packet(index, data.data, now),
                _ => self.corrupt(),
            },
            Some(Demux::Stun) => match Message::parse(bytes) {
                Ok(message) if message.method() == Method::DATA => match message.data() {
                    Some(data) if message.class() == Class::Indication => {
                        self.packet(index, data, now);
                    }
                    _ => self.corrupt(),
                },
                Ok(message) => {
                    let event = one
                        .client
                        .as_mut()
                        .and_then(|client| client.handle(now, &message));
                    if let Some(event) = event {
                        self.happened(index, event, now);
                    }
                    self.timers.push(Reverse((now, index)));
                }
                Err(_) => self.corrupt(),
            },
            _ => self.corrupt(),
        }
    }

    /// Begins a turn: looks at the phase of the run.
    pub(super) fn turn_started(&mut self) {
        self.phase.look();
    }

    /// Does what is due, after all that arrived in a turn.
    pub(super) fn turn_ended(&mut self, signalling: &mut impl Signalling) {
        let now = self.clock.now();
        for index in std::mem::take(&mut self.spent) {
            signalling.renew(index);
        }
        self.begin_waiting(now);
        while let Some(&Reverse((due, index))) = self.timers.peek()
            && due <= now
        {
            self.timers.pop();
            self.look_at(index, now, signalling);
        }
        let seen = &self.seen;
        let received = self.outcome.delays.latency.len();
        seen.received.store(received, Ordering::Relaxed);
        seen.arrived
            .store(self.outcome.received.arrived, Ordering::Relaxed);
        seen.allocated
            .store(self.outcome.allocations.allocated, Ordering::Relaxed);
    }

    fn corrupt(&mut self) {
        if matches!(self.phase.now(), MEASURING | OVER) {
            self.outcome.received.corrupted += 1;
        }
    }

    #[inline]
    fn packet(&mut self, index: usize, packet: &[u8], now: u64) {
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        let Some(header) = Header::read(packet) else {
            return self.corrupt();
        };
        let track = match &mut one.second_track {
            _ if header.session == one.from => &mut one.track,
            Some(second) if header.session == one.from | SECOND_FLOW => second,
            _ if header.session == one.from | BY_ITSELF => {
                let by_itself = one
                    .by_itself
                    .get_or_insert_with(|| Box::new(ByItself::new(BY_ITSELF_WINDOW)));
                return by_itself.receive(header.sequence, self.phase.is_measured());
            }
            _ => return self.corrupt(),
        };
        let is_new = track.receive(header.sequence, header.is_measured);
        if is_new && header.is_measured {
            self.outcome.received.bytes += packet.len() as u64;
            let delays = &mut self.outcome.delays;
            delays.record(now, header.time, &mut one.before);
        }
    }
}

/// Returns whether `number` is a channel that the client bound.
fn is_channel_of(one: &One, number: u16) -> bool {
    let plan = one.plan.as_ref();
    let of_plan = plan.and_then(|plan| plan.peer);
    let first = one.client.as_ref().and_then(Client::peer).or(of_plan);
    let second = plan.and_then(|plan| plan.second_peer);
    [first, second]
        .into_iter()
        .flatten()
        .any(|(_, path)| matches!(path, Path::Channel(channel) if channel.get() == number))
}
