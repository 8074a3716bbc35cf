//! Tables and plots of scenarios about connections: what their cells have in common stands side by side, strategies by numbers of workers.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use kuva::backend::svg::SvgBackend;
use kuva::plot::LinePlot;
use kuva::render::layout::Layout;
use kuva::render::plots::Plot;
use kuva::render::render::render_multiple;

use super::analysis::Spread;
use super::figure;
use crate::record::{Record, Status};
use crate::scenario::{Metric, Question, Scenario};

/// One colour for each line of a plot.
const COLOURS: [&str; 6] = [
    "#2f6f9f", "#c2571a", "#2e8540", "#8e3b8c", "#7a6a00", "#555555",
];

/// Runs of one cell by one server.
struct Row<'a> {
    server: &'a str,
    records: Vec<&'a Record>,
}

impl Row<'_> {
    fn spread(&self, value: impl Fn(&Record) -> Option<f64>) -> Option<Spread> {
        let values: Vec<f64> = self.records.iter().filter_map(|it| value(it)).collect();
        Spread::of(&values)
    }

    /// Returns the median with the smallest and the largest.
    fn full(&self, value: impl Fn(&Record) -> Option<f64>) -> String {
        self.spread(value).map_or_else(
            || "-".to_owned(),
            |it| {
                format!(
                    "{} [{}-{}]",
                    figure(it.median),
                    figure(it.min),
                    figure(it.max)
                )
            },
        )
    }

    fn median(&self, value: impl Fn(&Record) -> Option<f64>) -> String {
        self.spread(value)
            .map_or_else(|| "-".to_owned(), |it| figure(it.median))
    }

    fn metric(&self, metric: Metric) -> String {
        self.full(|record| record.metric(metric))
    }

    fn sum(&self, value: impl Fn(&Record) -> u64) -> u64 {
        self.records.iter().map(|it| value(it)).sum()
    }
}

/// Returns the rows of a scenario's cell, by name of the server.
fn rows<'a>(records: &[&'a Record], cell: &str) -> Vec<Row<'a>> {
    let of_cell = || {
        records
            .iter()
            .copied()
            .filter(|it| it.connections.cell == cell)
    };
    let servers: BTreeSet<&str> = of_cell().map(|it| it.case.server.as_str()).collect();
    servers
        .into_iter()
        .map(|server| Row {
            server,
            records: of_cell().filter(|it| it.case.server == server).collect(),
        })
        .collect()
}

/// Returns the cells in the order in which they were measured.
fn cells<'a>(records: &[&'a Record]) -> Vec<&'a str> {
    let mut cells = Vec::new();
    for record in records {
        if !cells.contains(&record.connections.cell.as_str()) {
            cells.push(record.connections.cell.as_str());
        }
    }
    cells
}

fn measured<'a>(records: &'a [Record], scenario: &Scenario) -> Vec<&'a Record> {
    records
        .iter()
        .filter(|it| it.case.scenario == scenario.name && it.case.status == Status::Measured)
        .collect()
}

/// Returns a table for each scenario about connections, in Markdown.
pub(super) fn tables(records: &[Record], scenarios: &[Scenario]) -> String {
    let mut text = String::new();
    for scenario in scenarios {
        if !scenario.question.is_about_connections() {
            continue;
        }
        let records = measured(records, scenario);
        if records.is_empty() {
            continue;
        }
        let _ = writeln!(
            text,
            "## {}\n\n{}. Medians [smallest-largest] over rounds.\n",
            scenario.name, scenario.title
        );
        match scenario.question {
            Question::Storm => storms(&mut text, &records),
            Question::Shortage => shortages(&mut text, &records),
            _ if scenario.connections.workers.is_empty() => costs(&mut text, &records),
            _ => strategies(&mut text, &records),
        }
    }
    text
}

