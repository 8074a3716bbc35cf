//! What a thread is told, shows meanwhile, and leaves.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::mpsc::Sender;

use hdrhistogram::Histogram;
use turnbuckle_client::{Failure, Plan};

use crate::load::access::Tls;
use crate::load::figures::{Allocations, Delays, histogram};
use crate::threads::{Clock, OwnLines};

/// Who connects to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The server to a peer that sends back what it gets.
    Peer,
    /// One client's relay to another one's, two and two.
    Pairs,
    /// This program, as a peer, to the relay.
    Passive,
}

/// What a thread counts for others to see.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) sent: AtomicU64,
    pub(super) measured: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) arrived: AtomicU64,
    pub(super) allocated: AtomicU64,
}

/// Packets of each client per second, evenly spread over the clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) per_client: f64,
    pub(super) clients: usize,
}

impl Pace {
    /// Returns when packet `number` of a client is due, nanoseconds, if the pace begins at `begin`.
    pub(super) fn due(self, begin: u64, session: u32, number: u64) -> u64 {
        let place = f64::from(session) / self.clients.max(1) as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive and far below 2^64"
        )]
        let offset = ((number as f64 + place) * 1e9 / self.per_client) as u64;
        begin + offset
    }
}

/// What a thread is told.
pub(super) struct Task {
    pub(super) clock: Clock,
    pub(super) phase: Arc<AtomicU8>,
    /// When the pace begins, on the clock; 0 as long as nobody is to send.
    pub(super) begin: Arc<AtomicU64>,
    pub(super) shown: Arc<OwnLines<Shown>>,
    pub(super) way: Way,
    pub(super) plan: Arc<Plan>,
    pub(super) route: Route,
    /// Numbers of the clients.
    pub(super) sessions: Vec<u32>,
    pub(super) packets: Packets,
    pub(super) seed: u64,
    pub(super) report: Sender<anyhow::Result<Opened>>,
}

/// The way to the server.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) server: SocketAddr,
    /// Without it by TCP alone.
    pub(super) tls: Option<Tls>,
    pub(super) local: IpAddr,
}

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packets {
    pub(super) size: usize,
    /// Packets of each client; none after that.
    pub(super) count: u64,
    /// Without it as fast as the connections go.
    pub(super) pace: Option<Pace>,
}

/// How many clients may send, once all have an answer.
#[derive(Debug, Default)]
pub(super) struct Opened {
    pub(super) ready: usize,
    pub(super) failures: BTreeMap<Failure, u64>,
}

/// What a thread leaves.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) corrupted: u64,
    /// Data connections that ended before the run did.
    pub(super) closed_early: u64,
    pub(super) allocations: Allocations,
    pub(super) delays: Delays,
    /// How much later than due packets were handed over, nanoseconds.
    pub(super) lateness: Histogram<u64>,
}

impl Outcome {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            sent: 0,
            received: 0,
            corrupted: 0,
            closed_early: 0,
            allocations: Allocations::default(),
            delays: Delays::new()?,
            lateness: histogram()?,
        })
    }

    pub(super) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        self.sent += other.sent;
        self.received += other.received;
        self.corrupted += other.corrupted;
        self.closed_early += other.closed_early;
        self.allocations.add(&other.allocations);
        self.delays.add(&other.delays)?;
        self.lateness.add(&other.lateness)?;
        Ok(())
    }
}
