//! A run: its threads from their start to what they report.

mod measuring;

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::json;
use turnbuckle_client::{Failure, Path, Plan, Terms};
use turnbuckle_datapath::{Backend, BufferSettings, Settings};
use turnbuckle_wire::ChannelNumber;

pub(super) use self::measuring::{ALL_HERE, TICK};
use super::arguments::{Arguments, Mode, PACKETS_MAX};
use super::drive;
use super::listener::{self, Duty, Manner, Opened, Route, Seen};
use super::phase::{DRAINED, MEASURING, OVER, WARMING_UP};
use super::report::{self, Report, Totals};
use super::sender::{self, Pace, Sent};
use super::session::{self, Leavers, Via};
use crate::cli;
use crate::output;
use crate::reach::Reach;
use crate::threads::{self, Clock, OwnLines};

/// Sequence numbers remembered, of all sessions together.
const WINDOWS: usize = 1 << 24;
const WINDOW_MAX: usize = 1 << 16;
const WINDOW_MIN: usize = 1 << 10;
/// Receive buffers of all sockets together, bytes, shared out within limits.
const BUFFERS: usize = 64 << 20;

struct ListenerThread {
    seen: Arc<OwnLines<Seen>>,
    /// Where this thread sends as well.
    sending: Option<mpsc::Sender<sender::Task>>,
    sent: Arc<OwnLines<Sent>>,
    id: i32,
    handle: JoinHandle<anyhow::Result<drive::Outcome>>,
}

struct SenderThread {
    sent: Arc<OwnLines<Sent>>,
    id: i32,
    handle: JoinHandle<anyhow::Result<sender::Outcome>>,
}

/// The clients of a run, once they know what they have.
#[derive(Default)]
struct Crew {
    ports: HashSet<u16>,
    /// Clients that have what they need.
    clients: usize,
    /// What sends: a client, or each of its two relayed addresses; in a cycle the clients at work.
    flows: usize,
    /// Where clients leave early, what they send in all.
    packets_wanted: Option<u64>,
    failures: BTreeMap<Failure, u64>,
}

/// A run under way.
pub(crate) struct Run {
    arguments: Arguments,
    clock: Clock,
    phase: Arc<AtomicU8>,
    backend: Backend,
    settings: Settings,
    seed: u64,
    listeners: Vec<ListenerThread>,
    reports: mpsc::Receiver<anyhow::Result<Opened>>,
    senders: Vec<SenderThread>,
    crew: Crew,
    /// CPU time of each thread when the window opened.
    cpu_before: Vec<u64>,
    totals: Totals,
}

impl Run {
    /// Starts the threads that open the clients.
    pub(crate) fn open(arguments: &Arguments) -> anyhow::Result<Self> {
        let backend = arguments.machine.backend.resolve();
        let buffer = (BUFFERS / arguments.volume.clients).clamp(64 << 10, 8 << 20);
        let settings = Settings {
            backend,
            coalesce: Duration::ZERO,
            buffers: BufferSettings {
                listener: u32::try_from(buffer).unwrap_or(u32::MAX),
                ..BufferSettings::default()
            },
            ..Settings::default()
        };
        let seed = arguments.seed();
        let (report, reports) = mpsc::channel();
        let mut run = Self {
            arguments: arguments.clone(),
            clock: Clock::start(),
            phase: Arc::new(AtomicU8::new(WARMING_UP)),
            backend,
            settings,
            seed,
            listeners: Vec::new(),
            reports,
            senders: Vec::new(),
            crew: Crew::default(),
            cpu_before: Vec::new(),
            totals: Totals::default(),
        };
        run.start_listeners(&report)?;
        Ok(run)
    }

    fn duty(&self) -> Duty {
        match self.arguments.mode {
            _ if self.arguments.lacks.direct || self.has_tunnels() => Duty::Direct,
            Mode::Invalid => Duty::Junk,
            Mode::Alloc => Duty::Cycle,
            Mode::Packet | Mode::Rate | Mode::Mix | Mode::Hold => Duty::Hold,
            // They have programs of their own.
            Mode::Negative | Mode::TcpRelay => Duty::Hold,
        }
    }

    /// Returns whether clients have tunnels in place of allocations.
    fn has_tunnels(&self) -> bool {
        self.arguments.ends.transport == Reach::Masque
    }

