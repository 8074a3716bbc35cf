//! `report.html`: the plots beside the tables, in one file without scripts or references.

use anyhow::Result;
use askama::Template;
use pulldown_cmark::{Options, Parser};

use super::{Contents, Session, connections, figure, plot};
use crate::scenario::Question;

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    title: &'a str,
    headline: &'a str,
    machine: String,
    /// HTML of `findings.md`
    findings: String,
    overviews: Vec<Overview>,
    groups: Vec<GroupView>,
}

/// Plots of a scenario as a whole.
struct Overview {
    title: String,
    what: String,
    plots: Vec<String>,
}

struct GroupView {
    title: String,
    what: String,
    verdicts: Vec<(String, &'static str)>,
    plots: Vec<String>,
    columns: Vec<&'static str>,
    rows: Vec<RowView>,
    notes: Vec<String>,
}

struct RowView {
    name: String,
    cells: Vec<String>,
    ranked: bool,
}

pub(super) fn page(contents: &Contents) -> Result<String> {
    let groups = contents
        .groups
        .iter()
        .map(|group| GroupView {
            title: group.group.to_string(),
            what: group.scenario.title.clone(),
            verdicts: group
                .verdicts
                .iter()
                .map(|verdict| {
                    let class = match verdict.met {
                        Some(true) => "met",
                        Some(false) => "missed",
                        None => "open",
                    };
                    (verdict.text.replace("**", ""), class)
                })
                .collect(),
            plots: group
                .scenario
                .shown
                .metrics
                .iter()
                .filter_map(|metric| plot::metric(group, *metric))
                .collect(),
            columns: group
                .scenario
                .shown
                .metrics
                .iter()
                .map(|metric| metric.title())
                .chain(["server CPU %", "lost of sent", "bottleneck"])
                .collect(),
            rows: group
                .servers
                .iter()
                .map(|server| RowView {
                    name: server.name.clone(),
                    cells: group
                        .scenario
                        .shown
                        .metrics
                        .iter()
                        .map(|metric| {
                            server.spread_by_metric.get(metric).map_or_else(
                                || "-".to_owned(),
                                |spread| {
                                    format!(
                                        "{} [{}-{}]",
                                        figure(spread.median),
                                        figure(spread.min),
                                        figure(spread.max)
                                    )
                                },
                            )
                        })
                        .chain([
                            format!("{:.0}", server.sums.server_cpu_percent),
                            format!("{} of {}", server.sums.lost, server.sums.sent),
                            server
                                .bottlenecks
                                .iter()
                                .map(|(part, times)| format!("{part} {times}x"))
                                .collect::<Vec<_>>()
                                .join(", "),
                        ])
                        .collect(),
                    ranked: server.ranked || group.scenario.question != Question::Flood,
                })
                .collect(),
            notes: group
                .servers
                .iter()
                .flat_map(|server| {
                    server
                        .missing
                        .iter()
                        .map(|missing| format!("{}: {missing}", server.name))
                })
                .collect(),
        })
        .collect();
    let overviews = contents
        .scenarios
        .iter()
        .map(|scenario| Overview {
            title: scenario.name.clone(),
            what: scenario.title.clone(),
            plots: connections::plots(&contents.records, scenario),
        })
        .filter(|overview| !overview.plots.is_empty())
        .collect();
    let sessions = &contents.environment.sessions;
    let machine = sessions
        .first()
        .map(|session| {
            format!(
                "{}, {} CPUs, {}, {}",
                session.kernel,
                session.cpus,
                session.processor,
                commits(sessions)
            )
        })
        .unwrap_or_default();
    Ok(Page {
        title: &contents.title,
        headline: &contents.headline,
        machine,
        findings: findings(&contents.findings),
        overviews,
        groups,
    }
    .render()?)
}

/// Names each commit that figures are of, once.
fn commits(sessions: &[Session]) -> String {
    let mut commits: Vec<&str> = Vec::new();
    for session in sessions {
        if !commits.contains(&session.commit.as_str()) {
            commits.push(&session.commit);
        }
    }
    let noun = if commits.len() == 1 {
        "commit"
    } else {
        "commits"
    };
    format!("{noun} {}", commits.join(", "))
}

/// Returns `findings.md` as HTML. It is written by whoever publishes the report, and so is any HTML in it.
fn findings(markdown: &str) -> String {
    let mut html = String::new();
    let parser = Parser::new_ext(markdown, Options::ENABLE_TABLES);
    pulldown_cmark::html::push_html(&mut html, parser);
    html
}

#[cfg(test)]
mod tests {
    use super::{Session, commits, findings};

    #[test]
    fn findings_are_shown_as_text_with_headings_and_lists() {
        assert_eq!(
            findings("## What it says\n\n- **Less**: `one`\n"),
            "<h2>What it says</h2>\n<ul>\n<li><strong>Less</strong>: <code>one</code></li>\n</ul>\n"
        );
    }

    #[test]
    fn every_commit_is_named_once() {
        let session = |commit: &str| Session {
            commit: commit.to_owned(),
            ..Session::default()
        };
        assert_eq!(commits(&[session("a"), session("a")]), "commit a");
        assert_eq!(
            commits(&[session("a"), session("b"), session("a")]),
            "commits a, b"
        );
    }

    #[test]
    fn a_table_of_the_findings_is_a_table() {
        let html = findings("| a | b |\n|---|---|\n| 1 | 2 |\n");
        assert!(html.contains("<td>1</td><td>2</td>"), "{html}");
    }
}
