//! What one run is, and the command lines of its programs.

use std::time::Duration;

use serde_json::Value;

use crate::bottleneck::Bottleneck;
use crate::certificate;
use crate::connections::Cell;
use crate::hosts::Addresses;
use crate::record::{self, Record, Status};
use crate::scenario::{Arrival, Scenario};
use crate::server::{Server, Values};

/// Where servers listen and reflectors receive.
pub(crate) const LISTEN_PORT: u16 = 3478;
pub(crate) const PEER_PORT: u16 = 3480;
/// Where the reflector receives that is for what runs beside the load alone.
pub(crate) const MEANWHILE_PEER_PORT: u16 = 3481;
const USER: &str = "bench";
const PASSWORD: &str = "turnbuckle-bench";
const REALM: &str = "bench.invalid";

/// How long a program may take to start, bind its clients or drain.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to end by itself.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(5);

/// What is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) arrival: Arrival,
    pub(crate) percent_of_capacity: Option<f64>,
    /// For `{rate}`.
    pub(crate) rate: Option<f64>,
    /// Of a scenario about connections.
    pub(crate) cell: Option<&'a Cell>,
    pub(crate) server: &'a Server,
    pub(crate) round: u32,
    pub(crate) warm_up_s: f64,
    pub(crate) window_s: f64,
}

/// Command lines of a case.
#[derive(Debug)]
pub(crate) struct Commands {
    /// Not with a direct scenario.
    pub(crate) server: Option<Vec<String>>,
    pub(crate) peer: Vec<String>,
    pub(crate) load: Vec<String>,
    pub(crate) meanwhile: Option<Vec<String>>,
    /// The reflector of that program alone, where it has one.
    pub(crate) meanwhile_peer: Option<Vec<String>>,
}

/// Returns what placeholders stand for on a host where our program is `turnbuckle`.
pub(crate) fn values(
    case: &Case<'_>,
    addresses: &Addresses,
    relay_cpus: usize,
    tmp: &str,
    turnbuckle: &str,
) -> Values {
    let workers = case.cell.and_then(|cell| cell.workers).unwrap_or(1);
    Values(vec![
        ("listen", addresses.listen.clone()),
        ("port", LISTEN_PORT.to_string()),
        ("relay", addresses.relay.clone()),
        ("peer", addresses.peer.clone()),
        ("peer_net", addresses.peer_net.clone()),
        ("user", USER.to_owned()),
        ("password", PASSWORD.to_owned()),
        ("realm", REALM.to_owned()),
        ("threads", relay_cpus.to_string()),
        ("workers", workers.to_string()),
        ("turnbuckle", turnbuckle.to_owned()),
        ("tmp", tmp.to_owned()),
        ("certificate", certificate::certificate(tmp)),
        ("key", certificate::key(tmp)),
        (
            "rate",
            case.rate
                .map_or_else(|| "0".to_owned(), |rate| format!("{rate:.0}")),
        ),
    ])
}

impl Case<'_> {
    /// Makes a record without figures.
    pub(crate) fn empty_record(&self, status: Status, note: &str) -> Record {
        Record {
            case: record::Which {
                scenario: self.scenario.name.clone(),
                arrival: self.arrival,
                percent_of_capacity: self.percent_of_capacity,
                server: self.server_name(),
                round: self.round,
                status,
                note: note.trim().replace('\n', " / "),
                started: jiff::Timestamp::now().to_string(),
                seconds: 0.0,
                rate: self.rate,
            },
            traffic: record::Traffic::default(),
            cost: record::Cost::default(),
            delay: record::Delay::default(),
            allocations: record::Allocations::default(),
            meanwhile: record::Meanwhile::default(),
            drops: record::Drops::default(),
            limit: record::Limit {
                bottleneck: Bottleneck::Unknown,
                bottleneck_why: String::new(),
            },
            connections: record::Connections {
                cell: self.cell.map(Cell::to_string).unwrap_or_default(),
                ..record::Connections::default()
            },
            accepting: record::Accepting::default(),
        }
    }

    /// Returns the name of the server; without a relay there is none to name.
    fn server_name(&self) -> String {
        if self.scenario.direct {
            "no relay".to_owned()
        } else {
            self.server.name.clone()
        }
    }
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}
