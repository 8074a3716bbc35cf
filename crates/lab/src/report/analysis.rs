//! Medians, spreads, ratios within rounds, and verdicts.

use std::collections::BTreeMap;

use crate::bottleneck::Bottleneck;
use crate::record::{Group, Record, Status};
use crate::scenario::{Bar, Metric, Question, Scenario};

/// Why figures say nothing about a server.
pub(super) const NOT_RANKED: &str = "another part than the relay limited a round";

/// Values of several rounds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) values: Vec<f64>,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// Standard deviation over mean, percent; 0 for a single value.
    pub(crate) cv_percent: f64,
}

impl Spread {
    /// Returns the spread of values; nothing without a value.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = values
            .iter()
            .copied()
            .filter(|value| value.is_finite())
            .collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let count = sorted.len();
        let median = if count % 2 == 1 {
            *sorted.get(count / 2)?
        } else {
            f64::midpoint(*sorted.get(count / 2 - 1)?, *sorted.get(count / 2)?)
        };
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let variance = sorted
            .iter()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>()
            / (count.saturating_sub(1)).max(1) as f64;
        let cv_percent = if mean.abs() > 0.0 {
            variance.sqrt() / mean.abs() * 100.0
        } else {
            0.0
        };
        Some(Self {
            values: values.to_vec(),
            median,
            min,
            max,
            cv_percent,
        })
    }
}

/// One server in one group.
#[derive(Clone, Debug)]
pub(crate) struct ServerResult {
    pub(crate) name: String,
    pub(crate) measured: usize,
    /// Rounds without figures, with the reasons.
    pub(crate) missing: Vec<String>,
    pub(crate) spread_by_metric: BTreeMap<Metric, Spread>,
    /// How often each part was the bottleneck.
    pub(crate) bottlenecks: BTreeMap<Bottleneck, usize>,
    /// May be ranked: under flood the relay was the bottleneck of every round, at a fixed rate no instrument was that of any.
    pub(crate) ranked: bool,
    /// Further medians that the tables show.
    pub(crate) sums: Sums,
}

/// Medians over rounds of what stands beside the metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) server_cpu_percent: f64,
    pub(crate) kernel_cpu_percent: f64,
    pub(crate) foreign_cpu_percent: f64,
    pub(crate) packets_out_pps: f64,
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    pub(crate) corrupted: u64,
    pub(crate) clients_failed: u64,
    pub(crate) drops: DropSums,
    pub(crate) rss_mib: f64,
    pub(crate) rate: Option<f64>,
}

/// Datagrams dropped on the way, at each of the three hosts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DropSums {
    pub(crate) relay: u64,
    pub(crate) peer: u64,
    pub(crate) load: u64,
}

/// A server's figure as a ratio to that of the server compared with, round by round.
#[derive(Clone, Debug)]
pub(crate) struct Ratio {
    pub(crate) server: String,
    pub(crate) metric: Metric,
    pub(crate) spread: Spread,
    /// Both may be ranked.
    pub(crate) ranked: bool,
}

/// What became of a bar.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    pub(crate) text: String,
    /// Nothing if it could not be judged.
    pub(crate) met: Option<bool>,
}

/// Runs that may be compared, worked out.
#[derive(Clone, Debug)]
pub(crate) struct GroupResult {
    pub(crate) group: Group,
    pub(crate) scenario: Scenario,
    pub(crate) servers: Vec<ServerResult>,
    pub(crate) ratios: Vec<Ratio>,
    pub(crate) verdicts: Vec<Verdict>,
}

