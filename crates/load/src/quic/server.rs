//! `turnbuckle quic-server`: takes what clients send, and sends what they ask for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use turnbuckle_datapath::Backend;
use turnbuckle_quic::{Application, Bytes, Closed, Connection, Dropped, Statistics, StreamId};

use super::batching::Batching;
use super::exchange::{Receiving, Sending, WRONG_REQUEST};
use super::payload::Payload;
use super::side::{Moving, Side};
use super::tls;
use crate::cli;
use crate::output;
use crate::stop::Stop;
use crate::threads::cpu_ns;

/// How often signals are looked at.
const TICK: Duration = Duration::from_millis(50);

/// Command line of `turnbuckle quic-server`.
#[derive(clap::Args, Clone, Debug)]
pub struct ServerArguments {
    /// Address to receive at
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:4433")]
    listen: SocketAddr,
    #[command(flatten)]
    moving: Moving,
    /// File with the certificate and its chain; without it one is made
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// File with the key of the certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Time after which a connection on which nothing comes ends
    #[arg(long, value_name = "SECONDS", value_parser = cli::seconds, default_value = "30")]
    timeout: Duration,
    /// Print events as lines of JSON
    #[arg(long)]
    json: bool,
}

/// Serves until it is told to stop.
///
/// # Errors
/// The address cannot be bound, or the certificate not be used.
pub fn serve(arguments: &ServerArguments) -> anyhow::Result<ExitCode> {
    let stop = Stop::on_signals()?;
    let files = arguments.cert.as_deref().zip(arguments.key.as_deref());
    let tls = tls::server(files)?;
    let options = arguments.moving.options(arguments.timeout);
    let (ended, is_ended) = mpsc::channel();
    let block = Payload::block();
    let mut side = Side::new(arguments.listen, &options, move |from| {
        Sink::new(from, block.clone(), ended.clone())
    })
    .with_context(|| format!("--listen {}", arguments.listen))?;
    side.endpoint().serve(tls)?;
    announce(arguments.json, side.local(), options.backend);
    let mut before = Batching::default();
    while !stop.is_ended() {
        side.turn(TICK)?;
        while let Ok(connection) = is_ended.try_recv() {
            let now = side.batching();
            tell(arguments.json, &connection, &now.since(&before));
            before = now;
        }
    }
    finish(arguments.json, &mut side);
    Ok(ExitCode::SUCCESS)
}

/// Says where it listens, what moves the datagrams, and why.
fn announce(as_json: bool, local: SocketAddr, backend: Backend) {
    let capabilities = Backend::probe().1;
    if as_json {
        output::event(&json!({
            "event": "ready",
            "listen": local.to_string(),
            "backend": backend.as_str(),
            "capabilities": capabilities,
        }));
    } else {
        output::line(&format!("QUIC on {local}, {backend} ({capabilities})"));
    }
}

fn tell(as_json: bool, connection: &Ended, batching: &Batching) {
    let Ended {
        from,
        received,
        answered,
        datagrams,
        cpu_ns,
        statistics,
        closed,
    } = connection;
    if as_json {
        output::event(&json!({
            "event": "connection",
            "from": from.to_string(),
            "received_bytes": received,
            "answered_streams": answered,
            "datagrams": datagrams,
            "cpu_seconds": *cpu_ns as f64 / 1e9,
            "lost_packets": statistics.lost,
            "acks_sent": statistics.acks_sent,
            "closed": closed.to_string(),
            "batching": batching.value(),
        }));
    } else {
        output::line(&format!(
            "{from}: {} bytes received, {answered} streams answered, {} datagrams sent back, {:.1} ms of CPU, {} packets lost; {}; {closed}",
            output::grouped(*received),
            output::grouped(*datagrams),
            *cpu_ns as f64 / 1e6,
            statistics.lost,
            batching.sentence()
        ));
    }
}

fn finish(as_json: bool, side: &mut Side<Sink>) {
    let batching = side.batching();
    let totals = *side.endpoint().totals();
    let dropped: BTreeMap<_, _> = Dropped::ALL
        .map(|reason| (reason.as_str(), totals.of(reason)))
        .into();
    if as_json {
        output::event(&json!({
            "event": "result",
            "received_datagrams": totals.received,
            "delivered_datagrams": totals.delivered,
            "connections": totals.begun,
            "answered_datagrams": totals.answered,
            "dropped_datagrams": dropped,
            "panicked_connections": totals.panicked,
            "late_handshakes": totals.handshakes_late,
            "batching": batching.value(),
        }));
    } else {
        output::line(&format!(
            "{} connections, {} datagrams received; {}",
            totals.begun,
            output::grouped(totals.received),
            batching.sentence()
        ));
    }
}

/// What became of a connection.
struct Ended {
    from: SocketAddr,
    received: u64,
    answered: u64,
    datagrams: u64,
    cpu_ns: u64,
    statistics: Statistics,
    closed: Closed,
}

/// Serves one connection.
struct Sink {
    block: Bytes,
    receiving: BTreeMap<StreamId, Receiving>,
    sending: BTreeMap<StreamId, Sending>,
    cpu_at_start_ns: u64,
    /// Where it goes when the connection has ended.
    ended: Sender<Ended>,
    record: Option<Ended>,
}

impl Sink {
    fn new(from: SocketAddr, block: Bytes, ended: Sender<Ended>) -> Self {
        Self {
            block,
            receiving: BTreeMap::new(),
            sending: BTreeMap::new(),
            cpu_at_start_ns: cpu_ns(),
            ended,
            record: Some(Ended {
                from,
                received: 0,
                answered: 0,
                datagrams: 0,
                cpu_ns: 0,
                statistics: Statistics::default(),
                closed: Closed::Local,
            }),
        }
    }

    /// Has the stream end, and remembers how the connection was then.
    fn answered(&mut self, connection: &Connection<'_>, stream: StreamId) {
        self.sending.remove(&stream);
        if let Some(record) = &mut self.record {
            record.answered += 1;
            record.statistics = connection.statistics();
        }
    }
}

impl Application for Sink {
    /// Sends it back, if there is room.
    fn datagram(&mut self, connection: &mut Connection<'_>, payload: Bytes) {
        if let Some(record) = &mut self.record {
            record.datagrams += 1;
            record.statistics = connection.statistics();
        }
        let _ = connection.send_datagram(payload);
    }

    fn readable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        let receiving = self.receiving.entry(stream).or_default();
        let request = receiving.request(connection, stream, &self.block);
        let received = receiving.bytes();
        if matches!(request, Ok(None)) {
            return;
        }
        self.receiving.remove(&stream);
        if let Some(record) = &mut self.record {
            record.received += received;
        }
        match request {
            Ok(Some(Some(answer))) => {
                self.sending.insert(stream, answer);
                self.writable(connection, stream);
            }
            Ok(Some(None) | None) => connection.abandon(stream, WRONG_REQUEST),
            Err(_) => {} // abandoned by the client, which knows why
        }
    }

    fn writable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        let Some(sending) = self.sending.get_mut(&stream) else {
            return;
        };
        match sending.write(connection, stream) {
            Ok(false) => {}
            Ok(true) => self.answered(connection, stream),
            Err(_) => {
                self.sending.remove(&stream);
            }
        }
    }

    fn closed(&mut self, closed: Closed) {
        if let Some(mut record) = self.record.take() {
            record.cpu_ns = cpu_ns() - self.cpu_at_start_ns;
            record.closed = closed;
            // Nobody is told if the program is ending.
            let _ = self.ended.send(record);
        }
    }
}
