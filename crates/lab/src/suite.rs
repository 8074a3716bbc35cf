//! Scenarios times servers in alternating rounds.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;

use crate::case::Case;
use crate::hosts::{Hosts, Source};
use crate::interrupt;
use crate::note::note;
use crate::record::{self, Record, Status};
use crate::run::Refused;
use crate::scenario::{Arrival, Scenario};
use crate::server::Server;

/// What to run.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) scenarios: Vec<Scenario>,
    /// For scenarios that do not name their own.
    pub(crate) servers: Vec<Server>,
    /// Those of scenarios that do, by the scenario's name.
    pub(crate) servers_by_scenario: BTreeMap<String, Vec<Server>>,
    /// Only this arrival.
    pub(crate) arrival: Option<Arrival>,
    pub(crate) raw: PathBuf,
    /// For files that servers insist on writing.
    pub(crate) tmp: String,
}

/// What came of it besides the records.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) failed: u32,
    /// How hosts were set up, by arrival.
    pub(crate) notes: Vec<String>,
}

/// Loss at which a rate counts as too much in the search of a capacity.
const LOSS_AT_CAPACITY: f64 = 0.005;
const SEARCH_WARM_UP_S: f64 = 0.5;
const SEARCH_WINDOW_S: f64 = 1.0;
/// Doublings, then halvings of the interval.
const SEARCH_STEPS_MAX: u32 = 16;
const SEARCH_HALVINGS: u32 = 3;

