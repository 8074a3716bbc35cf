//! `turnbuckle peer`: what stands behind a relay while it is measured. It reflects, swallows, or sends by itself.
//!
//! One thread per core, each with a socket in the group of each address, so that the reflector is not what a measurement ends at. A
//! flow stays on the thread that the kernel's hash of its addresses chose.

mod coturn;
mod shard;
mod sources;
mod tcp;

pub use self::coturn::run_as_coturns;

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use turnbuckle_datapath::{Backend, Bind, Datapath, Devices, EndpointKind, Settings};

use self::shard::{Counters, Shard};
use self::sources::{SOURCES_MAX, Seen};
use self::tcp::Tcp;
use crate::cli::{self, BackendChoice, Cpus, Threads};
use crate::output::{self, grouped};
use crate::socket_drops;
use crate::stop::Stop;
use crate::threads::{self, OwnLines};

/// How often the run is looked at: progress, signals, the end.
const TICK: Duration = Duration::from_millis(20);
/// Sources that are listed at the end.
const SOURCES_SHOWN: usize = 10;

/// What happens to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Send every datagram back where it came from
    Reflect,
    /// Count every datagram and answer none
    Sink,
    /// Send to everyone from whom a datagram came, at a rate or as fast as possible
    Source,
}

/// Where datagrams are received.
#[derive(clap::Args, Clone, Debug)]
struct At {
    /// Address to receive at; may be given several times
    #[arg(long, value_name = "ADDRESS:PORT", default_values = ["0.0.0.0:3480", "[::]:3480"])]
    listen: Vec<SocketAddr>,
    /// Ports to receive at, of each address: the given one and those after it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    ports: u16,
}

/// Command line of `turnbuckle peer`.
#[derive(clap::Args, Clone, Debug)]
pub struct Arguments {
    /// What happens to a datagram
    #[arg(value_enum, default_value_t = Mode::Reflect)]
    mode: Mode,
    #[command(flatten)]
    at: At,
    /// Take TCP connections at the same addresses as well; what comes over one goes back over it
    #[arg(long)]
    tcp: bool,
    /// Threads: auto (one per CPU), or 1 to 64
    #[arg(long, value_parser = cli::threads, default_value = "auto")]
    threads: Threads,
    /// CPUs for the threads in turn, as in 0,2-3
    #[arg(long, value_parser = cli::cpus)]
    cpus: Option<Cpus>,
    /// How datagrams are moved: auto, single (a system call for each), mmsg, gso
    #[arg(long, value_parser = cli::backend, default_value = "auto")]
    backend: BackendChoice,
    /// Longest pause before reading at high rates, microseconds; it adds to the delay and saves CPU
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=10_000))]
    coalesce_us: u16,
    /// Source: packets per second to each client; without it, as many as possible
    #[arg(long, value_name = "PPS", value_parser = cli::rate)]
    rate: Option<f64>,
    /// Source: bytes of each datagram
    #[arg(long, value_name = "BYTES", default_value_t = 120, value_parser = clap::value_parser!(u16).range(1..=65_507))]
    size: u16,
    /// End after so many seconds; without it, on SIGINT or SIGTERM
    #[arg(long, value_name = "SECONDS", value_parser = cli::seconds)]
    duration: Option<Duration>,
    /// Print events as lines of JSON
    #[arg(long)]
    json: bool,
    /// Network interface to receive on
    #[arg(long, value_name = "INTERFACE")]
    device: Option<String>,
}

/// Runs the reflector until it is told to stop.
///
/// # Errors
/// An address cannot be bound, or a CPU not be used.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.rate.is_some() && arguments.mode != Mode::Source {
        bail!("--rate is for the mode source; this one sends only what it receives");
    }
    if arguments.tcp && arguments.mode == Mode::Source {
        bail!("--tcp is for the modes reflect and sink; a source sends datagrams");
    }
    let stop = Stop::on_signals()?;
    let running = Running::start(arguments, &stop)?;
    running.announce();
    let started = Instant::now();
    let mut last = (started, Totals::default());
    while !stop.is_ended() && arguments.duration.is_none_or(|end| started.elapsed() < end) {
        if running.has_ended() {
            break;
        }
        thread::sleep(TICK);
        if stop.take_snapshot() {
            running.figures("snapshot", started.elapsed());
        }
        if last.0.elapsed() >= Duration::from_secs(1) {
            last = running.progress(last);
        }
    }
    running.finish(&stop, started)
}

