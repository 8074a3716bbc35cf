//! `turnbuckle connect-client`.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::ValueEnum;
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};
use serde_json::{Value, json};
use turnbuckle_datapath::unshare_descriptors;

use super::errors::{self, Errors};
use super::preflight::{self, Host};
use crate::cli;
use crate::output;
use crate::stop::Stop;
use crate::threads::{self, Clock, OwnLines};

/// How often the run is looked at.
const TICK: Duration = Duration::from_millis(20);
/// The longest connect. The kernel itself would go on for two minutes.
const PATIENCE: Duration = Duration::from_secs(3);

/// How this side ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Close {
    /// By RST, which leaves no TIME-WAIT
    Rst,
    /// By FIN, which leaves this side in TIME-WAIT, as the originals did
    Fin,
}

/// Command line of `turnbuckle connect-client`.
#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// IPv4 address to connect to; may be given several times, for more ports
    #[arg(short = '4', value_name = "ADDRESS", required = true)]
    addresses: Vec<Ipv4Addr>,
    /// Port to connect to
    #[arg(short = 'p', value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Workers, 1 to 1024; as many as CPUs by default
    #[arg(short = 'i', value_name = "WORKERS", value_parser = super::workers)]
    workers: Option<usize>,
    /// Length of the run
    #[arg(short = 'l', value_name = "SECONDS", default_value = "10", value_parser = cli::seconds)]
    length: Duration,
    /// Connects that each worker has under way at a time, 1 to 4096; without it one, waited for in connect
    #[arg(short = 'c', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    in_flight: Option<u16>,
    /// How connections are closed
    #[arg(long, value_enum, default_value_t = Close::Fin)]
    close: Close,
    /// Print events as lines of JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default)]
struct Counters {
    connected: AtomicU64,
    failed: AtomicU64,
    unfinished: AtomicU64,
    cpu_ns: AtomicU64,
    errors: Errors,
}

