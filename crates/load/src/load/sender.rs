//! Sending packets, at a pace or as fast as it goes; for datagrams in a thread of its own ([`run`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use turnbuckle_datapath::{
    DatagramHandler, Datapath, EndpointId, Received, SendFailure, SendQueue, Settings, Sockets,
    StreamHandler, TurnHandler,
};

use super::figures::histogram;
use super::junk::{self, Junk};
use super::phase::{OVER, Phase};
use super::session::{Caller, Leavers, Ready, Via};
use crate::threads::{self, Clock, OwnLines};

/// Datagrams of a train of a flood.
const TRAIN: usize = 64;
/// Trains of a turn of a flood.
const TRAINS: usize = 8;
/// Datagrams of a paced turn at most; a sender that is late catches up in several.
const TURN_MAX: usize = 1_024;
/// Pauses shorter than this are not worth a system call.
const NO_PAUSE_NS: u64 = 2_000;

/// What a sender counts for others to see.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Datagrams of the measured window, those given up subtracted.
    pub(super) measured: AtomicU64,
    /// All datagrams.
    pub(super) all: AtomicU64,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pace {
    /// As much as possible.
    Flood,
    /// Packet number k of all clients together at k / `rate` seconds, the clients taking turns; the time that a packet carries is when it was
    /// due, so that a late sender shows as delay and not as a quiet spell.
    Rate(Rate),
}

/// Packets at a rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    /// Packets per second of all clients.
    pub(super) rate: f64,
    pub(super) clients: usize,
    /// Packets of a client that are due at the same time; 1 spreads all evenly.
    pub(super) burst: u64,
}

impl Rate {
    /// Returns when a client's packet of this round is due.
    fn due(self, begin: u64, round: u64, place: usize) -> u64 {
        let round = round - round % self.burst;
        let number = round as f64 * self.clients as f64 + place as f64;
        // Positive, and within the range of the clock for any run that ends.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive and far below 2^64"
        )]
        let offset = (number * 1e9 / self.rate) as u64;
        begin + offset
    }
}

/// By what packets leave. Sessions are named by their place among the sender's.
pub(super) trait Media {
    /// Returns whether a session takes more of a flood.
    fn has_room(&mut self, session: usize) -> bool;

    /// Sends messages of `len` bytes each, the last one perhaps shorter.
    fn send(&mut self, session: usize, train: &[u8], len: usize);
}

/// What a sender is told.
pub(super) struct Task {
    pub(super) clock: Clock,
    pub(super) phase: Arc<AtomicU8>,
    pub(super) sent: Arc<OwnLines<Sent>>,
    pub(super) settings: Settings,
    pub(super) pace: Pace,
    pub(super) size: usize,
    /// Packets of each client; none after that.
    pub(super) packets: u64,
    /// When the pace begins, on the clock.
    pub(super) begin: u64,
    /// Junk in place of packets, from this seed.
    pub(super) junk: Option<u64>,
    /// Over a stream messages are padded.
    pub(super) is_stream: bool,
    /// Clients that send less.
    pub(super) leavers: Option<Leavers>,
    /// The clients of this thread with their place in the order of all.
    pub(super) clients: Vec<(usize, Ready)>,
}

/// What a sender leaves.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) sent_bytes: u64,
    pub(super) failed: u64,
    pub(super) send_calls: u64,
    pub(super) gso_sends: u64,
    /// How much later than due packets were sent, nanoseconds.
    pub(super) lateness: Histogram<u64>,
}

impl Outcome {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            sent_bytes: 0,
            failed: 0,
            send_calls: 0,
            gso_sends: 0,
            lateness: histogram()?,
        })
    }

    pub(super) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.sent_bytes += other.sent_bytes;
        self.failed += other.failed;
        self.send_calls += other.send_calls;
        self.gso_sends += other.gso_sends;
        self.lateness.add(&other.lateness)?;
        Ok(())
    }
}

