//! One run, as it stands in `raw.csv`.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::bottleneck::Bottleneck;
use crate::scenario::{Arrival, Metric};

/// Whether a run gave figures.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Status {
    Measured,
    /// The server cannot do what the scenario asks.
    CannotRun,
    /// Something broke; figures of this run do not exist.
    Failed,
}

/// One run of one server in one case of a scenario. The columns of `raw.csv` are the fields of the parts, one part behind the other.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) case: Which,
    pub(crate) traffic: Traffic,
    pub(crate) cost: Cost,
    pub(crate) delay: Delay,
    pub(crate) allocations: Allocations,
    pub(crate) meanwhile: Meanwhile,
    pub(crate) drops: Drops,
    pub(crate) limit: Limit,
    pub(crate) connections: Connections,
    pub(crate) accepting: Accepting,
}

/// Which run it was, and how it ended.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Which {
    pub(crate) scenario: String,
    pub(crate) arrival: Arrival,
    /// Percent of the capacity, where the scenario has such cases.
    pub(crate) percent_of_capacity: Option<f64>,
    pub(crate) server: String,
    pub(crate) round: u32,
    pub(crate) status: Status,
    /// Why there are no figures.
    pub(crate) note: String,
    /// Start of the run, UTC.
    pub(crate) started: String,
    /// Seconds between the two snapshots.
    pub(crate) seconds: f64,
    /// Asked rate, datagrams per second, of a case.
    pub(crate) rate: Option<f64>,
}

/// What clients and the reflector sent and received.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Traffic {
    pub(crate) clients: u64,
    pub(crate) clients_failed: u64,
    pub(crate) sent_datagrams: u64,
    pub(crate) received_datagrams: u64,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) corrupted: u64,
    pub(crate) send_pps: f64,
    pub(crate) recv_pps: f64,
    /// The reflector's own count in the window.
    pub(crate) peer_received: u64,
    pub(crate) peer_sent: u64,
}

/// What it cost the machines.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Cost {
    /// IP packets that reached the load and the peer: what the relay got out, both ways. Over a stream to the load, messages.
    pub(crate) packets_out: u64,
    /// IP packets that reached the relay.
    pub(crate) packets_in: u64,
    /// Of the server's process.
    pub(crate) server_cpu_s: f64,
    /// Of the kernel threads that receive for the relay (`napi/…` of its interfaces, `ksoftirqd` of its CPUs).
    pub(crate) relay_kernel_cpu_s: f64,
    pub(crate) load_cpu_s: f64,
    /// Of the busiest thread of the load that sends, in percent of its time; 0 where not known.
    pub(crate) load_sender_busy_percent: f64,
    pub(crate) peer_cpu_s: f64,
    /// Busy time of the machine beyond all of the above, by ticks.
    pub(crate) foreign_cpu_s: f64,
    /// CPUs of the server.
    pub(crate) relay_cpus: u64,
    pub(crate) server_rss_kib: u64,
}

/// Round trips.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Delay {
    pub(crate) p50_us: Option<f64>,
    pub(crate) p90_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p999_us: Option<f64>,
    pub(crate) p9999_us: Option<f64>,
    pub(crate) max_us: Option<f64>,
}

/// Allocations that were made.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Allocations {
    pub(crate) allocations_succeeded: u64,
    pub(crate) allocations_failed: u64,
    pub(crate) allocations_per_second: Option<f64>,
}

/// The calls during an attack; in a storm those without it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Meanwhile {
    pub(crate) meanwhile_sent: Option<u64>,
    pub(crate) meanwhile_lost: Option<u64>,
    pub(crate) meanwhile_p99_us: Option<f64>,
}

/// Full socket buffers, and packets an interface or a ring had to drop, at each of the three hosts.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Drops {
    pub(crate) relay_socket_drops: u64,
    pub(crate) relay_link_drops: u64,
    pub(crate) peer_socket_drops: u64,
    pub(crate) peer_link_drops: u64,
    pub(crate) load_socket_drops: u64,
    pub(crate) load_link_drops: u64,
    /// Full backlogs of CPUs, of the whole machine.
    pub(crate) backlog_drops: u64,
}

/// What limited the run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Limit {
    pub(crate) bottleneck: Bottleneck,
    /// The evidence in words.
    pub(crate) bottleneck_why: String,
}