fn strategies(text: &mut String, records: &[&Record]) {
    let _ = writeln!(
        text,
        "| clients and workers | strategy | connections/s | server us each | both us each | connect p50, p99 us | queue full | accepts per wake | \
         least and most of a worker | wrong CPU |\n|---|---|---|---|---|---|---|---|---|---|"
    );
    for cell in cells(records) {
        for row in rows(records, cell) {
            let share = |part: fn(&Record) -> Option<u64>| {
                row.median(|it| {
                    Some(part(it)? as f64 * 100.0 / it.connections.accepted?.max(1) as f64)
                })
            };
            let _ = writeln!(
                text,
                "| {cell} | {} | {} | {} | {} | {}, {} | {} | {} | {} %, {} % | {} |",
                row.server.strip_prefix("accept-").unwrap_or(row.server),
                row.metric(Metric::ConnectionsPerSecond),
                row.median(|it| it.metric(Metric::CpuUsPerConnection)),
                row.median(|it| it.metric(Metric::CpuUsPerConnectionBoth)),
                row.median(|it| it.connections.connect_p50_us),
                row.median(|it| it.connections.connect_p99_us),
                row.median(|it| Some(it.accepting.listen_overflows as f64)),
                row.median(|it| Some(
                    it.connections.accepted? as f64 / it.accepting.wakeups?.max(1) as f64
                )),
                share(|it| it.accepting.worker_min),
                share(|it| it.accepting.worker_max),
                match row
                    .records
                    .iter()
                    .any(|it| it.accepting.wrong_cpu.is_some())
                {
                    true => format!(
                        "{} of {}",
                        row.sum(|it| it.accepting.wrong_cpu.unwrap_or(0)),
                        row.sum(|it| it.connections.accepted.unwrap_or(0))
                    ),
                    false => "-".to_owned(),
                },
            );
        }
    }
    let all = Row {
        server: "",
        records: records.to_vec(),
    };
    let connected = all.sum(|it| it.connections.connected);
    let accepted = all.sum(|it| it.connections.accepted.unwrap_or(0));
    let _ = writeln!(
        text,
        "\nConnected {connected}, accepted {accepted}: {} were not, and {} were reset before the last packet of their handshake arrived \
         (`TcpExtEmbryonicRsts`). Failed connects: {}. Runs in which accepting met an error: {}.\n",
        connected.saturating_sub(accepted),
        all.sum(|it| it.accepting.embryonic_resets),
        all.sum(|it| it.connections.connections_failed),
        all.records
            .iter()
            .filter(|it| !it.connections.accept_errors.is_empty())
            .count(),
    );
}

fn costs(text: &mut String, records: &[&Record]) {
    let _ = writeln!(
        text,
        "| server | done | per second | server CPU us each | p99 us | failed |\n|---|---|---|---|---|---|"
    );
    for cell in cells(records) {
        for row in rows(records, cell) {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} |",
                row.server,
                row.sum(|it| it.connections.connections),
                row.metric(Metric::ConnectionsPerSecond),
                row.metric(Metric::CpuUsPerConnection),
                row.metric(Metric::ConnectP99Us),
                row.sum(|it| it.connections.connections_failed),
            );
        }
    }
    text.push('\n');
}

fn storms(text: &mut String, records: &[&Record]) {
    let _ = writeln!(
        text,
        "| server | storm | connections/s | calls' p99 us, quiet | calls' p99 us, storm | beside quiet | rounds above 2 | p99.9 us, storm | lost of sent | \
         server CPU %, quiet, storm |\n|---|---|---|---|---|---|---|---|---|---|"
    );
    for cell in cells(records) {
        for row in rows(records, cell) {
            let above = row
                .records
                .iter()
                .filter_map(|it| it.metric(Metric::P99BesideQuiet))
                .filter(|ratio| *ratio > 2.0)
                .count();
            let percent = |cpu_s: Option<f64>, it: &Record| Some(cpu_s? * 100.0 / it.case.seconds);
            let _ = writeln!(
                text,
                "| {} | {cell} | {} | {} | {} | {} | {above} of {} | {} | {} of {} | {}, {} |",
                row.server,
                row.metric(Metric::ConnectionsPerSecond),
                row.metric(Metric::QuietP99Us),
                row.metric(Metric::P99Us),
                row.metric(Metric::P99BesideQuiet),
                row.records.len(),
                row.full(|it| it.delay.p999_us),
                row.sum(|it| it.traffic.lost),
                row.sum(|it| it.traffic.sent_datagrams),
                row.median(|it| percent(it.accepting.meanwhile_cpu_s, it)),
                row.median(|it| percent(Some(it.cost.server_cpu_s), it)),
            );
        }
    }
    text.push('\n');
}

