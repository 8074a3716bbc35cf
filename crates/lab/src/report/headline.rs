//! The verdict of a report in one sentence.

use super::analysis::{GroupResult, NOT_RANKED, Ratio};

/// Scenarios that are named; of others it says how many there are.
const NAMED: usize = 3;

/// Whose ratios are named, if it took part.
const OURS: &str = "turnbuckle";

/// Says how a server compares with `against`: the first figure of each scenario, and how many bars are met.
pub(super) fn headline(groups: &[GroupResult], against: &str) -> String {
    let first: Vec<(&GroupResult, &Ratio)> = groups
        .iter()
        .flat_map(|group| {
            let metric = group.scenario.shown.metrics.first();
            let ratios = group.ratios.iter();
            ratios
                .filter(move |ratio| Some(&ratio.metric) == metric)
                .map(move |ratio| (group, ratio))
        })
        .collect();
    let ranked = || first.iter().filter(|(_, ratio)| ratio.ranked);
    let is_ours = ranked().any(|(_, ratio)| ratio.server == OURS);
    let server = ranked().next().map(|(_, ratio)| ratio.server.as_str());
    let server = if is_ours { Some(OURS) } else { server };
    let mut text = match server {
        Some(server) => {
            let named = ranked().filter(|(_, ratio)| ratio.server == server);
            let named: Vec<String> = named.map(words).collect();
            let more = match named.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!("; {more} more scenarios are below"),
            };
            let shown: Vec<&str> = named.iter().take(NAMED).map(String::as_str).collect();
            format!("{server} / {against}: {}{more}", shown.join("; "))
        }
        None if first.is_empty() => {
            format!("No round has figures of {against} and of another server")
        }
        None => format!("No server can be ranked beside {against}: {NOT_RANKED}"),
    };
    let verdicts = groups.iter().flat_map(|group| &group.verdicts);
    let judged: Vec<bool> = verdicts.filter_map(|verdict| verdict.met).collect();
    if !judged.is_empty() {
        let met = judged.iter().filter(|met| **met).count();
        text += &format!("; {met} of {} bars are met", judged.len());
    }
    text + "."
}

fn words((group, ratio): &(&GroupResult, &Ratio)) -> String {
    let spread = &ratio.spread;
    let title = ratio.metric.title();
    // Without the explanation in brackets.
    let title = title.split(" (").next().unwrap_or(title);
    format!(
        "{:.2} times [{:.2}-{:.2}] the {title} in {}",
        spread.median, spread.min, spread.max, group.group
    )
}

#[cfg(test)]
mod tests {
    use super::super::analysis::{Spread, Verdict};
    use super::*;
    use crate::record::Group;
    use crate::scenario::{Arrival, Metric, Scenario};

    fn group(name: &str, ratios: &[(f64, bool)], met: Option<bool>) -> GroupResult {
        let text = "title = 'x'\nquestion = 'flood'\narrivals = ['offloads']\nload = 'packet'\nmetrics = ['packets_per_cpu_second']\n";
        let ratio = |&(median, ranked): &(f64, bool)| Ratio {
            server: "ours".to_owned(),
            metric: Metric::PacketsPerCpuSecond,
            spread: Spread::of(&[median - 0.5, median, median + 0.5]).expect("values"),
            ranked,
        };
        GroupResult {
            group: Group {
                scenario: name.to_owned(),
                arrival: Arrival::Offloads,
                percent: None,
                cell: String::new(),
            },
            scenario: Scenario::parse(name, text).expect("a scenario"),
            servers: Vec::new(),
            ratios: ratios.iter().map(ratio).collect(),
            verdicts: vec![Verdict {
                text: String::new(),
                met,
            }],
        }
    }

    #[test]
    fn one_sentence_says_how_servers_compare() {
        let groups = [
            group("flood", &[(1.5, true), (9.0, false)], Some(true)),
            group("steady", &[(2.0, true)], Some(false)),
        ];
        let text = headline(&groups, "theirs");
        assert!(
            text.starts_with(
                "ours / theirs: 1.50 times [1.00-2.00] the packets out per server CPU second in flood, offloads; 2.00 times"
            ),
            "{text}"
        );
        assert!(!text.contains("9.00"), "{text}");
        assert!(text.ends_with("; 1 of 2 bars are met."), "{text}");
        let unranked = [group("flood", &[(9.0, false)], None)];
        assert!(
            headline(&unranked, "theirs").starts_with("No server can be ranked beside theirs: ")
        );
        assert_eq!(
            headline(&[], "theirs"),
            "No round has figures of theirs and of another server."
        );
    }
}
