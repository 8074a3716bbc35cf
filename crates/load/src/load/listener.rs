//! What a listener thread does whatever the transport: it speaks TURN for its clients and counts what comes back.
//!
//! It touches no socket: messages come by [`Listener::message`], and leave through a [`Signalling`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use hdrhistogram::Histogram;
use turnbuckle_datapath::Settings;
use turnbuckle_wire::{ChannelData, Class, Demux, Message, Method, classify};

use super::roaming::{Moved, Moves};
use super::sender::{self, MEASURING, OVER, histogram};
use super::session::{Framing, Leavers, Ready, Via};
use super::track::{ByItself, Counts, Track};
use super::transport::Transport;
use crate::client::{Client, Event, Failure, Path, Plan};
use crate::packet::{BY_ITSELF, Header};
use crate::threads::{Clock, OwnLines};

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

/// Beyond the phases of a sender: nothing more is expected to arrive.
pub(super) const DRAINED: u8 = 3;

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
    /// They have none, and packets go straight to the peer.
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
    pub(super) duty: Duty,
    pub(super) transport: Transport,
    /// When clients go to another port; by UDP.
    pub(super) moves: Option<Moves>,
    pub(super) local: IpAddr,
    /// Where messages go: the server, or in a run without one the peer.
    pub(super) to: SocketAddr,
    /// How clients send to each other, two and two; `None` where they have a peer, or none.
    pub(super) pairs: Option<Path>,
    /// Number of the session and plan of each client.
    pub(super) clients: Vec<(u32, Option<Arc<Plan>>)>,
    pub(super) seed: u64,
    /// Sequence numbers remembered per session.
    pub(super) window: usize,
    pub(super) report: Sender<anyhow::Result<Opened>>,
    /// Clients that give nothing back.
    pub(super) leavers: Option<Leavers>,
    /// What to send, where this thread is to send as well.
    pub(super) sending: Option<Receiver<sender::Task>>,
}

/// The clients that may send, once all have an answer.
#[derive(Debug, Default)]
pub(super) struct Opened {
    pub(super) ready: Vec<Ready>,
    pub(super) ports: Vec<u16>,
    pub(super) failures: BTreeMap<Failure, u64>,
}

/// What a listener thread leaves.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) counts: Counts,
    /// What peers sent by themselves, and what of it was lost.
    pub(super) by_itself: Option<(Counts, u64)>,
    pub(super) received_bytes: u64,
    pub(super) corrupted: u64,
    pub(super) arrived: u64,
    pub(super) latency: Histogram<u64>,
    pub(super) jitter: Jitter,
    pub(super) attempted: u64,
    pub(super) allocated: u64,
    pub(super) released: u64,
    pub(super) moved: Moved,
    pub(super) failures: BTreeMap<Failure, u64>,
}

