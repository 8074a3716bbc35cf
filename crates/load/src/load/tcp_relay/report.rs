//! What a run over TCP relays comes to.

use std::collections::BTreeMap;
use std::process::ExitCode;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::worker::Outcome;
use crate::client::Failure;
use crate::load::arguments::Arguments;
use crate::load::listener::Jitter;
use crate::load::report::{
    Summary, failure_name, failures_sentence, jitter, microseconds, refused_clients, summary_of,
};
use crate::load::sender::histogram;
use crate::output::{self, grouped};

/// The end of a run.
pub(crate) struct Report {
    arguments: Arguments,
    seconds: f64,
    sent: u64,
    received: u64,
    corrupted: u64,
    closed_early: u64,
    attempted: u64,
    allocated: u64,
    released: u64,
    failures: BTreeMap<Failure, u64>,
    latency: Histogram<u64>,
    lateness: Histogram<u64>,
    jitter: Jitter,
}

impl Report {
    pub(super) fn new(
        arguments: Arguments,
        window_ns: u64,
        outcomes: Vec<Outcome>,
    ) -> anyhow::Result<Self> {
        let mut report = Self {
            arguments,
            seconds: window_ns as f64 / 1e9,
            sent: 0,
            received: 0,
            corrupted: 0,
            closed_early: 0,
            attempted: 0,
            allocated: 0,
            released: 0,
            failures: BTreeMap::new(),
            latency: histogram()?,
            lateness: histogram()?,
            jitter: Jitter::default(),
        };
        for outcome in outcomes {
            report.sent += outcome.sent;
            report.received += outcome.received;
            report.corrupted += outcome.corrupted;
            report.closed_early += outcome.closed_early;
            report.attempted += outcome.attempted;
            report.allocated += outcome.allocated;
            report.released += outcome.released;
            for (failure, count) in outcome.failures {
                *report.failures.entry(failure).or_default() += count;
            }
            report.latency.add(outcome.latency)?;
            report.lateness.add(outcome.lateness)?;
            report.jitter.add(&outcome.jitter);
        }
        Ok(report)
    }

    /// The figures that coturn's generator prints, and how many data connections there were.
    pub(crate) fn summary(&self) -> Summary {
        let (latency_ms, jitter_ms) = summary_of(&self.latency, &self.jitter);
        Summary {
            sent: self.sent,
            received: self.received,
            failed: 0,
            allocated: self.allocated,
            moves: [0; 2],
            latency_ms,
            jitter_ms,
        }
    }

    fn bytes(&self, packets: u64) -> u64 {
        packets * self.arguments.size as u64
    }

    fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    fn loss_percent(&self) -> f64 {
        if self.sent == 0 {
            return 100.0;
        }
        self.lost() as f64 * 100.0 / self.sent as f64
    }

    fn value(&self) -> Value {
        let errors: serde_json::Map<String, Value> = self
            .failures
            .iter()
            .map(|(failure, count)| (failure_name(*failure), (*count).into()))
            .collect();
        json!({
            "event": "result",
            "mode": self.arguments.mode.name(),
            "seconds": self.seconds,
            "clients": self.arguments.clients,
            "clients_failed": self.failures.values().sum::<u64>(),
            "sent_packets": self.sent,
            "sent_bytes": self.bytes(self.sent),
            "received_packets": self.received,
            "received_bytes": self.bytes(self.received),
            "lost": self.lost(),
            "corrupted": self.corrupted,
            "closed_early": self.closed_early,
            "send_pps": self.sent as f64 / self.seconds,
            "recv_pps": self.received as f64 / self.seconds,
            "latency_us": microseconds(&self.latency),
            "jitter_us": jitter(&self.jitter),
            "lateness_us": microseconds(&self.lateness),
            "allocations": {
                "attempted": self.attempted,
                "succeeded": self.allocated,
                "released": self.released,
                "errors": errors,
            },
        })
    }

    /// The last line for people.
    fn sentence(&self) -> String {
        let mbit = self.bytes(self.received) as f64 * 8.0 / self.seconds.max(1e-9) / 1e6;
        let mut text = format!(
            "sent {} ({:.0}/s), received {} ({mbit:.1} Mbit/s), lost {} ({:.3} %), corrupted {}, closed early {}",
            grouped(self.sent),
            self.sent as f64 / self.seconds,
            grouped(self.received),
            grouped(self.lost()),
            self.loss_percent(),
            grouped(self.corrupted),
            grouped(self.closed_early),
        );
        if !self.latency.is_empty() {
            let at = |percentile| self.latency.value_at_percentile(percentile) as f64 / 1e3;
            text += &format!(
                ", round trip p50 {:.0} p99 {:.0} p99.9 {:.0} us",
                at(50.0),
                at(99.0),
                at(99.9)
            );
        }
        if !self.failures.is_empty() {
            text += &format!(", refused: {}", failures_sentence(&self.failures));
        }
        text
    }

    pub(super) fn print(&self) {
        if self.arguments.json {
            output::event(&self.value());
        } else {
            output::line(&self.sentence());
        }
        if let Some(problem) = self.problem() {
            output::note(&format!("turnbuckle load: {problem}"));
        }
    }

    /// What the run was not to be. A stream that is not what was sent needs no limit to be wrong.
    fn problem(&self) -> Option<String> {
        if self.corrupted > 0 {
            let corrupted = grouped(self.corrupted);
            return Some(format!("{corrupted} packets were not what was sent"));
        }
        if let Some(refused) = refused_clients(&self.failures, self.arguments.clients) {
            return Some(refused);
        }
        if let Some(max) = self.arguments.max_loss
            && self.loss_percent() > max
        {
            return Some(format!(
                "{:.3} % of the packets were lost, allowed: {max} %",
                self.loss_percent()
            ));
        }
        let p99 = self.latency.value_at_percentile(99.0) as f64 / 1e3;
        let max = self.arguments.max_p99_us?;
        (p99 > max || self.latency.is_empty()).then(|| {
            format!("the 99th percentile of the round trip is {p99:.0} us, allowed: {max} us")
        })
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        if self.problem().is_none() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }
}
