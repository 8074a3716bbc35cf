//! `turnbuckle quic-client`: moves bytes up or down, run after run, and says how fast.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::json;
use turnbuckle_datapath::Backend;
use turnbuckle_quic::{Application, Bytes, Closed, Connection, Statistics, StreamId};

use super::batching::Batching;
use super::datagrams::{self, Exchange, Pinger};
use super::exchange::{Receiving, Sending, TRANSFER_MAX};
use super::payload::Payload;
use super::side::{Moving, Options, Side};
use super::summary::Summary;
use super::tls;
use crate::cli;
use crate::output;
use crate::stop::Stop;
use crate::threads::cpu_ns;

const MIB: f64 = 1024.0 * 1024.0;
/// How often signals and the time limit are looked at.
const TICK: Duration = Duration::from_millis(50);

/// Command line of `turnbuckle quic-client`.
#[derive(clap::Args, Clone, Debug)]
#[command(group(clap::ArgGroup::new("direction").required(true).multiple(true).args(["up", "down", "datagrams"])))]
pub struct ClientArguments {
    /// Address of the server
    server: SocketAddr,
    /// Bytes to send, as in 1M,5M,10M or 1G (powers of 1024)
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size)]
    up: Vec<u64>,
    /// Bytes to ask for
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size)]
    down: Vec<u64>,
    #[command(flatten)]
    exchange: Exchange,
    /// Runs of each size, each over a connection of its own
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    runs: u16,
    /// Runs before these that do not count
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=100))]
    warm_up: u16,
    /// Streams that share the bytes of a run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=100))]
    streams: u8,
    #[command(flatten)]
    moving: Moving,
    /// Take only a certificate of these authorities; without it any
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Name that the certificate must have
    #[arg(long, value_name = "NAME", default_value = "localhost")]
    tls_name: String,
    /// Time that a run may take
    #[arg(long, value_name = "SECONDS", value_parser = cli::seconds, default_value = "30")]
    timeout: Duration,
    /// Print events as lines of JSON
    #[arg(long)]
    json: bool,
}

/// Parses a size.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let size = digits.parse::<u64>().ok();
    size.and_then(|size| size.checked_mul(1 << shift))
        .filter(|size| (1..=TRANSFER_MAX).contains(size))
        .ok_or_else(|| "allowed: a number of bytes, K, M or G behind it, up to 1024G".to_owned())
}

