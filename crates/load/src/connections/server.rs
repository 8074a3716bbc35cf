//! `turnbuckle accept-server`.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::ValueEnum;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use turnbuckle_client::descriptors;
use turnbuckle_sys::accept_ring::{AcceptEvent, AcceptRing};
use turnbuckle_sys::cpus::allowed_cpus;
use turnbuckle_sys::descriptors::unshare_descriptors;
use turnbuckle_sys::steering::steer_by_cpu;

use super::errors::{self, Errors};
use super::limits;
use crate::cli;
use crate::output;
use crate::stop::Stop;
use crate::threads::{self, OwnLines};

/// Connections accepted, and events read, per wake: the originals' number.
const BATCH: usize = 128;
/// How often a worker looks whether the run has ended.
const TICK: Duration = Duration::from_millis(20);
/// How long a worker goes on after the end of the run while there is something left to accept or to close.
const REST: Duration = Duration::from_secs(1);
/// The listening socket among the places of connections.
const LISTENER: u64 = u64::MAX;

/// How workers share the connections that come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Strategy {
    /// One listening socket; a connection wakes whoever waits
    Shared,
    /// One listening socket; a connection wakes one worker (EPOLLEXCLUSIVE)
    Exclusive,
    /// A listening socket for each worker (SO_REUSEPORT), chosen by the hash of the addresses; the same as -r
    Reuseport,
    /// A listening socket for each worker, chosen by the CPU the connection arrives on; workers are pinned; the same as -B
    Cpu,
    /// A listening socket for each worker, served by io_uring's multishot accept
    Uring,
}

impl Strategy {
    fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Exclusive => "exclusive",
            Self::Reuseport => "reuseport",
            Self::Cpu => "cpu",
            Self::Uring => "uring",
        }
    }

    fn shares_a_socket(self) -> bool {
        matches!(self, Self::Shared | Self::Exclusive)
    }
}

