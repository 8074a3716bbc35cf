//! `env.json`: machine, programs, commands; one session for each time the folder was added to.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::scenario::Scenario;

/// Everything that is known about a folder's runs besides their figures.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Environment {
    /// Server that the others are compared with.
    pub(crate) against: String,
    pub(crate) scenarios: Vec<Scenario>,
    pub(crate) sessions: Vec<Session>,
}

/// One start of the laboratory.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Session {
    pub(crate) started: String,
    /// Commit of our own tree and whether it had changes.
    pub(crate) commit: String,
    /// As it was called.
    pub(crate) command: String,
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) cpus: usize,
    pub(crate) governor: String,
    pub(crate) load_average: String,
    /// Namespaces or machines, placement, settings.
    pub(crate) notes: Vec<String>,
    pub(crate) servers: Vec<ServerEntry>,
    /// Command lines of one run of each scenario, with the first server's name in place of its command.
    pub(crate) commands: Vec<String>,
}

/// A server as it was run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct ServerEntry {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) command: String,
}

fn path(folder: &Path) -> std::path::PathBuf {
    folder.join("env.json")
}

impl Environment {
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = path(folder);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not of this version", path.display()))
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = path(folder);
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// Adds a session; its scenarios replace older forms of the same name.
    pub(crate) fn add(&mut self, against: &str, scenarios: &[Scenario], session: Session) {
        against.clone_into(&mut self.against);
        for scenario in scenarios {
            match self
                .scenarios
                .iter_mut()
                .find(|each| each.name == scenario.name)
            {
                Some(slot) => *slot = scenario.clone(),
                None => self.scenarios.push(scenario.clone()),
            }
        }
        self.sessions.push(session);
    }
}

impl Session {
    /// Returns a session that says what this machine is.
    pub(crate) fn here() -> Self {
        let output = |program: &str, arguments: &[&str]| {
            std::process::Command::new(program)
                .args(arguments)
                .stdin(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .output()
                .ok()
                .filter(|output| output.status.success())
                .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
                .unwrap_or_default()
        };
        let file = |path: &str| {
            std::fs::read_to_string(path)
                .map(|text| text.trim().to_owned())
                .unwrap_or_default()
        };
        let mut commit = output("git", &["rev-parse", "HEAD"]);
        if !output("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty() {
            commit.push_str(" with local changes");
        }
        let processor = file("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map(|(_, name)| name.to_owned())
            .unwrap_or_default();
        // The program's own path says nothing and may be private.
        let words: Vec<String> = std::env::args().skip(1).collect();
        Self {
            started: jiff::Timestamp::now().to_string(),
            commit,
            command: format!("turnbuckle {}", shell_words::join(words)),
            kernel: output("uname", &["-sr"]),
            processor,
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            governor: file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            load_average: file("/proc/loadavg"),
            ..Self::default()
        }
    }
}