/// The threads of a reflector.
struct Running {
    mode: Mode,
    backend: Backend,
    as_json: bool,
    listen: Vec<SocketAddr>,
    shards: Vec<Thread>,
    tcp: Option<Tcp>,
}

struct Thread {
    counters: Arc<OwnLines<Counters>>,
    handle: thread::JoinHandle<anyhow::Result<Vec<(SocketAddr, Seen)>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    received: u64,
    received_bytes: u64,
    sent: u64,
    sent_bytes: u64,
    failed: u64,
    cpu_ns: u64,
}

impl Running {
    fn start(arguments: &Arguments, stop: &Stop) -> anyhow::Result<Self> {
        let backend = arguments.backend.resolve();
        let number = arguments.threads.or(threads::available(), cli::THREADS_MAX);
        let barrier = Arc::new(Barrier::new(number));
        let mut arguments = arguments.clone();
        arguments.at.listen = cli::on_ports(&arguments.at.listen, arguments.at.ports);
        let chosen = choose_ports(&mut arguments.at.listen)?;
        let (bound, is_bound) = mpsc::channel();
        let mut shards = Vec::new();
        for index in 0..number {
            let counters = Arc::<OwnLines<Counters>>::default();
            let start = Start {
                index,
                arguments: arguments.clone(),
                backend,
                counters: Arc::clone(&counters),
                barrier: Arc::clone(&barrier),
                bound: bound.clone(),
                stop: stop.clone(),
            };
            let handle = thread::Builder::new()
                .name(format!("peer-{index}"))
                .spawn(move || start.run())?;
            shards.push(Thread { counters, handle });
        }
        drop(bound);
        let mut listen = Vec::new();
        for _ in 0..number {
            listen = is_bound
                .recv()
                .map_err(|_| anyhow::anyhow!("a thread ended before it listened"))??;
        }
        drop(chosen);
        let reflects = arguments.mode == Mode::Reflect;
        let tcp = arguments
            .tcp
            .then(|| Tcp::start(&listen, reflects, stop))
            .transpose()?;
        Ok(Self {
            mode: arguments.mode,
            backend,
            as_json: arguments.json,
            listen,
            shards,
            tcp,
        })
    }

    fn announce(&self) {
        let listen: Vec<_> = self.listen.iter().map(ToString::to_string).collect();
        if self.as_json {
            output::event(&json!({
                "event": "ready",
                "mode": self.mode_name(),
                "listen": listen,
                "threads": self.shards.len(),
                "backend": self.backend.as_str(),
            }));
        } else {
            output::line(&format!(
                "{} on {} with {} threads, {}",
                self.mode_name(),
                listen.join(", "),
                self.shards.len(),
                self.backend.as_str()
            ));
        }
    }

    /// Returns whether a thread has given up.
    fn has_ended(&self) -> bool {
        self.shards.iter().any(|shard| shard.handle.is_finished())
    }

    /// Ends the threads without a word.
    fn end(self, stop: &Stop) -> anyhow::Result<()> {
        stop.end();
        for shard in self.shards {
            match shard.handle.join() {
                Ok(seen) => drop(seen?),
                Err(_) => bail!("a thread panicked"),
            }
        }
        Ok(())
    }

