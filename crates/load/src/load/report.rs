//! What a run comes to, for people and for programs.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::arguments::{Arguments, Mode};
use super::figures::Jitter;
use super::{drive, listener, sender};
use crate::output::{self, grouped};
use turnbuckle_client::Failure;

/// Sums at one moment, and at the end the window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) sent: u64,
    /// Of those, the ones that count.
    pub(crate) measured: u64,
    pub(crate) received: u64,
    pub(crate) arrived: u64,
    pub(crate) allocated: u64,
    pub(crate) window_ns: u64,
    /// CPU time of each thread within the window, senders first, nanoseconds.
    pub(crate) cpu: Vec<u64>,
    pub(crate) socket_drops: u64,
}

/// Shows a run on a terminal while it goes on.
pub(super) struct Progress {
    bar: ProgressBar,
    last: AtomicU64,
    last_sent: AtomicU64,
    last_arrived: AtomicU64,
    mode: Mode,
}

const SECOND: u64 = 1_000_000_000;

impl Progress {
    pub(super) fn new(arguments: &Arguments) -> Self {
        let seconds = (arguments.pace.warm_up + arguments.pace.duration).as_secs();
        // Without a terminal the library draws nothing.
        let bar = ProgressBar::new(seconds);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} s  {msg}") {
            bar.set_style(style);
        }
        bar.set_message("waiting for the server");
        bar.tick();
        Self {
            bar,
            last: AtomicU64::new(0),
            last_sent: AtomicU64::new(0),
            last_arrived: AtomicU64::new(0),
            mode: arguments.mode,
        }
    }

    /// Shows the progress of the run, at most once a second.
    pub(super) fn show(&self, now: u64, totals: &Totals) {
        let last = self.last.load(Ordering::Relaxed);
        if now - last < SECOND {
            return;
        }
        let seconds = (now - last) as f64 / 1e9;
        self.last.store(now, Ordering::Relaxed);
        let sent = totals.sent - self.last_sent.swap(totals.sent, Ordering::Relaxed);
        let arrived = totals.arrived - self.last_arrived.swap(totals.arrived, Ordering::Relaxed);
        self.bar.inc(1);
        self.bar.set_message(match self.mode {
            Mode::Alloc => format!("{} allocations", grouped(totals.allocated)),
            _ => format!(
                "sent {:.0}/s, received {:.0}/s",
                sent as f64 / seconds,
                arrived as f64 / seconds
            ),
        });
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The figures that coturn's generator prints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) failed: u64,
    pub(crate) allocated: u64,
    /// Moves to another port (RFC 8016), and those that failed.
    pub(crate) moves: [u64; 2],
    /// Mean, least and most, milliseconds.
    pub(crate) latency_ms: [f64; 3],
    /// Mean, least and most, milliseconds.
    pub(crate) jitter_ms: [f64; 3],
}

/// The end of a run.
pub(crate) struct Report {
    arguments: Arguments,
    totals: Totals,
    sent: u64,
    /// How it was sent.
    sending: sender::Outcome,
    /// What became of it, and of the clients.
    listened: listener::Outcome,
    /// Role and datagrams of each thread.
    threads: Vec<(&'static str, u64)>,
}

impl Report {
    pub(super) fn new(
        arguments: Arguments,
        totals: Totals,
        senders: Vec<(u64, sender::Outcome)>,
        listeners: Vec<(u64, drive::Outcome)>,
    ) -> anyhow::Result<Self> {
        let mut report = Self {
            arguments,
            totals,
            sent: 0,
            sending: sender::Outcome::new()?,
            listened: listener::Outcome::new()?,
            threads: Vec::new(),
        };
        for (sent, outcome) in senders {
            report.sent += sent;
            report.sending.add(&outcome)?;
            report.threads.push(("sender", sent));
        }
        for (sent, (outcome, sender)) in listeners {
            let role = if sender.is_some() {
                "sender and listener"
            } else {
                "listener"
            };
            let datagrams = sent + outcome.received.arrived;
            report.threads.push((role, datagrams));
            if let Some(sender) = sender {
                report.sent += sent;
                report.sending.add(&sender)?;
            }
            report.listened.add(&outcome)?;
        }
        Ok(report)
    }