    /// Returns which clients leave early; `None` if none does.
    fn leavers(&self) -> Option<Leavers> {
        let leavers = Leavers { seed: self.seed };
        self.arguments.habits.leaves_early.then_some(leavers)
    }

    /// Returns whether listeners send, as what a client has cannot be shared with another thread.
    fn is_sent_by_listeners(&self) -> bool {
        self.arguments.ends.transport != Reach::UDP || self.arguments.moves().is_some()
    }

    /// Returns how many threads do nothing but send.
    fn sender_count(&self) -> usize {
        if self.is_sent_by_listeners() {
            return 0;
        }
        let auto = threads::available() / 2;
        let senders = self.arguments.machine.sender_threads;
        senders.or(auto, self.arguments.volume.clients.min(cli::THREADS_MAX))
    }

    fn start_listeners(
        &mut self,
        report: &mpsc::Sender<anyhow::Result<Opened>>,
    ) -> anyhow::Result<()> {
        let clients = self.arguments.volume.clients;
        let auto = match self.sender_count() {
            0 => threads::available(),
            _ => threads::available() / 2,
        };
        let number = self
            .arguments
            .machine
            .listener_threads
            .or(auto, clients.min(cli::THREADS_MAX));
        let senders = self.sender_count();
        let plans = self.plans()?;
        let access = self.arguments.access()?;
        let window = (WINDOWS / clients)
            .next_power_of_two()
            .clamp(WINDOW_MIN, WINDOW_MAX);
        let mut clients_of = vec![Vec::new(); number];
        for (session, plan) in plans.into_iter().enumerate() {
            let session_number = u32::try_from(session)?;
            let at = self.listener_of(session, number);
            if let Some(list) = clients_of.get_mut(at) {
                list.push((session_number, plan));
            }
        }
        for (index, clients) in clients_of.into_iter().enumerate() {
            let seen = Arc::<OwnLines<Seen>>::default();
            let to = self.to(index)?;
            let (sending, tasks) = self.is_sent_by_listeners().then(mpsc::channel).unzip();
            let task = listener::Task {
                clock: self.clock,
                phase: Arc::clone(&self.phase),
                seen: Arc::clone(&seen),
                settings: self.settings.clone(),
                manner: Manner {
                    duty: self.duty(),
                    pairs: self
                        .arguments
                        .flows
                        .pairs
                        .then(|| self.path())
                        .transpose()?,
                    leavers: self.leavers(),
                },
                route: Route {
                    access: access.clone(),
                    local: self.arguments.local(to),
                    to,
                },
                moves: self.arguments.moves(),
                clients,
                seed: self.seed.wrapping_add((index as u64) << 32),
                window,
                report: report.clone(),
                sending: tasks,
            };
            let (id, handle) =
                self.spawn(format!("listener-{index}"), senders + index, move || {
                    drive::run(task)
                })?;
            self.listeners.push(ListenerThread {
                seen,
                sending,
                sent: Arc::default(),
                id,
                handle,
            });
        }
        Ok(())
    }

    /// Returns which of `number` listeners has a session.
    fn listener_of(&self, session: usize, number: usize) -> usize {
        // Both of a pair in one thread, and all tunnels of a connection.
        let together = match self.arguments.flows.pairs {
            true => 2,
            false => self.arguments.tunnels_per_connection(),
        };
        session / together % number
    }

    /// Starts a thread on its CPU; returns the number the kernel knows it by.
    fn spawn<T: Send + 'static>(
        &self,
        name: String,
        place: usize,
        work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<(i32, JoinHandle<anyhow::Result<T>>)> {
        let cpus = self.arguments.machine.cpus.clone();
        let (sender, receiver) = mpsc::channel();
        let handle = thread::Builder::new().name(name).spawn(move || {
            let pinned = threads::pin(cpus.as_ref(), place);
            let _ = sender.send(pinned.map(|()| threads::id()));
            work()
        })?;
        let id = receiver.recv().context("a thread ended at once")??;
        Ok((id, handle))
    }

    /// Returns where the datagrams of a listener's clients go.
    fn to(&self, index: usize) -> anyhow::Result<SocketAddr> {
        let peers = &self.arguments.ends.peer;
        let to = match self.arguments.ends.server {
            Some(server) => Some(server),
            None => peers.get(index % peers.len().max(1)).copied(),
        };
        to.context("nobody to send to")
    }

