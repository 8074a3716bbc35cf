//! What is measured: a scenario file in TOML.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::connections::Settings;

/// The scenarios that come with the program, in the order of a full run.
const SHIPPED: [(&str, &str); 44] = [
    ("smoke", include_str!("../scenarios/smoke.toml")),
    ("flood-1", include_str!("../scenarios/flood-1.toml")),
    ("flood-8", include_str!("../scenarios/flood-8.toml")),
    ("flood-100", include_str!("../scenarios/flood-100.toml")),
    ("flood-1200", include_str!("../scenarios/flood-1200.toml")),
    ("steady", include_str!("../scenarios/steady.toml")),
    ("bursts", include_str!("../scenarios/bursts.toml")),
    ("steady-100k", include_str!("../scenarios/steady-100k.toml")),
    ("steady-fast", include_str!("../scenarios/steady-fast.toml")),
    ("calls", include_str!("../scenarios/calls.toml")),
    (
        "calls-two-cpus",
        include_str!("../scenarios/calls-two-cpus.toml"),
    ),
    ("calls-100", include_str!("../scenarios/calls-100.toml")),
    ("calls-250", include_str!("../scenarios/calls-250.toml")),
    ("calls-300", include_str!("../scenarios/calls-300.toml")),
    ("calls-2000", include_str!("../scenarios/calls-2000.toml")),
    ("calls-peers", include_str!("../scenarios/calls-peers.toml")),
    ("latency", include_str!("../scenarios/latency.toml")),
    ("tcp-1", include_str!("../scenarios/tcp-1.toml")),
    ("tcp-100", include_str!("../scenarios/tcp-100.toml")),
    ("tls-1", include_str!("../scenarios/tls-1.toml")),
    ("tls-100", include_str!("../scenarios/tls-100.toml")),
    ("dtls-1", include_str!("../scenarios/dtls-1.toml")),
    ("dtls-100", include_str!("../scenarios/dtls-100.toml")),
    (
        "tcp-steady-1",
        include_str!("../scenarios/tcp-steady-1.toml"),
    ),
    (
        "tcp-steady-100",
        include_str!("../scenarios/tcp-steady-100.toml"),
    ),
    (
        "tls-steady-1",
        include_str!("../scenarios/tls-steady-1.toml"),
    ),
    (
        "tls-steady-100",
        include_str!("../scenarios/tls-steady-100.toml"),
    ),
    ("allocations", include_str!("../scenarios/allocations.toml")),
    (
        "allocations-tcp",
        include_str!("../scenarios/allocations-tcp.toml"),
    ),
    ("junk", include_str!("../scenarios/junk.toml")),
    ("junk-calls", include_str!("../scenarios/junk-calls.toml")),
    ("sink", include_str!("../scenarios/sink.toml")),
    ("direct", include_str!("../scenarios/direct.toml")),
    ("accept", include_str!("../scenarios/accept.toml")),
    ("ports", include_str!("../scenarios/ports.toml")),
    ("handshakes", include_str!("../scenarios/handshakes.toml")),
    ("storm", include_str!("../scenarios/storm.toml")),
    ("shortage", include_str!("../scenarios/shortage.toml")),
    ("masque-1", include_str!("../scenarios/masque-1.toml")),
    (
        "masque-steady",
        include_str!("../scenarios/masque-steady.toml"),
    ),
    (
        "masque-calls",
        include_str!("../scenarios/masque-calls.toml"),
    ),
    (
        "masque-calls-500",
        include_str!("../scenarios/masque-calls-500.toml"),
    ),
    (
        "masque-mixed",
        include_str!("../scenarios/masque-mixed.toml"),
    ),
    (
        "masque-rebind",
        include_str!("../scenarios/masque-rebind.toml"),
    ),
];

/// Not part of `all`: a quick check, what wants CPUs placed by hand, what is about shared relay sockets, and what is about connections,
/// which is `connections`.
const NOT_IN_ALL: [&str; 3] = ["smoke", "calls-two-cpus", "calls-peers"];

/// How datagrams reach the relay.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Arrival {
    /// As segmentation buffers, where the sender makes them.
    Offloads,
    /// One by one, merged by the kernel's GRO on the relay's interface.
    Singly,
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Offloads => "offloads",
            Self::Singly => "singly",
        })
    }
}

impl FromStr for Arrival {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        [Self::Offloads, Self::Singly]
            .into_iter()
            .find(|arrival| arrival.to_string() == name)
            .ok_or_else(|| format!("`{name}` is neither `offloads` nor `singly`"))
    }
}