    pub(crate) fn summary(&self) -> Summary {
        let (latency_ms, jitter_ms) =
            summary_of(&self.listened.delays.latency, &self.listened.delays.jitter);
        Summary {
            sent: self.sent,
            received: self.received(),
            failed: self.sending.failed,
            allocated: self.listened.allocations.allocated,
            moves: [self.listened.moved.done, self.listened.moved.failed],
            latency_ms,
            jitter_ms,
        }
    }

    fn seconds(&self) -> f64 {
        self.totals.window_ns as f64 / 1e9
    }

    /// Returns whether what comes back is the peer's, to be compared with what was sent.
    fn expects_all_back(&self) -> bool {
        self.arguments.mode.has_packets() && !self.arguments.lacks.no_receive
    }

    /// Returns how many packets were sent and not received.
    fn lost(&self) -> u64 {
        self.sent
            .saturating_sub(self.listened.received.counts.received)
    }

    fn loss_percent(&self) -> f64 {
        if self.sent == 0 {
            return 100.0;
        }
        self.lost() as f64 * 100.0 / self.sent as f64
    }

    fn received(&self) -> u64 {
        if self.arguments.mode == Mode::Invalid {
            self.listened.received.arrived
        } else {
            self.listened.received.counts.received
        }
    }

    fn failed_clients(&self) -> u64 {
        self.listened.allocations.failures.values().sum()
    }

    fn value(&self) -> Value {
        let seconds = self.seconds();
        let known = |value: u64| {
            if self.expects_all_back() {
                value.into()
            } else {
                Value::Null
            }
        };
        let threads: Vec<_> = self
            .threads
            .iter()
            .zip(self.totals.cpu.iter().chain(std::iter::repeat(&0)))
            .map(|((role, datagrams), cpu)| {
                json!({"role": role, "datagrams": datagrams, "cpu_seconds": *cpu as f64 / 1e9})
            })
            .collect();
        json!({
            "event": "result",
            "mode": self.arguments.mode.name(),
            "transport": self.arguments.ends.transport.as_str(),
            "seconds": seconds,
            "clients": self.arguments.volume.clients,
            "clients_failed": if self.arguments.mode == Mode::Alloc { 0 } else { self.failed_clients() },
            "sent_datagrams": self.sent,
            "sent_bytes": self.sending.sent_bytes,
            "received_datagrams": self.received(),
            "received_bytes": self.listened.received.bytes,
            "lost": known(self.lost()),
            "duplicated": self.listened.received.counts.duplicated,
            "reordered": self.listened.received.counts.reordered,
            "corrupted": self.listened.received.corrupted,
            "asked_pps": self.arguments.total_rate(),
            "send_pps": self.sent as f64 / seconds,
            "recv_pps": self.received() as f64 / seconds,
            "latency_us": microseconds(&self.listened.delays.latency),
            "jitter_us": jitter(&self.listened.delays.jitter),
            "silences_us": microseconds(&self.listened.delays.silences),
            "lateness_us": microseconds(&self.sending.lateness),
            "allocations": self.allocations(),
            "by_itself": self.listened.received.by_itself.map(|(counts, lost)| json!({
                "received_datagrams": counts.received,
                "recv_pps": counts.received as f64 / seconds,
                "lost": lost,
                "duplicated": counts.duplicated,
                "reordered": counts.reordered,
            })),
            "moves": self.arguments.moves().map(|_| json!({
                "done": self.listened.moved.done,
                "failed": self.listened.moved.failed,
                "stale_tickets_refused": self.listened.moved.stale_refused,
                "stale_tickets_taken": self.listened.moved.stale_taken,
            })),
            "send_calls": self.sending.send_calls,
            "gso_sends": self.sending.gso_sends,
            "send_failed_datagrams": self.sending.failed,
            "socket_drops": self.totals.socket_drops,
            "cpu_seconds": self.totals.cpu.iter().sum::<u64>() as f64 / 1e9,
            "threads": threads,
        })
    }

