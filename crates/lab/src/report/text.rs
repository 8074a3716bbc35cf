//! `README.md` and `summary.md`.

use std::fmt::Write as _;

use super::analysis::{GroupResult, NOT_RANKED, ServerResult, Spread};
use super::{Contents, connections, figure};
use crate::bottleneck::RULES;
use crate::scenario::Question;

pub(super) fn readme(contents: &Contents) -> String {
    let mut text = format!(
        "# Servers compared: {}\n\n**{}**\n\n",
        contents.title, contents.headline
    );
    if let Some(session) = contents.environment.sessions.first() {
        let _ = writeln!(
            text,
            "{} on {} CPUs ({}), {}. Medians over alternating rounds; figures by server and round are in [raw.csv](raw.csv), all tables in \
             [summary.md](summary.md), plots in [report.html](report.html), the machine and every command in [env.json](env.json).\n",
            session.kernel,
            session.cpus,
            session.processor,
            session.started.get(..10).unwrap_or_default()
        );
    }
    if !contents.findings.is_empty() {
        let _ = writeln!(text, "{}\n", contents.findings.trim());
    }
    let verdicts: Vec<String> = contents
        .groups
        .iter()
        .flat_map(|group| {
            group
                .verdicts
                .iter()
                .map(move |verdict| format!("- {}: {}", group.group, verdict.text))
        })
        .collect();
    if !verdicts.is_empty() {
        let _ = writeln!(
            text,
            "## Bars\n\nRatios within a round, median [smallest-largest].\n\n{}\n",
            verdicts.join("\n")
        );
    }
    text.push_str(&connections::tables(&contents.records, &contents.scenarios));
    let _ = writeln!(text, "## Servers\n");
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for session in &contents.environment.sessions {
        for server in &session.servers {
            if seen.contains(&(&server.name, &server.version)) {
                continue;
            }
            seen.push((&server.name, &server.version));
            let _ = writeln!(
                text,
                "- **{}** ({}): `{}`",
                server.name, server.version, server.command
            );
        }
    }
    let _ = writeln!(text, "\n## How it was run\n");
    for session in &contents.environment.sessions {
        // What follows the averages of 1, 5 and 15 minutes in /proc/loadavg says nothing here.
        let averages: Vec<&str> = session.load_average.split_whitespace().take(3).collect();
        let _ = writeln!(
            text,
            "- {}, commit {}, load average before it {}: `{}`",
            session.started,
            session.commit,
            averages.join(" "),
            session.command
        );
    }
    let mut notes: Vec<&str> = Vec::new();
    for note in contents
        .environment
        .sessions
        .iter()
        .flat_map(|session| &session.notes)
    {
        if !notes.contains(&note.as_str()) {
            notes.push(note);
        }
    }
    let _ = writeln!(text);
    for note in notes {
        let _ = writeln!(text, "- {note}");
    }
    let _ = writeln!(
        text,
        "\nEach run starts server, reflector and load anew; the seconds before the window are discarded. Packets out are the IP packets that reached the load's \
         and the peer's host (`IpExt: InNoECTPkts` and the like, which count each segment of a buffer). CPU time is the scheduler's own \
         (`/proc/PID/task/*/schedstat`); *kernel* is that of the NAPI and ksoftirqd threads that receive for the relay; *foreign* is the rest of the machine's \
         busy time, by ticks, in percent of one CPU, which on this form of placement includes what the kernel does for generator and reflector. \
         Losses are counted by sequence number, datagram by datagram.\n\n## What limited a run\n\n{RULES}\n\nUnder flood a server is ranked only if the \
         relay was the bottleneck of each of its rounds, at a fixed rate only if generator and reflector were not that of any. Where a server refuses clients \
         there are no figures: those of fewer clients would be another scenario's.\n"
    );
    let _ = writeln!(text, "## Scenarios\n");
    for scenario in &contents.scenarios {
        let programs = match scenario.question {
            Question::Connections | Question::Shortage => {
                format!("`turnbuckle connect-client {}`", scenario.words.load)
            }
            _ => {
                let words = &scenario.words;
                let beside = [("load", &words.meanwhile), ("peer", &words.meanwhile_peer)]
                    .into_iter()
                    .filter_map(|(program, words)| Some((program, words.as_ref()?)))
                    .map(|(program, words)| format!(", beside it `turnbuckle {program} {words}`"))
                    .collect::<String>();
                format!(
                    "`turnbuckle load {}`, `turnbuckle peer {}`{beside}",
                    words.load, words.peer
                )
            }
        };
        let variants: String = scenario
            .connections
            .variants
            .values()
            .map(|words| format!(", `turnbuckle connect-client {words}`"))
            .collect();
        let _ = writeln!(
            text,
            "- **{}**: {}. {programs}{variants}; {} s discarded, {} s measured, {} rounds.",
            scenario.name,
            scenario.title,
            scenario.times.warm_up_s,
            scenario.times.window_s,
            scenario.times.rounds
        );
    }
    text
}