    fn plans(&self) -> anyhow::Result<Vec<Option<Arc<Plan>>>> {
        let arguments = &self.arguments;
        let credentials = arguments.who()?.filter(|_| !self.has_tunnels());
        let Some(credentials) = credentials else {
            return Ok(vec![None; arguments.volume.clients]);
        };
        let path = self.path()?;
        let second_path = match path {
            Path::Channel(_) => Path::Channel(ChannelNumber::try_from(0x4001)?),
            other => other,
        };
        let (peers, second_peer) = arguments.peers();
        let plan = |peer: Option<SocketAddr>| {
            Some(Arc::new(Plan {
                credentials: credentials.clone(),
                peer: peer.map(|peer| (peer, path)),
                second_peer: second_peer.map(|peer| (peer, second_path)),
                terms: Terms {
                    is_dual: arguments.flows.dual,
                    mobility: arguments.moves().is_some(),
                    dont_fragment: arguments.flows.dont_fragment,
                    family: arguments.family_of(peer),
                    ..Terms::default()
                },
                origin: arguments.habits.origin.clone(),
                companion: peer.and_then(|peer| arguments.companion_of(peer)),
                asks_for_no_permission: arguments.habits.asks_for_no_permission,
                asks_often: arguments.habits.asks_often,
                is_reliable: arguments.ends.transport.is_stream(),
            }))
        };
        if !arguments.mode.has_packets() || arguments.flows.pairs {
            return Ok(vec![plan(None); arguments.volume.clients]);
        }
        let plans: Vec<_> = peers.into_iter().map(|peer| plan(Some(peer))).collect();
        let in_turn = plans.iter().cycle().take(arguments.volume.clients);
        Ok(in_turn.cloned().collect())
    }

    /// Returns how data goes to the peer.
    fn path(&self) -> anyhow::Result<Path> {
        if self.arguments.form.indications {
            return Ok(Path::Indications);
        }
        let first = ChannelNumber::try_from(0x4000).map_err(|_| anyhow::anyhow!("channel"))?;
        Ok(Path::Channel(first))
    }

    /// Waits until every client knows whether it has an allocation, and starts the senders.
    pub(crate) fn open_clients(&mut self) -> anyhow::Result<()> {
        let mut ready = Vec::new();
        for _ in 0..self.listeners.len() {
            let opened = self.reports.recv().context("a thread ended")??;
            ready.extend(opened.ready);
            self.crew.ports.extend(opened.ports);
            for (failure, count) in opened.failures {
                *self.crew.failures.entry(failure).or_default() += count;
            }
        }
        let is_first = |ready: &&session::Ready| ready.session & listener::SECOND_FLOW == 0;
        let clients = ready.iter().filter(is_first).count();
        self.crew.flows = match self.arguments.mode {
            Mode::Alloc => self.arguments.volume.clients,
            _ => ready.len(),
        };
        self.crew.clients = clients;
        let needs_clients = self.arguments.mode != Mode::Alloc;
        let refusals = report::failures_sentence(&self.crew.failures);
        // Before the error: a program that reads the events learns from this one that there is none to wait for.
        if self.arguments.verdict.json {
            output::event(&json!({
                "event": "ready",
                "clients": clients,
                "clients_failed": self.crew.failures.values().sum::<u64>(),
                "refusals": refusals,
                "backend": self.backend.as_str(),
                "transport": self.arguments.ends.transport.as_str(),
                "sender_threads": if needs_clients { self.sender_count() } else { 0 },
                "listener_threads": self.listeners.len(),
            }));
        }
        if needs_clients && clients == 0 {
            self.phase.store(DRAINED, Ordering::Relaxed);
            bail!(
                "none of {} clients got {}: {}",
                self.arguments.volume.clients,
                if self.has_tunnels() {
                    "a tunnel"
                } else {
                    "an allocation"
                },
                if refusals.is_empty() {
                    "no answer"
                } else {
                    &refusals
                }
            );
        }
        if self.arguments.pace.warm_up.is_zero() {
            // The first packet counts.
            self.phase.store(MEASURING, Ordering::Relaxed);
        }
        if needs_clients {
            ready.sort_unstable_by_key(|ready| ready.session);
            self.start_senders(ready)?;
        }
        Ok(())
    }