/// By what the load's clients reach the server; peers are reached by UDP.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Transport {
    #[default]
    Udp,
    Tcp,
    Tls,
    Dtls,
    /// Tunnels of UDP in HTTP/3.
    Masque,
}

impl Transport {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Dtls => "dtls",
            Self::Masque => "masque",
        }
    }
}

/// What a scenario asks of a server; decides which figures are ranked and what makes a run count.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Question {
    /// As much as it can: counts only where the relay was the bottleneck.
    Flood,
    /// What a fixed rate costs, and how late it arrives.
    Steady,
    /// Allocations per CPU second.
    Allocations,
    /// What junk costs.
    Junk,
    /// The instruments without a relay: what generator and reflector can do.
    Instruments,
    /// Connections per second, and what one costs.
    Connections,
    /// What the load notices of what runs beside it: it is measured alone first, then with `meanwhile`.
    Beside,
    /// What calls notice of a storm of connections.
    Storm,
    /// What becomes of connections while the server has no descriptors for them.
    Shortage,
}

impl Question {
    /// Returns whether it is asked of connections, see [`connections`](crate::connections).
    pub(crate) fn is_about_connections(self) -> bool {
        matches!(self, Self::Connections | Self::Storm | Self::Shortage)
    }
}

/// A figure by which servers are compared.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Metric {
    AllocationsPerCpuSecond,
    AllocationsPerSecond,
    CallsLost,
    ConnectP99Us,
    ConnectionsLost,
    ConnectionsPerSecond,
    CpuPercent,
    CpuPercentWithKernel,
    CpuUsPerConnection,
    CpuUsPerConnectionBoth,
    CpuUsPerPacket,
    CpuUsPerPacketWithKernel,
    DeliveredPps,
    LossPercent,
    P50Us,
    P99BesideQuiet,
    P99Us,
    PacketsPerCpuSecond,
    QuietP99Us,
    SendPps,
}

impl Metric {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::AllocationsPerCpuSecond => "allocations per server CPU second",
            Self::AllocationsPerSecond => "allocations per second",
            Self::CallsLost => "datagrams lost by the calls",
            Self::ConnectP99Us => "connect p99, us",
            Self::ConnectionsLost => "connections lost",
            Self::ConnectionsPerSecond => "connections per second",
            Self::CpuUsPerConnection => "server CPU, us per connection",
            Self::CpuUsPerConnectionBoth => "CPU of server and clients, us per connection",
            Self::CpuPercent => "server CPU, %",
            Self::CpuPercentWithKernel => "CPU of server and kernel threads, %",
            Self::CpuUsPerPacket => "server CPU, us per packet (= CPU s per million)",
            Self::CpuUsPerPacketWithKernel => "CPU of server and kernel threads, us per packet",
            Self::DeliveredPps => "round trips delivered per second",
            Self::LossPercent => "loss, %",
            Self::P50Us => "round trip p50, us",
            Self::P99BesideQuiet => "round trip p99, disturbed / undisturbed",
            Self::P99Us => "round trip p99, us",
            Self::QuietP99Us => "round trip p99, undisturbed, us",
            Self::PacketsPerCpuSecond => "packets out per server CPU second",
            Self::SendPps => "datagrams sent per second",
        }
    }
}

/// A figure that one server must reach, by itself or as a ratio to another's of the same round.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bar {
    pub(crate) server: String,
    /// Without it the figure itself is judged.
    pub(crate) against: Option<String>,
    pub(crate) metric: Metric,
    /// Only for this arrival.
    pub(crate) arrival: Option<Arrival>,
    pub(crate) at_least: Option<f64>,
    pub(crate) at_most: Option<f64>,
}

/// One scenario.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Scenario {
    /// By which it is called and reported; the file's name for a file.
    #[serde(default)]
    pub(crate) name: String,
    /// One line.
    pub(crate) title: String,
    pub(crate) question: Question,
    pub(crate) arrivals: Vec<Arrival>,
    /// By which clients reach the server.
    #[serde(default)]
    pub(crate) transport: Transport,
    #[serde(flatten)]
    pub(crate) words: Words,
    #[serde(flatten)]
    pub(crate) search: Search,
    #[serde(flatten)]
    pub(crate) times: Times,
    /// Servers, where the command line names none.
    #[serde(default)]
    pub(crate) servers: Vec<String>,
    /// Of scenarios about connections.
    #[serde(default)]
    pub(crate) connections: Settings,
    /// No server is started: the load talks to the peer itself.
    #[serde(default)]
    pub(crate) direct: bool,
    #[serde(flatten)]
    pub(crate) shown: Shown,
}

