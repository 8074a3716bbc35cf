//! The three hosts of a run: namespaces of this machine, or real machines named by a file.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::cpus::{CpuList, Placement};
use crate::host::Host;
use crate::namespaces::{self, Machine, Namespaces};
use crate::scenario::Arrival;

/// Where everything is.
#[derive(Debug)]
pub(crate) struct Hosts {
    // Dropped in this order: programs are gone by then, shells end, then the namespaces go.
    pub(crate) load: Host,
    pub(crate) relay: Host,
    pub(crate) peer: Host,
    pub(crate) addresses: Addresses,
    /// The three share one machine.
    pub(crate) shared: bool,
    /// What was set up, for the report.
    pub(crate) notes: Vec<String>,
    _namespaces: Option<Namespaces>,
}

/// Addresses of the parts, and where our program is on each host.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    pub(crate) listen: String,
    pub(crate) relay: String,
    pub(crate) peer: String,
    /// Network of the peers, as the server must allow it.
    pub(crate) peer_net: String,
    /// They are those of our namespaces, and there may be more of them.
    pub(crate) are_namespaces: bool,
    pub(crate) turnbuckle_on_load: String,
    pub(crate) turnbuckle_on_relay: String,
    pub(crate) turnbuckle_on_peer: String,
}

/// A file that names real machines.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostsFile {
    load: HostEntry,
    relay: HostEntry,
    peer: HostEntry,
    /// `offloads` or `singly`: how datagrams arrive there; the interfaces of real machines are not touched.
    pub(crate) arrival: Arrival,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    /// Words before every command, such as `ssh root@relay1`.
    #[serde(default)]
    prefix: String,
    /// Of the server: where it listens. Of the peer: where it receives.
    #[serde(default)]
    address: Option<String>,
    /// Of the server: where its relayed addresses are.
    #[serde(default)]
    relay_address: Option<String>,
    #[serde(default)]
    cpus: Option<String>,
    #[serde(default = "turnbuckle")]
    turnbuckle: String,
}

fn turnbuckle() -> String {
    "turnbuckle".to_owned()
}

impl HostsFile {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    pub(crate) fn addresses(&self) -> Result<Addresses> {
        let listen = self
            .relay
            .address
            .clone()
            .context("[relay] needs `address`")?;
        let peer = self
            .peer
            .address
            .clone()
            .context("[peer] needs `address`")?;
        Ok(Addresses {
            relay: self
                .relay
                .relay_address
                .clone()
                .unwrap_or_else(|| listen.clone()),
            listen,
            peer_net: peer.clone(),
            peer,
            are_namespaces: false,
            turnbuckle_on_load: self.load.turnbuckle.clone(),
            turnbuckle_on_relay: self.relay.turnbuckle.clone(),
            turnbuckle_on_peer: self.peer.turnbuckle.clone(),
        })
    }

    pub(crate) fn relay_prefix(&self) -> Result<Vec<String>> {
        Ok(shell_words::split(&self.relay.prefix)?)
    }

    fn open(&self) -> Result<Hosts> {
        let open = |name: &str, entry: &HostEntry| -> Result<Host> {
            let prefix =
                shell_words::split(&entry.prefix).with_context(|| format!("prefix of {name}"))?;
            let mut host = Host::new(name, &prefix, CpuList::all(1))?;
            host.cpus = match &entry.cpus {
                Some(cpus) => cpus.parse().map_err(anyhow::Error::msg)?,
                None => CpuList::all(host.cpu_count()?),
            };
            Ok(host)
        };
        Ok(Hosts {
            load: open("load", &self.load)?,
            relay: open("relay", &self.relay)?,
            peer: open("peer", &self.peer)?,
            addresses: self.addresses()?,
            shared: false,
            notes: vec![
                "real machines: their interfaces and kernel threads are as they were".to_owned(),
            ],
            _namespaces: None,
        })
    }
}

/// Where hosts come from.
#[derive(Debug)]
pub(crate) enum Source {
    Namespaces {
        machine: Machine,
        placement: Placement,
        turnbuckle: String,
        instruments: String,
    },
    Machines(Box<HostsFile>),
}

/// Returns the addresses within the namespaces.
pub(crate) fn namespace_addresses(turnbuckle: &str, instruments: &str) -> Addresses {
    Addresses {
        listen: namespaces::LISTEN_ADDRESS.to_owned(),
        relay: namespaces::RELAY_ADDRESS.to_owned(),
        peer: namespaces::PEER_ADDRESS.to_owned(),
        peer_net: "10.99.2.0-10.99.2.255".to_owned(),
        are_namespaces: true,
        turnbuckle_on_load: instruments.to_owned(),
        turnbuckle_on_relay: turnbuckle.to_owned(),
        turnbuckle_on_peer: instruments.to_owned(),
    }
}

impl Source {
    /// Opens the hosts for datagrams that arrive in this way.
    ///
    /// # Errors
    ///
    /// Also if real machines do not have this way of arrival.
    pub(crate) fn open(&self, arrival: Arrival) -> Result<Hosts> {
        match self {
            Self::Machines(file) => {
                if file.arrival != arrival {
                    bail!(
                        "on these machines datagrams arrive {}, not {arrival}",
                        file.arrival
                    );
                }
                file.open()
            }
            Self::Namespaces {
                machine,
                placement,
                turnbuckle,
                instruments,
            } => {
                let up = Namespaces::up(machine, arrival, placement)?;
                let prefix =
                    |namespace: &str| ["ip", "netns", "exec", namespace].map(str::to_owned);
                let mut notes = vec![format!(
                    "CPUs: server {}, load {}, peer {}; everything started is weighed up by /proc/self/autogroup",
                    placement.relay, placement.load, placement.peer
                )];
                notes.extend(up.notes.iter().cloned());
                Ok(Hosts {
                    load: Host::new("load", &prefix(namespaces::LOAD), placement.load.clone())?,
                    relay: Host::new("relay", &prefix(namespaces::RELAY), placement.relay.clone())?,
                    peer: Host::new("peer", &prefix(namespaces::PEER), placement.peer.clone())?,
                    addresses: namespace_addresses(turnbuckle, instruments),
                    shared: true,
                    notes,
                    _namespaces: Some(up),
                })
            }
        }
    }
}

impl Hosts {
    /// Returns the kernel threads that receive for the relay: NAPI threads of its interfaces, `ksoftirqd` of its CPUs.
    pub(crate) fn relay_kernel_threads(&self) -> Result<Vec<u32>> {
        let text = self
            .relay
            .run("grep -H -e '^napi/' -e '^ksoftirqd/' /proc/[0-9]*/comm 2>/dev/null || true")?;
        let cpus: Vec<String> = self
            .relay
            .cpus
            .iter()
            .map(|cpu| format!("ksoftirqd/{cpu}"))
            .collect();
        Ok(text
            .lines()
            .filter_map(|line| {
                let (path, name) = line.split_once("/comm:")?;
                let pid = path.strip_prefix("/proc/")?.parse().ok()?;
                let napi = name.starts_with("napi/")
                    && (!self.shared
                        || name.starts_with("napi/tb1-")
                        || name.starts_with("napi/tb2-"));
                (napi || cpus.iter().any(|cpu| cpu == name)).then_some(pid)
            })
            .collect())
    }
}