/// Command line of `turnbuckle accept-server`.
#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// Port to listen on, on all IPv4 addresses; 0 for any
    #[arg(short = 'p', value_name = "PORT")]
    port: u16,
    /// Workers, 1 to 1024; as many as CPUs by default
    #[arg(short = 'i', value_name = "WORKERS", value_parser = limits::workers)]
    workers: Option<usize>,
    /// A listening socket for each worker
    #[arg(short = 'r')]
    reuseport: bool,
    /// Keep workers on CPUs and give them the connections that arrive there
    #[arg(short = 'B')]
    bind_to_cpus: bool,
    /// How workers share what comes; shared by default
    #[arg(long, value_enum, conflicts_with_all = ["reuseport", "bind_to_cpus"])]
    strategy: Option<Strategy>,
    /// End after so many seconds; without it, on SIGINT or SIGTERM
    #[arg(long, value_name = "SECONDS", value_parser = cli::seconds)]
    duration: Option<Duration>,
    /// Print events as lines of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    closed: AtomicU64,
    wrong_cpu: AtomicU64,
    wakeups: AtomicU64,
    cpu_ns: AtomicU64,
    errors: Errors,
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl Arguments {
    fn strategy(&self) -> Strategy {
        match self.strategy {
            Some(strategy) => strategy,
            None if self.bind_to_cpus => Strategy::Cpu,
            None if self.reuseport => Strategy::Reuseport,
            None => Strategy::Shared,
        }
    }

    /// Runs the server until it is told to stop.
    ///
    /// # Errors
    /// The port cannot be listened on, or the kernel lacks what the strategy needs.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        descriptors::raise_limit();
        let stop = Stop::on_signals()?;
        let strategy = self.strategy();
        let workers = self.workers.unwrap_or_else(threads::available);
        let cpus = allowed_cpus()?;
        let (listeners, port) = self.listen(strategy, workers, &cpus)?;
        let mut running = Vec::new();
        for (index, listener) in listeners.into_iter().enumerate() {
            let counters = Arc::<OwnLines<Counters>>::default();
            let worker = Worker {
                listener,
                counters: Arc::clone(&counters),
                stop: stop.clone(),
                strategy,
                cpus: own_cpus(&cpus, index, workers),
            };
            let handle = thread::Builder::new()
                .name(format!("accept-{index}"))
                .spawn(move || worker.run())?;
            running.push((counters, handle));
        }
        if self.json {
            output::event(
                &json!({"event": "ready", "port": port, "workers": workers, "strategy": strategy.name()}),
            );
        } else {
            output::line(&format!(
                "port {port}, {workers} workers, {}",
                strategy.name()
            ));
        }
        let counters: Vec<_> = running
            .iter()
            .map(|(counters, _)| Arc::clone(counters))
            .collect();
        let (in_time, busy) = self.watch(&stop, &counters, || {
            running.iter().any(|(_, handle)| handle.is_finished())
        });
        stop.end();
        for (_, handle) in running {
            handle
                .join()
                .map_err(|_| anyhow::anyhow!("a worker panicked"))??;
        }
        self.report(strategy, &counters, in_time, busy);
        Ok(ExitCode::SUCCESS)
    }

    /// Waits for the end of the run; the connections by then, and the time from the first to the last, to the tick.
    fn watch(
        &self,
        stop: &Stop,
        counters: &[Arc<OwnLines<Counters>>],
        has_failed: impl Fn() -> bool,
    ) -> (u64, Duration) {
        let started = Instant::now();
        let (mut first, mut last, mut seen) = (None, started, 0);
        let mut printed = (started, 0);
        while !stop.is_ended()
            && !has_failed()
            && self.duration.is_none_or(|end| started.elapsed() < end)
        {
            let before = Instant::now();
            thread::sleep(TICK);
            let accepted = total(counters, |counters| &counters.accepted);
            if accepted > seen {
                first.get_or_insert(before);
                last = Instant::now();
                seen = accepted;
            }
            if printed.0.elapsed() >= Duration::from_secs(1) {
                let rate = (accepted - printed.1) as f64 / printed.0.elapsed().as_secs_f64();
                if rate > 0.0 {
                    output::note(&format!("accepted {rate:.0}/s, {accepted} in all"));
                }
                printed = (Instant::now(), accepted);
            }
        }
        let busy = first.map_or(Duration::ZERO, |first| last.duration_since(first));
        (seen, busy)
    }

    fn listen(
        &self,
        strategy: Strategy,
        workers: usize,
        cpus: &[u32],
    ) -> anyhow::Result<(Vec<Arc<OwnedFd>>, u16)> {
        let mut port = self.port;
        let mut listeners = Vec::new();
        let number = if strategy.shares_a_socket() {
            1
        } else {
            workers
        };
        for _ in 0..number {
            let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None)?;
            if strategy.shares_a_socket() {
                socket.set_reuse_address(true)?;
            } else {
                socket.set_reuse_port(true)?;
            }
            let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            let listening = socket
                .bind(&address.into())
                // The longest queue that net.core.somaxconn allows.
                .and_then(|()| socket.listen(-1));
            listening.with_context(|| format!("cannot listen on port {port}"))?;
            port = socket
                .local_addr()?
                .as_socket()
                .map_or(port, |address| address.port());
            if strategy == Strategy::Cpu && listeners.is_empty() {
                steer_by_cpu(&socket, cpus, u32::try_from(workers)?)
                    .context("cannot attach the program that steers by CPU")?;
            }
            listeners.push(Arc::new(OwnedFd::from(socket)));
        }
        if let [only] = &listeners[..] {
            listeners = vec![Arc::clone(only); workers];
        }
        Ok((listeners, port))
    }

    /// Prints the figures. The rate is of what was accepted while the run lasted; the counts are of all.
    fn report(
        &self,
        strategy: Strategy,
        counters: &[Arc<OwnLines<Counters>>],
        in_time: u64,
        busy: Duration,
    ) {
        let accepted = total(counters, |counters| &counters.accepted);
        let cpu_ns = total(counters, |counters| &counters.cpu_ns);
        let by_worker =
            |counters: &Arc<OwnLines<Counters>>| counters.accepted.load(Ordering::Relaxed);
        let seconds = busy.as_secs_f64();
        let rate = if seconds > 0.0 {
            in_time as f64 / seconds
        } else {
            0.0
        };
        let errors = errors::sum(counters.iter().map(|counters| &counters.errors));
        let wrong_cpu =
            (strategy == Strategy::Cpu).then(|| total(counters, |counters| &counters.wrong_cpu));
        let least = counters.iter().map(by_worker).min().unwrap_or(0);
        let most = counters.iter().map(by_worker).max().unwrap_or(0);
        let cpu_us = (accepted > 0).then(|| cpu_ns as f64 / 1e3 / accepted as f64);
        if self.json {
            let workers: Vec<Value> = counters
                .iter()
                .map(|counters| {
                    json!({
                        "accepted": by_worker(counters),
                        "cpu_seconds": counters.cpu_ns.load(Ordering::Relaxed) as f64 / 1e9,
                    })
                })
                .collect();
            output::event(&json!({
                "event": "result",
                "strategy": strategy.name(),
                "workers": counters.len(),
                "seconds": seconds,
                "accepted": accepted,
                "closed": total(counters, |counters| &counters.closed),
                "per_second": rate,
                "errors": errors,
                "wrong_cpu": wrong_cpu,
                "wakeups": total(counters, |counters| &counters.wakeups),
                "cpu_seconds": cpu_ns as f64 / 1e9,
                "cpu_us_per_connection": cpu_us,
                "worker_min": least,
                "worker_max": most,
                "threads": workers,
            }));
        } else {
            output::line(&format!(
                "accepted {accepted}{}, by worker {least} to {most}, errors: {}",
                limits::cpu_each(cpu_us),
                errors::sentence(&errors)
            ));
            if let Some(wrong) = wrong_cpu {
                output::line(&format!("arrived on another worker's CPU: {wrong}"));
            }
            output::line(&format!("{rate:.2}"));
        }
    }
}