    fn mode_name(&self) -> &'static str {
        match self.mode {
            Mode::Reflect => "reflect",
            Mode::Sink => "sink",
            Mode::Source => "source",
        }
    }

    fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        for shard in &self.shards {
            let totals = shard.counters.totals();
            sum.received += totals.received;
            sum.received_bytes += totals.received_bytes;
            sum.sent += totals.sent;
            sum.sent_bytes += totals.sent_bytes;
            sum.failed += totals.failed;
            sum.cpu_ns += totals.cpu_ns;
        }
        sum
    }

    /// Prints what the last second brought.
    fn progress(&self, (since, before): (Instant, Totals)) -> (Instant, Totals) {
        let totals = self.totals();
        let seconds = since.elapsed().as_secs_f64();
        let received_pps = (totals.received - before.received) as f64 / seconds;
        let sent_pps = (totals.sent - before.sent) as f64 / seconds;
        if self.as_json {
            output::event(&json!({
                "event": "progress",
                "seconds": seconds,
                "received_pps": received_pps,
                "sent_pps": sent_pps,
                "received_datagrams": totals.received,
                "sent_datagrams": totals.sent,
            }));
        } else {
            output::note(&format!(
                "received {received_pps:.0}/s, sent {sent_pps:.0}/s, in all {} and {}",
                grouped(totals.received),
                grouped(totals.sent)
            ));
        }
        (Instant::now(), totals)
    }

    fn value(&self, event: &str, elapsed: Duration) -> Value {
        let totals = self.totals();
        let ports: HashSet<u16> = self.listen.iter().map(SocketAddr::port).collect();
        let threads: Vec<_> = self
            .shards
            .iter()
            .map(|shard| {
                let totals = shard.counters.totals();
                json!({
                    "received_datagrams": totals.received,
                    "sent_datagrams": totals.sent,
                    "cpu_seconds": totals.cpu_ns as f64 / 1e9,
                })
            })
            .collect();
        json!({
            "event": event,
            "mode": self.mode_name(),
            "seconds": elapsed.as_secs_f64(),
            "received_datagrams": totals.received,
            "received_bytes": totals.received_bytes,
            "sent_datagrams": totals.sent,
            "sent_bytes": totals.sent_bytes,
            "send_failed_datagrams": totals.failed,
            "socket_drops": socket_drops::of_ports(&ports),
            "cpu_seconds": totals.cpu_ns as f64 / 1e9,
            "threads": threads,
            "tcp": self.tcp.as_ref().map(|tcp| json!({
                "connections": tcp.counted.connections.load(Ordering::Relaxed),
                "received_bytes": tcp.counted.received.load(Ordering::Relaxed),
                "sent_bytes": tcp.counted.sent.load(Ordering::Relaxed),
            })),
        })
    }

    /// Prints the figures as they are now.
    fn figures(&self, event: &str, elapsed: Duration) {
        let value = self.value(event, elapsed);
        if self.as_json {
            output::event(&value);
        } else {
            output::line(&sentence(&value));
        }
    }

    fn finish(self, stop: &Stop, started: Instant) -> anyhow::Result<ExitCode> {
        stop.end();
        // The kernel's count of drops goes with the sockets.
        let mut value = self.value("result", started.elapsed());
        let mut sources = BTreeMap::<SocketAddr, Seen>::new();
        let mut failure = None;
        let as_json = self.as_json;
        let counters: Vec<_> = self
            .shards
            .iter()
            .map(|shard| Arc::clone(&shard.counters))
            .collect();
        for shard in self.shards {
            match shard.handle.join() {
                Ok(Ok(seen)) => {
                    for (source, seen) in seen {
                        sources.entry(source).or_default().add(seen);
                    }
                }
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = Some(anyhow::anyhow!("a thread panicked")),
            }
        }
        if let Some(tcp) = self.tcp {
            tcp.join()?;
        }
        if let Some(error) = failure {
            return Err(error);
        }
        // What came between the reading above and the end of the threads.
        let sum = |field: fn(&Totals) -> u64| -> u64 {
            counters
                .iter()
                .map(|counters| field(&counters.totals()))
                .sum()
        };
        value["received_datagrams"] = sum(|totals| totals.received).into();
        value["received_bytes"] = sum(|totals| totals.received_bytes).into();
        value["sent_datagrams"] = sum(|totals| totals.sent).into();
        value["sent_bytes"] = sum(|totals| totals.sent_bytes).into();
        value["send_failed_datagrams"] = sum(|totals| totals.failed).into();
        value["sources"] = sources.len().into();
        value["sources_are_all"] = (sources.len() < SOURCES_MAX).into();
        let mut busiest: Vec<_> = sources.into_iter().collect();
        busiest.sort_unstable_by_key(|&(source, seen)| (std::cmp::Reverse(seen.datagrams), source));
        busiest.truncate(SOURCES_SHOWN);
        if as_json {
            value["busiest_sources"] = busiest
                .iter()
                .map(|(source, seen)| {
                    json!({"source": source.to_string(), "datagrams": seen.datagrams, "bytes": seen.bytes})
                })
                .collect();
            output::event(&value);
        } else {
            for (source, seen) in &busiest {
                output::line(&format!(
                    "{source}: {} datagrams, {} bytes",
                    grouped(seen.datagrams),
                    grouped(seen.bytes)
                ));
            }
            output::line(&sentence(&value));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn sentence(value: &Value) -> String {
    let number = |key: &str| grouped(value[key].as_u64().unwrap_or(0));
    let seconds = value["seconds"].as_f64().unwrap_or(0.0);
    format!(
        "received {}, sent {}, failed to send {}, dropped by the kernel {} in {seconds:.1} s",
        number("received_datagrams"),
        number("sent_datagrams"),
        number("send_failed_datagrams"),
        number("socket_drops")
    ) + &match &value["tcp"] {
        Value::Null => String::new(),
        tcp => {
            let number = |key: &str| grouped(tcp[key].as_u64().unwrap_or(0));
            format!(
                "; {} connections, {} bytes received, {} sent",
                number("connections"),
                number("received_bytes"),
                number("sent_bytes")
            )
        }
    }
}

/// What a thread needs to begin.
struct Start {
    index: usize,
    arguments: Arguments,
    backend: Backend,
    counters: Arc<OwnLines<Counters>>,
    barrier: Arc<Barrier>,
    bound: mpsc::Sender<anyhow::Result<Vec<SocketAddr>>>,
    stop: Stop,
}

/// Has the kernel choose a port where an address asks for any, so that all threads listen on the same one. The sockets keep the ports until all do.
fn choose_ports(addresses: &mut [SocketAddr]) -> anyhow::Result<Vec<Socket>> {
    let mut chosen = Vec::new();
    for address in addresses.iter_mut().filter(|address| address.port() == 0) {
        let choose = || -> io::Result<(Socket, SocketAddr)> {
            let socket = Socket::new(Domain::for_address(*address), Type::DGRAM, None)?;
            socket.set_reuse_port(true)?;
            socket.bind(&(*address).into())?;
            let bound = socket.local_addr()?.as_socket();
            Ok((socket, bound.ok_or(io::ErrorKind::AddrNotAvailable)?))
        };
        let (socket, bound) = choose().with_context(|| format!("cannot listen on {address}"))?;
        *address = bound;
        chosen.push(socket);
    }
    Ok(chosen)
}

impl Start {
    fn run(self) -> anyhow::Result<Vec<(SocketAddr, Seen)>> {
        let opened = self.open();
        // All members of a group have to be bound before the first one answers, or a flow moves when the next one joins.
        self.barrier.wait();
        let (mut datapath, endpoints) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let _ = self.bound.send(Err(error));
                return Ok(Vec::new());
            }
        };
        let mut listen = Vec::new();
        for endpoint in endpoints {
            datapath.admit_clients(endpoint)?;
            listen.extend(datapath.local_addr(endpoint));
        }
        let _ = self.bound.send(Ok(listen));
        let arguments = &self.arguments;
        let mut shard = Shard::new(Arc::clone(&self.counters), arguments.into());
        while !self.stop.is_ended() {
            let timeout = shard.next_send().unwrap_or(Duration::from_millis(50));
            datapath.turn(Some(timeout), &mut shard)?;
        }
        shard.publish_cpu();
        Ok(shard.into_sources())
    }

    fn open(&self) -> anyhow::Result<(Datapath, Vec<turnbuckle_datapath::EndpointId>)> {
        threads::pin(self.arguments.cpus.as_ref(), self.index)?;
        let mut datapath = Datapath::new(Settings {
            backend: self.backend,
            coalesce: Duration::from_micros(self.arguments.coalesce_us.into()),
            devices: Devices {
                listeners: self.arguments.device.as_deref().map(Into::into),
                relays: None,
            },
            ..Settings::default()
        })?;
        let mut endpoints = Vec::new();
        for &address in &self.arguments.at.listen {
            let endpoint = datapath
                .bind(Bind {
                    address,
                    kind: EndpointKind::Listener { reuseport: true },
                    token: 0,
                })
                .with_context(|| format!("cannot listen on {address}"))?;
            endpoints.push(endpoint);
        }
        Ok((datapath, endpoints))
    }
}
