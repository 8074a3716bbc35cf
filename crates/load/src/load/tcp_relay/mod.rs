//! `turnbuckle load tcp-relay`: bytes through TCP relays (RFC 6062), counted both ways and looked at.
//!
//! Each client has a control connection with an allocation, and a data connection bound to one with a peer ([`worker`]), by TCP or TLS. Worker threads
//! send and receive at once: a stream is one thing, and what a slow reader does to its writer is part of what is measured. Nothing
//! may be missing, come twice or change its place in a stream, so each of these counts as a corrupted packet.

mod connection;
mod report;
mod task;
mod worker;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::json;

pub(crate) use self::report::TcpRelayReport;
use self::task::{Opened, Outcome, Pace, Packets, Route, Shown, Task, Way};
use super::access::Access;
use super::allow_descriptors;
use super::arguments::{Arguments, PACKETS_MAX};
use super::phase::{DRAINED, MEASURING, OVER, WARMING_UP};
use super::report::{Progress, Totals, failures_sentence, failures_with_names};
use super::run::{ALL_HERE, TICK};
use crate::cli;
use crate::output;
use crate::stop::Stop;
use crate::threads::{self, Clock, OwnLines};
use turnbuckle_client::{Failure, Path, Plan, Relay, Terms};

/// For streams from end to end, on which nothing is dropped at all: what does not arrive is a bug, so it may take its time.
const RELAYED_STREAM_QUIET: Duration = Duration::from_secs(10);
const RELAYED_STREAM_DRAIN_MAX: Duration = Duration::from_secs(120);

/// Runs the mode.
///
/// # Errors
/// A thread cannot be placed, or no client gets a connection.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    allow_descriptors(arguments.volume.clients * 2);
    let stop = Stop::on_signals()?;
    let mut run = Run::open(arguments)?;
    run.open_clients()?;
    let progress = Progress::new(arguments);
    run.measure(&stop, &|now, totals| progress.show(now, totals));
    drop(progress);
    let report = run.finish()?;
    report.print();
    Ok(report.exit_code())
}

struct Worker {
    shown: Arc<OwnLines<Shown>>,
    handle: JoinHandle<anyhow::Result<Outcome>>,
}

/// A run under way.
pub(crate) struct Run {
    arguments: Arguments,
    clock: Clock,
    phase: Arc<AtomicU8>,
    begin: Arc<AtomicU64>,
    workers: Vec<Worker>,
    reports: mpsc::Receiver<anyhow::Result<Opened>>,
    clients_ready: usize,
    clients_failed: BTreeMap<Failure, u64>,
    window_ns: u64,
}

impl Run {
    /// Starts the threads that open the clients.
    pub(crate) fn open(arguments: &Arguments) -> anyhow::Result<Self> {
        let (report, reports) = mpsc::channel();
        let mut run = Self {
            arguments: arguments.clone(),
            clock: Clock::start(),
            phase: Arc::new(AtomicU8::new(WARMING_UP)),
            begin: Arc::default(),
            workers: Vec::new(),
            reports,
            clients_ready: 0,
            clients_failed: BTreeMap::new(),
            window_ns: 0,
        };
        run.start(&report)?;
        Ok(run)
    }

    fn start(&mut self, report: &mpsc::Sender<anyhow::Result<Opened>>) -> anyhow::Result<()> {
        let arguments = &self.arguments;
        let server = arguments.ends.server.context("no server")?;
        let way = match (arguments.flows.pairs, arguments.flows.passive) {
            (true, _) => Way::Pairs,
            (false, true) => Way::Passive,
            (false, false) => Way::Peer,
        };
        let tls = match arguments.access()? {
            Access::Tls(tls) => Some(tls),
            _ => None,
        };
        let credentials = arguments.who()?.context("nobody to be")?;
        let plan_to = |peer| {
            let of_peer = arguments.family_of(peer);
            Arc::new(Plan {
                origin: arguments.habits.origin.clone(),
                terms: Terms {
                    relay: Relay::Tcp,
                    family: of_peer,
                    ..Terms::default()
                },
                peer: peer.map(|peer| (peer, Path::Connection)),
                is_reliable: true,
                ..Plan::new(credentials.clone())
            })
        };
        let clients = arguments.volume.clients;
        let auto = threads::available();
        let number = arguments.machine.listener_threads;
        let number = number.or(auto, clients.min(cli::THREADS_MAX));
        let mut sessions_of = vec![Vec::new(); number];
        for session in 0..clients {
            // Both of a pair in one thread.
            let turn = if way == Way::Pairs {
                session / 2
            } else {
                session
            };
            if let Some(list) = sessions_of.get_mut(turn % number) {
                list.push(u32::try_from(session)?);
            }
        }
        let rate = arguments.total_rate();
        let seed = arguments.seed();
        for (index, sessions) in sessions_of.into_iter().enumerate() {
            let peers = &arguments.ends.peer;
            // A thread has one peer; threads take turns.
            let peer = peers.get(index % peers.len().max(1)).copied();
            let shown = Arc::<OwnLines<Shown>>::default();
            let task = Task {
                clock: self.clock,
                phase: Arc::clone(&self.phase),
                begin: Arc::clone(&self.begin),
                shown: Arc::clone(&shown),
                way,
                plan: plan_to(peer.filter(|_| way == Way::Peer)),
                route: Route {
                    server,
                    tls: tls.clone(),
                    local: arguments.local(server),
                },
                sessions,
                packets: Packets {
                    size: arguments.volume.size,
                    count: arguments.volume.packets.unwrap_or(PACKETS_MAX),
                    pace: rate.map(|rate| Pace {
                        per_client: rate / clients as f64,
                        clients,
                    }),
                },
                seed: seed.wrapping_add((index as u64) << 32),
                report: report.clone(),
            };
            let cpus = arguments.machine.cpus.clone();
            let name = format!("relay-{index}");
            let handle = thread::Builder::new().name(name).spawn(move || {
                threads::pin(cpus.as_ref(), index)?;
                worker::run(task)
            })?;
            self.workers.push(Worker { shown, handle });
        }
        Ok(())
    }