fn shortages(text: &mut String, records: &[&Record]) {
    let _ = writeln!(
        text,
        "| server | connections answered | lost | per second | longest wait, ms | the limit |\n|---|---|---|---|---|---|"
    );
    for cell in cells(records) {
        for row in rows(records, cell) {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} |",
                row.server,
                row.sum(|it| it.connections.connected),
                row.sum(|it| it.connections.connections_failed),
                row.metric(Metric::ConnectionsPerSecond),
                row.full(|it| it.connections.connect_max_us.map(|us| us / 1e3)),
                without_repetition(
                    row.records
                        .iter()
                        .map(|it| it.limit.bottleneck_why.as_str())
                ),
            );
        }
    }
    text.push('\n');
}

/// Joins sentences, each without what it begins with if the one before begins with the same, up to ` in `.
fn without_repetition<'a>(sentences: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    let mut before = "";
    for sentence in sentences {
        let (beginning, rest) = sentence.split_once(" in ").unwrap_or(("", sentence));
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(match beginning == before && !text.is_empty() {
            true => rest,
            false => sentence,
        });
        before = beginning;
    }
    text
}

/// Plots lines over the number of workers, one for each server, for each place of the clients and each of two figures.
pub(super) fn plots(records: &[Record], scenario: &Scenario) -> Vec<String> {
    if !scenario.connections.variants.is_empty() {
        return Vec::new();
    }
    let records = measured(records, scenario);
    let mut places: Vec<&str> = Vec::new();
    for record in records.iter().filter(|it| it.connections.workers.is_some()) {
        let place = place(record);
        if !places.contains(&place) {
            places.push(place);
        }
    }
    let metrics = [Metric::ConnectionsPerSecond, Metric::CpuUsPerConnection];
    places
        .iter()
        .flat_map(|place| metrics.map(|metric| (place, metric)))
        .filter_map(|(of, metric)| {
            let records: Vec<&Record> = records
                .iter()
                .copied()
                .filter(|it| place(it) == *of)
                .collect();
            let title = format!("{}, {of}, by workers", metric.title());
            lines(&records, metric, &title)
        })
        .collect()
}

/// Returns the first part of the name of a run's cell.
fn place(record: &Record) -> &str {
    record
        .connections
        .cell
        .split(", ")
        .next()
        .unwrap_or_default()
}