/// What of a scenario about connections was measured. What follows is of those alone, and not in older files.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Connections {
    /// Which cell; empty with other scenarios.
    #[serde(default)]
    pub(crate) cell: String,
    #[serde(default)]
    pub(crate) workers: Option<u64>,
    /// Connections that clients made in the window, and what became of all of the run.
    #[serde(default)]
    pub(crate) connections: u64,
    #[serde(default)]
    pub(crate) connections_per_second: Option<f64>,
    #[serde(default)]
    pub(crate) connected: u64,
    #[serde(default)]
    pub(crate) accepted: Option<u64>,
    #[serde(default)]
    pub(crate) connections_failed: u64,
    #[serde(default)]
    pub(crate) connect_errors: String,
    #[serde(default)]
    pub(crate) accept_errors: String,
    #[serde(default)]
    pub(crate) connect_p50_us: Option<f64>,
    #[serde(default)]
    pub(crate) connect_p99_us: Option<f64>,
    #[serde(default)]
    pub(crate) connect_max_us: Option<f64>,
}

/// How the server accepted them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Accepting {
    /// Returns of the workers' waits that brought something.
    #[serde(default)]
    pub(crate) wakeups: Option<u64>,
    /// Connections that arrived on another worker's CPU.
    #[serde(default)]
    pub(crate) wrong_cpu: Option<u64>,
    /// Fewest and most connections of a worker.
    #[serde(default)]
    pub(crate) worker_min: Option<u64>,
    #[serde(default)]
    pub(crate) worker_max: Option<u64>,
    /// SYNs and last packets of handshakes for which the queue had no room.
    #[serde(default)]
    pub(crate) listen_overflows: u64,
    /// Resets that overtook the last packet of their handshake.
    #[serde(default)]
    pub(crate) embryonic_resets: u64,
    /// The server's, while calls had it for themselves.
    #[serde(default)]
    pub(crate) meanwhile_cpu_s: Option<f64>,
}

impl Record {
    /// Returns the figure, or nothing where this run does not have it.
    pub(crate) fn metric(&self, metric: Metric) -> Option<f64> {
        if self.case.status != Status::Measured {
            return None;
        }
        let cpu = self.cost.server_cpu_s;
        let with_kernel = cpu + self.cost.relay_kernel_cpu_s;
        let out = self.cost.packets_out as f64;
        match metric {
            Metric::AllocationsPerCpuSecond => (cpu > 0.0
                && self.allocations.allocations_succeeded > 0)
                .then(|| self.allocations.allocations_succeeded as f64 / cpu),
            Metric::AllocationsPerSecond => self.allocations.allocations_per_second,
            Metric::CallsLost => self.meanwhile.meanwhile_lost.map(|lost| lost as f64),
            Metric::ConnectP99Us => self.connections.connect_p99_us,
            Metric::ConnectionsLost => Some(self.connections.connections_failed as f64),
            Metric::ConnectionsPerSecond => self.connections.connections_per_second,
            Metric::CpuUsPerConnection => self.per_connection(cpu),
            Metric::CpuUsPerConnectionBoth => self.per_connection(cpu + self.cost.load_cpu_s),
            Metric::CpuPercent => self.percent_of_window(cpu),
            Metric::CpuPercentWithKernel => self.percent_of_window(with_kernel),
            Metric::CpuUsPerPacket => (cpu > 0.0 && out > 0.0).then(|| cpu * 1e6 / out),
            Metric::CpuUsPerPacketWithKernel => {
                (with_kernel > 0.0 && out > 0.0).then(|| with_kernel * 1e6 / out)
            }
            Metric::DeliveredPps => Some(self.traffic.recv_pps),
            Metric::LossPercent => (self.traffic.sent_datagrams > 0)
                .then(|| self.traffic.lost as f64 * 100.0 / self.traffic.sent_datagrams as f64),
            Metric::P50Us => self.delay.p50_us,
            Metric::P99BesideQuiet => self
                .meanwhile
                .meanwhile_p99_us
                .filter(|quiet| *quiet > 0.0)
                .and_then(|quiet| Some(self.delay.p99_us? / quiet)),
            Metric::P99Us => self.delay.p99_us,
            Metric::QuietP99Us => self.meanwhile.meanwhile_p99_us,
            Metric::PacketsPerCpuSecond => (cpu > 0.0).then(|| out / cpu),
            Metric::SendPps => Some(self.traffic.send_pps),
        }
    }

    fn percent_of_window(&self, cpu_s: f64) -> Option<f64> {
        (self.case.seconds > 0.0).then(|| cpu_s / self.case.seconds * 100.0)
    }

    /// Returns the microseconds for each connection of the window.
    fn per_connection(&self, cpu_s: f64) -> Option<f64> {
        (cpu_s > 0.0 && self.connections.connections > 0)
            .then(|| cpu_s * 1e6 / self.connections.connections as f64)
    }

    /// Returns the parts, in the order of the columns.
    fn parts(&self) -> impl Serialize {
        (
            &self.case,
            &self.traffic,
            &self.cost,
            &self.delay,
            &self.allocations,
            &self.meanwhile,
            &self.drops,
            &self.limit,
            &self.connections,
            &self.accepting,
        )
    }