/// What sends, whatever the transport.
pub(super) struct Sender {
    clock: Clock,
    phase: Phase,
    sent: Arc<OwnLines<Sent>>,
    pace: Pace,
    begin: u64,
    turns: Turns,
    junk: Option<Junk>,
    packets: u64,
    train: Vec<u8>,
    counted: Counted,
}

/// Whose turn it is.
struct Turns {
    /// Place in the order of all clients, and the session.
    sessions: Vec<(usize, Caller)>,
    next: usize,
    /// Times that every session has had its turn.
    rounds: u64,
}

/// What was sent.
struct Counted {
    all: u64,
    /// Of those, the ones that count.
    measured: u64,
    measured_bytes: u64,
    failed: u64,
    lateness: Histogram<u64>,
}

/// Runs a sender thread for datagrams, which shares the sockets of the listeners.
pub(super) fn run(task: Task) -> anyhow::Result<Outcome> {
    let mut datapath = Datapath::new(task.settings.clone())?;
    let (sender, ways) = Sender::new(task)?;
    let mut endpoints = Vec::new();
    for via in ways {
        let Via::Socket { socket, to } = via else {
            anyhow::bail!("no socket to send from");
        };
        endpoints.push((datapath.adopt(socket, 0)?, to));
    }
    let mut thread = OnDatapath { sender, endpoints };
    let _ = threads::fine_sleep();
    while !thread.sender.turns.sessions.is_empty() && thread.sender.phase.look() < OVER {
        if thread.sender.is_done() {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        }
        if let Some(due) = thread.sender.next_due() {
            let wait = due.saturating_sub(thread.sender.clock.now());
            if wait > NO_PAUSE_NS {
                // Not for long: the end of the run must be seen.
                std::thread::sleep(Duration::from_nanos(wait.min(20_000_000)));
                continue;
            }
        }
        datapath.turn(Some(Duration::ZERO), &mut thread)?;
        thread.sender.publish();
    }
    let sending = &datapath.counters().send;
    Ok(Outcome {
        send_calls: sending.calls.get(),
        gso_sends: sending.gso_sends.get(),
        ..thread.sender.finish()
    })
}

/// A sender whose packets are datagrams.
struct OnDatapath {
    sender: Sender,
    endpoints: Vec<(EndpointId, SocketAddr)>,
}

impl TurnHandler for OnDatapath {
    fn turn_started(&mut self) {
        self.sender.turn_started();
    }

    fn turn_ended(&mut self, tx: &mut SendQueue, _: &mut impl Sockets) {
        let endpoints = &self.endpoints;
        self.sender.send(&mut Datagrams { tx, endpoints });
    }
}

impl DatagramHandler for OnDatapath {
    fn received(&mut self, _: &Received<'_>, _: &mut SendQueue) {}

    fn send_failed(&mut self, _: EndpointId, datagrams: u32, _: SendFailure) {
        // Reported by the flush of the turn that queued them.
        self.sender.failed(datagrams);
    }
}

impl StreamHandler for OnDatapath {}

struct Datagrams<'a> {
    tx: &'a mut SendQueue,
    endpoints: &'a [(EndpointId, SocketAddr)],
}

impl Media for Datagrams<'_> {
    fn has_room(&mut self, _: usize) -> bool {
        true
    }

    #[inline]
    fn send(&mut self, session: usize, train: &[u8], len: usize) {
        if let Some(&(endpoint, to)) = self.endpoints.get(session) {
            self.tx.send(endpoint, to, train, len);
        }
    }
}

