//! Datagrams of QUIC (RFC 9221), which the server sends back: how many a second, how many are lost, how long they take.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::json;
use turnbuckle_quic::{
    Application, Bytes, BytesMut, Closed, Connection, SendDatagramError, Statistics, StreamId,
};

use super::batching::Batching;
use super::payload::Payload;
use super::summary::Summary;
use crate::output;
use crate::threads::cpu_ns;

/// Bytes of the number with which each begins; the rest is the same in all of them.
const NUMBER_LEN: usize = 8;
/// Bytes of memory that datagrams are written to, one after the other.
const BLOCK_LEN: usize = 64 * 1024;
/// Time without any after which those that are missing are lost.
const LOST_AFTER: Duration = Duration::from_millis(500);

/// Datagrams of a run, on the command line.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Exchange {
    /// Bytes of datagrams that the server is to send back, as in 160,1150
    #[arg(long, value_name = "BYTES", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(NUMBER_LEN as i64..=1_400))]
    pub(super) datagrams: Vec<u16>,
    /// Datagrams of each run
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: u32,
    /// Datagrams that are under way at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    in_flight: u32,
}

/// What became of a run in which everything that came back was what was sent.
#[derive(Clone, Debug)]
pub(super) struct Returned {
    sent: u64,
    back: u64,
    /// From the end of the handshake to the last that came back.
    time: Duration,
    cpu_ns: u64,
    round_trips: Summary,
    statistics: Statistics,
}

/// What has become of a run, once that is certain.
pub(super) type Outcome = Rc<RefCell<Option<Result<Returned, String>>>>;

/// A run, as the connection's application.
#[derive(Default)]
pub(super) struct Pinger {
    /// What each is made of, behind its number.
    filling: Bytes,
    /// Where they are written. Memory of its own for each would be a good part of what a datagram costs.
    block: BytesMut,
    count: usize,
    in_flight: usize,
    /// When each was sent, by the clock of the turns: reading one for each datagram would count as the datagram's.
    sent: Vec<Instant>,
    /// How long those that came back took, microseconds; each once.
    round_trips: Vec<Option<f64>>,
    /// Those that are not awaited any more: they came back, or did not for long enough.
    settled: usize,
    back: usize,
    /// When the handshake was done, and the CPU time then.
    connected: Option<(Instant, u64)>,
    last: Option<Instant>,
    pub(super) outcome: Outcome,
}

impl Pinger {
    pub(super) fn new(exchange: &Exchange, size: u16) -> Self {
        let filling_len = usize::from(size).saturating_sub(NUMBER_LEN);
        Self {
            filling: Payload::block().slice(..filling_len),
            count: exchange.count as usize,
            in_flight: exchange.in_flight as usize,
            ..Self::default()
        }
    }

    fn end(&self, outcome: Result<Returned, String>) {
        self.outcome.borrow_mut().get_or_insert(outcome);
    }

    fn fail(&self, error: impl ToString) {
        self.end(Err(error.to_string()));
    }

    /// Sends as many as may be under way, and ends the run if there are no more to wait for.
    fn go_on(&mut self, connection: &mut Connection<'_>) {
        while self.sent.len() < self.count && self.sent.len() < self.settled + self.in_flight {
            let number = (self.sent.len() as u64).to_be_bytes();
            if self.block.capacity() < NUMBER_LEN + self.filling.len() {
                self.block.reserve(BLOCK_LEN);
            }
            self.block.extend_from_slice(&number);
            self.block.extend_from_slice(&self.filling);
            let payload = self.block.split().freeze();
            match connection.send_datagram(payload) {
                Ok(()) => {
                    self.sent.push(connection.now());
                    self.round_trips.push(None);
                }
                // There is room again when others have left.
                Err(SendDatagramError::Blocked) => return,
                Err(SendDatagramError::TooLarge) => return self.fail("too large for the path"),
                Err(SendDatagramError::Unsupported) => {
                    return self.fail("the server takes no datagrams");
                }
            }
        }
        if self.settled >= self.count {
            self.finish(connection);
        }
    }

    fn finish(&self, connection: &Connection<'_>) {
        let round_trips = Summary::of(self.round_trips.iter().copied().flatten());
        let (Some((connected, cpu_before_ns)), Some(last), Some(round_trips)) =
            (self.connected, self.last, round_trips)
        else {
            return self.fail("no datagram came back");
        };
        self.end(Ok(Returned {
            sent: self.sent.len() as u64,
            back: self.back as u64,
            time: last - connected,
            cpu_ns: cpu_ns() - cpu_before_ns,
            round_trips,
            statistics: connection.statistics(),
        }));
    }

    /// Gives up those that have not come back, if none has for long enough.
    pub(super) fn look(&mut self, connection: &mut Connection<'_>) {
        let since = self.last.or_else(|| self.connected.map(|(at, _)| at));
        if since.is_some_and(|since| since.elapsed() > LOST_AFTER) {
            self.settled = self.sent.len();
            self.last = self.last.map(|_| Instant::now());
        }
        if self.connected.is_some() {
            self.go_on(connection);
        }
    }
}

impl Application for Pinger {
    fn connected(&mut self, connection: &mut Connection<'_>) {
        self.connected = Some((Instant::now(), cpu_ns()));
        self.go_on(connection);
    }

    fn readable(&mut self, _: &mut Connection<'_>, _: StreamId) {
        self.fail("a stream was opened");
    }

    fn datagram(&mut self, connection: &mut Connection<'_>, payload: Bytes) {
        let number = payload
            .first_chunk()
            .map(|&number| u64::from_be_bytes(number));
        let number = number.and_then(|number| usize::try_from(number).ok());
        let Some(number) = number
            .filter(|&number| number < self.sent.len() && payload[NUMBER_LEN..] == self.filling)
        else {
            return self.fail("another datagram came back than was sent");
        };
        let now = connection.now();
        let took = (now - self.sent[number]).as_secs_f64() * 1e6;
        if self.round_trips[number].replace(took).is_some() {
            return self.fail("a datagram came back twice");
        }
        self.last = Some(now);
        self.back += 1;
        // One that was given up may come all the same.
        self.settled = (self.settled + 1).min(self.sent.len());
        self.go_on(connection);
    }

    fn closed(&mut self, cause: Closed, _: &Statistics) {
        self.fail(cause);
    }
}

/// Says what became of the runs of one size.
pub(super) fn report(as_json: bool, size: u16, runs: &[(Returned, Batching)]) {
    for (run, batching) in runs {
        let rate = run.back as f64 / run.time.as_secs_f64();
        let cpu_ns = run.cpu_ns as f64 / run.back as f64;
        let lost = run.sent - run.back;
        if as_json {
            output::event(&json!({
                "event": "datagrams",
                "bytes": size,
                "sent": run.sent,
                "lost": lost,
                "per_second": rate,
                "cpu_ns_per_datagram": cpu_ns,
                "round_trip_us": run.round_trips.value(),
                "lost_packets": run.statistics.lost,
                "batching": batching.value(),
            }));
        } else {
            output::line(&format!(
                "datagrams of {size} bytes: {rate:.0} a second there and back, {lost} of {} lost, round trip {:.0} us ({:.0} to {:.0}, 90 % up to {:.0}), {cpu_ns:.0} ns of CPU here",
                output::grouped(run.sent),
                run.round_trips.median,
                run.round_trips.min,
                run.round_trips.max,
                run.round_trips.p90,
            ));
        }
    }
}
