//! One thread of the reflector.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use turnbuckle_datapath::{
    DatagramHandler, EndpointId, Received, Run, SendFailure, SendQueue, Sockets, StreamHandler,
    TurnHandler,
};

use super::sources::{Seen, Sources};
use super::{Arguments, Mode, Totals};
use crate::packet::{BY_ITSELF, Header};
use crate::threads::{OwnLines, cpu_ns};

/// Turns between two readings of the thread's CPU time.
const CPU_EVERY: u32 = 64;
/// Datagrams of one train of a flood.
const TRAIN: usize = 64;
/// Datagrams that a client is owed at most after an interruption: what is older is not made up for.
const BACKLOG_MAX: f64 = 1_024.0;
/// Bytes that one turn queues at most.
const TURN_BYTES: usize = 4 << 20;

/// What a thread counts; written by it alone.
#[derive(Debug, Default)]
pub(super) struct Counters {
    received: AtomicU64,
    received_bytes: AtomicU64,
    sent: AtomicU64,
    sent_bytes: AtomicU64,
    failed: AtomicU64,
    cpu_ns: AtomicU64,
}

impl Counters {
    pub(super) fn totals(&self) -> Totals {
        let failed = self.failed.load(Ordering::Relaxed);
        Totals {
            received: self.received.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed).saturating_sub(failed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            failed,
            cpu_ns: self.cpu_ns.load(Ordering::Relaxed),
        }
    }
}

/// Adds without an atomic read-modify-write: there is one writer.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(amount),
        Ordering::Relaxed,
    );
}

/// What the thread does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    Reflect,
    Sink,
    /// Datagrams of `size` bytes to each client; `rate` of them a second, or a flood.
    Source {
        rate: Option<f64>,
        size: usize,
    },
}

impl From<&Arguments> for Task {
    fn from(arguments: &Arguments) -> Self {
        match arguments.mode {
            Mode::Reflect => Self::Reflect,
            Mode::Sink => Self::Sink,
            Mode::Source => Self::Source {
                rate: arguments.rate,
                size: arguments.size.into(),
            },
        }
    }
}

/// Someone to send to.
struct Client {
    endpoint: EndpointId,
    remote: SocketAddr,
    /// What its packets say whose they are, if it is a generator.
    session: u32,
    since: Instant,
    /// Datagrams that are no longer due.
    sent: f64,
    /// Number of the next packet.
    sequence: u64,
}

/// Returns the session of the packet that opened a flow, marked as the peer's own.
fn session_of(message: &Received<'_>) -> u32 {
    let first = message
        .bytes
        .get(..message.segment.min(message.bytes.len()));
    let header = first.and_then(Header::read);
    header.map_or(0, |header| header.session) | BY_ITSELF
}

pub(super) struct Shard {
    counters: Arc<OwnLines<Counters>>,
    task: Task,
    sources: Sources,
    clients: Vec<Client>,
    /// Datagrams of a source, back to back.
    train: Vec<u8>,
    next_client: usize,
    turns: u32,
}

impl Shard {
    pub(super) fn new(counters: Arc<OwnLines<Counters>>, task: Task) -> Self {
        let train = match task {
            Task::Source { size, .. } => vec![0x5a; size * TRAIN.min(65_507 / size).max(1)],
            Task::Reflect | Task::Sink => Vec::new(),
        };
        Self {
            counters,
            task,
            sources: Sources::default(),
            clients: Vec::new(),
            train,
            next_client: 0,
            turns: 0,
        }
    }

    pub(super) fn into_sources(self) -> Vec<(SocketAddr, Seen)> {
        self.sources.into_list()
    }

    pub(super) fn publish_cpu(&self) {
        self.counters.cpu_ns.store(cpu_ns(), Ordering::Relaxed);
    }

    /// Returns the time until the next datagram of this thread's own is due.
    pub(super) fn next_send(&self) -> Option<Duration> {
        let Task::Source { rate, .. } = self.task else {
            return None;
        };
        if self.clients.is_empty() {
            return None;
        }
        let Some(rate) = rate else {
            return Some(Duration::ZERO);
        };
        self.clients
            .iter()
            .map(|client| {
                let due = Duration::from_secs_f64((client.sent + 1.0) / rate);
                due.saturating_sub(client.since.elapsed())
            })
            .min()
    }

    fn send_due(&mut self, rate: Option<f64>, size: usize, tx: &mut SendQueue) {
        let mut bytes_left = TURN_BYTES;
        for _ in 0..self.clients.len() {
            let at = self.next_client % self.clients.len();
            let Some(client) = self.clients.get_mut(at) else {
                return;
            };
            let whole = self.train.len() / size;
            let count = match rate {
                None => whole,
                Some(rate) => {
                    let due = (client.since.elapsed().as_secs_f64() * rate).floor();
                    client.sent = client.sent.max(due - BACKLOG_MAX);
                    let count = due - client.sent;
                    // Between 0 and the backlog.
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "small and positive"
                    )]
                    let count = count.max(0.0) as usize;
                    count.min(whole)
                }
            };
            let bytes = count * size;
            if bytes > bytes_left {
                return;
            }
            self.next_client = at + 1;
            if let Some(train) = self.train.get_mut(..bytes)
                && count > 0
            {
                for packet in train.chunks_exact_mut(size) {
                    let header = Header {
                        session: client.session,
                        sequence: client.sequence,
                        is_measured: true,
                        // The clock of another process, which says nothing to the generator.
                        time: 0,
                    };
                    header.write(packet);
                    client.sequence += 1;
                }
                tx.send(client.endpoint, client.remote, train, size);
                client.sent += count as f64;
                bytes_left -= bytes;
                add(&self.counters.sent, count as u64);
                add(&self.counters.sent_bytes, bytes as u64);
            }
        }
    }
}

impl TurnHandler for Shard {
    fn turn_ended(&mut self, tx: &mut SendQueue, _: &mut impl Sockets) {
        if let Task::Source { rate, size } = self.task {
            self.send_due(rate, size, tx);
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(CPU_EVERY) {
            self.publish_cpu();
        }
    }
}

impl DatagramHandler for Shard {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        let count = message.segment_count();
        let seen = Seen {
            datagrams: count as u64,
            bytes: message.bytes.len() as u64,
        };
        add(&self.counters.received, seen.datagrams);
        add(&self.counters.received_bytes, seen.bytes);
        let is_new = self.sources.count(message.remote, seen);
        match self.task {
            Task::Reflect => {
                let segment = message.segment.min(message.bytes.len());
                let run = Run {
                    start: 0,
                    stride: segment,
                    len: segment,
                    last_len: message.bytes.len() - (count - 1) * segment,
                    count,
                };
                tx.forward(message.endpoint, message.remote, message, run, &[], 0);
                add(&self.counters.sent, seen.datagrams);
                add(&self.counters.sent_bytes, seen.bytes);
            }
            Task::Sink => {}
            Task::Source { .. } if is_new => self.clients.push(Client {
                endpoint: message.endpoint,
                remote: message.remote,
                session: session_of(message),
                since: Instant::now(),
                sent: 0.0,
                sequence: 0,
            }),
            Task::Source { .. } => {}
        }
    }

    fn send_failed(&mut self, _: EndpointId, datagrams: u32, _: SendFailure) {
        add(&self.counters.failed, datagrams.into());
    }
}

impl StreamHandler for Shard {}
