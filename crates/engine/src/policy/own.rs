//! The server's own addresses (V-07), and the addresses that a NAT in front of it shows in their place.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::ops::RangeInclusive;

use super::range::AddressRange;
use crate::address::canonical_ip;

/// The server's own addresses. Known at start, replaced whole whenever the host learns of a change.
#[derive(Clone, Debug)]
pub struct OwnAddresses {
    /// Endpoints nobody may reach through a relay: listeners, admin and metrics listeners, and the services the configuration names
    /// (databases, log sinks; V-08). Port 0 stands for every port of the address, `0.0.0.0` and `::` for every own address.
    pub services: Vec<SocketAddr>,
    /// The addresses of the host's interfaces, with the prefix lengths of their networks.
    pub interfaces: Vec<InterfaceAddress>,
    /// The addresses relay sockets are bound to, with the address a one-to-one NAT shows instead (`external-ip`).
    pub relays: Vec<OwnRelay>,
    /// The ports of relayed transport addresses.
    pub relay_ports: RangeInclusive<u16>,
}

impl Default for OwnAddresses {
    fn default() -> Self {
        Self {
            services: Vec::new(),
            interfaces: Vec::new(),
            relays: Vec::new(),
            relay_ports: 49152..=65535,
        }
    }
}

/// An address of one of the host's interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub ip: IpAddr,
    /// The prefix length of its network, 0 to 32 or 128.
    pub prefix_len: u8,
}

/// An address relay sockets are bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRelay {
    /// The bound address.
    pub local: IpAddr,
    /// What clients and peers see, when that is another address; the port is the same on both sides.
    pub external: Option<IpAddr>,
}

/// How an address is related to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kinship {
    /// The network or the broadcast address of an own IPv4 network.
    Broadcast,
    /// Not an own address.
    Foreign,
    /// The server's own, and not a relayed transport address.
    Own,
    /// Within the relayed transport addresses of this server; packets to it go to `local`.
    Relayed { local: IpAddr },
    /// A service that is never reached through a relay.
    Service,
}

/// [`OwnAddresses`] in the form of look-ups.
#[derive(Clone, Debug)]
pub(super) struct Own {
    /// Sorted.
    services: Vec<SocketAddr>,
    /// Ports of services on every own address of a family: sorted `(is IPv4, port)`.
    wildcard_services: Vec<(bool, u16)>,
    /// Every own address, sorted.
    ips: Vec<IpAddr>,
    /// Sorted.
    broadcasts: Vec<Ipv4Addr>,
    /// Few; searched one by one.
    relays: Vec<OwnRelay>,
    relay_ports: RangeInclusive<u16>,
}

impl Own {
    pub(super) fn new(own: &OwnAddresses) -> Self {
        let canonical =
            |address: &SocketAddr| SocketAddr::new(canonical_ip(address.ip()), address.port());
        let (wildcard, mut services): (Vec<_>, Vec<_>) = own
            .services
            .iter()
            .map(canonical)
            .partition(|service| service.ip().is_unspecified());
        services.sort_unstable();
        // A socket bound to :: accepts IPv4 as well, unless the host is configured otherwise.
        let mut wildcard_services: Vec<_> = wildcard
            .iter()
            .flat_map(|service| {
                let v4 = Some((true, service.port()));
                let v6 = service.is_ipv6().then_some((false, service.port()));
                [v4, v6].into_iter().flatten()
            })
            .collect();
        wildcard_services.sort_unstable();

        let relays: Vec<_> = own
            .relays
            .iter()
            .map(|relay| {
                let local = canonical_ip(relay.local);
                let external = relay.external.map(canonical_ip);
                OwnRelay {
                    local,
                    external: external.filter(|&external| external != local),
                }
            })
            .collect();
        let mut ips: Vec<_> = own
            .interfaces
            .iter()
            .map(|interface| canonical_ip(interface.ip))
            .chain(relays.iter().map(|relay| relay.local))
            .chain(relays.iter().filter_map(|relay| relay.external))
            .collect();
        ips.sort_unstable();
        ips.dedup();
        let mut broadcasts: Vec<_> = own
            .interfaces
            .iter()
            .flat_map(directed_broadcasts)
            .collect();
        broadcasts.sort_unstable();
        Self {
            services,
            wildcard_services,
            ips,
            broadcasts,
            relays,
            relay_ports: own.relay_ports.clone(),
        }
    }

    /// Returns how `ip` and `port` are related to this server. Port 0 is that of a permission, which is for an address as a whole.
    pub(super) fn kinship(&self, ip: IpAddr, port: u16) -> Kinship {
        let is_service = |ip, port| {
            let service = SocketAddr::new(ip, port);
            self.services.binary_search(&service).is_ok()
        };
        // guard: V-08-services
        if is_service(ip, 0) || is_service(ip, port) {
            return Kinship::Service;
        }
        if let IpAddr::V4(v4) = ip
            && self.broadcasts.binary_search(&v4).is_ok()
        {
            return Kinship::Broadcast;
        }
        if self.ips.binary_search(&ip).is_err() {
            return Kinship::Foreign;
        }
        if self
            .wildcard_services
            .binary_search(&(ip.is_ipv4(), port))
            .is_ok()
        {
            return Kinship::Service;
        }
        let relay = self.relays.iter().find(|relay| relay.seen() == ip);
        match relay {
            // A listener on a relay address, at a port within the relay ports, is named by the external address just as well.
            Some(relay) if is_service(relay.local, port) => Kinship::Service,
            Some(relay) if port == 0 || self.relay_ports.contains(&port) => {
                Kinship::Relayed { local: relay.local }
            }
            _ => Kinship::Own,
        }
    }

    /// Undoes what the NAT in front would have done to a packet from another relay socket of this server, had it left the host.
    pub(super) fn seen(&self, source: SocketAddr) -> SocketAddr {
        let relay = self.relays.iter().find(|relay| relay.local == source.ip());
        match relay {
            Some(relay) if self.relay_ports.contains(&source.port()) => {
                SocketAddr::new(relay.seen(), source.port())
            }
            _ => source,
        }
    }
}

impl OwnRelay {
    /// Returns the address by which clients and peers know this relay address.
    fn seen(&self) -> IpAddr {
        self.external.unwrap_or(self.local)
    }
}

/// Returns the highest address of an own network, and the lowest, which old systems take for a broadcast too (RFC 1122 §3.3.6).
fn directed_broadcasts(interface: &InterfaceAddress) -> impl Iterator<Item = Ipv4Addr> + use<> {
    let range = match canonical_ip(interface.ip) {
        // A /31 has no broadcast address (RFC 3021), a /32 no network.
        IpAddr::V4(v4) if interface.prefix_len <= 30 => {
            Some(AddressRange::v4_prefix(v4, interface.prefix_len))
        }
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    };
    let ends = range.map(|range| [range.first(), range.last()]);
    ends.into_iter().flatten().filter_map(|ip| match ip {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    })
}