impl Arguments {
    /// Connects for as long as was asked for.
    ///
    /// # Errors
    /// A worker cannot be started.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        super::raise_descriptor_limit();
        let stop = Stop::on_signals()?;
        let workers = self.workers.unwrap_or_else(threads::available);
        let in_flight = workers as u64 * u64::from(self.in_flight.unwrap_or(1));
        let warnings = preflight::warnings(
            Host::read(),
            self.close,
            &self.addresses,
            in_flight,
            self.length.as_secs_f64(),
        );
        for warning in &warnings {
            output::note(&format!("warning: {warning}"));
        }
        let clock = Clock::start();
        let started = Instant::now();
        let mut running = Vec::new();
        for index in 0..workers {
            let counters = Arc::<OwnLines<Counters>>::default();
            let worker = Worker {
                targets: self.targets(index),
                close: self.close,
                in_flight: self.in_flight,
                counters: Arc::clone(&counters),
                stop: stop.clone(),
                clock,
                latency: latencies()?,
            };
            let handle = thread::Builder::new()
                .name(format!("connect-{index}"))
                .spawn(move || worker.run())?;
            running.push((counters, handle));
        }
        let counters: Vec<_> = running
            .iter()
            .map(|(counters, _)| Arc::clone(counters))
            .collect();
        watch(&stop, &counters, started, self.length);
        let elapsed = started.elapsed();
        let connected = total(&counters, |counters| &counters.connected);
        stop.end();
        let mut latency = latencies()?;
        for (_, handle) in running {
            let each = handle
                .join()
                .map_err(|_| anyhow::anyhow!("a worker panicked"))??;
            latency.add(each)?;
        }
        self.report(&counters, connected, elapsed, &latency, &warnings);
        Ok(ExitCode::SUCCESS)
    }

    /// All addresses, beginning with another one for each worker.
    fn targets(&self, index: usize) -> Vec<SocketAddrV4> {
        let mut targets: Vec<_> = self
            .addresses
            .iter()
            .map(|&address| SocketAddrV4::new(address, self.port))
            .collect();
        targets.rotate_left(index % self.addresses.len());
        targets
    }

    /// Prints the figures. The rate is of what was connected when the time was over; the counts are of all.
    fn report(
        &self,
        counters: &[Arc<OwnLines<Counters>>],
        connected_in_time: u64,
        elapsed: Duration,
        latency: &Histogram<u64>,
        warnings: &[String],
    ) {
        let rate = connected_in_time as f64 / elapsed.as_secs_f64();
        let connected = total(counters, |counters| &counters.connected);
        let failed = total(counters, |counters| &counters.failed);
        let unfinished = total(counters, |counters| &counters.unfinished);
        let cpu_ns = total(counters, |counters| &counters.cpu_ns);
        let cpu_us = cpu_ns as f64 / 1e3 / connected.max(1) as f64;
        let errors = errors::sum(counters.iter().map(|counters| &counters.errors));
        let by_worker =
            |counters: &Arc<OwnLines<Counters>>| counters.connected.load(Ordering::Relaxed);
        let least = counters.iter().map(by_worker).min().unwrap_or(0);
        let most = counters.iter().map(by_worker).max().unwrap_or(0);
        let us = |quantile: f64| latency.value_at_quantile(quantile) as f64 / 1e3;
        if self.json {
            output::event(&json!({
                "event": "result",
                "workers": counters.len(),
                "close": if self.close == Close::Fin { "fin" } else { "rst" },
                "seconds": elapsed.as_secs_f64(),
                "connected": connected,
                "failed": failed,
                "unfinished": unfinished,
                "per_second": rate,
                "errors": errors,
                "cpu_seconds": cpu_ns as f64 / 1e9,
                "cpu_us_per_connection": cpu_us,
                "worker_min": least,
                "worker_max": most,
                "latency_us": if latency.is_empty() { Value::Null } else { json!({
                    "samples": latency.len(),
                    "min": latency.min() as f64 / 1e3,
                    "mean": latency.mean() / 1e3,
                    "p50": us(0.5),
                    "p90": us(0.9),
                    "p99": us(0.99),
                    "p99_9": us(0.999),
                    "max": latency.max() as f64 / 1e3,
                }) },
                "warnings": warnings,
            }));
        } else {
            output::line(&format!(
                "connected {connected}, failed {failed}, under way at the end {unfinished}, {cpu_us:.2} us of CPU each, by worker {least} to {most}, \
                 errors: {}",
                errors::sentence(&errors)
            ));
            if !latency.is_empty() {
                output::line(&format!(
                    "connect took {:.0} us (median), {:.0} us (99 %), {:.0} us (most)",
                    us(0.5),
                    us(0.99),
                    us(1.0)
                ));
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

fn watch(stop: &Stop, counters: &[Arc<OwnLines<Counters>>], started: Instant, length: Duration) {
    let mut told = (started, 0);
    while !stop.is_ended() && started.elapsed() < length {
        thread::sleep(TICK.min(length.saturating_sub(started.elapsed())));
        if told.0.elapsed() >= Duration::from_secs(1) {
            let connected = total(counters, |counters| &counters.connected);
            let failed = total(counters, |counters| &counters.failed);
            let rate = (connected - told.1) as f64 / told.0.elapsed().as_secs_f64();
            output::note(&format!(
                "connected {rate:.0}/s, {connected} in all, {failed} failed"
            ));
            told = (Instant::now(), connected);
        }
    }
}

struct Worker {
    targets: Vec<SocketAddrV4>,
    close: Close,
    in_flight: Option<u16>,
    counters: Arc<OwnLines<Counters>>,
    stop: Stop,
    clock: Clock,
    /// Nanoseconds from the call of connect until the connection stood.
    latency: Histogram<u64>,
}

/// Nanoseconds, up to what no connect takes, to a thousandth.
fn latencies() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 600_000_000_000, 3)?)
}

/// A connect that is under way.
struct Attempt {
    socket: OwnedFd,
    began: u64,
}

impl Worker {
    fn run(mut self) -> anyhow::Result<Histogram<u64>> {
        unshare_descriptors().context("cannot have a table of descriptors of its own")?;
        match self.in_flight {
            None => self.one_at_a_time(),
            Some(number) => self.many_at_a_time(number.into())?,
        }
        self.counters
            .cpu_ns
            .store(threads::cpu_ns(), Ordering::Relaxed);
        Ok(self.latency)
    }