/// How much one packet's delay differs from that of the one before it (RFC 3550 §6.4.1, not smoothed), nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Jitter {
    pub(super) samples: u64,
    pub(super) sum: u64,
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Default for Jitter {
    fn default() -> Self {
        Self {
            samples: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }
}

impl Jitter {
    #[inline]
    pub(super) fn record(&mut self, difference: u64) {
        self.samples += 1;
        self.sum += difference;
        self.min = self.min.min(difference);
        self.max = self.max.max(difference);
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

struct One {
    session: u32,
    /// Whose packets are to come here.
    from: u32,
    /// Delay of the packet before, nanoseconds.
    last_latency: Option<u64>,
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
    run_phase: Arc<AtomicU8>,
    seen: Arc<OwnLines<Seen>>,
    duty: Duty,
    pairs: Option<Path>,
    clients: Vec<One>,
    /// Clients to look at, by time. May name one too often, never too late.
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    /// Clients that wait for their turn to allocate or release.
    waiting: Vec<usize>,
    /// Clients of a cycle that gave their allocation back: servers answer 437 to a 5-tuple for a while after its allocation ended, so the
    /// next one begins at another port, as another client's would.
    spent: Vec<usize>,
    leavers: Option<Leavers>,
    under_way: usize,
    seed: u64,
    /// The phase when this turn began.
    phase: u8,
    is_over: bool,
    outcome: Outcome,
}

impl Listener {
    /// The clients of a task, none of which has sent anything.
    pub(super) fn new(task: &mut Task) -> anyhow::Result<Self> {
        let clients = std::mem::take(&mut task.clients);
        let waiting = (0..clients.len()).filter(|&index| clients[index].1.is_some());
        Ok(Self {
            clock: task.clock,
            run_phase: Arc::clone(&task.phase),
            seen: Arc::clone(&task.seen),
            duty: task.duty,
            pairs: task.pairs,
            timers: BinaryHeap::new(),
            waiting: waiting.collect(),
            spent: Vec::new(),
            leavers: task.leavers,
            under_way: 0,
            seed: task.seed,
            phase: 0,
            is_over: false,
            outcome: Outcome {
                counts: Counts::default(),
                by_itself: None,
                received_bytes: 0,
                corrupted: 0,
                arrived: 0,
                latency: histogram()?,
                jitter: Jitter::default(),
                attempted: 0,
                allocated: 0,
                released: 0,
                moved: Moved::default(),
                failures: BTreeMap::new(),
            },
            clients: clients
                .into_iter()
                .map(|(session, plan)| One {
                    session,
                    // Partners are numbered 2n and 2n + 1.
                    from: session ^ u32::from(task.pairs.is_some()),
                    last_latency: None,
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

    /// Whether every client has an allocation, or will not get one. In a cycle there is nothing to wait for.
    pub(super) fn is_open(&self) -> bool {
        let is_busy = |at: usize| self.clients.get(at).is_some_and(|one| one.is_busy);
        let mut clients = self.clients.iter().enumerate();
        self.duty == Duty::Cycle
            || clients.all(|(index, one)| {
                let is_alone = self.pairs.is_some() && !is_busy(index ^ 1);
                let is_ready = one.client.as_ref().is_some_and(Client::is_ready);
                !one.is_busy || self.may_send(one) || is_alone && is_ready
            })
    }

    /// The phase when this turn began.
    pub(super) fn phase(&self) -> u8 {
        self.phase
    }

    /// A client that has, or is to have, an allocation.
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

    /// Whether packets of this client may flow.
    fn may_send(&self, one: &One) -> bool {
        let mut client = one.client.iter();
        client.any(|client| client.is_ready() && (self.pairs.is_none() || client.peer().is_some()))
    }

    /// The clients that may send. `via` tells by what.
    ///
    /// # Errors
    /// Those of `via`.
    pub(super) fn opened(
        &self,
        mut via: impl FnMut(usize) -> anyhow::Result<Via>,
    ) -> anyhow::Result<Opened> {
        let mut opened = Opened {
            failures: self.outcome.failures.clone(),
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

    /// How long nothing has to be done, if nothing arrives.
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
        let counts = self.duty != Duty::Cycle || self.phase == MEASURING;
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        match event {
            Event::Ready => {
                let is_first = one
                    .client
                    .as_ref()
                    .is_none_or(|client| self.pairs.is_none() || client.peer().is_none());
                self.outcome.allocated += u64::from(counts && is_first);
                if self.pairs.is_some() && is_first && !self.is_over {
                    self.join(index, now);
                    return;
                }
                if self.duty == Duty::Cycle || self.is_over {
                    self.under_way += 1;
                    if let Some(client) = &mut one.client {
                        client.release(now);
                    }
                    self.timers.push(Reverse((now, index)));
                }
            }
            Event::Released => {
                self.outcome.released += u64::from(counts);
                one.client = None;
                one.is_busy = false;
            }
            Event::Failed(failure) => {
                if counts {
                    *self.outcome.failures.entry(failure).or_default() += 1;
                }
                one.client = None;
                one.is_busy = false;
            }
        }
        if self.duty == Duty::Cycle && one.client.is_none() && !self.is_over {
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
        let Some(path) = self.pairs else { return };
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
                    let counts = self.duty != Duty::Cycle || self.phase == MEASURING;
                    self.outcome.attempted += u64::from(counts);
                }
            }
            self.under_way += 1;
            self.timers.push(Reverse((now, index)));
        }
    }

    /// The way to the server is gone, and with it what a client has there.
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
            if self.leavers.is_some_and(|leavers| leavers.has(one.session)) {
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
            let sum = &mut self.outcome.by_itself;
            let (sum, sum_of_lost) = sum.get_or_insert_default();
            sum.received += counts.received;
            sum.duplicated += counts.duplicated;
            sum.reordered += counts.reordered;
            *sum_of_lost += lost;
        }
        for track in tracks.flatten() {
            let counts = track.counts();
            let sum = &mut self.outcome.counts;
            sum.received += counts.received;
            sum.duplicated += counts.duplicated;
            sum.reordered += counts.reordered;
        }
        self.outcome
    }

    /// Takes in one message for a client.
    #[inline]
    pub(super) fn message(&mut self, index: usize, bytes: &[u8], now: u64) {
        self.outcome.arrived += 1;
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        match self.duty {
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

    /// A turn begins.
    pub(super) fn turn_started(&mut self) {
        self.phase = self.run_phase.load(Ordering::Relaxed);
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
        let received = self.outcome.latency.len();
        seen.received.store(received, Ordering::Relaxed);
        seen.arrived.store(self.outcome.arrived, Ordering::Relaxed);
        seen.allocated
            .store(self.outcome.allocated, Ordering::Relaxed);
    }

    fn corrupt(&mut self) {
        if self.phase == MEASURING || self.phase == OVER {
            self.outcome.corrupted += 1;
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
                return by_itself.receive(header.sequence, self.phase == MEASURING);
            }
            _ => return self.corrupt(),
        };
        let is_new = track.receive(header.sequence, header.is_measured);
        if is_new && header.is_measured {
            self.outcome.received_bytes += packet.len() as u64;
            let latency = now.saturating_sub(header.time);
            self.outcome.latency.saturating_record(latency.max(1));
            if let Some(last) = one.last_latency.replace(latency) {
                self.outcome.jitter.record(latency.abs_diff(last));
            }
        }
    }
}

/// Whether `number` is the channel that the client bound.
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