/// Works out every group, in the order in which they were run.
pub(crate) fn analyse(
    records: &[Record],
    scenarios: &[Scenario],
    against: &str,
) -> Vec<GroupResult> {
    let mut groups: Vec<Group> = Vec::new();
    for record in records {
        let group = record.group();
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
        .into_iter()
        .filter_map(|group| {
            let scenario = scenarios
                .iter()
                .find(|scenario| scenario.name == group.scenario)?
                .clone();
            let records: Vec<&Record> = records
                .iter()
                .filter(|record| record.group() == group)
                .collect();
            Some(analyse_group(group, scenario, &records, against))
        })
        .collect()
}

fn analyse_group(
    group: Group,
    scenario: Scenario,
    records: &[&Record],
    against: &str,
) -> GroupResult {
    let mut names: Vec<&str> = Vec::new();
    for record in records {
        if !names.contains(&record.case.server.as_str()) {
            names.push(&record.case.server);
        }
    }
    // By name, so that a page does not change with the order of a run.
    names.sort_unstable();
    let servers: Vec<ServerResult> = names
        .iter()
        .map(|name| {
            let records: Vec<&Record> = records
                .iter()
                .copied()
                .filter(|record| record.case.server == *name)
                .collect();
            analyse_server(name, &scenario, &records)
        })
        .collect();
    let ratios = servers
        .iter()
        .filter(|server| server.name != against)
        .flat_map(|server| {
            scenario
                .shown
                .metrics
                .iter()
                .filter_map(|metric| ratio(records, &servers, &server.name, against, *metric))
        })
        .collect();
    let verdicts = scenario
        .shown
        .bars
        .iter()
        .filter(|bar| bar.arrival.is_none_or(|arrival| arrival == group.arrival))
        .filter_map(|bar| verdict(bar, records, &servers))
        .collect();
    GroupResult {
        group,
        scenario,
        servers,
        ratios,
        verdicts,
    }
}

/// Returns whether a run with this bottleneck says something about its server.
fn counts(question: Question, bottleneck: Bottleneck) -> bool {
    match (question, bottleneck) {
        (_, Bottleneck::Relay) | (Question::Instruments, _) => true,
        (Question::Flood, _) => false,
        // There the clients' CPU is part of what is weighed.
        (_, Bottleneck::Generator) => question.is_about_connections(),
        (_, Bottleneck::Nothing) => true,
        (_, Bottleneck::Reflector | Bottleneck::Unknown) => false,
    }
}

fn analyse_server(name: &str, scenario: &Scenario, records: &[&Record]) -> ServerResult {
    let measured: Vec<&Record> = records
        .iter()
        .copied()
        .filter(|record| record.case.status == Status::Measured)
        .collect();
    let mut bottlenecks = BTreeMap::new();
    for record in &measured {
        *bottlenecks.entry(record.limit.bottleneck).or_default() += 1;
    }
    let ranked = !measured.is_empty()
        && measured
            .iter()
            .all(|record| counts(scenario.question, record.limit.bottleneck));
    let mut missing: Vec<String> = records
        .iter()
        .filter(|record| record.case.status != Status::Measured)
        .map(|record| match record.case.status {
            Status::CannotRun => format!("cannot run: {}", record.case.note),
            _ => format!("round {} failed: {}", record.case.round, record.case.note),
        })
        .collect();
    missing.dedup();
    let median = |value: &dyn Fn(&Record) -> f64| {
        let values: Vec<f64> = measured.iter().map(|record| value(record)).collect();
        Spread::of(&values).map_or(0.0, |spread| spread.median)
    };
    let percent = |cpu_s: f64, record: &Record| cpu_s * 100.0 / record.case.seconds.max(1e-9);
    let sum = |value: &dyn Fn(&Record) -> u64| measured.iter().map(|record| value(record)).sum();
    ServerResult {
        name: name.to_owned(),
        measured: measured.len(),
        missing,
        spread_by_metric: scenario
            .shown
            .metrics
            .iter()
            .filter_map(|metric| {
                let values: Vec<f64> = measured
                    .iter()
                    .filter_map(|record| record.metric(*metric))
                    .collect();
                Some((*metric, Spread::of(&values)?))
            })
            .collect(),
        bottlenecks,
        ranked,
        sums: Sums {
            server_cpu_percent: median(&|record| percent(record.cost.server_cpu_s, record)),
            kernel_cpu_percent: median(&|record| percent(record.cost.relay_kernel_cpu_s, record)),
            foreign_cpu_percent: median(&|record| percent(record.cost.foreign_cpu_s, record)),
            packets_out_pps: median(&|record| {
                record.cost.packets_out as f64 / record.case.seconds.max(1e-9)
            }),
            sent: sum(&|record| {
                record.traffic.sent_datagrams + record.meanwhile.meanwhile_sent.unwrap_or(0)
            }),
            lost: sum(&|record| record.traffic.lost + record.meanwhile.meanwhile_lost.unwrap_or(0)),
            corrupted: sum(&|record| record.traffic.corrupted),
            clients_failed: sum(&|record| record.traffic.clients_failed),
            drops: DropSums {
                relay: sum(&|record| {
                    record.drops.relay_socket_drops
                        + record.drops.load_link_drops
                        + record.drops.peer_link_drops
                        + record.drops.backlog_drops
                }),
                peer: sum(&|record| record.drops.peer_socket_drops),
                load: sum(&|record| record.drops.load_socket_drops),
            },
            rss_mib: median(&|record| record.cost.server_rss_kib as f64 / 1024.0),
            rate: measured.iter().find_map(|record| record.case.rate),
        },
    }
}

/// Returns the ratios of the rounds that both servers measured.
fn ratio(
    records: &[&Record],
    servers: &[ServerResult],
    server: &str,
    against: &str,
    metric: Metric,
) -> Option<Ratio> {
    let value = |name: &str, round: u32| {
        records
            .iter()
            .find(|record| record.case.server == name && record.case.round == round)
            .and_then(|record| record.metric(metric))
    };
    let mut rounds: Vec<u32> = records.iter().map(|record| record.case.round).collect();
    rounds.sort_unstable();
    rounds.dedup();
    let ratios: Vec<f64> = rounds
        .into_iter()
        .filter_map(|round| {
            let (of, to) = (value(server, round)?, value(against, round)?);
            (to > 0.0).then_some(of / to)
        })
        .collect();
    let is_ranked = |name: &str| {
        servers
            .iter()
            .any(|server| server.name == name && server.ranked)
    };
    Some(Ratio {
        server: server.to_owned(),
        metric,
        spread: Spread::of(&ratios)?,
        ranked: is_ranked(server) && is_ranked(against),
    })
}

/// Judges a bar, if its servers were part of the run.
fn verdict(bar: &Bar, records: &[&Record], servers: &[ServerResult]) -> Option<Verdict> {
    servers.iter().find(|server| server.name == bar.server)?;
    let (what, spread, ranked) = match &bar.against {
        Some(against) => {
            servers.iter().find(|server| server.name == *against)?;
            let what = format!("{}, {} / {against}", bar.metric.title(), bar.server);
            let Some(ratio) = ratio(records, servers, &bar.server, against, bar.metric) else {
                return Some(Verdict {
                    text: format!("{what}: not judged, no round has both figures"),
                    met: None,
                });
            };
            (what, ratio.spread, ratio.ranked)
        }
        None => {
            let values: Vec<f64> = records
                .iter()
                .filter(|record| record.case.server == bar.server)
                .filter_map(|record| record.metric(bar.metric))
                .collect();
            let what = format!("{}, {}", bar.metric.title(), bar.server);
            let server = servers.iter().find(|server| server.name == bar.server);
            let ranked = server.is_some_and(|server| server.ranked);
            (what, Spread::of(&values)?, ranked)
        }
    };
    let (limit, met) = match (bar.at_least, bar.at_most) {
        (Some(least), _) => (format!("at least {least}"), spread.median >= least),
        (None, Some(most)) => (format!("at most {most}"), spread.median <= most),
        (None, None) => return None,
    };
    let figures = format!(
        "{} [{}-{}]",
        super::figure(spread.median),
        super::figure(spread.min),
        super::figure(spread.max)
    );
    if !ranked {
        return Some(Verdict {
            text: format!("{what}: {figures}, bar {limit}: not judged, {NOT_RANKED}"),
            met: None,
        });
    }
    Some(Verdict {
        text: format!(
            "{what}: {figures}, bar {limit}: {}",
            if met { "met" } else { "**missed**" }
        ),
        met: Some(met),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;
    use crate::record;
    use crate::server::Server;

    fn scenario(bars: &str) -> Scenario {
        Scenario::parse(
            "flood",
            &format!(
                "title = 'x'\nquestion = 'flood'\narrivals = ['offloads']\nload = 'packet'\nmetrics = ['packets_per_cpu_second']\n{bars}"
            ),
        )
        .expect("a scenario")
    }

    fn record(scenario: &Scenario, server: &str, round: u32, out: u64, part: Bottleneck) -> Record {
        let server: Server =
            toml::from_str(&format!("name = '{server}'\ncommand = 'x'")).expect("a server");
        let case = Case {
            scenario,
            arrival: crate::scenario::Arrival::Offloads,
            percent_of_capacity: None,
            rate: None,
            cell: None,
            server: &server,
            round,
            warm_up_s: 0.0,
            window_s: 1.0,
        };
        let base = case.empty_record(Status::Measured, "");
        Record {
            case: record::Which {
                seconds: 2.0,
                ..base.case
            },
            cost: record::Cost {
                packets_out: out,
                server_cpu_s: 2.0,
                ..base.cost
            },
            limit: record::Limit {
                bottleneck: part,
                ..base.limit
            },
            ..base
        }
    }

    const BAR: &str =
        "[[bar]]\nserver = 'a'\nagainst = 'b'\nmetric = 'packets_per_cpu_second'\nat_least = 3.0\n";

    #[test]
    fn ratios_are_taken_within_rounds() {
        let scenario = scenario(BAR);
        let records = [
            record(&scenario, "a", 1, 400, Bottleneck::Relay),
            record(&scenario, "b", 1, 100, Bottleneck::Relay),
            record(&scenario, "a", 2, 40, Bottleneck::Relay),
            record(&scenario, "b", 2, 10, Bottleneck::Relay),
        ];
        let groups = analyse(&records, &[scenario], "b");
        let ratio = &groups[0].ratios[0];
        assert_eq!((ratio.spread.min, ratio.spread.max), (4.0, 4.0));
        assert_eq!(groups[0].verdicts[0].met, Some(true));
    }

    #[test]
    fn servers_are_not_ranked_when_one_round_had_another_bottleneck() {
        let scenario = scenario(BAR);
        let records = [
            record(&scenario, "a", 1, 400, Bottleneck::Relay),
            record(&scenario, "b", 1, 100, Bottleneck::Relay),
            record(&scenario, "a", 2, 400, Bottleneck::Generator),
            record(&scenario, "b", 2, 100, Bottleneck::Relay),
        ];
        let groups = analyse(&records, &[scenario], "b");
        assert!(!groups[0].ratios[0].ranked);
        assert_eq!(groups[0].verdicts[0].met, None);
        assert!(
            groups[0].verdicts[0].text.contains("not judged"),
            "{}",
            groups[0].verdicts[0].text
        );
    }

    #[test]
    fn at_a_fixed_rate_servers_are_not_ranked_by_rounds_that_an_instrument_limited() {
        let mut steady = scenario(&format!(
            "{BAR}[[bar]]\nserver = 'a'\nmetric = 'packets_per_cpu_second'\nat_least = 1\n"
        ));
        steady.question = Question::Steady;
        for (part, is_judged) in [
            (Bottleneck::Nothing, true),
            (Bottleneck::Relay, true),
            (Bottleneck::Generator, false),
            (Bottleneck::Reflector, false),
        ] {
            let records = [
                record(&steady, "a", 1, 400, part),
                record(&steady, "b", 1, 100, Bottleneck::Nothing),
            ];
            let groups = analyse(&records, &[steady.clone()], "b");
            for verdict in &groups[0].verdicts {
                assert_eq!(verdict.met.is_some(), is_judged, "{}", verdict.text);
            }
            assert_eq!(groups[0].verdicts.len(), 2);
        }
    }

    #[test]
    fn a_failed_round_is_reported_and_not_averaged_in() {
        let scenario = scenario("");
        let mut failed = record(&scenario, "a", 2, 0, Bottleneck::Unknown);
        failed.case.status = Status::Failed;
        failed.case.note = "broken".to_owned();
        let records = [record(&scenario, "a", 1, 400, Bottleneck::Relay), failed];
        let groups = analyse(&records, &[scenario], "b");
        let server = &groups[0].servers[0];
        assert_eq!(server.measured, 1);
        assert_eq!(server.missing, ["round 2 failed: broken"]);
        assert_eq!(
            server.spread_by_metric[&Metric::PacketsPerCpuSecond].values,
            [200.0]
        );
    }

    #[test]
    fn medians_and_spreads() {
        let spread = Spread::of(&[3.0, 1.0, 2.0, 4.0]).expect("values");
        assert_eq!((spread.median, spread.min, spread.max), (2.5, 1.0, 4.0));
        assert_eq!(Spread::of(&[]), None);
    }
}