    /// Waits until every client knows whether it has its connections, and lets them send.
    pub(crate) fn open_clients(&mut self) -> anyhow::Result<()> {
        for _ in 0..self.workers.len() {
            let opened = self.reports.recv().context("a thread ended")??;
            self.clients_ready += opened.ready;
            for (failure, count) in opened.failures {
                *self.clients_failed.entry(failure).or_default() += count;
            }
        }
        if self.clients_ready == 0 {
            self.phase.store(DRAINED, Ordering::Relaxed);
            bail!(
                "none of {} clients got a connection: {}",
                self.arguments.volume.clients,
                failures_sentence(&self.clients_failed)
            );
        }
        if self.arguments.verdict.json {
            output::event(&json!({
                "event": "ready",
                "clients": self.clients_ready,
                "clients_failed": self.clients_failed.values().sum::<u64>(),
                "threads": self.workers.len(),
            }));
        }
        if self.arguments.pace.warm_up.is_zero() {
            // The first packet counts.
            self.phase.store(MEASURING, Ordering::Relaxed);
        }
        let begin = self.clock.now() + 10_000_000;
        self.begin.store(begin, Ordering::Relaxed);
        Ok(())
    }

    fn now(&self) -> Totals {
        let mut now = Totals::default();
        for Worker { shown, .. } in &self.workers {
            now.sent += shown.sent.load(Ordering::Relaxed);
            now.measured += shown.measured.load(Ordering::Relaxed);
            now.received += shown.received.load(Ordering::Relaxed);
            now.arrived += shown.arrived.load(Ordering::Relaxed);
            now.allocated += shown.allocated.load(Ordering::Relaxed);
        }
        now
    }

    /// Warms up, measures, and waits for what is under way.
    pub(crate) fn measure(&mut self, stop: &Stop, show: &dyn Fn(u64, &Totals)) {
        self.pass(self.arguments.pace.warm_up, stop, show);
        let begin = self.clock.now();
        self.phase.store(MEASURING, Ordering::Relaxed);
        if self.arguments.verdict.json {
            output::event(&json!({"event": "measuring"}));
        }
        self.pass(self.arguments.pace.duration, stop, show);
        self.phase.store(OVER, Ordering::Relaxed);
        self.window_ns = self.clock.now() - begin;
        if self.arguments.verdict.json {
            output::event(&json!({"event": "measured"}));
        }
        self.drain();
        while self.arguments.habits.stays && !stop.is_ended() && !self.has_dead_thread() {
            thread::sleep(TICK);
        }
        self.phase.store(DRAINED, Ordering::Relaxed);
    }

    fn has_dead_thread(&self) -> bool {
        let is_dead = |worker: &Worker| worker.handle.is_finished();
        self.workers.iter().any(is_dead)
    }

    fn is_done(&self) -> bool {
        let packets = self.arguments.volume.packets;
        let is_sent =
            |packets: u64| self.now().sent >= packets.saturating_mul(self.clients_ready as u64);
        packets.is_some_and(is_sent)
    }

    fn pass(&self, time: Duration, stop: &Stop, show: &dyn Fn(u64, &Totals)) {
        let end = self.clock.now() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2);
        loop {
            let left = end.saturating_sub(self.clock.now());
            if left == 0 || stop.is_ended() || self.has_dead_thread() || self.is_done() {
                return;
            }
            thread::sleep(TICK.min(Duration::from_nanos(left)));
            show(self.clock.now(), &self.now());
        }
    }

    /// Waits for what is under way, also after a signal.
    fn drain(&self) {
        let begin = self.clock.now();
        let passed = |since: u64| Duration::from_nanos(self.clock.now() - since);
        let (mut last, mut last_change) = (self.now().arrived, begin);
        while passed(begin) < RELAYED_STREAM_DRAIN_MAX && passed(last_change) < RELAYED_STREAM_QUIET
        {
            thread::sleep(TICK);
            let now = self.now();
            if now.received >= now.measured && passed(last_change) > ALL_HERE {
                return;
            }
            if now.arrived != last {
                (last, last_change) = (now.arrived, self.clock.now());
            }
        }
    }

    /// Returns how many clients send.
    pub(crate) fn clients_ready(&self) -> usize {
        self.clients_ready
    }

    /// Returns why clients have no connection, and how many; for people.
    pub(crate) fn clients_failed(&self) -> Vec<(String, u64)> {
        failures_with_names(&self.clients_failed)
    }

    /// Gives up: releases what there is and reports nothing.
    pub(crate) fn close(self) {
        self.phase.store(DRAINED, Ordering::Relaxed);
        for worker in self.workers {
            let _ = worker.handle.join();
        }
    }

    pub(crate) fn finish(self) -> anyhow::Result<TcpRelayReport> {
        let mut outcomes = Vec::new();
        for worker in self.workers {
            let outcome = worker.handle.join();
            outcomes.push(outcome.map_err(|_| anyhow::anyhow!("a thread panicked"))??);
        }
        TcpRelayReport::new(self.arguments, self.window_ns, outcomes)
    }
}
