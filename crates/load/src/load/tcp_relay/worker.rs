//! A thread's clients: control connections and data connections; what goes over the latter is in [`data`].
//!
//! A client allocates ([`turnbuckle_client`]) over its control connection. Its data connection is bound when there is a connection to the peer: one
//! that the server opened ([`Way::Peer`], and the first of two by [`Way::Pairs`]), or one that came to the relayed address (the
//! second of two, and [`Way::Passive`]). From then on the data connection is bytes, cut into packets of one size.

mod data;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event as Readiness, EventFlags};
use rustix::io::Errno;
use turnbuckle_wire::{Class, Message, Method, TransactionId};

use super::connection::RelayConnection;
use super::task::{Opened, Outcome, Task, Way};
use crate::load::figures::Before;
use crate::load::phase::{DRAINED, Phase};
use crate::threads;
use turnbuckle_client::{Client, Event, Failure, Path};

/// Clients of one thread that allocate or release at the same time.
const UNDER_WAY: usize = 64;
/// Bytes of one reading.
const READ_LEN: usize = 64 << 10;
/// A client sends nothing new while so much of it waits for its connection.
const WAITING_MAX: usize = 64 << 10;
/// Phases are looked at that often, nanoseconds.
const WAIT_MAX: u64 = 5_000_000;
/// Time for the release of all allocations at the end.
const RELEASE_MAX: u64 = 5_000_000_000;
/// Events of one wait.
const EVENTS: usize = 256;
/// Connections of a client: [`CONTROL`], [`DATA`], [`FAR`].
const KINDS: usize = 4;
const CONTROL: usize = 0;
const DATA: usize = 1;
/// The peer's end of a connection, where this program is the peer.
const FAR: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Opening,
    /// Bytes flow.
    Open,
    /// There is no allocation, or its connection is gone.
    Ended,
}

struct One {
    session: u32,
    /// Whose packets are to come here.
    from: u32,
    stage: Stage,
    client: Client,
    connections: [Option<RelayConnection>; KINDS],
    /// The ConnectionBind request under way, and for which connection.
    binding: Option<(TransactionId, u32)>,
    sequence: u64,
    /// Number of the packet that is to come next: a stream keeps its order.
    expected: u64,
    before: Option<Before>,
    /// It is due, and its connection takes no more.
    is_stalled: bool,
}

struct Worker {
    task: Task,
    epoll: OwnedFd,
    clients: Vec<One>,
    waiting: Vec<usize>,
    under_way: usize,
    /// Clients whose requests are to be looked at, by time. May name one too often, never too late.
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    sending: Sending,
    is_over: bool,
    phase: Phase,
    buffer: Vec<u8>,
    counted: Counted,
    outcome: Outcome,
}

/// What is to be sent.
struct Sending {
    has_begun: bool,
    /// Clients whose next packet is due, by time.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// A packet without its header.
    template: Vec<u8>,
}

/// Packets from the beginning on.
#[derive(Default)]
struct Counted {
    sent: u64,
    /// Of those, the ones that count.
    measured: u64,
    arrived: u64,
}

pub(super) fn run(task: Task) -> anyhow::Result<Outcome> {
    let report = task.report.clone();
    let mut worker = match Worker::new(task) {
        Ok(worker) => worker,
        Err(error) => {
            let _ = report.send(Err(error));
            anyhow::bail!("not begun");
        }
    };
    let _ = threads::fine_sleep();
    while !worker.is_open() && !worker.is_drained() {
        worker.turn()?;
    }
    let _ = report.send(Ok(worker.opened()));
    while !worker.is_drained() {
        worker.turn()?;
    }
    worker.release_all();
    let end = worker.task.clock.now() + RELEASE_MAX;
    while worker.holds_any() && worker.task.clock.now() < end {
        worker.turn()?;
    }
    Ok(worker.outcome)
}