    /// Returns the record in a line of a file with these columns.
    fn parse(line: &csv::StringRecord, columns: &csv::StringRecord) -> csv::Result<Self> {
        let columns = Some(columns);
        Ok(Self {
            case: line.deserialize(columns)?,
            traffic: line.deserialize(columns)?,
            cost: line.deserialize(columns)?,
            delay: line.deserialize(columns)?,
            allocations: line.deserialize(columns)?,
            meanwhile: line.deserialize(columns)?,
            drops: line.deserialize(columns)?,
            limit: line.deserialize(columns)?,
            connections: line.deserialize(columns)?,
            accepting: line.deserialize(columns)?,
        })
    }

    /// Returns scenario, arrival and case: what rounds and servers have in common.
    pub(crate) fn group(&self) -> Group {
        Group {
            scenario: self.case.scenario.clone(),
            arrival: self.case.arrival,
            percent: self
                .case
                .percent_of_capacity
                .map(|percent| percent.to_string()),
            cell: self.connections.cell.clone(),
        }
    }
}

/// Runs that may be compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    pub(crate) scenario: String,
    pub(crate) arrival: Arrival,
    pub(crate) percent: Option<String>,
    pub(crate) cell: String,
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}", self.scenario, self.arrival)?;
        if !self.cell.is_empty() {
            write!(f, ", {}", self.cell)?;
        }
        match &self.percent {
            Some(percent) => write!(f, ", {percent} % of capacity"),
            None => Ok(()),
        }
    }
}

/// Adds a run to `raw.csv`, at once, so that a broken run loses nothing.
///
/// # Errors
///
/// Also if the file has other columns, as those of older versions have.
pub(crate) fn append(path: &Path, record: &Record) -> Result<()> {
    let new = !path.exists();
    if !new && csv::Reader::from_path(path)?.headers()?.len() != columns(record)? {
        bail!(
            "{} has the columns of another version; --topic or --out begin a new folder",
            path.display()
        );
    }
    let file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| path.display().to_string())?;
    let mut writer = csv::WriterBuilder::new().has_headers(new).from_writer(file);
    writer.serialize(record.parts())?;
    writer.flush()?;
    Ok(())
}

fn columns(record: &Record) -> Result<usize> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.serialize(record.parts())?;
    let text = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(csv::Reader::from_reader(text.as_slice()).headers()?.len())
}

/// Reads `raw.csv`.
pub(crate) fn read(path: &Path) -> Result<Vec<Record>> {
    let mut reader = csv::Reader::from_path(path).with_context(|| path.display().to_string())?;
    let columns = reader.headers()?.clone();
    reader
        .records()
        .map(|line| Record::parse(&line?, &columns))
        .collect::<Result<_, _>>()
        .with_context(|| format!("{} is not of this version", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            case: Which {
                scenario: "007".to_owned(),
                arrival: Arrival::Singly,
                percent_of_capacity: None,
                server: "mine, and yours".to_owned(),
                round: 3,
                status: Status::Measured,
                note: String::new(),
                started: "2026-01-01T00:00:00Z".to_owned(),
                seconds: 4.0,
                rate: Some(0.5),
            },
            traffic: Traffic {
                lost: 7,
                ..Traffic::default()
            },
            cost: Cost::default(),
            delay: Delay::default(),
            allocations: Allocations::default(),
            meanwhile: Meanwhile::default(),
            drops: Drops {
                backlog_drops: 9,
                ..Drops::default()
            },
            limit: Limit {
                bottleneck: Bottleneck::Relay,
                bottleneck_why: "full".to_owned(),
            },
            connections: Connections {
                workers: Some(2),
                ..Connections::default()
            },
            accepting: Accepting {
                meanwhile_cpu_s: Some(1.5),
                ..Accepting::default()
            },
        }
    }

    #[test]
    fn a_record_comes_back_from_the_file_as_it_was_and_older_files_lack_only_connections() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("raw.csv");
        let written = record();
        append(&path, &written).unwrap();
        append(&path, &written).unwrap();
        let read_back = read(&path).unwrap();
        assert_eq!(read_back.len(), 2);
        for each in &read_back {
            assert_eq!(format!("{each:?}"), format!("{written:?}"));
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let older: Vec<String> = text
            .lines()
            .map(|line| {
                let columns: Vec<&str> = line.rsplitn(20, ',').collect();
                columns[19].to_owned()
            })
            .collect();
        assert!(
            older[0].ends_with("bottleneck,bottleneck_why"),
            "{}",
            older[0]
        );
        std::fs::write(&path, older.join("\n")).unwrap();
        let older = read(&path).unwrap();
        assert_eq!(older[0].traffic.lost, 7);
        assert_eq!(older[0].connections.workers, None);
        assert_eq!(older[0].accepting.meanwhile_cpu_s, None);
        assert!(append(&path, &written).is_err(), "other columns");
    }
}
