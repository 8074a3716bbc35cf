//! Medians, spread and the two bars.

use std::fmt::Write as _;

use serde_json::{Value, json};
use turnbuckle_datapath::Backend;

use crate::Options;
use crate::lab::{Case, Reading};
use crate::measure::Program;

/// `gso` must move so many times what `single` moves per CPU second, datagrams arriving as GRO buffers.
const MOVED_BAR: f64 = 10.0;
/// `gso` may cost so much of `mmsg`'s CPU time per datagram, datagrams arriving singly.
const COST_BAR: f64 = 1.0 / 3.0;

pub(crate) struct Sample {
    pub(crate) round: usize,
    pub(crate) case: Case,
    pub(crate) program: Program,
    pub(crate) backend: Backend,
    pub(crate) reading: Reading,
}

/// All samples of a run.
pub(crate) struct Report {
    samples: Vec<Sample>,
    head: Value,
}

/// Median and range of one quantity.
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            (values[middle - 1] + values[middle]) / 2.0
        };
        Some(Self { median, min, max })
    }
}

impl Report {
    pub(crate) fn new(options: &Options) -> Self {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let head = json!({
            "kernel": kernel.trim(),
            "rounds_counted": options.rounds.saturating_sub(1).max(1),
            "window_seconds": options.window.as_secs_f64(),
            "rate": options.rate,
            "payload_bytes": options.size,
            "coalesce_us": options.coalesce.as_secs_f64() * 1e6,
        });
        Self {
            samples: Vec::new(),
            head,
        }
    }

    pub(crate) fn add(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    fn spread(
        &self,
        case: Case,
        program: Program,
        backend: Backend,
        of: fn(&Reading) -> f64,
    ) -> Option<Spread> {
        let is_it = |sample: &&Sample| {
            (sample.case, sample.program, sample.backend) == (case, program, backend)
        };
        Spread::of(
            self.samples
                .iter()
                .filter(is_it)
                .map(|sample| of(&sample.reading))
                .collect(),
        )
    }

    /// Returns the bars, measured within each round and then taken as a median: name, bar, ratio, whether it is met.
    fn bars(&self) -> Vec<(String, f64, Spread, bool)> {
        let mut bars = Vec::new();
        for program in [Program::Reflect, Program::Strip, Program::Add] {
            let ratios = |case: Case, base: Backend, of: fn(&Reading) -> f64| {
                let reading = |round: usize, backend: Backend| {
                    let wanted = (round, case, program, backend);
                    self.samples
                        .iter()
                        .find(|s| (s.round, s.case, s.program, s.backend) == wanted)
                        .map(|sample| of(&sample.reading))
                };
                let rounds = self
                    .samples
                    .iter()
                    .map(|sample| sample.round)
                    .max()
                    .unwrap_or(0);
                Spread::of(
                    (0..=rounds)
                        .filter_map(|round| {
                            Some(reading(round, Backend::Gso)? / reading(round, base)?)
                        })
                        .collect(),
                )
            };
            if let Some(ratio) = ratios(Case::GroBuffers, Backend::Single, Reading::per_cpu_second)
            {
                let met = ratio.median >= MOVED_BAR;
                bars.push((
                    format!("gro-buffers {program}: gso / single, moved per CPU second"),
                    MOVED_BAR,
                    ratio,
                    met,
                ));
            }
            if let Some(ratio) = ratios(Case::Singly, Backend::Mmsg, Reading::ns_per_datagram) {
                let met = ratio.median <= COST_BAR;
                bars.push((
                    format!("singly {program}: gso / mmsg, CPU time per datagram"),
                    COST_BAR,
                    ratio,
                    met,
                ));
            }
        }
        bars
    }

    fn rows(&self) -> Vec<(Case, Program, Backend)> {
        let mut rows: Vec<_> = self
            .samples
            .iter()
            .map(|sample| (sample.case, sample.program, sample.backend))
            .collect();
        rows.sort_by_key(|(case, program, backend)| {
            (
                *case,
                *program,
                backend.as_str() != "single",
                backend.as_str() == "gso",
            )
        });
        rows.dedup();
        rows
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\n\n", self.head);
        text += "| case | program | backend | delivered M/s | M per CPU second, median [min-max] | ns of CPU per datagram |\n";
        text += "|---|---|---|---|---|---|\n";
        for (case, program, backend) in self.rows() {
            let of = |of: fn(&Reading) -> f64| self.spread(case, program, backend, of);
            let (Some(rate), Some(moved), Some(cost)) = (
                of(|reading| reading.delivered as f64 / reading.seconds),
                of(Reading::per_cpu_second),
                of(Reading::ns_per_datagram),
            ) else {
                continue;
            };
            let _ = writeln!(
                text,
                "| {case} | {program} | {backend} | {:.3} | {:.3} [{:.3}-{:.3}] | {:.0} [{:.0}-{:.0}] |",
                rate.median / 1e6,
                moved.median / 1e6,
                moved.min / 1e6,
                moved.max / 1e6,
                cost.median,
                cost.min,
                cost.max,
            );
        }
        text.push('\n');
        for (name, bar, ratio, met) in self.bars() {
            let verdict = if met { "met" } else { "NOT MET" };
            let Spread { median, min, max } = ratio;
            let _ = writeln!(
                text,
                "{name}: {median:.3} [{min:.3}-{max:.3}], bar {bar:.3}: {verdict}"
            );
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let samples: Vec<Value> = self
            .samples
            .iter()
            .map(
                |Sample {
                     round,
                     case,
                     program,
                     backend,
                     reading,
                 }| {
                    json!({
                        "round": round,
                        "case": case.to_string(),
                        "program": program.to_string(),
                        "backend": backend.as_str(),
                        "seconds": reading.seconds,
                        "delivered": reading.delivered,
                        "cpu_seconds": reading.cpu,
                    })
                },
            )
            .collect();
        let bars: Vec<Value> = self
            .bars()
            .into_iter()
            .map(|(name, bar, ratio, met)| json!({ "name": name, "bar": bar, "median": ratio.median, "min": ratio.min, "max": ratio.max, "met": met }))
            .collect();
        json!({ "run": self.head, "samples": samples, "bars": bars })
    }
}
