//! What of a scenario about connections is measured apart: places of the clients and numbers of workers, or storms.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::scenario::Question;

/// Most workers of `turnbuckle accept-server`.
const WORKERS_MAX: u32 = 1024;

/// The table `[connections]` of a scenario.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// Where the clients are; without any, across the namespaces.
    #[serde(default)]
    pub(crate) places: Vec<Place>,
    /// For `{workers}` of the servers' command lines: numbers, or `cpus` for 1, 2, 4 and so on to as many as the server's host has CPUs.
    #[serde(default)]
    pub(crate) workers: Vec<String>,
    /// Server and clients have all CPUs of their hosts, in place of some each.
    #[serde(default)]
    pub(crate) all_cpus: bool,
    /// Port of the server, if it is not the one for TURN.
    pub(crate) port: Option<u16>,
    /// Words of `turnbuckle connect-client`, by name: those of a storm, or what `load` is tried with.
    #[serde(default)]
    pub(crate) variants: BTreeMap<String, String>,
    /// Clients have the ports that Linux has from the start, and their TIME-WAIT, in place of as many as there can be and none.
    #[serde(default)]
    pub(crate) kernel_ports: bool,
    /// How long descriptors are short.
    #[serde(default)]
    pub(crate) shortage_s: f64,
}

/// Where the clients are.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Place {
    /// At the server's host.
    Loopback,
    /// At a host of their own.
    Namespaces,
}

/// One of a scenario's cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) place: Place,
    pub(crate) workers: Option<u32>,
    /// Name and words.
    pub(crate) variant: Option<(String, String)>,
    /// Whether the place tells this cell from others.
    names_place: bool,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if self.names_place {
            parts.push(self.place.to_string());
        }
        parts.extend(self.workers.map(|workers| format!("{workers} workers")));
        parts.extend(self.variant.as_ref().map(|(name, _)| name.clone()));
        f.write_str(&parts.join(", "))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Loopback => "loopback",
            Self::Namespaces => "namespaces",
        })
    }
}

impl Settings {
    /// Checks that these settings suit a scenario that asks this.
    pub(crate) fn check(&self, question: Question) -> Result<()> {
        if self.variants.is_empty() && question == Question::Storm {
            bail!("the question `storm` needs `variants`");
        }
        if !self.variants.is_empty() && question == Question::Shortage {
            bail!("the question `shortage` has no `variants`");
        }
        if (self.shortage_s > 0.0) != (question == Question::Shortage) {
            bail!("`shortage_s` and the question `shortage` go together");
        }
        if !(0.0..=60.0).contains(&self.shortage_s) {
            bail!(
                "`shortage_s` is {}; 0 to 60 seconds are allowed",
                self.shortage_s
            );
        }
        self.worker_counts(1)?;
        for words in self.variants.values() {
            shell_words::split(words)?;
        }
        Ok(())
    }

    /// Returns the numbers of workers, for a host of so many CPUs.
    fn worker_counts(&self, cpus: usize) -> Result<Vec<u32>> {
        let mut counts = Vec::new();
        for text in &self.workers {
            if text == "cpus" {
                let cpus = u32::try_from(cpus)?.clamp(1, WORKERS_MAX);
                counts.extend(
                    (0..=WORKERS_MAX.ilog2())
                        .map(|bit| 1 << bit)
                        .filter(|&count| count < cpus),
                );
                counts.push(cpus);
                continue;
            }
            match text.parse() {
                Ok(count @ 1..=WORKERS_MAX) => counts.push(count),
                _ => bail!("`workers` has `{text}`; `cpus` and 1 to {WORKERS_MAX} are allowed"),
            }
        }
        counts.sort_unstable();
        counts.dedup();
        Ok(counts)
    }

    /// Returns the cells, for a server's host of so many CPUs.
    pub(crate) fn cells(&self, cpus: usize) -> Result<Vec<Cell>> {
        let places = match self.places.as_slice() {
            [] => &[Place::Namespaces],
            places => places,
        };
        let some = |counts: Vec<u32>| counts.into_iter().map(Some).collect::<Vec<_>>();
        let mut workers = some(self.worker_counts(cpus)?);
        if workers.is_empty() {
            workers.push(None);
        }
        let mut variants: Vec<_> = self
            .variants
            .iter()
            .map(|(name, words)| Some((name.clone(), words.clone())))
            .collect();
        if variants.is_empty() {
            variants.push(None);
        }
        let mut cells = Vec::new();
        for &place in places {
            for &workers in &workers {
                for variant in &variants {
                    cells.push(Cell {
                        place,
                        workers,
                        variant: variant.clone(),
                        names_place: !self.places.is_empty(),
                    });
                }
            }
        }
        Ok(cells)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(settings: &str, cpus: usize) -> Vec<String> {
        let settings: Settings = toml::from_str(settings).expect("settings");
        let cells = settings.cells(cpus).expect("cells");
        cells.iter().map(Cell::to_string).collect()
    }

    #[test]
    fn workers_go_in_doublings_to_the_number_of_cpus() {
        let settings = "workers = ['cpus', '8', '64']";
        assert_eq!(
            names(settings, 6),
            [
                "1 workers",
                "2 workers",
                "4 workers",
                "6 workers",
                "8 workers",
                "64 workers"
            ]
        );
        assert_eq!(names(settings, 1), ["1 workers", "8 workers", "64 workers"]);
    }

    #[test]
    fn each_place_has_each_number_of_workers() {
        assert_eq!(
            names("places = ['loopback', 'namespaces']\nworkers = ['3']", 4),
            ["loopback, 3 workers", "namespaces, 3 workers"]
        );
        assert_eq!(names("", 4), [""]);
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (settings, question, expected) in [
            ("", Question::Storm, "needs `variants`"),
            ("[variants]\na = 'x'", Question::Shortage, "no `variants`"),
            (
                "shortage_s = 1.0",
                Question::Connections,
                "`shortage_s` and",
            ),
            ("shortage_s = 61.0", Question::Shortage, "0 to 60"),
            (
                "workers = ['all']",
                Question::Connections,
                "`cpus` and 1 to 1024",
            ),
            (
                "workers = ['0']",
                Question::Connections,
                "`cpus` and 1 to 1024",
            ),
        ] {
            let settings: Settings = toml::from_str(settings).expect("settings");
            let error = settings.check(question).expect_err("an error");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
