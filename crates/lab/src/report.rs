//! The folder that a run leaves: `README.md`, `env.json`, `raw.csv`, `summary.md`, `report.html`.
//!
//! Everything but `env.json` and `raw.csv` is made from those two and the hand-written `findings.md`, if there is one; so a report can be made
//! again, and a run can be continued in the same folder.

mod analysis;
mod connections;
mod environment;
mod headline;
mod html;
mod plot;
mod text;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::record;
use crate::scenario::Scenario;

pub(crate) use environment::{Environment, ServerEntry, Session};

/// What the pages are made from.
struct Contents {
    /// Of the folder.
    title: String,
    /// The verdict in one sentence.
    headline: String,
    /// Hand-written, in Markdown.
    findings: String,
    environment: Environment,
    scenarios: Vec<Scenario>,
    groups: Vec<analysis::GroupResult>,
    records: Vec<record::Record>,
}

/// Makes the pages of `folder` from its `raw.csv` and `env.json`.
pub(crate) fn render(folder: &Path) -> Result<()> {
    let environment = Environment::read(folder)?;
    let records = record::read(&folder.join("raw.csv"))?;
    let scenarios = environment.scenarios.clone();
    let groups = analysis::analyse(&records, &scenarios, &environment.against);
    let contents = Contents {
        title: folder
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default(),
        headline: headline::headline(&groups, &environment.against),
        findings: fs::read_to_string(folder.join("findings.md")).unwrap_or_default(),
        environment,
        scenarios,
        groups,
        records,
    };
    for (name, text) in [
        ("README.md", text::readme(&contents)),
        ("summary.md", text::summary(&contents)),
        ("report.html", html::page(&contents)?),
    ] {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Writes a number with about three significant digits, a large one in thousands or millions.
pub(crate) fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let magnitude = value.abs();
    if magnitude >= 1_000_000.0 {
        format!("{:.2}M", value / 1e6)
    } else if magnitude >= 10_000.0 {
        format!("{:.0}k", value / 1e3)
    } else if magnitude >= 100.0 {
        format!("{value:.0}")
    } else if magnitude >= 10.0 {
        format!("{value:.1}")
    } else if magnitude >= 1.0 || magnitude == 0.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::figure;

    #[test]
    fn figures_have_about_three_digits() {
        for (value, expected) in [
            (0.0, "0.00"),
            (0.04567, "0.0457"),
            (3.456, "3.46"),
            (45.67, "45.7"),
            (4567.8, "4568"),
            (45_678.0, "46k"),
            (4_567_890.0, "4.57M"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(figure(value), expected);
        }
    }
}