impl Worker {
    fn new(task: Task) -> anyhow::Result<Self> {
        let clients: Vec<_> = task
            .sessions
            .iter()
            .map(|&session| One {
                session,
                // Partners are numbered 2n and 2n + 1.
                from: session ^ u32::from(task.way == Way::Pairs),
                stage: Stage::Waiting,
                client: Client::new(Arc::clone(&task.plan), task.seed ^ u64::from(session)),
                connections: [const { None }; KINDS],
                binding: None,
                sequence: 0,
                expected: 0,
                before: None,
                is_stalled: false,
            })
            .collect();
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            waiting: (0..clients.len()).rev().collect(),
            clients,
            under_way: 0,
            timers: BinaryHeap::new(),
            sending: Sending {
                has_begun: false,
                due: BinaryHeap::new(),
                template: vec![0x5a; task.packets.size],
            },
            is_over: false,
            phase: Phase::new(&task.phase),
            buffer: vec![0; READ_LEN],
            counted: Counted::default(),
            outcome: Outcome::new()?,
            task,
        })
    }

    fn is_drained(&self) -> bool {
        self.task.phase.load(Ordering::Relaxed) == DRAINED
    }

    /// Returns whether every client can send, or never will.
    fn is_open(&self) -> bool {
        let is_known = |one: &One| matches!(one.stage, Stage::Open | Stage::Ended);
        self.clients.iter().all(is_known)
    }

    fn opened(&self) -> Opened {
        let is_open = |one: &&One| one.stage == Stage::Open;
        Opened {
            ready: self.clients.iter().filter(is_open).count(),
            failures: self.outcome.allocations.failures.clone(),
        }
    }

    fn holds_any(&self) -> bool {
        let holds = |one: &One| matches!(one.stage, Stage::Opening | Stage::Open);
        self.clients.iter().any(holds)
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        let mut events: Vec<Readiness> = Vec::with_capacity(EVENTS);
        let wait = Timespec::try_from(Duration::from_nanos(self.wait()))?;
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.phase.look();
        for event in events {
            let Ok(token) = usize::try_from(event.data.u64()) else {
                continue;
            };
            self.ready(token / KINDS, token % KINDS, event.flags);
        }
        let now = self.task.clock.now();
        self.begin_waiting(now);
        while let Some(&Reverse((due, index))) = self.timers.peek()
            && due <= now
        {
            self.timers.pop();
            self.look_at(index, now);
        }
        self.send(now);
        self.show();
        Ok(())
    }

    /// Returns how long there is nothing to do, nanoseconds.
    fn wait(&self) -> u64 {
        let next = |heap: &BinaryHeap<Reverse<(u64, usize)>>| {
            heap.peek().map_or(u64::MAX, |&Reverse((due, _))| due)
        };
        let next = next(&self.timers).min(next(&self.sending.due));
        next.saturating_sub(self.task.clock.now()).min(WAIT_MAX)
    }

    fn show(&self) {
        let shown = &self.task.shown;
        shown.sent.store(self.counted.sent, Ordering::Relaxed);
        shown
            .measured
            .store(self.counted.measured, Ordering::Relaxed);
        shown
            .received
            .store(self.outcome.received, Ordering::Relaxed);
        shown.arrived.store(self.counted.arrived, Ordering::Relaxed);
        shown
            .allocated
            .store(self.outcome.allocations.allocated, Ordering::Relaxed);
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
            if self.is_over {
                // The server would close them, perhaps before it answers.
                one.connections[DATA] = None;
                one.connections[FAR] = None;
                one.client.release(now);
            } else {
                one.stage = Stage::Opening;
                one.client.start(now);
                self.outcome.allocations.attempted += 1;
                if self
                    .connect(index, CONTROL, self.task.route.server)
                    .is_err()
                {
                    self.fail(index, Failure::Disconnected);
                    continue;
                }
            }
            self.under_way += 1;
            self.timers.push(Reverse((now, index)));
        }
    }

    fn release_all(&mut self) {
        self.is_over = true;
        self.under_way = 0;
        self.waiting.clear();
        for index in 0..self.clients.len() {
            let Some(one) = self.clients.get_mut(index) else {
                continue;
            };
            match one.stage {
                Stage::Open if one.client.is_ready() => self.waiting.push(index),
                Stage::Ended => {}
                // What is half begun ends with its connection.
                _ => one.stage = Stage::Ended,
            }
        }
    }

    fn connect(&mut self, index: usize, kind: usize, to: SocketAddr) -> io::Result<()> {
        let token = (index * KINDS + kind) as u64;
        // A peer has no certificate to show.
        let tls = self.task.route.tls.as_ref().filter(|_| kind != FAR);
        let connection = RelayConnection::open(&self.epoll, token, self.task.route.local, to, tls)?;
        if let Some(place) = self.place(index, kind) {
            *place = Some(connection);
        }
        Ok(())
    }

    fn place(&mut self, index: usize, kind: usize) -> Option<&mut Option<RelayConnection>> {
        self.clients.get_mut(index)?.connections.get_mut(kind)
    }

    /// Has a client's requests go on.
    fn look_at(&mut self, index: usize, now: u64) {
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        if matches!(one.stage, Stage::Waiting | Stage::Ended) {
            return;
        }
        let (bytes, event) = one.client.poll_transmit(now);
        if let (Some(bytes), Some(control)) = (bytes, &mut one.connections[CONTROL]) {
            control.outgoing().extend_from_slice(bytes);
            if control.flush(&self.epoll).is_err() {
                return self.fail(index, Failure::Disconnected);
            }
        }
        if let Some(due) = one.client.next_timeout() {
            self.timers.push(Reverse((due, index)));
        }
        if let Some(event) = event {
            self.happened(index, event, now);
        }
    }

    fn happened(&mut self, index: usize, event: Event, now: u64) {
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        match event {
            Event::Failed(failure) => self.fail(index, failure),
            Event::Released => {
                one.stage = Stage::Ended;
                one.connections = [const { None }; KINDS];
                self.outcome.allocations.released += 1;
                self.under_way = self.under_way.saturating_sub(1);
            }
            Event::Ready => {
                if let Some(connection) = one.client.connection() {
                    return self.bind(index, connection);
                }
                match (self.task.way, one.client.peer()) {
                    (Way::Peer, _) => self.fail(index, Failure::BadAnswer),
                    (Way::Pairs, None) => self.join(index, now),
                    (Way::Pairs, Some(_)) => self.connect_partner(index, now),
                    (Way::Passive, None) => self.permit_itself(index, now),
                    (Way::Passive, Some(_)) => self.connect_to_relay(index),
                }
            }
        }
    }

    fn relayed(&self, index: usize) -> Option<SocketAddr> {
        let one = self.clients.get(index)?;
        one.client.relayed().filter(|_| one.client.is_ready())
    }

    fn open(&mut self, index: usize, now: u64, peer: SocketAddr, path: Path) {
        if let Some(one) = self.clients.get_mut(index) {
            one.client.open(now, peer, path);
            self.timers.push(Reverse((now, index)));
        }
    }

    /// Lets the first one's relay connect to that of the second, once both of two have an allocation.
    fn join(&mut self, index: usize, now: u64) {
        let (first, second) = (index & !1, index | 1);
        if let (Some(peer), Some(_)) = (self.relayed(first), self.relayed(second)) {
            self.open(second, now, peer, Path::Indications);
        }
    }

    /// Connects the first of two to the relay of the second, which permits it now.
    fn connect_partner(&mut self, index: usize, now: u64) {
        if let Some(peer) = self.relayed(index) {
            self.open(index ^ 1, now, peer, Path::Connection);
        }
    }

    fn permit_itself(&mut self, index: usize, now: u64) {
        let mapped = self.clients.get(index).and_then(|one| one.client.mapped());
        match mapped {
            Some(mapped) => self.open(index, now, mapped, Path::Indications),
            None => self.fail(index, Failure::BadAnswer),
        }
    }

    fn connect_to_relay(&mut self, index: usize) {
        let relayed = self.relayed(index);
        let connected = relayed.map(|relayed| self.connect(index, FAR, relayed));
        if !matches!(connected, Some(Ok(()))) {
            self.fail(index, Failure::Disconnected);
        }
    }

    /// Begins a data connection.
    fn bind(&mut self, index: usize, connection: u32) {
        if self.connect(index, DATA, self.task.route.server).is_err() {
            return self.fail(index, Failure::Disconnected);
        }
        self.ask_to_bind(index, connection);
    }

    fn ask_to_bind(&mut self, index: usize, connection: u32) {
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        let (transaction, bytes) = one.client.connection_bind(connection);
        one.binding = Some((transaction, connection));
        if let Some(data) = &mut one.connections[DATA] {
            data.outgoing().extend_from_slice(&bytes);
            if data.flush(&self.epoll).is_err() {
                self.fail(index, Failure::Disconnected);
            }
        }
    }

    fn fail(&mut self, index: usize, failure: Failure) {
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        if one.stage == Stage::Ended {
            return;
        }
        let was_opening = one.stage == Stage::Opening;
        one.stage = Stage::Ended;
        one.connections = [const { None }; KINDS];
        self.under_way = self
            .under_way
            .saturating_sub(usize::from(was_opening || self.is_over));
        if was_opening {
            self.outcome.allocations.failed(failure);
        } else if !self.is_over {
            self.outcome.closed_early += 1;
        }
        // Neither of two is of use without the other.
        let partner = index ^ 1;
        if self.task.way == Way::Pairs
            && was_opening
            && self
                .clients
                .get(partner)
                .is_some_and(|one| matches!(one.stage, Stage::Waiting | Stage::Opening))
        {
            if let Some(one) = self.clients.get_mut(partner)
                && one.stage == Stage::Waiting
            {
                one.stage = Stage::Ended;
                self.waiting.retain(|&waiting| waiting != partner);
            } else {
                self.fail(partner, failure);
            }
        }
    }

    /// Serves a connection that can be read or written.
    fn ready(&mut self, index: usize, kind: usize, flags: EventFlags) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let epoll = &self.epoll;
        let served = self
            .clients
            .get_mut(index)
            .and_then(|one| one.connections.get_mut(kind)?.as_mut())
            .map(|connection| {
                if flags.contains(EventFlags::OUT) {
                    connection.flush(epoll)?;
                }
                let readable = EventFlags::IN | EventFlags::HUP | EventFlags::ERR;
                if flags.intersects(readable) {
                    connection.read(&mut buffer)?;
                    // A handshake has more to say, and what waited for it.
                    connection.flush(epoll)?;
                }
                io::Result::Ok(connection.waiting() < WAITING_MAX)
            });
        let failure = self
            .place(index, kind)
            .and_then(|place| place.as_ref().map(RelayConnection::failure));
        self.buffer = buffer;
        let now = self.task.clock.now();
        match served {
            None => {}
            Some(Err(_)) => self.fail(index, failure.unwrap_or(Failure::Disconnected)),
            Some(Ok(has_room)) => {
                match kind {
                    CONTROL => self.read_control(index, now),
                    DATA => self.read_data(index, now),
                    _ => self.send_back(index),
                }
                if has_room && kind == DATA {
                    self.resume(index, now);
                }
            }
        }
    }

    fn read_control(&mut self, index: usize, now: u64) {
        loop {
            let Some(one) = self.clients.get_mut(index) else {
                return;
            };
            let Some(bytes) = one.connections[CONTROL]
                .as_mut()
                .and_then(RelayConnection::message)
            else {
                return;
            };
            let Ok(message) = Message::parse(&bytes) else {
                return self.fail(index, Failure::BadAnswer);
            };
            if message.method() == Method::CONNECTION_ATTEMPT {
                match message.connection_id() {
                    Ok(Some(connection))
                        if message.class() == Class::Indication && one.binding.is_none() =>
                    {
                        self.bind(index, connection);
                    }
                    // Somebody else's, on a relay that is open to everybody on that address.
                    _ => {}
                }
                continue;
            }
            if let Some(event) = one.client.handle(now, &message) {
                self.happened(index, event, now);
            }
            self.timers.push(Reverse((now, index)));
        }
    }

    fn read_data(&mut self, index: usize, now: u64) {
        let Some(one) = self.clients.get_mut(index) else {
            return;
        };
        if one.stage == Stage::Opening {
            let (Some((transaction, connection)), Some(data)) =
                (one.binding, one.connections[DATA].as_mut())
            else {
                return;
            };
            let Some(bytes) = data.message() else {
                return;
            };
            let answer = Message::parse(&bytes)
                .ok()
                .filter(|message| message.transaction_id() == transaction);
            let Some(message) = answer else {
                return self.fail(index, Failure::BadAnswer);
            };
            match one.client.connection_bound(&message) {
                Ok(Some(())) => {
                    one.stage = Stage::Open;
                    self.under_way = self.under_way.saturating_sub(1);
                    self.outcome.allocations.allocated += 1;
                    // Bytes may have come right behind the answer.
                    self.packets(index, now);
                }
                Ok(None) => self.ask_to_bind(index, connection),
                Err(failure) => self.fail(index, failure),
            }
        } else {
            self.packets(index, now);
        }
    }
}