    fn allocations(&self) -> Value {
        if self.listened.allocations.attempted == 0 {
            return Value::Null;
        }
        let errors: serde_json::Map<String, Value> = self
            .listened
            .allocations
            .failures
            .iter()
            .map(|(failure, count)| (failure_name(*failure), (*count).into()))
            .collect();
        json!({
            "attempted": self.listened.allocations.attempted,
            "succeeded": self.listened.allocations.allocated,
            "failed": self.failed_clients(),
            "released": self.listened.allocations.released,
            "per_second": self.listened.allocations.allocated as f64 / self.seconds(),
            "errors": errors,
        })
    }

    /// Returns the last line for people.
    fn sentence(&self) -> String {
        let seconds = self.seconds();
        let mut text = match self.arguments.mode {
            Mode::Alloc => format!(
                "{} allocations in {seconds:.1} s: {:.0}/s, given back {}",
                grouped(self.listened.allocations.allocated),
                self.listened.allocations.allocated as f64 / seconds,
                grouped(self.listened.allocations.released)
            ),
            _ => format!(
                "sent {} ({:.0}/s), received {} ({:.0}/s)",
                grouped(self.sent),
                self.sent as f64 / seconds,
                grouped(self.received()),
                self.received() as f64 / seconds
            ),
        };
        if self.expects_all_back() {
            text += &format!(
                ", lost {} ({:.3} %), duplicated {}, reordered {}, corrupted {}",
                grouped(self.lost()),
                self.loss_percent(),
                grouped(self.listened.received.counts.duplicated),
                grouped(self.listened.received.counts.reordered),
                grouped(self.listened.received.corrupted)
            );
        }
        if !self.listened.delays.latency.is_empty() {
            let at = |percentile| {
                self.listened.delays.latency.value_at_percentile(percentile) as f64 / 1e3
            };
            text += &format!(
                ", round trip p50 {:.0} p99 {:.0} p99.9 {:.0} us",
                at(50.0),
                at(99.0),
                at(99.9)
            );
        }
        if let Some((counts, lost)) = self.listened.received.by_itself {
            text += &format!(
                ", from peers by themselves {} ({:.0}/s), of these lost {}, duplicated {}, reordered {}",
                grouped(counts.received),
                counts.received as f64 / seconds,
                grouped(lost),
                grouped(counts.duplicated),
                grouped(counts.reordered)
            );
        }
        if self.arguments.moves().is_some() {
            text += &format!(
                ", moved {}, failed to {}, stale tickets refused {}",
                grouped(self.listened.moved.done),
                grouped(self.listened.moved.failed),
                grouped(self.listened.moved.stale_refused)
            );
        }
        if self.failed_clients() > 0 {
            text += &format!(
                ", refused: {}",
                failures_sentence(&self.listened.allocations.failures)
            );
        }
        if self.sending.failed > 0 {
            text += &format!(", not sent {}", grouped(self.sending.failed));
        }
        text
    }

    pub(super) fn print(&self) {
        if self.arguments.verdict.json {
            output::event(&self.value());
        } else {
            output::line(&self.sentence());
        }
        for problem in self.broken_limits() {
            output::note(&format!("turnbuckle load: {problem}"));
        }
    }