fn total(counters: &[Arc<OwnLines<Counters>>], field: fn(&Counters) -> &AtomicU64) -> u64 {
    counters
        .iter()
        .map(|counters| field(counters).load(Ordering::Relaxed))
        .sum()
}

/// Returns the CPUs whose connections [`steer_by_cpu`] gives to worker `index`.
fn own_cpus(cpus: &[u32], index: usize, workers: usize) -> Vec<u32> {
    if workers >= cpus.len() {
        vec![cpus[index % cpus.len()]]
    } else {
        cpus.iter().copied().skip(index).step_by(workers).collect()
    }
}

struct Worker {
    listener: Arc<OwnedFd>,
    counters: Arc<OwnLines<Counters>>,
    stop: Stop,
    strategy: Strategy,
    cpus: Vec<u32>,
}

impl Worker {
    fn run(self) -> anyhow::Result<()> {
        unshare_descriptors().context("cannot have a table of descriptors of its own")?;
        if self.strategy == Strategy::Cpu {
            let mut own = CpuSet::new();
            for &cpu in &self.cpus {
                own.set(usize::try_from(cpu)?);
            }
            sched_setaffinity(None, &own)
                .with_context(|| format!("cannot run on {:?}", self.cpus))?;
        }
        let result = if self.strategy == Strategy::Uring {
            self.serve_by_ring()
        } else {
            self.serve_by_epoll()
        };
        self.counters
            .cpu_ns
            .store(threads::cpu_ns(), Ordering::Relaxed);
        result
    }

