//! The state that all attacks share.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use turnbuckle_client::blocking::Target;
use turnbuckle_client::{Credentials, Transport};

use crate::arguments::{Arguments, Crowd, Targets};
use crate::canary::{Canary, PORTS};

/// The port of peers when no canary listens.
const PORT: u16 = 7000;

/// Everything that the attacks share.
pub(crate) struct Context {
    pub(crate) target: Arc<Target>,
    /// The requested transports by which the server serves TURN; none if TURN is not tried.
    pub(crate) transports: Vec<Transport>,
    pub(crate) other_user: Option<Credentials>,
    pub(crate) secret: Option<String>,
    pub(crate) quota: Option<usize>,
    pub(crate) connects: usize,
    pub(crate) canary: Option<Canary>,
    /// Peers that the server may reach and on which the canary listens.
    pub(crate) allowed: Vec<IpAddr>,
    /// The prefix of the ids of the rows that are tried.
    only: String,
    pub(crate) quick: bool,
    pub(crate) strangers: Strangers,
    pub(crate) targets: Targets,
}

/// The strangers of the attacks of many at once.
pub(crate) struct Strangers {
    /// How many there are.
    pub(crate) count: usize,
    /// Where they come from; anywhere if empty.
    pub(crate) sources: Vec<IpAddr>,
    /// Connections per second that a slow client's has to compete with.
    pub(crate) flood_rate: u32,
    /// How long each of their attacks lasts.
    pub(crate) time: Duration,
    /// Whether only these attacks are run.
    pub(crate) alone: bool,
}

impl Strangers {
    fn new(crowd: &Crowd) -> Self {
        Self {
            count: crowd.strangers.into(),
            sources: crowd.sources.clone(),
            flood_rate: crowd.flood_rate,
            time: Duration::from_secs(crowd.attack_seconds.into()),
            alone: crowd.only_strangers,
        }
    }
}

impl Context {
    /// Returns the context that the command line describes, for a server that serves these transports.
    pub(crate) fn new(
        arguments: &Arguments,
        target: Arc<Target>,
        transports: Vec<Transport>,
        canary: Option<Canary>,
    ) -> Self {
        Self {
            target,
            transports,
            other_user: arguments.users.other_user.clone(),
            secret: arguments.users.secret.clone(),
            quota: arguments.users.quota,
            connects: arguments.connects,
            canary,
            allowed: arguments.peers.allowed.clone(),
            only: arguments.only.clone(),
            quick: arguments.quick,
            strangers: Strangers::new(&arguments.crowd),
            targets: arguments.ways.targets.clone(),
        }
    }

    /// Returns the port of forbidden peers.
    pub(crate) fn port(&self) -> u16 {
        self.canary.as_ref().map_or(PORT, Canary::port)
    }

    /// Returns all ports of forbidden peers in bound tunnels, at which a canary hears too.
    pub(crate) fn ports(&self) -> RangeInclusive<u16> {
        let first = self.port();
        first..=first.saturating_add(PORTS - 1)
    }

    /// Returns whether a row is to be tried.
    pub(crate) fn wants(&self, row: &str) -> bool {
        row.starts_with(&self.only)
    }

    /// Returns whether the server serves a transport that is to be tried.
    pub(crate) fn speaks(&self, transport: Transport) -> bool {
        self.transports.contains(&transport)
    }

    /// Returns the transport of what is tried by one alone.
    pub(crate) fn first(&self) -> Transport {
        self.transports.first().copied().unwrap_or(Transport::Udp)
    }
}