    fn broken_limits(&self) -> Vec<String> {
        let mut broken = Vec::new();
        // These need no limit to be wrong.
        if self.arguments.mode.has_packets() {
            broken.extend(refused_clients(
                &self.listened.allocations.failures,
                self.arguments.volume.clients,
            ));
        }
        if self.sent == 0 && self.sending.failed > 0 {
            let failed = grouped(self.sending.failed);
            broken.push(format!(
                "nothing was sent: the kernel refused all {failed} packets"
            ));
        }
        if self.arguments.mode == Mode::Alloc && self.listened.allocations.allocated == 0 {
            broken.push(format!(
                "not one allocation was made: {}",
                failures_sentence(&self.listened.allocations.failures)
            ));
        }
        if self.listened.moved.failed > 0 {
            let failed = grouped(self.listened.moved.failed);
            broken.push(format!("{failed} moves failed"));
        }
        if self.listened.moved.stale_taken > 0 {
            let taken = grouped(self.listened.moved.stale_taken);
            broken.push(format!("{taken} tickets were taken that had been used up"));
        }
        if let Some(max) = self.arguments.verdict.max_loss
            && self.loss_percent() > max
        {
            broken.push(format!(
                "{:.3} % of the packets were lost, allowed: {max} %",
                self.loss_percent()
            ));
        }
        let p99 = self.listened.delays.latency.value_at_percentile(99.0) as f64 / 1e3;
        if let Some(max) = self.arguments.verdict.max_p99_us
            && (p99 > max || self.listened.delays.latency.is_empty())
        {
            broken.push(format!(
                "the 99th percentile of the round trip is {p99:.0} us, allowed: {max} us"
            ));
        }
        broken
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        if self.broken_limits().is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}

/// Returns mean, least and most of both, milliseconds.
pub(super) fn summary_of(latency: &Histogram<u64>, jitter: &Jitter) -> ([f64; 3], [f64; 3]) {
    let latency_ns = if latency.is_empty() {
        [0.0; 3]
    } else {
        [latency.mean(), latency.min() as f64, latency.max() as f64]
    };
    let jitter_ns = if jitter.samples == 0 {
        [0.0; 3]
    } else {
        let mean = jitter.sum as f64 / jitter.samples as f64;
        [mean, jitter.min as f64, jitter.max as f64]
    };
    let ms = |ns: [f64; 3]| ns.map(|ns| ns / 1e6);
    (ms(latency_ns), ms(jitter_ns))
}

pub(super) fn microseconds(histogram: &Histogram<u64>) -> Value {
    if histogram.is_empty() {
        return Value::Null;
    }
    let at = |percentile| histogram.value_at_percentile(percentile) as f64 / 1e3;
    json!({
        "samples": histogram.len(),
        "min": histogram.min() as f64 / 1e3,
        "mean": histogram.mean() / 1e3,
        "p50": at(50.0),
        "p90": at(90.0),
        "p99": at(99.0),
        "p99_9": at(99.9),
        "p99_99": at(99.99),
        "max": histogram.max() as f64 / 1e3,
    })
}

pub(super) fn jitter(jitter: &Jitter) -> Value {
    if jitter.samples == 0 {
        return Value::Null;
    }
    json!({
        "mean": jitter.sum as f64 / jitter.samples as f64 / 1e3,
        "min": jitter.min as f64 / 1e3,
        "max": jitter.max as f64 / 1e3,
    })
}

pub(super) fn failure_name(failure: Failure) -> String {
    match failure {
        Failure::Refused(code) => code.to_string(),
        Failure::Timeout => "timeout".to_owned(),
        Failure::BadAnswer => "bad_answer".to_owned(),
        Failure::NoTicket => "no_ticket".to_owned(),
        Failure::Disconnected => "disconnected".to_owned(),
        Failure::Handshake => "handshake".to_owned(),
    }
}

/// Names failures for people, each with how many there were.
pub(super) fn failures_with_names(failures: &BTreeMap<Failure, u64>) -> Vec<(String, u64)> {
    let failures = failures.iter();
    failures
        .map(|(failure, count)| (failure_name(*failure), *count))
        .collect()
}

/// Returns what is wrong with a run that was to have more clients; its figures say nothing about those.
pub(super) fn refused_clients(failures: &BTreeMap<Failure, u64>, clients: usize) -> Option<String> {
    let refused = failures.values().sum::<u64>();
    (refused > 0).then(|| {
        format!(
            "{} of {} clients were refused: {}",
            grouped(refused),
            grouped(clients as u64),
            failures_sentence(failures)
        )
    })
}

/// Returns the failures in words: `486 (12 times), timeout (1 time)`; empty without failures.
pub(super) fn failures_sentence(failures: &BTreeMap<Failure, u64>) -> String {
    let parts: Vec<_> = failures
        .iter()
        .map(|(failure, count)| {
            let times = if *count == 1 { "time" } else { "times" };
            format!("{} ({count} {times})", failure_name(*failure))
        })
        .collect();
    parts.join(", ")
}
