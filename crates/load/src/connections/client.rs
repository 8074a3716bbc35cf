//! `turnbuckle connect-client`.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use turnbuckle_client::descriptors;

use super::errors;
use super::exchange::Exchange;
use super::limits;
use super::preflight::{self, Host, Plan};
use super::worker::{Close, Counters, Worker, latencies};
use crate::cli;
use crate::output;
use crate::stop::Stop;
use crate::threads::{self, Clock, OwnLines};

/// How often the run is looked at.
const TICK: Duration = Duration::from_millis(20);

/// Command line of `turnbuckle connect-client`.
#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// IPv4 address to connect to; may be given several times, for more ports
    #[arg(short = '4', value_name = "ADDRESS", required = true)]
    addresses: Vec<Ipv4Addr>,
    /// Port to connect to
    #[arg(short = 'p', value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Address to connect from; may be given several times, for more ports
    #[arg(long = "source", value_name = "ADDRESS")]
    sources: Vec<Ipv4Addr>,
    /// Workers, 1 to 1024; as many as CPUs by default
    #[arg(short = 'i', value_name = "WORKERS", value_parser = limits::workers)]
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
    /// Time before the figures begin
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = cli::seconds)]
    warm_up: Duration,
    /// Has each connection shake hands by TLS, without resumption; certificates are not looked at
    #[arg(long, conflicts_with = "in_flight")]
    tls: bool,
    /// Has each connection ask for a STUN Binding and wait for the answer
    #[arg(long, conflicts_with = "in_flight")]
    binding: bool,
    /// Print events as lines of JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Connects for as long as was asked for.
    ///
    /// # Errors
    /// A worker cannot be started.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        descriptors::raise_limit();
        let stop = Stop::on_signals()?;
        let workers = self.workers.unwrap_or_else(threads::available);
        let host = Host::read();
        let plan = Plan {
            close: self.close,
            addresses: &self.addresses,
            sources: self.sources.len() as u64,
            in_flight: workers as u64 * u64::from(self.in_flight.unwrap_or(1)),
            seconds: (self.warm_up + self.length).as_secs_f64(),
        };
        let warnings = preflight::warnings(host, &plan);
        for warning in &warnings {
            output::note(&format!("warning: {warning}"));
        }
        let exchange = Exchange::new(self.tls, self.binding)?;
        let clock = Clock::start();
        // Without a warm-up the figures begin with the workers.
        let warms_up = !self.warm_up.is_zero();
        let measured_from = Arc::new(AtomicU64::new(if warms_up { u64::MAX } else { 0 }));
        let (mut started, mut before) = (Instant::now(), 0);
        let mut running = Vec::new();
        for index in 0..workers {
            let counters = Arc::<OwnLines<Counters>>::default();
            let worker = Worker {
                targets: self.targets(index),
                sources: self.sources(index),
                close: self.close,
                in_flight: self.in_flight,
                exchange: exchange.clone(),
                counters: Arc::clone(&counters),
                stop: stop.clone(),
                clock,
                measured_from: Arc::clone(&measured_from),
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
        let mut progress = Progress::new(&stop, &counters);
        self.say("ready");
        if warms_up {
            progress.watch(self.warm_up);
            measured_from.store(clock.now(), Ordering::Relaxed);
            (started, before) = (Instant::now(), total(&counters, |it| &it.connected));
        }
        self.say("measuring");
        progress.watch(self.length);
        let seconds = started.elapsed().as_secs_f64();
        let connected = total(&counters, |it| &it.connected) - before;
        self.say("measured");
        stop.end();
        let mut latency = latencies()?;
        for (_, handle) in running {
            let each = handle
                .join()
                .map_err(|_| anyhow::anyhow!("a worker panicked"))??;
            latency.add(each)?;
        }
        let errors = errors::sum(counters.iter().map(|counters| &counters.errors));
        if let Some(hint) = preflight::hint(host, &plan, &errors) {
            output::note(&hint);
        }
        let window = Window {
            connected,
            seconds,
            latency,
        };
        self.report(&counters, &window, errors, &warnings);
        Ok(ExitCode::SUCCESS)
    }

    fn say(&self, event: &str) {
        if self.json {
            output::event(&json!({"event": event}));
        }
    }

    /// Returns all addresses to connect from, beginning with another one for each worker; none where the kernel chooses.
    fn sources(&self, index: usize) -> Vec<SocketAddrV4> {
        let mut sources: Vec<_> = self
            .sources
            .iter()
            .map(|&address| SocketAddrV4::new(address, 0))
            .collect();
        sources.rotate_left(index.checked_rem(self.sources.len()).unwrap_or(0));
        sources
    }

    /// Returns all addresses to connect to, beginning with another one for each worker.
    fn targets(&self, index: usize) -> Vec<SocketAddrV4> {
        let mut targets: Vec<_> = self
            .addresses
            .iter()
            .map(|&address| SocketAddrV4::new(address, self.port))
            .collect();
        targets.rotate_left(index % self.addresses.len());
        targets
    }

    /// Prints the figures. Rate and latency are of the window; the counts are of all.
    fn report(
        &self,
        counters: &[Arc<OwnLines<Counters>>],
        window: &Window,
        errors: Map<String, Value>,
        warnings: &[String],
    ) {
        let latency = &window.latency;
        let rate = window.connected as f64 / window.seconds;
        let connected = total(counters, |counters| &counters.connected);
        let failed = total(counters, |counters| &counters.failed);
        let unfinished = total(counters, |counters| &counters.unfinished);
        let cpu_ns = total(counters, |counters| &counters.cpu_ns);
        let cpu_us = (connected > 0).then(|| cpu_ns as f64 / 1e3 / connected as f64);
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
                "seconds": window.seconds,
                "connected": connected,
                "connected_in_window": window.connected,
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
                "connected {connected}, failed {failed}, under way at the end {unfinished}{}, by worker {least} to {most}, errors: {}",
                limits::cpu_each(cpu_us),
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

/// What was measured after the warm-up.
struct Window {
    connected: u64,
    seconds: f64,
    /// Nanoseconds from the call of connect until the connection stood and what was to be exchanged had been.
    latency: Histogram<u64>,
}

/// Tells every second how it goes.
struct Progress<'a> {
    stop: &'a Stop,
    counters: &'a [Arc<OwnLines<Counters>>],
    printed: (Instant, u64),
}

impl<'a> Progress<'a> {
    fn new(stop: &'a Stop, counters: &'a [Arc<OwnLines<Counters>>]) -> Self {
        Self {
            stop,
            counters,
            printed: (Instant::now(), 0),
        }
    }

    /// Watches for so long, or until the end.
    fn watch(&mut self, length: Duration) {
        let started = Instant::now();
        while !self.stop.is_ended() && started.elapsed() < length {
            thread::sleep(TICK.min(length.saturating_sub(started.elapsed())));
            let since = self.printed.0.elapsed();
            if since >= Duration::from_secs(1) {
                let connected = total(self.counters, |counters| &counters.connected);
                let failed = total(self.counters, |counters| &counters.failed);
                let rate = (connected - self.printed.1) as f64 / since.as_secs_f64();
                output::note(&format!(
                    "connected {rate:.0}/s, {connected} in all, {failed} failed"
                ));
                self.printed = (Instant::now(), connected);
            }
        }
    }
}
