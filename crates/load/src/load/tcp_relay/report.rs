//! What a run over TCP relays comes to.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::task::Outcome;
use crate::load::arguments::Arguments;
use crate::load::report::{
    Summary, failure_name, failures_sentence, jitter, microseconds, refused_clients, summary_of,
};
use crate::output::{self, grouped};

/// The end of a run.
pub(crate) struct TcpRelayReport {
    arguments: Arguments,
    seconds: f64,
    outcome: Outcome,
}

impl TcpRelayReport {
    pub(super) fn new(
        arguments: Arguments,
        window_ns: u64,
        outcomes: Vec<Outcome>,
    ) -> anyhow::Result<Self> {
        let mut outcome = Outcome::new()?;
        for each in outcomes {
            outcome.add(&each)?;
        }
        Ok(Self {
            arguments,
            seconds: window_ns as f64 / 1e9,
            outcome,
        })
    }

    /// Returns the figures that coturn's generator prints, and how many data connections there were.
    pub(crate) fn summary(&self) -> Summary {
        let (latency_ms, jitter_ms) =
            summary_of(&self.outcome.delays.latency, &self.outcome.delays.jitter);
        Summary {
            sent: self.outcome.sent,
            received: self.outcome.received,
            failed: 0,
            allocated: self.outcome.allocations.allocated,
            moves: [0; 2],
            latency_ms,
            jitter_ms,
        }
    }

    fn bytes(&self, packets: u64) -> u64 {
        packets * self.arguments.volume.size as u64
    }

    fn lost(&self) -> u64 {
        self.outcome.sent.saturating_sub(self.outcome.received)
    }

    fn loss_percent(&self) -> f64 {
        if self.outcome.sent == 0 {
            return 100.0;
        }
        self.lost() as f64 * 100.0 / self.outcome.sent as f64
    }

    fn value(&self) -> Value {
        let errors: serde_json::Map<String, Value> = self
            .outcome
            .allocations
            .failures
            .iter()
            .map(|(failure, count)| (failure_name(*failure), (*count).into()))
            .collect();
        json!({
            "event": "result",
            "mode": self.arguments.mode.name(),
            "seconds": self.seconds,
            "clients": self.arguments.volume.clients,
            "clients_failed": self.outcome.allocations.failures.values().sum::<u64>(),
            "sent_packets": self.outcome.sent,
            "sent_bytes": self.bytes(self.outcome.sent),
            "received_packets": self.outcome.received,
            "received_bytes": self.bytes(self.outcome.received),
            "lost": self.lost(),
            "corrupted": self.outcome.corrupted,
            "closed_early": self.outcome.closed_early,
            "send_pps": self.outcome.sent as f64 / self.seconds,
            "recv_pps": self.outcome.received as f64 / self.seconds,
            "latency_us": microseconds(&self.outcome.delays.latency),
            "jitter_us": jitter(&self.outcome.delays.jitter),
            "lateness_us": microseconds(&self.outcome.lateness),
            "allocations": {
                "attempted": self.outcome.allocations.attempted,
                "succeeded": self.outcome.allocations.allocated,
                "released": self.outcome.allocations.released,
                "errors": errors,
            },
        })
    }

    /// Returns the last line for people.
    fn sentence(&self) -> String {
        let mbit = self.bytes(self.outcome.received) as f64 * 8.0 / self.seconds.max(1e-9) / 1e6;
        let mut text = format!(
            "sent {} ({:.0}/s), received {} ({mbit:.1} Mbit/s), lost {} ({:.3} %), corrupted {}, closed early {}",
            grouped(self.outcome.sent),
            self.outcome.sent as f64 / self.seconds,
            grouped(self.outcome.received),
            grouped(self.lost()),
            self.loss_percent(),
            grouped(self.outcome.corrupted),
            grouped(self.outcome.closed_early),
        );
        if !self.outcome.delays.latency.is_empty() {
            let at = |percentile| {
                self.outcome.delays.latency.value_at_percentile(percentile) as f64 / 1e3
            };
            text += &format!(
                ", round trip p50 {:.0} p99 {:.0} p99.9 {:.0} us",
                at(50.0),
                at(99.0),
                at(99.9)
            );
        }
        if !self.outcome.allocations.failures.is_empty() {
            text += &format!(
                ", refused: {}",
                failures_sentence(&self.outcome.allocations.failures)
            );
        }
        text
    }

    pub(super) fn print(&self) {
        if self.arguments.verdict.json {
            output::event(&self.value());
        } else {
            output::line(&self.sentence());
        }
        if let Some(problem) = self.problem() {
            output::note(&format!("turnbuckle load: {problem}"));
        }
    }

    /// Returns what is wrong with the run, if anything is. A stream that is not what was sent needs no limit to be wrong.
    fn problem(&self) -> Option<String> {
        if self.outcome.corrupted > 0 {
            let corrupted = grouped(self.outcome.corrupted);
            return Some(format!("{corrupted} packets were not what was sent"));
        }
        if let Some(refused) = refused_clients(
            &self.outcome.allocations.failures,
            self.arguments.volume.clients,
        ) {
            return Some(refused);
        }
        if let Some(max) = self.arguments.verdict.max_loss
            && self.loss_percent() > max
        {
            return Some(format!(
                "{:.3} % of the packets were lost, allowed: {max} %",
                self.loss_percent()
            ));
        }
        let p99 = self.outcome.delays.latency.value_at_percentile(99.0) as f64 / 1e3;
        let max = self.arguments.verdict.max_p99_us?;
        (p99 > max || self.outcome.delays.latency.is_empty()).then(|| {
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