/// Words of the programs that make the load.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Words {
    /// Words of `turnbuckle load`, without what the laboratory adds (addresses, credentials, times). `{rate}` is the rate of the case.
    pub(crate) load: String,
    /// Words of `turnbuckle peer`.
    #[serde(default = "reflect")]
    pub(crate) peer: String,
    /// Words of a second `turnbuckle load` that runs the whole time: calls during an attack.
    pub(crate) meanwhile: Option<String>,
    /// Words of a `turnbuckle peer` that this second one has for itself. Without them both share the first.
    pub(crate) meanwhile_peer: Option<String>,
}

/// At which shares of its capacity a server is measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Search {
    /// Cases: `{rate}` is so many percent of the capacity that a search finds for each server.
    #[serde(default)]
    pub(crate) percent_of_capacity: Vec<f64>,
    /// Rate at which the search of the capacity begins, datagrams per second.
    #[serde(default = "search_from")]
    pub(crate) search_from: f64,
}

/// How long and how often.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Times {
    /// Discarded seconds after the start of server and load.
    #[serde(default = "warm_up_s")]
    pub(crate) warm_up_s: f64,
    #[serde(default = "window_s")]
    pub(crate) window_s: f64,
    #[serde(default = "rounds")]
    pub(crate) rounds: u32,
}

/// What the report shows, and what it holds servers to.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Shown {
    /// Shown and plotted, the first one first.
    pub(crate) metrics: Vec<Metric>,
    #[serde(default, rename = "bar")]
    pub(crate) bars: Vec<Bar>,
}

/// All keys of a scenario's file. They are looked through by themselves: what is cut into parts cannot tell which keys are nobody's.
const KEYS: [&str; 19] = [
    "name",
    "title",
    "question",
    "arrivals",
    "transport",
    "load",
    "peer",
    "meanwhile",
    "meanwhile_peer",
    "percent_of_capacity",
    "search_from",
    "warm_up_s",
    "window_s",
    "rounds",
    "servers",
    "connections",
    "direct",
    "metrics",
    "bar",
];

fn reflect() -> String {
    "reflect".to_owned()
}

fn search_from() -> f64 {
    20_000.0
}

fn warm_up_s() -> f64 {
    2.0
}

fn window_s() -> f64 {
    4.0
}

fn rounds() -> u32 {
    5
}

impl Scenario {
    /// Reads a file's text.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self> {
        refuse_unknown(text).with_context(|| format!("scenario {name}"))?;
        let mut scenario: Self =
            toml::from_str(text).with_context(|| format!("scenario {name}"))?;
        scenario.name = name.to_owned();
        scenario
            .check()
            .with_context(|| format!("scenario {name}"))?;
        Ok(scenario)
    }

    fn check(&self) -> Result<()> {
        if self.arrivals.is_empty() {
            bail!("`arrivals` is empty; `offloads`, `singly` or both are allowed");
        }
        if self.direct && self.transport != Transport::Udp {
            bail!("`transport` is about a server, and `direct` has none");
        }
        if self.shown.metrics.is_empty() {
            bail!("`metrics` is empty; at least one is needed");
        }
        for (key, value, most) in [
            ("warm_up_s", self.times.warm_up_s, 600.0),
            ("window_s", self.times.window_s, 3600.0),
        ] {
            if !(value >= 0.0 && value <= most) {
                bail!("`{key}` is {value}; 0 to {most} seconds are allowed");
            }
        }
        if self.times.window_s < 0.5 {
            bail!(
                "`window_s` is {}; at least 0.5 is needed for a figure",
                self.times.window_s
            );
        }
        if self.times.rounds == 0 || self.times.rounds > 1000 {
            bail!("`rounds` is {}; 1 to 1000 are allowed", self.times.rounds);
        }
        for percent in &self.search.percent_of_capacity {
            if !(*percent > 0.0 && *percent <= 1000.0) {
                bail!("`percent_of_capacity` has {percent}; more than 0, at most 1000 is allowed");
            }
        }
        if self.search.percent_of_capacity.is_empty() == self.words.load.contains("{rate}") {
            bail!("`percent_of_capacity` and `{{rate}}` in `load` go together");
        }
        if self.question.is_about_connections() {
            self.connections
                .check(self.question)
                .context("[connections]")?;
        }
        if self.question == Question::Beside && self.words.meanwhile.is_none() {
            bail!("`question` is `beside`, and no `meanwhile` says what");
        }
        if self.words.meanwhile_peer.is_some() && self.words.meanwhile.is_none() {
            bail!("`meanwhile_peer` is for what `meanwhile` says, and there is none");
        }
        for bar in &self.shown.bars {
            if bar.at_least.is_none() == bar.at_most.is_none() {
                bail!("a bar needs either `at_least` or `at_most`");
            }
        }
        for words in [&self.words.load, &self.words.peer]
            .into_iter()
            .chain(&self.words.meanwhile)
            .chain(&self.words.meanwhile_peer)
        {
            shell_words::split(words).with_context(|| format!("`{words}`"))?;
        }
        Ok(())
    }

    /// Returns a scenario that came with the program.
    pub(crate) fn shipped(name: &str) -> Option<Result<Self>> {
        let (name, text) = SHIPPED.iter().find(|(each, _)| *each == name)?;
        Some(Self::parse(name, text))
    }

    /// Returns all that came with the program.
    pub(crate) fn all_shipped() -> Result<Vec<Self>> {
        SHIPPED
            .iter()
            .map(|(name, text)| Self::parse(name, text))
            .collect()
    }

    /// Finds the scenarios of a name, of `all` or `connections`, or of a file.
    pub(crate) fn find(name: &str) -> Result<Vec<Self>> {
        if name == "all" {
            return Ok(Self::all_shipped()?
                .into_iter()
                .filter(|scenario| !NOT_IN_ALL.contains(&scenario.name.as_str()))
                .filter(|scenario| !scenario.question.is_about_connections())
                .collect());
        }
        if name == "connections" {
            return Ok(Self::all_shipped()?
                .into_iter()
                .filter(|scenario| scenario.question.is_about_connections())
                .collect());
        }
        if let Some(scenario) = Self::shipped(name) {
            return Ok(vec![scenario?]);
        }
        let path = Path::new(name);
        if !path.exists() {
            bail!("`{name}` is neither a scenario (see --list) nor a file");
        }
        let text = std::fs::read_to_string(path).with_context(|| name.to_owned())?;
        let stem = path
            .file_stem()
            .map_or_else(|| name.into(), |stem| stem.to_string_lossy());
        Ok(vec![Self::parse(&stem, &text)?])
    }
}