/// Measures all sizes. The exit code is 1 if a run failed.
///
/// # Errors
/// There is no socket, or the files cannot be used.
pub fn measure(arguments: &ClientArguments) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_signals()?;
    let options = arguments.moving.options(arguments.timeout);
    let tls = tls::client(arguments.ca_file.as_deref())?;
    announce(arguments, options.backend);
    let tasks = [(true, &arguments.up), (false, &arguments.down)];
    let tasks = tasks
        .into_iter()
        .flat_map(|(is_up, sizes)| sizes.iter().map(move |&size| Task { is_up, size }));
    let mut is_whole = true;
    for task in tasks {
        let mut done = Vec::new();
        for number in 0..arguments.warm_up + arguments.runs {
            let run = task.run(arguments, &options, &tls, &stop);
            let run = match run {
                Ok(run) => run,
                Err(error) => {
                    is_whole = false;
                    report_failure(arguments.json, task.direction(), task.size, &error);
                    continue;
                }
            };
            if number >= arguments.warm_up {
                report_run(arguments.json, task, &run);
                done.push(run);
            }
        }
        report_task(arguments, task, &done);
    }
    for &size in &arguments.exchange.datagrams {
        let mut done = Vec::new();
        for number in 0..arguments.warm_up + arguments.runs {
            let pinger = Pinger::new(&arguments.exchange, size);
            let outcome = Rc::clone(&pinger.outcome);
            let run = connect_and_await(arguments, &options, &tls, &stop, pinger, &outcome);
            match run {
                Ok((_, returned, batching)) if number >= arguments.warm_up => {
                    done.push((returned, batching));
                }
                Ok(_) => {}
                Err(error) => {
                    is_whole = false;
                    report_failure(arguments.json, "datagrams", size.into(), &error);
                }
            }
        }
        datagrams::report(arguments.json, size, &done);
    }
    Ok(match is_whole {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn announce(arguments: &ClientArguments, backend: Backend) {
    let capabilities = Backend::probe().1;
    if arguments.json {
        output::event(&json!({
            "event": "start",
            "server": arguments.server.to_string(),
            "backend": backend.as_str(),
            "capabilities": capabilities,
            "mtu": arguments.moving.mtu,
            "streams": arguments.streams,
        }));
    } else {
        output::line(&format!(
            "to {}, {backend} ({capabilities}), packets of {} bytes",
            arguments.server, arguments.moving.mtu
        ));
    }
}

/// What is moved.
#[derive(Clone, Copy, Debug)]
struct Task {
    is_up: bool,
    size: u64,
}

/// What one run took.
struct Run {
    handshake: Duration,
    transfer: Duration,
    cpu_ns: u64,
    statistics: Statistics,
    batching: Batching,
}

impl Task {
    const fn direction(self) -> &'static str {
        if self.is_up { "up" } else { "down" }
    }

    fn rate(self, run: &Run) -> f64 {
        self.size as f64 / MIB / run.transfer.as_secs_f64()
    }

    /// Returns the CPU time of this side for each byte, nanoseconds.
    fn cpu(self, run: &Run) -> f64 {
        run.cpu_ns as f64 / self.size as f64
    }

    /// Moves the bytes over a new connection from a new socket.
    fn run(
        self,
        arguments: &ClientArguments,
        options: &Options,
        tls: &Arc<rustls::ClientConfig>,
        stop: &Stop,
    ) -> anyhow::Result<Run> {
        let transfer = Transfer::new(self, arguments.streams.into());
        let outcome = Rc::clone(&transfer.outcome);
        let (began, done, batching) =
            connect_and_await(arguments, options, tls, stop, transfer, &outcome)?;
        Ok(Run {
            handshake: done.connected - began,
            transfer: done.ended - done.connected,
            cpu_ns: done.cpu_ns,
            statistics: done.statistics,
            batching,
        })
    }
}

/// What is done over a connection.
trait Work: Application + Default {
    /// Looks after it now and then.
    fn look(&mut self, connection: &mut Connection<'_>) {
        let _ = connection;
    }
}

impl Work for Transfer {}

impl Work for Pinger {
    fn look(&mut self, connection: &mut Connection<'_>) {
        Self::look(self, connection);
    }
}

/// Does a work over a new connection from a new socket. Returns when it began and what its outcome is.
fn connect_and_await<A: Work, D>(
    arguments: &ClientArguments,
    options: &Options,
    tls: &Arc<rustls::ClientConfig>,
    stop: &Stop,
    work: A,
    // A connection that fails is gone before it could be asked why.
    outcome: &RefCell<Option<Result<D, String>>>,
) -> anyhow::Result<(Instant, D, Batching)> {
    let any = match arguments.server {
        SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0_u16; 8], 0)),
    };
    let mut side = Side::new(any, options, |_| A::default())?;
    let (began, name) = (Instant::now(), &arguments.tls_name);
    let endpoint = side.endpoint();
    let name = endpoint.connect(began, Arc::clone(tls), arguments.server, name, work)?;
    let mut looked = began;
    let done = loop {
        side.turn(TICK)?;
        if let Some(outcome) = outcome.borrow_mut().take() {
            break outcome;
        }
        // Not in each turn, of which there are very many: it takes time of the connection.
        let now = Instant::now();
        if now - looked >= TICK {
            looked = now;
            let look = |connection: &mut Connection<'_>, work: &mut A| work.look(connection);
            side.endpoint().with(now, name, look);
        }
        if began.elapsed() > arguments.timeout {
            bail!("not done within {:?}", arguments.timeout);
        }
        if stop.is_ended() {
            bail!("stopped");
        }
    };
    let done = done.map_err(anyhow::Error::msg)?;
    let batching = side.batching();
    let endpoint = side.endpoint();
    endpoint.with(Instant::now(), name, |connection, _| {
        connection.close(0, "done");
    });
    side.turn(Duration::ZERO)?;
    Ok((began, done, batching))
}

/// The end of a transfer in which everything was right.
struct Done {
    connected: Instant,
    ended: Instant,
    cpu_ns: u64,
    statistics: Statistics,
}

/// One stream of a run.
struct Lane {
    sending: Sending,
    receiving: Receiving,
    sent: (u64, u32),
    wanted: (u64, u32),
}

/// What has become of a run, once that is certain.
type Outcome = Rc<RefCell<Option<Result<Done, String>>>>;

/// A run, as the connection's application.
#[derive(Default)]
struct Transfer {
    /// What the streams are to carry, before they are open.
    waiting: Vec<Lane>,
    lanes: BTreeMap<StreamId, Lane>,
    /// When the handshake was done, and the CPU time then.
    connected: Option<(Instant, u64)>,
    outcome: Outcome,
}

impl Transfer {
    fn new(task: Task, streams: u64) -> Self {
        let block = Payload::block();
        let lane = |index| {
            // The first ones have one byte more, if it does not come out even.
            let len = task.size / streams + u64::from(index < task.size % streams);
            let (sent, wanted) = if task.is_up { (len, 0) } else { (0, len) };
            let checked = |len| (len, Payload::new(&block, len).hash());
            Lane {
                sending: Sending::request(wanted, Payload::new(&block, sent)),
                receiving: Receiving::default(),
                sent: checked(sent),
                wanted: checked(wanted),
            }
        };
        Self {
            waiting: (0..streams).map(lane).collect(),
            ..Self::default()
        }
    }

    /// Ends the run with an outcome; only the first one counts.
    fn end(&self, outcome: Result<Done, String>) {
        self.outcome.borrow_mut().get_or_insert(outcome);
    }

