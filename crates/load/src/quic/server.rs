//! `turnbuckle quic-server`: takes what clients send, and sends what they ask for.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

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
    /// Say nothing of connections, only of all together at the end
    #[arg(long)]
    quiet: bool,
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
    let is_quiet = arguments.quiet;
    let mut side = Side::new(arguments.listen, &options, move |from| {
        let record = (!is_quiet).then(|| Record::new(from, ended.clone()));
        Sink::new(block.clone(), record)
    })
    .with_context(|| format!("--listen {}", arguments.listen))?;
    side.endpoint().serve(tls)?;
    announce(arguments.json, side.local(), options.backend);
    let mut before = Batching::default();
    let mut is_over = false;
    while !is_over {
        is_over = stop.is_ended();
        if is_over {
            close(&mut side)?;
        } else {
            side.turn(TICK)?;
        }
        while let Ok(connection) = is_ended.try_recv() {
            let now = side.batching();
            tell(arguments.json, &connection, &now.since(&before));
            before = now;
        }
    }
    finish(arguments.json, &mut side);
    Ok(ExitCode::SUCCESS)
}

/// Closes the connections that there are, so that it is known what became of them.
fn close(side: &mut Side<Sink>) -> io::Result<()> {
    side.endpoint().stop(Instant::now(), 0, "the server stops");
    side.turn(Duration::ZERO)
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
            "sent_packets": statistics.sent,
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

/// What has become of a connection so far.
struct Record {
    ended: Ended,
    cpu_at_start_ns: u64,
    /// Where it goes at the end.
    to: Sender<Ended>,
}

impl Record {
    fn new(from: SocketAddr, to: Sender<Ended>) -> Self {
        Self {
            ended: Ended {
                from,
                received: 0,
                answered: 0,
                datagrams: 0,
                cpu_ns: 0,
                statistics: Statistics::default(),
                closed: Closed::Local,
            },
            cpu_at_start_ns: cpu_ns(),
            to,
        }
    }
}

/// Serves one connection.
struct Sink {
    block: Bytes,
    receiving: BTreeMap<StreamId, Receiving>,
    sending: BTreeMap<StreamId, Sending>,
    /// `None` if nobody is to hear of the connection.
    record: Option<Record>,
}

impl Sink {
    const fn new(block: Bytes, record: Option<Record>) -> Self {
        Self {
            block,
            receiving: BTreeMap::new(),
            sending: BTreeMap::new(),
            record,
        }
    }

    fn note(&mut self, what: impl FnOnce(&mut Ended)) {
        if let Some(record) = &mut self.record {
            what(&mut record.ended);
        }
    }
}

impl Application for Sink {
    /// Sends it back, if there is room.
    fn datagram(&mut self, connection: &mut Connection<'_>, payload: Bytes) {
        self.note(|ended| ended.datagrams += 1);
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
        self.note(|ended| ended.received += received);
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
            Ok(true) => {
                self.sending.remove(&stream);
                self.note(|ended| ended.answered += 1);
            }
            Err(_) => {
                self.sending.remove(&stream);
            }
        }
    }

    fn closed(&mut self, closed: Closed, statistics: &Statistics) {
        if let Some(mut record) = self.record.take() {
            record.ended.cpu_ns = cpu_ns() - record.cpu_at_start_ns;
            record.ended.statistics = *statistics;
            record.ended.closed = closed;
            // Nobody is told if the program is ending.
            let _ = record.to.send(record.ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::super::side::Options;
    use super::*;

    /// Opens no stream.
    #[derive(Default)]
    struct Idle {
        is_connected: Rc<Cell<bool>>,
    }

    impl Application for Idle {
        fn connected(&mut self, _: &mut Connection<'_>) {
            self.is_connected.set(true);
        }

        fn readable(&mut self, _: &mut Connection<'_>, _: StreamId) {}
    }

    #[test]
    fn a_server_that_stops_says_what_became_of_connections_that_are_open() {
        let options = Options {
            backend: Backend::probe().0,
            mtu: 1_350,
            train: 32,
            timeout: Duration::from_secs(30),
        };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (ended, is_ended) = mpsc::channel();
        let block = Payload::block();
        let accept = move |from| {
            let record = Record::new(from, ended.clone());
            Sink::new(block.clone(), Some(record))
        };
        let mut server = Side::new(any, &options, accept).expect("an address");
        let tls = tls::server(None).expect("a certificate");
        server.endpoint().serve(tls).expect("TLS 1.3");
        let mut client = Side::new(any, &options, |_| Idle::default()).expect("an address");
        let idle = Idle::default();
        let is_connected = Rc::clone(&idle.is_connected);
        let tls = tls::client(None).expect("a configuration");
        let (now, address) = (Instant::now(), server.local());
        let connection = client
            .endpoint()
            .connect(now, tls, address, "localhost", idle);
        connection.expect("a connection");
        while !is_connected.get() {
            server.turn(Duration::from_millis(1)).expect("poll");
            client.turn(Duration::from_millis(1)).expect("poll");
        }
        assert!(is_ended.try_recv().is_err());
        close(&mut server).expect("poll");
        let told = is_ended.try_recv().expect("the connection");
        assert_eq!(told.closed, Closed::Local);
        assert!(told.statistics.sent > 0);
    }
}