    fn start_senders(&mut self, ready: Vec<session::Ready>) -> anyhow::Result<()> {
        let clients = ready.len();
        let pace = match self.arguments.total_rate() {
            None => Pace::Flood,
            Some(rate) => Pace::Rate(sender::Rate {
                rate,
                clients,
                burst: u64::from(self.arguments.pace.burst),
            }),
        };
        let own_threads = self.sender_count().min(clients);
        let number = own_threads.max(self.listeners.len());
        let mut clients_of: Vec<Vec<_>> = (0..number).map(|_| Vec::new()).collect();
        for (place, ready) in ready.into_iter().enumerate() {
            let session = ready.session & !listener::SECOND_FLOW;
            let at = match (&ready.via, usize::try_from(session)) {
                (Via::Listener(_), Ok(session)) => self.listener_of(session, self.listeners.len()),
                _ => place % own_threads.max(1),
            };
            if let Some(list) = clients_of.get_mut(at) {
                list.push((place, ready));
            }
        }
        if let Some(leavers) = self.leavers() {
            let packets = self.arguments.volume.packets.unwrap_or(PACKETS_MAX);
            let ready = clients_of.iter().flatten();
            let each = ready.map(|(_, ready)| leavers.packets_of(ready.session, packets));
            self.crew.packets_wanted = Some(each.fold(0, u64::saturating_add));
        }
        let begin = self.clock.now() + 10_000_000;
        for (index, clients) in clients_of.into_iter().enumerate() {
            if clients.is_empty() {
                continue;
            }
            let listener = self.listeners.get(index);
            let listener = listener.filter(|listener| listener.sending.is_some());
            let sent = listener.map_or_else(Arc::default, |it| Arc::clone(&it.sent));
            let is_junk = self.arguments.mode == Mode::Invalid;
            let task = sender::Task {
                clock: self.clock,
                phase: Arc::clone(&self.phase),
                sent: Arc::clone(&sent),
                settings: self.settings.clone(),
                pace,
                size: self.arguments.volume.size,
                packets: self.arguments.volume.packets.unwrap_or(PACKETS_MAX),
                begin,
                junk: is_junk.then_some(self.seed.wrapping_add(index as u64)),
                is_stream: self.arguments.ends.transport.is_stream() || self.arguments.habits.pads,
                leavers: self.leavers(),
                clients,
            };
            if let Some(sending) = listener.and_then(|listener| listener.sending.as_ref()) {
                // It fails if the thread has ended, which its handle tells.
                let _ = sending.send(task);
                continue;
            }
            let (id, handle) =
                self.spawn(format!("sender-{index}"), index, move || sender::run(task))?;
            self.senders.push(SenderThread { sent, id, handle });
        }
        Ok(())
    }

    /// Returns why clients have no allocation, and how many; for people.
    pub(crate) fn clients_failed(&self) -> Vec<(String, u64)> {
        report::failures_with_names(&self.crew.failures)
    }

    /// Describes for people how the run is done.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{} clients by {}, {} sender threads, {} listener threads, data path: {}",
            self.crew.clients,
            self.arguments.ends.transport.as_str(),
            self.senders.len(),
            self.listeners.len(),
            self.backend
        )
    }

    /// Gives up: releases what there is and reports nothing.
    pub(crate) fn close(self) {
        self.phase.store(OVER, Ordering::Relaxed);
        for thread in self.senders {
            let _ = thread.handle.join();
        }
        self.phase.store(DRAINED, Ordering::Relaxed);
        for thread in self.listeners {
            let _ = thread.handle.join();
        }
    }

    pub(crate) fn finish(self) -> anyhow::Result<Report> {
        let mut senders = Vec::new();
        for thread in self.senders {
            let outcome = thread.handle.join();
            let outcome = outcome.map_err(|_| anyhow::anyhow!("a sender thread panicked"))??;
            senders.push((thread.sent.measured.load(Ordering::Relaxed), outcome));
        }
        let mut listeners = Vec::new();
        for thread in self.listeners {
            let outcome = thread.handle.join();
            let outcome = outcome.map_err(|_| anyhow::anyhow!("a listener thread panicked"))??;
            listeners.push((thread.sent.measured.load(Ordering::Relaxed), outcome));
        }
        Report::new(self.arguments, self.totals, senders, listeners)
    }
}