impl Sender {
    /// Takes over the sessions of a task, and returns with the sender by what each is to send.
    ///
    /// # Errors
    /// Packets do not fit.
    pub(super) fn new(task: Task) -> anyhow::Result<(Self, Vec<Via>)> {
        let mut sessions = Vec::new();
        let mut ways = Vec::new();
        for (place, ready) in task.clients {
            let packets = task.leavers.map_or(task.packets, |leavers| {
                leavers.packets_of(ready.session, task.packets)
            });
            let session = Caller::new(
                ready.session,
                ready.framing,
                task.size,
                packets,
                task.is_stream,
            )?;
            sessions.push((place, session));
            ways.push(ready.via);
        }
        let sender = Self {
            clock: task.clock,
            phase: Phase::new(&task.phase),
            sent: task.sent,
            pace: task.pace,
            begin: task.begin,
            turns: Turns {
                sessions,
                next: 0,
                rounds: 0,
            },
            junk: task.junk.map(Junk::new),
            packets: task.packets,
            train: Vec::with_capacity(65_536),
            counted: Counted {
                all: 0,
                measured: 0,
                measured_bytes: 0,
                failed: 0,
                lateness: histogram()?,
            },
        };
        Ok((sender, ways))
    }

    /// Returns whether the window has closed.
    pub(super) fn is_over(&self) -> bool {
        self.phase.is_over()
    }

    /// Begins a turn: looks at the phase of the run.
    pub(super) fn turn_started(&mut self) {
        self.phase.look();
    }

    /// Sends what is due, or in a flood some of it. Returns whether there is more to send at once.
    pub(super) fn send(&mut self, media: &mut impl Media) -> bool {
        match self.pace {
            _ if self.phase.is_over() => false,
            Pace::Flood => self.flood(media),
            Pace::Rate(rate) => {
                self.paced(rate, media);
                false
            }
        }
    }

    /// Counts datagrams as failed that were counted as sent and were not.
    pub(super) fn failed(&mut self, datagrams: u32) {
        if self.phase.is_measured() {
            self.counted.failed += u64::from(datagrams);
        }
    }

    pub(super) fn finish(self) -> Outcome {
        Outcome {
            sent_bytes: self.counted.measured_bytes,
            failed: self.counted.failed,
            send_calls: 0,
            gso_sends: 0,
            lateness: self.counted.lateness,
        }
    }

    /// Returns whether every session has sent all it is to send.
    pub(super) fn is_done(&self) -> bool {
        if self.junk.is_some() {
            return self.junk_left() == 0;
        }
        // They take turns, so that the last one is the last to end, unless there are some that send less.
        let last = self.turns.sessions.last();
        last.is_none_or(|(_, session)| session.sequence >= self.packets)
            || self.turns.rounds >= self.packets
    }

    fn junk_left(&self) -> u64 {
        let sum = self
            .packets
            .saturating_mul(self.turns.sessions.len() as u64);
        sum.saturating_sub(self.counted.all)
    }

    /// Returns when the next packet is due; `None` in a flood.
    pub(super) fn next_due(&self) -> Option<u64> {
        let Pace::Rate(rate) = self.pace else {
            return None;
        };
        let (place, _) = self.turns.sessions.get(self.turns.next)?;
        Some(rate.due(self.begin, self.turns.rounds, *place))
    }

    fn advance(&mut self) {
        self.turns.next += 1;
        if self.turns.next == self.turns.sessions.len() {
            self.turns.next = 0;
            self.turns.rounds += 1;
        }
    }

    fn count(&mut self, datagrams: usize, bytes: usize) {
        self.counted.all += datagrams as u64;
        if self.phase.is_measured() {
            self.counted.measured += datagrams as u64;
            self.counted.measured_bytes += bytes as u64;
        }
    }

    fn flood(&mut self, media: &mut impl Media) -> bool {
        let now = self.clock.now();
        let (mut trains, mut without_room) = (0, 0);
        while trains < TRAINS && without_room < self.turns.sessions.len() {
            let junk_left = usize::try_from(self.junk_left()).unwrap_or(usize::MAX);
            let at = self.turns.next;
            let Some((_, session)) = self.turns.sessions.get_mut(at) else {
                return false;
            };
            if !media.has_room(at) {
                without_room += 1;
                self.advance();
                continue;
            }
            let (count, bytes) = if let Some(junk) = &mut self.junk {
                if junk_left == 0 {
                    return false;
                }
                let (train, len) = junk.next(junk::TRAIN.min(junk_left));
                media.send(at, train, len);
                (train.len() / len, train.len())
            } else {
                let len = session.message_len();
                let left = session.packets.saturating_sub(session.sequence);
                let count = TRAIN
                    .min(65_507 / len)
                    .max(1)
                    .min(usize::try_from(left).unwrap_or(TRAIN));
                if count == 0 {
                    without_room += 1;
                    self.advance();
                    continue;
                }
                self.train.clear();
                for _ in 0..count {
                    session.append(&mut self.train, now, self.phase.is_measured());
                }
                media.send(at, &self.train, len);
                (count, self.train.len())
            };
            (trains, without_room) = (trains + 1, 0);
            self.count(count, bytes);
            self.advance();
        }
        trains > 0
    }

