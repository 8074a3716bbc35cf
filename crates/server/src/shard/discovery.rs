//! NAT behaviour discovery (RFC 5780 §6): which listeners of this shard stand in for each other.

use std::net::SocketAddr;

use turnbuckle_datapath::EndpointId;
use turnbuckle_engine::{Alternates, Discovery, Endpoint, Engine, Random};

use super::name;
use crate::config::Config;

/// One address and port that takes part. `origin` and `other` are what clients see, the rest is what sockets are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    local: SocketAddr,
    origin: SocketAddr,
    other: SocketAddr,
    change_ip: SocketAddr,
    change_port: SocketAddr,
    change_both: SocketAddr,
}

/// Returns all addresses and ports that take part in NAT behaviour discovery.
pub(crate) fn sites(config: &Config) -> Vec<Site> {
    let Some(discovery) = &config.addresses.discovery else {
        return Vec::new();
    };
    let port = config.addresses.listeners.first().map(SocketAddr::port);
    let plain = port.map(|port| (port, discovery.port));
    let tls = discovery.tls_port.map(|port| (config.tls.port, port));
    let mut sites = Vec::new();
    for &(here, there) in &discovery.other_by_address {
        let seen = |ip| config.addresses.public(ip);
        for (first, second) in plain.into_iter().chain(tls) {
            for (port, other) in [(first, second), (second, first)] {
                sites.push(Site {
                    local: SocketAddr::new(here, port),
                    origin: SocketAddr::new(seen(here), port),
                    other: SocketAddr::new(seen(there), other),
                    change_ip: SocketAddr::new(there, port),
                    change_port: SocketAddr::new(here, other),
                    change_both: SocketAddr::new(there, other),
                });
            }
        }
    }
    sites
}

/// Says which addresses stand in for each other, as clients see them, each pair in one line.
pub(crate) fn describe_discovery(config: &Config) -> Vec<String> {
    let Some(discovery) = &config.addresses.discovery else {
        return Vec::new();
    };
    let (pairs, port) = (&discovery.other_by_address, discovery.port);
    let seen = |ip| config.addresses.public(ip);
    let new = pairs.iter().enumerate().filter(|&(index, &(here, there))| {
        let is_told = pairs[..index].contains(&(there, here));
        !is_told
    });
    new.map(|(_, &(here, there))| {
        let (here, there) = (seen(here), seen(there));
        format!("NAT behaviour discovery on {here} and {there}, second port {port}")
    })
    .collect()
}

impl Site {
    /// Returns the engine's settings for the UDP socket at this site. Returns `None` unless all four sockets exist.
    fn of_datagrams(&self, at: impl Fn(SocketAddr) -> Option<Endpoint>) -> Option<Discovery> {
        Some(Discovery {
            alternates: Some(Alternates {
                change_ip: at(self.change_ip)?,
                change_port: at(self.change_port)?,
                change_both: at(self.change_both)?,
            }),
            ..self.of_connections()
        })
    }

    /// Returns the same for connections.
    fn of_connections(&self) -> Discovery {
        Discovery {
            origin: self.origin,
            other: self.other,
            alternates: None,
        }
    }
}

/// Has the listeners at `sites` serve discovery; given are all sockets for datagrams, and all listeners for connections.
pub(super) fn serve<R: Random>(
    engine: &mut Engine<R>,
    sites: &[Site],
    datagrams: &[(EndpointId, SocketAddr)],
    connections: &[(Endpoint, SocketAddr)],
) {
    let at = |wanted| {
        let found = datagrams.iter().find(|(_, address)| *address == wanted);
        found.map(|(socket, _)| name::endpoint(*socket))
    };
    for site in sites {
        if let (Some(socket), Some(discovery)) = (at(site.local), site.of_datagrams(at)) {
            engine.set_discovery(socket, discovery);
        }
        for (listener, _) in connections.iter().filter(|(_, local)| *local == site.local) {
            engine.set_discovery(*listener, site.of_connections());
        }
    }
}