impl Suite {
    /// Runs all of it; each run's record is written before the next begins.
    ///
    /// # Errors
    ///
    /// If hosts cannot be set up, and after a signal. A run that fails, or that the server cannot do, is a record, not an error.
    pub(crate) fn run(&self, source: &Source) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for arrival in [Arrival::Offloads, Arrival::Singly] {
            let scenarios: Vec<&Scenario> = self
                .scenarios
                .iter()
                .filter(|scenario| scenario.arrivals.contains(&arrival))
                .filter(|_| self.arrival.is_none_or(|only| only == arrival))
                .collect();
            if scenarios.is_empty() {
                continue;
            }
            let hosts = source.open(arrival)?;
            for text in &hosts.notes {
                note(&format!("{arrival}: {text}"));
                outcome.notes.push(format!("{arrival}: {text}"));
            }
            for scenario in scenarios {
                self.run_scenario(&hosts, scenario, arrival, &mut outcome)?;
            }
        }
        Ok(outcome)
    }

    fn run_scenario(
        &self,
        hosts: &Hosts,
        scenario: &Scenario,
        arrival: Arrival,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let servers = self.servers_of(scenario);
        if scenario.question.is_about_connections() {
            return self.run_cells(hosts, scenario, arrival, outcome);
        }
        // Without a relay one server stands for all.
        let count = if scenario.direct { 1 } else { servers.len() };
        let mut capacities = vec![None; count];
        let done = self.rounds_done(scenario, arrival)?;
        for round in done + 1..=done + scenario.times.rounds {
            let is_first = round == done + 1;
            for index in 0..count {
                // Each round begins with another server, so that none always follows the same one.
                let index = (index + round as usize - 1) % count;
                let Some(server) = servers.get(index) else {
                    continue;
                };
                let mut case = Case {
                    scenario,
                    arrival,
                    percent_of_capacity: None,
                    rate: None,
                    cell: None,
                    server,
                    round,
                    warm_up_s: scenario.times.warm_up_s,
                    window_s: scenario.times.window_s,
                };
                let cannot = server.cannot.get(&scenario.name).map(String::as_str);
                let cannot = match server.command(scenario.transport) {
                    Some(_) => cannot,
                    None => Some("no command line for the transport"),
                };
                if let Some(reason) = cannot
                    && !scenario.direct
                {
                    if is_first {
                        self.keep(&case.empty_record(Status::CannotRun, reason))?;
                    }
                    continue;
                }
                if scenario.search.percent_of_capacity.is_empty() {
                    self.run_case(&case, hosts, outcome)?;
                    continue;
                }
                if is_first {
                    match self.capacity(&case, hosts) {
                        Ok(capacity) => {
                            note(&format!(
                                "{}, {arrival}, {}: capacity {capacity:.0} datagrams/s",
                                scenario.name, server.name
                            ));
                            if let Some(slot) = capacities.get_mut(index) {
                                *slot = Some(capacity);
                            }
                        }
                        Err(error) => {
                            interrupt::check()?;
                            let status = if error.is::<Refused>() {
                                Status::CannotRun
                            } else {
                                outcome.failed += 1;
                                Status::Failed
                            };
                            self.keep(
                                &case
                                    .empty_record(status, &format!("no capacity found: {error:#}")),
                            )?;
                        }
                    }
                }
                let Some(Some(capacity)) = capacities.get(index) else {
                    continue;
                };
                for percent in &scenario.search.percent_of_capacity {
                    case.percent_of_capacity = Some(*percent);
                    case.rate = Some((capacity * percent / 100.0).round());
                    self.run_case(&case, hosts, outcome)?;
                }
            }
        }
        Ok(())
    }

    /// Runs every server in every cell of a scenario about connections.
    fn run_cells(
        &self,
        hosts: &Hosts,
        scenario: &Scenario,
        arrival: Arrival,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let servers = self.servers_of(scenario);
        let cells = scenario.connections.cells(hosts.relay.cpu_count()?)?;
        let done = self.rounds_done(scenario, arrival)?;
        for round in done + 1..=done + scenario.times.rounds {
            for cell in &cells {
                for index in 0..servers.len() {
                    let index = (index + round as usize - 1) % servers.len();
                    let Some(server) = servers.get(index) else {
                        continue;
                    };
                    let case = Case {
                        scenario,
                        arrival,
                        percent_of_capacity: None,
                        rate: None,
                        cell: Some(cell),
                        server,
                        round,
                        warm_up_s: scenario.times.warm_up_s,
                        window_s: scenario.times.window_s,
                    };
                    match server.cannot.get(&scenario.name) {
                        Some(reason) if round == done + 1 => {
                            self.keep(&case.empty_record(Status::CannotRun, reason))?;
                        }
                        Some(_) => {}
                        None => self.run_case(&case, hosts, outcome)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns how many rounds of a scenario the folder has already. Further ones follow them: all may take longer than a machine can be had for. Were they
    /// numbered anew, servers of different hours would be taken for those of one round.
    fn rounds_done(&self, scenario: &Scenario, arrival: Arrival) -> Result<u32> {
        if !self.raw.exists() {
            return Ok(0);
        }
        let rounds = record::read(&self.raw)?
            .into_iter()
            .filter(|record| {
                record.case.scenario == scenario.name && record.case.arrival == arrival
            })
            .map(|record| record.case.round);
        Ok(rounds.max().unwrap_or(0))
    }

    /// Returns the servers that a scenario is measured with.
    pub(crate) fn servers_of(&self, scenario: &Scenario) -> &[Server] {
        let own = self.servers_by_scenario.get(&scenario.name);
        own.unwrap_or(&self.servers)
    }

    /// Returns the servers of all scenarios, each once.
    pub(crate) fn all_servers(&self) -> Vec<&Server> {
        let mut all: Vec<&Server> = Vec::new();
        for server in self.scenarios.iter().flat_map(|it| self.servers_of(it)) {
            if !all.iter().any(|each| each.name == server.name) {
                all.push(server);
            }
        }
        all
    }

    fn run_case(&self, case: &Case<'_>, hosts: &Hosts, outcome: &mut Outcome) -> Result<()> {
        let record = match case.run(hosts, &self.tmp) {
            Ok((record, _)) => record,
            Err(error) => {
                interrupt::check()?;
                let status = if error.is::<Refused>() {
                    Status::CannotRun
                } else {
                    outcome.failed += 1;
                    Status::Failed
                };
                case.empty_record(status, &format!("{error:#}"))
            }
        };
        note(&line(&record, case.scenario));
        self.keep(&record)
    }

    fn keep(&self, record: &Record) -> Result<()> {
        record::append(&self.raw, record)
    }

    /// Finds the highest rate, in datagrams sent per second, at which less than [`LOSS_AT_CAPACITY`] is lost: doubling, then halving the interval.
    fn capacity(&self, case: &Case<'_>, hosts: &Hosts) -> Result<f64> {
        let mut carried = 0.0_f64;
        let mut too_much: Option<f64> = None;
        let mut rate = case.scenario.search.search_from;
        let mut halvings = 0;
        for _ in 0..SEARCH_STEPS_MAX {
            let probe = Case {
                rate: Some(rate),
                warm_up_s: SEARCH_WARM_UP_S,
                window_s: SEARCH_WINDOW_S,
                ..*case
            };
            // Twice, so that a moment in which something else had the CPU does not pass for the server's end.
            let is_carried = self.carries(&probe, hosts)? || self.carries(&probe, hosts)?;
            if is_carried {
                carried = carried.max(rate);
            } else {
                too_much = Some(rate);
            }
            rate = match too_much {
                None => rate * 2.0,
                Some(too_much) => {
                    halvings += 1;
                    if halvings > SEARCH_HALVINGS {
                        break;
                    }
                    if carried > 0.0 {
                        f64::midpoint(carried, too_much)
                    } else {
                        too_much / 2.0
                    }
                }
            };
        }
        if carried <= 0.0 {
            anyhow::bail!("even {rate:.0} datagrams/s are not carried without loss");
        }
        Ok(carried)
    }
}

impl Suite {
    /// Returns whether the case's rate is carried with no more loss than at capacity.
    fn carries(&self, probe: &Case<'_>, hosts: &Hosts) -> Result<bool> {
        let (record, _) = probe.run(hosts, &self.tmp)?;
        let loss = record.traffic.lost as f64 / (record.traffic.sent_datagrams.max(1)) as f64;
        // A generator that could not send what was asked for has found its own end, not the server's.
        let sent_enough = record.traffic.send_pps >= 0.97 * probe.rate.unwrap_or(0.0);
        Ok(loss <= LOSS_AT_CAPACITY && sent_enough)
    }
}

/// Describes a run in one line, for who watches.
fn line(record: &Record, scenario: &Scenario) -> String {
    let mut text = format!(
        "{} · {} · round {} · ",
        record.group(),
        record.case.server,
        record.case.round
    );
    if record.case.status != Status::Measured {
        text.push_str(&record.case.note);
        return text;
    }
    for metric in &scenario.shown.metrics {
        if let Some(value) = record.metric(*metric) {
            text.push_str(&format!(
                "{} {}, ",
                crate::report::figure(value),
                metric.title()
            ));
        }
    }
    text.push_str(&format!(
        "bottleneck {} ({})",
        record.limit.bottleneck, record.limit.bottleneck_why
    ));
    text
}