pub(super) fn summary(contents: &Contents) -> String {
    let mut text = format!(
        "# Summary: {}\n\nMedian [smallest-largest] cv over rounds. Ratios are to {}, within a round.\n",
        contents.title, contents.environment.against
    );
    for group in &contents.groups {
        let _ = write!(
            text,
            "\n{}",
            group_text(group, &contents.environment.against)
        );
    }
    text
}

fn group_text(group: &GroupResult, against: &str) -> String {
    let mut text = format!("## {}\n\n{}.\n\n", group.group, group.scenario.title);
    let metrics = &group.scenario.shown.metrics;
    let mut header = "| server | rounds |".to_owned();
    for metric in metrics {
        let _ = write!(header, " {} |", metric.title());
    }
    header.push_str(match group.scenario.question.is_about_connections() {
        true => " server CPU % | kernel CPU % | foreign CPU % | bottleneck |",
        false => {
            " packets out/s | server CPU % | kernel CPU % | foreign CPU % | lost of sent | drops before relay / peer / load | RSS MiB | bottleneck |"
        }
    });
    let columns = header.matches('|').count() - 1;
    let _ = writeln!(text, "{header}\n|{}", "---|".repeat(columns));
    for server in &group.servers {
        let _ = writeln!(text, "{}", row(server, group));
    }
    for server in &group.servers {
        for missing in &server.missing {
            let _ = writeln!(text, "\n{}: {missing}", server.name);
        }
        if server.corrupted_or_failed() {
            let _ = writeln!(
                text,
                "\n{}: {} corrupted datagrams, {} clients that could not be set up",
                server.name, server.sums.corrupted, server.sums.clients_failed
            );
        }
    }
    if !group.ratios.is_empty() {
        let _ = writeln!(text);
        for ratio in &group.ratios {
            let _ = writeln!(
                text,
                "- {} / {against}, {}: {}{}",
                ratio.server,
                ratio.metric.title(),
                spread_text(&ratio.spread),
                if ratio.ranked {
                    String::new()
                } else {
                    format!(" (not ranked: {NOT_RANKED})")
                }
            );
        }
    }
    for verdict in &group.verdicts {
        let _ = writeln!(text, "- Bar: {}", verdict.text);
    }
    text
}

fn row(server: &ServerResult, group: &GroupResult) -> String {
    let sums = &server.sums;
    let mut row = format!("| {} | {} |", server.name, server.measured);
    for metric in &group.scenario.shown.metrics {
        match server.spread_by_metric.get(metric) {
            Some(spread) => {
                let _ = write!(row, " {} {:.0} % |", spread_text(spread), spread.cv_percent);
            }
            None => row.push_str(" - |"),
        }
    }
    let bottlenecks: Vec<String> = server
        .bottlenecks
        .iter()
        .map(|(bottleneck, times)| {
            if server.bottlenecks.len() == 1 {
                bottleneck.to_string()
            } else {
                format!("{bottleneck} {times}x")
            }
        })
        .collect();
    if group.scenario.question.is_about_connections() {
        let _ = write!(
            row,
            " {:.0} | {:.0} | {:.0} | {} |",
            sums.server_cpu_percent,
            sums.kernel_cpu_percent,
            sums.foreign_cpu_percent,
            bottlenecks.join(", ")
        );
        return row;
    }
    let unranked = if group.scenario.question == Question::Flood && !server.ranked {
        " (not ranked)"
    } else {
        ""
    };
    let rate = sums
        .rate
        .map(|rate| format!(" at {}/s", figure(rate)))
        .unwrap_or_default();
    let _ = write!(
        row,
        " {}{rate} | {:.0} | {:.0} | {:.0} | {} of {} | {} / {} / {} | {:.1} | {}{unranked} |",
        figure(sums.packets_out_pps),
        sums.server_cpu_percent,
        sums.kernel_cpu_percent,
        sums.foreign_cpu_percent,
        sums.lost,
        sums.sent,
        sums.drops.relay,
        sums.drops.peer,
        sums.drops.load,
        sums.rss_mib,
        bottlenecks.join(", ")
    );
    row
}

fn spread_text(spread: &Spread) -> String {
    format!(
        "{} [{}-{}]",
        figure(spread.median),
        figure(spread.min),
        figure(spread.max)
    )
}

impl ServerResult {
    fn corrupted_or_failed(&self) -> bool {
        self.sums.corrupted + self.sums.clients_failed > 0
    }
}