    fn fail(&self, error: impl ToString) {
        self.end(Err(error.to_string()));
    }
}

impl Application for Transfer {
    fn connected(&mut self, connection: &mut Connection<'_>) {
        self.connected = Some((Instant::now(), cpu_ns()));
        for lane in std::mem::take(&mut self.waiting) {
            let Some(stream) = connection.open() else {
                self.fail("the server allows fewer streams");
                return;
            };
            self.lanes.insert(stream, lane);
            self.writable(connection, stream);
        }
    }

    fn readable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        let Some(lane) = self.lanes.get_mut(&stream) else {
            return;
        };
        match lane.receiving.answer(connection, stream) {
            Ok(false) => {}
            Err(error) => self.fail(error),
            Ok(true) => {
                let compared = lane.receiving.compare(lane.sent, lane.wanted);
                self.lanes.remove(&stream);
                if let Err(error) = compared {
                    self.fail(error);
                }
                if let (true, Some((connected, cpu_before_ns))) =
                    (self.lanes.is_empty(), self.connected)
                {
                    self.end(Ok(Done {
                        connected,
                        ended: Instant::now(),
                        cpu_ns: cpu_ns() - cpu_before_ns,
                        statistics: connection.statistics(),
                    }));
                }
            }
        }
    }

    fn writable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        if let Some(lane) = self.lanes.get_mut(&stream)
            && let Err(error) = lane.sending.write(connection, stream)
        {
            self.fail(error);
        }
    }

    fn datagram(&mut self, _: &mut Connection<'_>, _: Bytes) {
        self.fail("a DATAGRAM frame came");
    }

    fn closed(&mut self, cause: Closed, _: &Statistics) {
        self.fail(cause);
    }
}

fn report_failure(as_json: bool, direction: &str, size: u64, error: &anyhow::Error) {
    if as_json {
        output::event(
            &json!({"event": "failure", "direction": direction, "bytes": size, "error": format!("{error:#}")}),
        );
    } else {
        output::line(&format!("{direction} {size} bytes failed: {error:#}"));
    }
}

fn report_run(as_json: bool, task: Task, run: &Run) {
    if !as_json {
        return;
    }
    output::event(&json!({
        "event": "run",
        "direction": task.direction(),
        "bytes": task.size,
        "mib_per_s": task.rate(run),
        "seconds": run.transfer.as_secs_f64(),
        "handshake_ms": run.handshake.as_secs_f64() * 1e3,
        "cpu_ns_per_byte": task.cpu(run),
        "sent_packets": run.statistics.sent,
        "lost_packets": run.statistics.lost,
        "congestion_events": run.statistics.congestion_events,
        "acks_sent": run.statistics.acks_sent,
        "acks_received": run.statistics.acks_received,
        "batching": run.batching.value(),
    }));
}

fn report_task(arguments: &ClientArguments, task: Task, runs: &[Run]) {
    let figures = |value: &dyn Fn(&Run) -> f64| Summary::of(runs.iter().map(value));
    let (Some(rate), Some(handshake), Some(cpu)) = (
        figures(&|run| task.rate(run)),
        figures(&|run| run.handshake.as_secs_f64() * 1e3),
        figures(&|run| task.cpu(run)),
    ) else {
        return;
    };
    let lost: u64 = runs.iter().map(|run| run.statistics.lost).sum();
    if arguments.json {
        output::event(&json!({
            "event": "result",
            "direction": task.direction(),
            "bytes": task.size,
            "runs": runs.len(),
            "failed": usize::from(arguments.runs).saturating_sub(runs.len()),
            "mib_per_s": rate.value(),
            "handshake_ms": handshake.value(),
            "cpu_ns_per_byte": cpu.value(),
            "lost_packets": lost,
        }));
        return;
    }
    output::line(&format!(
        "{} {} bytes, {} runs: {:.1} MiB/s ({:.1} to {:.1}, 90 % up to {:.1}), {:.2} ns of CPU a byte here, handshake {:.2} ms, {lost} packets lost",
        task.direction(),
        output::grouped(task.size),
        runs.len(),
        rate.median,
        rate.min,
        rate.max,
        rate.p90,
        cpu.median,
        handshake.median,
    ));
    if let Some(last) = runs.last() {
        output::line(&format!("  the last of them: {}", last.batching.sentence()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024_and_bounded() {
        for (text, bytes) in [
            ("1", 1),
            ("3K", 3072),
            ("10M", 10 << 20),
            ("1024G", 1 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes));
        }
        for wrong in ["", "0", "M", "1025G", "-1", "1T", "99999999999999G"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn streams_share_all_bytes() {
        let task = Task {
            is_up: true,
            size: 1_000_003,
        };
        let transfer = Transfer::new(task, 7);
        let sum: u64 = transfer.waiting.iter().map(|lane| lane.sent.0).sum();
        assert_eq!((transfer.waiting.len(), sum), (7, 1_000_003));
    }
}