    fn serve_by_ring(&self) -> anyhow::Result<()> {
        let mut ring = AcceptRing::new(Arc::clone(&self.listener)).context("io_uring")?;
        let counters = &self.counters;
        let mut rest = Rest::default();
        let mut is_idle = false;
        while rest.goes_on(&self.stop, is_idle) {
            is_idle = true;
            let mut is_out = false;
            ring.turn(TICK, |event| {
                is_idle = false;
                match event {
                    AcceptEvent::Accepted(_) => add(&counters.accepted, 1),
                    AcceptEvent::Closed => add(&counters.closed, 1),
                    AcceptEvent::Failed(errno) => {
                        counters.errors.add(errno);
                        is_out |= matches!(errno, Errno::MFILE | Errno::NFILE);
                    }
                }
            })?;
            add(&counters.wakeups, u64::from(!is_idle));
            if is_out {
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn serve_by_epoll(&self) -> anyhow::Result<()> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut interest = EventFlags::IN;
        if self.strategy == Strategy::Exclusive {
            interest |= EventFlags::EXCLUSIVE;
        }
        epoll::add(
            &epoll,
            &*self.listener,
            EventData::new_u64(LISTENER),
            interest,
        )?;
        let tick = Timespec::try_from(TICK)?;
        let mut events: Vec<Event> = Vec::with_capacity(BATCH);
        let mut connections = Connections::default();
        let mut rest = Rest::default();
        while rest.goes_on(&self.stop, events.is_empty()) {
            events.clear();
            match epoll::wait(&epoll, spare_capacity(&mut events), Some(&tick)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            add(&self.counters.wakeups, u64::from(!events.is_empty()));
            for event in &events {
                if event.data.u64() == LISTENER {
                    self.accept(&epoll, &mut connections);
                } else if connections.close(event.data.u64()) {
                    add(&self.counters.closed, 1);
                }
            }
        }
        Ok(())
    }

    fn accept(&self, epoll: &OwnedFd, connections: &mut Connections) {
        for _ in 0..BATCH {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match accept_with(&self.listener, flags) {
                Ok(connection) => {
                    add(&self.counters.accepted, 1);
                    if self.strategy == Strategy::Cpu
                        && sockopt::socket_incoming_cpu(&connection)
                            .is_ok_and(|cpu| !self.cpus.contains(&cpu))
                    {
                        add(&self.counters.wrong_cpu, 1);
                    }
                    if let Err(errno) = connections.watch(epoll, connection) {
                        self.counters.errors.add(errno);
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                    self.counters.errors.add(errno);
                    // Connections that end meanwhile give descriptors back.
                    thread::sleep(Duration::from_millis(1));
                    break;
                }
                Err(errno) => self.counters.errors.add(errno),
            }
        }
    }
}

/// What a worker still does after the end of the run, so that nothing that has been connected goes uncounted.
#[derive(Default)]
struct Rest {
    until: Option<Instant>,
}

impl Rest {
    fn goes_on(&mut self, stop: &Stop, is_idle: bool) -> bool {
        if !stop.is_ended() {
            return true;
        }
        match self.until {
            None => {
                self.until = Some(Instant::now() + REST);
                true
            }
            Some(until) => !is_idle && Instant::now() < until,
        }
    }
}

/// Connections that wait for their other end to close.
#[derive(Default)]
struct Connections {
    open: Vec<Option<OwnedFd>>,
    free: Vec<usize>,
}

impl Connections {
    fn watch(&mut self, epoll: &OwnedFd, connection: OwnedFd) -> Result<(), Errno> {
        let place = self.free.last().copied().unwrap_or(self.open.len());
        epoll::add(
            epoll,
            &connection,
            EventData::new_u64(place as u64),
            EventFlags::RDHUP,
        )?;
        if self.free.pop().is_some() {
            self.open[place] = Some(connection);
        } else {
            self.open.push(Some(connection));
        }
        Ok(())
    }

    fn close(&mut self, place: u64) -> bool {
        let Ok(place) = usize::try_from(place) else {
            return false;
        };
        let was_open = self
            .open
            .get_mut(place)
            .is_some_and(|connection| connection.take().is_some());
        if was_open {
            self.free.push(place);
        }
        was_open
    }
}

#[cfg(test)]
mod tests {
    use super::own_cpus;

    #[test]
    fn a_worker_runs_where_the_connections_arrive_that_it_is_given() {
        let cpus = [0, 1, 4, 6];
        assert_eq!(own_cpus(&cpus, 3, 4), [6]);
        // Fewer workers than CPUs: place modulo the number of workers.
        assert_eq!(own_cpus(&cpus, 0, 3), [0, 6]);
        assert_eq!(own_cpus(&cpus, 2, 3), [4]);
        // More: several to a CPU.
        assert_eq!(own_cpus(&cpus, 5, 8), [1]);
    }
}