/// Refuses keys that mean nothing.
fn refuse_unknown(text: &str) -> Result<()> {
    let table: toml::Table = toml::from_str(text)?;
    let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) else {
        return Ok(());
    };
    let is_there = |line: &str| {
        line.trim_start_matches([' ', '[', '"', '\''])
            .starts_with(key)
    };
    let line = text
        .lines()
        .position(is_there)
        .map_or(0, |before| before + 1);
    bail!(
        "line {line}: unknown field `{key}`; allowed: {}",
        KEYS.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_scenario_is_a_key_of_its_file_and_no_other_is() {
        let scenario = Scenario::shipped("smoke").expect("shipped").expect("right");
        let value = serde_json::to_value(&scenario).expect("JSON");
        let mut fields: Vec<_> = value.as_object().expect("an object").keys().collect();
        let mut keys = KEYS.to_vec();
        fields.sort();
        keys.sort_unstable();
        assert_eq!(fields, keys);
    }

    #[test]
    fn every_shipped_scenario_reads() {
        let scenarios = Scenario::all_shipped().expect("scenarios");
        assert_eq!(scenarios.len(), SHIPPED.len());
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        let good = "title = 'x'\nquestion = 'flood'\narrivals = ['offloads']\nload = 'packet'\nmetrics = ['delivered_pps']\n";
        assert!(Scenario::parse("good", good).is_ok());
        for (line, expected) in [
            ("rounds = 0", "1 to 1000"),
            ("window_s = -1", "0 to 3600"),
            ("window_s = 0.1", "at least 0.5"),
            ("windows = 3", "unknown field `windows`"),
            ("percent_of_capacity = [50]", "go together"),
            ("transport = 'sctp'", "unknown variant `sctp`"),
            ("transport = 'tcp'\ndirect = true", "`direct` has none"),
            (
                "[[bar]]\nserver = 'a'\nmetric = 'p99_us'",
                "either `at_least` or `at_most`",
            ),
            ("peer = \"'\"", "missing closing quote"),
            ("meanwhile_peer = 'reflect'", "there is none"),
        ] {
            let error = Scenario::parse("bad", &format!("{good}{line}\n")).expect_err("an error");
            let text = format!("{error:#}");
            assert!(
                text.contains("bad") && text.contains(expected),
                "{line}: {text}"
            );
        }
        let beside = good.replace("flood", "beside");
        let error = Scenario::parse("bad", &beside).expect_err("an error");
        assert!(format!("{error:#}").contains("no `meanwhile`"), "{error:#}");
    }

    #[test]
    fn an_unknown_name_is_refused_with_a_hint() {
        let error = Scenario::find("no-such").expect_err("an error");
        assert!(error.to_string().contains("--list"), "{error}");
    }
}