    fn paced(&mut self, rate: Rate, media: &mut impl Media) {
        let now = self.clock.now();
        for _ in 0..TURN_MAX {
            let at = self.turns.next;
            let Some((place, session)) = self.turns.sessions.get_mut(at) else {
                return;
            };
            let due = rate.due(self.begin, self.turns.rounds, *place);
            if due > now || self.turns.rounds >= self.packets {
                return;
            }
            if self.junk.is_some() {
                self.junk_due(rate, now, media);
                continue;
            }
            if session.sequence >= session.packets {
                self.advance();
                continue;
            }
            self.train.clear();
            session.append(&mut self.train, due, self.phase.is_measured());
            media.send(at, &self.train, self.train.len());
            let bytes = self.train.len();
            if self.phase.is_measured() {
                self.counted.lateness.saturating_record(now - due);
            }
            self.count(1, bytes);
            self.advance();
        }
    }

    /// Sends junk that is due as one train: one system call for each datagram would allow no rate worth asking for.
    fn junk_due(&mut self, rate: Rate, now: u64, media: &mut impl Media) {
        let Some(&(first_place, _)) = self.turns.sessions.get(self.turns.next) else {
            return;
        };
        let first = self.turns.next;
        let first_due = rate.due(self.begin, self.turns.rounds, first_place);
        let mut count = 0;
        while count < junk::TRAIN
            && self.turns.rounds < self.packets
            && self.next_due().is_some_and(|due| due <= now)
        {
            count += 1;
            self.advance();
        }
        if self.phase.is_measured() {
            self.counted.lateness.saturating_record(now - first_due);
        }
        let Some(junk) = &mut self.junk else {
            return;
        };
        let (train, len) = junk.next(count);
        media.send(first, train, len);
        let bytes = train.len();
        self.count(count, bytes);
    }

    /// Lets others see what was sent.
    pub(super) fn publish(&self) {
        let measured = self.counted.measured.saturating_sub(self.counted.failed);
        self.sent.measured.store(measured, Ordering::Relaxed);
        self.sent.all.store(self.counted.all, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Rate;

    #[test]
    fn packets_of_all_clients_are_spread_evenly() {
        let rate = Rate {
            rate: 1_000.0,
            clients: 4,
            burst: 1,
        };
        let times: Vec<u64> = (0..3)
            .flat_map(|round| (0..4).map(move |place| rate.due(7, round, place)))
            .collect();
        let expected: Vec<u64> = (0..12).map(|number| 7 + number * 1_000_000).collect();
        assert_eq!(times, expected);
    }

    #[test]
    fn the_pace_does_not_drift_over_a_day() {
        let day_ns = 86_400_000_000_000;
        let rate = Rate {
            rate: 30_000.0,
            clients: 1,
            burst: 1,
        };
        assert_eq!(rate.due(0, 86_400 * 30_000, 0), day_ns);
    }

    #[test]
    fn a_burst_is_due_at_once_and_the_next_after_as_many_intervals() {
        let rate = Rate {
            rate: 1_000.0,
            clients: 1,
            burst: 4,
        };
        let times: Vec<u64> = (0..9).map(|round| rate.due(0, round, 0)).collect();
        assert_eq!(times[..4], [0; 4]);
        assert_eq!(times[4..8], [4_000_000; 4]);
        assert_eq!(times[8], 8_000_000);
    }
}