    fn one_at_a_time(&mut self) {
        let targets = self.targets.clone();
        for target in targets.iter().cycle() {
            if self.stop.is_ended() {
                return;
            }
            let began = self.clock.now();
            let connected = self.socket(SocketFlags::CLOEXEC).and_then(|socket| {
                // What a connect waits for at most; it then fails with EINPROGRESS.
                sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(PATIENCE))?;
                connect(&socket, target)
                    .map_err(|errno| {
                        if errno == Errno::INPROGRESS {
                            Errno::TIMEDOUT
                        } else {
                            errno
                        }
                    })
                    .map(|()| socket)
            });
            match connected {
                Ok(socket) => {
                    self.connected(began);
                    drop(socket);
                }
                Err(errno) => self.failed(errno),
            }
        }
    }

    fn many_at_a_time(&mut self, number: usize) -> anyhow::Result<()> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let tick = Timespec::try_from(TICK)?;
        let mut events: Vec<Event> = Vec::with_capacity(number);
        let mut attempts: Vec<Option<Attempt>> = (0..number).map(|_| None).collect();
        let mut idle: Vec<usize> = (0..number).collect();
        let mut next = 0;
        let mut looked_at = self.clock.now();
        while !self.stop.is_ended() {
            idle.retain(|&place| {
                let target = self.targets[next % self.targets.len()];
                next += 1;
                attempts[place] = self.begin(&epoll, target, place as u64);
                attempts[place].is_none()
            });
            events.clear();
            // With nothing under way (no port, no descriptor) this is the pause before the next attempt.
            match epoll::wait(&epoll, spare_capacity(&mut events), Some(&tick)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            for event in &events {
                let Ok(place) = usize::try_from(event.data.u64()) else {
                    continue;
                };
                if let Some(attempt) = attempts.get_mut(place).and_then(Option::take) {
                    self.finish(&attempt);
                    idle.push(place);
                }
            }
            let now = self.clock.now();
            if u128::from(now - looked_at) > TICK.as_nanos() {
                looked_at = now;
                for (place, attempt) in attempts.iter_mut().enumerate() {
                    let is_late = |attempt: &mut Attempt| {
                        u128::from(now - attempt.began) > PATIENCE.as_nanos()
                    };
                    if attempt.take_if(is_late).is_some() {
                        self.failed(Errno::TIMEDOUT);
                        idle.push(place);
                    }
                }
            }
        }
        // Those that stand by now count; the others are neither connected nor failed.
        for attempt in attempts.into_iter().flatten() {
            if rustix::net::getpeername(&attempt.socket).is_ok() {
                self.finish(&attempt);
            } else {
                self.counters.unfinished.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn begin(&self, epoll: &OwnedFd, target: SocketAddrV4, place: u64) -> Option<Attempt> {
        let began = self.clock.now();
        let begun = self
            .socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
            .and_then(|socket| match connect(&socket, &target) {
                Ok(()) | Err(Errno::INPROGRESS) => {
                    epoll::add(epoll, &socket, EventData::new_u64(place), EventFlags::OUT)?;
                    Ok(Attempt { socket, began })
                }
                Err(errno) => Err(errno),
            });
        match begun {
            Ok(attempt) => Some(attempt),
            Err(errno) => {
                self.failed(errno);
                None
            }
        }
    }

    fn finish(&mut self, attempt: &Attempt) {
        match sockopt::socket_error(&attempt.socket) {
            Ok(Ok(())) => self.connected(attempt.began),
            Ok(Err(errno)) | Err(errno) => self.failed(errno),
        }
    }

    fn socket(&self, flags: SocketFlags) -> Result<OwnedFd, Errno> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        if self.close == Close::Rst {
            sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        }
        Ok(socket)
    }

    fn connected(&mut self, began: u64) {
        let took = self.clock.now() - began;
        self.counters.connected.fetch_add(1, Ordering::Relaxed);
        self.latency.saturating_record(took.max(1));
    }

    fn failed(&self, errno: Errno) {
        self.counters.failed.fetch_add(1, Ordering::Relaxed);
        self.counters.errors.add(errno);
    }
}