fn lines(records: &[&Record], metric: Metric, title: &str) -> Option<String> {
    let servers: BTreeSet<&str> = records.iter().map(|it| it.case.server.as_str()).collect();
    let counts: BTreeSet<u64> = records
        .iter()
        .filter_map(|it| it.connections.workers)
        .collect();
    let mut plots = Vec::new();
    for (server, colour) in servers.iter().zip(COLOURS.iter().cycle()) {
        let points: Vec<(f64, f64)> = counts
            .iter()
            .filter_map(|&count| {
                let values: Vec<f64> = records
                    .iter()
                    .filter(|it| it.case.server == *server && it.connections.workers == Some(count))
                    .filter_map(|it| it.metric(metric))
                    .collect();
                Some((count as f64, Spread::of(&values)?.median))
            })
            .collect();
        if !points.is_empty() {
            let name = server.strip_prefix("accept-").unwrap_or(server);
            plots.push(Plot::Line(
                LinePlot::new()
                    .with_data(points)
                    .with_color(*colour)
                    .with_legend(name),
            ));
        }
    }
    if plots.is_empty() {
        return None;
    }
    let layout = Layout::auto_from_plots(&plots)
        .with_title(title)
        .with_x_label("workers")
        .with_log_x()
        .with_y_axis_min(0.0)
        .with_width(760.0)
        .with_height(380.0);
    Some(SvgBackend.render_scene(&render_multiple(plots, layout)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;
    use crate::record;
    use crate::server::Server;

    fn scenario() -> Scenario {
        Scenario::parse(
            "accept",
            "title = 'x'\nquestion = 'connections'\narrivals = ['offloads']\nload = ''\nmetrics = ['connections_per_second']\n\
             [connections]\nplaces = ['loopback']\nworkers = ['1', '4']\n",
        )
        .expect("a scenario")
    }

    fn records(scenario: &Scenario) -> Vec<Record> {
        let cells = scenario.connections.cells(4).expect("cells");
        let mut records = Vec::new();
        for (name, factor) in [("accept-cpu", 2.0), ("accept-shared", 1.0)] {
            let server: Server =
                toml::from_str(&format!("name = '{name}'\ncommand = 'x'")).expect("a server");
            for cell in &cells {
                for round in [1, 2, 3] {
                    let case = Case {
                        scenario,
                        arrival: crate::scenario::Arrival::Offloads,
                        percent_of_capacity: None,
                        rate: None,
                        cell: Some(cell),
                        server: &server,
                        round,
                        warm_up_s: 0.0,
                        window_s: 1.0,
                    };
                    let base = case.empty_record(Status::Measured, "");
                    records.push(Record {
                        cost: record::Cost {
                            server_cpu_s: 0.001,
                            ..base.cost
                        },
                        connections: record::Connections {
                            workers: cell.workers.map(u64::from),
                            connections: 50,
                            connections_per_second: Some(f64::from(round) * 100.0 * factor),
                            connected: 60,
                            accepted: Some(59),
                            ..base.connections
                        },
                        accepting: record::Accepting {
                            wrong_cpu: (name == "accept-cpu").then_some(2),
                            ..base.accepting
                        },
                        ..base
                    });
                }
            }
        }
        records
    }

    #[test]
    fn strategies_stand_side_by_side_for_each_number_of_workers() {
        let scenario = scenario();
        let table = tables(&records(&scenario), &[scenario]);
        let lines: Vec<&str> = table
            .lines()
            .filter(|line| line.contains("workers |"))
            .collect();
        assert!(
            lines[1].starts_with("| loopback, 1 workers | cpu | 400 [200-600] | 20.0 |"),
            "{table}"
        );
        assert!(lines[1].ends_with("| 6 of 177 |"), "{table}");
        assert!(
            lines[4].starts_with("| loopback, 4 workers | shared | 200 [100-300] |"),
            "{table}"
        );
        assert!(lines[4].ends_with("| - |"), "{table}");
        assert!(
            table.contains("Connected 720, accepted 708: 12 were not"),
            "{table}"
        );
    }

    #[test]
    fn what_sentences_have_in_common_is_said_once() {
        let sentences = [
            "reached 5 in 1 of 2 looks",
            "reached 5 in 2 of 2 looks",
            "reached 6 in 2 of 2 looks",
        ];
        assert_eq!(
            without_repetition(sentences.into_iter()),
            "reached 5 in 1 of 2 looks; 2 of 2 looks; reached 6 in 2 of 2 looks"
        );
    }

    #[test]
    fn there_is_a_plot_for_each_place_and_figure() {
        let scenario = scenario();
        let plots = plots(&records(&scenario), &scenario);
        assert_eq!(plots.len(), 2);
        assert!(plots[0].contains("connections per second, loopback, by workers"));
        assert!(plots[0].contains("shared"));
    }
}
