//! The validated settings of the relay: the only form of configuration that the server sees.
//!
//! Invariant: a [`Config`] exists only if every line that went into it was understood and allowed. Quantities carry their
//! unit in their type; an `Option` means that the operator can really have "none", never "not given".

use std::net::{IpAddr, SocketAddr};

use crate::persona::Persona;
use crate::topics::addresses::Addresses;
use crate::topics::authentication::Authentication;
use crate::topics::datapath::Datapath;
use crate::topics::http::Http;
use crate::topics::limits::Limits;
use crate::topics::log::Log;
use crate::topics::process::Process;
use crate::topics::proxies::Proxies;
use crate::topics::redirection::Redirection;
use crate::topics::relays::Relays;
use crate::topics::stun::Stun;
use crate::topics::tls::Tls;

/// The whole configuration of one relay.
#[derive(Debug, Clone)]
pub struct Config {
    /// Under which name the server runs.
    pub persona: Persona,
    /// Listening, relay and external addresses and ports.
    pub addresses: Addresses,
    /// Threads and processors, and how datagrams are moved.
    pub datapath: Datapath,
    /// Who may use the relay.
    pub authentication: Authentication,
    /// Transports between relayed transport addresses and peers.
    pub relays: Relays,
    /// Upper bounds.
    pub limits: Limits,
    /// Which clients are sent to other servers.
    pub redirection: Redirection,
    /// How STUN messages are answered.
    pub stun: Stun,
    /// Clients that come by TLS or DTLS.
    pub tls: Tls,
    /// Other protocols on the listening ports.
    pub protocols: Protocols,
    /// The settings of the log.
    pub log: Log,
    /// The process as the system sees it.
    pub process: Process,
}

/// Protocols other than STUN, TURN and TLS on the listening ports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Protocols {
    /// Proxies that announce the client's address.
    pub proxies: Proxies,
    /// The response to HTTP clients.
    pub http: Http,
}

impl Config {
    /// Returns the addresses on which datagrams are received: those for UDP, and those with the ports for TLS if DTLS or QUIC is spoken.
    #[must_use]
    pub fn datagram_listeners(&self) -> Vec<SocketAddr> {
        let is_secure = self.tls.dtls_files().is_some() || self.tls.quic_files().is_some();
        self.listeners_for(self.addresses.udp, is_secure)
    }

    /// Returns the addresses on which connections are accepted: those for TCP, and those with the ports for TLS. A port for proxies
    /// takes the place of all of them.
    #[must_use]
    pub fn stream_listeners(&self) -> Vec<SocketAddr> {
        if let Some(port) = self.protocols.proxies.port {
            let listeners = self.addresses.listeners.iter();
            return listeners
                .map(|address| SocketAddr::new(address.ip(), port))
                .collect();
        }
        self.listeners_for(self.addresses.tcp, self.tls.files().is_some())
    }

    /// Returns the same configuration for the listening address `ip` alone, on the same ports. Second ports for NAT behaviour discovery and
    /// auxiliary listeners, which belong to the other addresses, are left out.
    #[must_use]
    pub fn only_on(&self, ip: IpAddr) -> Self {
        let mut only = self.clone();
        only.addresses.auxiliary.clear();
        only.addresses.discovery = None;
        only.addresses.listeners.truncate(1);
        for listener in &mut only.addresses.listeners {
            listener.set_ip(ip);
        }
        only
    }

    fn listeners_for(&self, is_plain: bool, is_secure: bool) -> Vec<SocketAddr> {
        let plain = self.plain_listeners();
        let mut found: Vec<_> = plain.filter(|_| is_plain).collect();
        for address in self.secure_listeners().filter(|_| is_secure) {
            if !found.contains(&address) {
                found.push(address);
            }
        }
        found
    }

    /// Returns the listening addresses, their second ports for NAT behaviour discovery, and auxiliary ones.
    fn plain_listeners(&self) -> impl Iterator<Item = SocketAddr> {
        let listeners = self.addresses.listeners.iter().copied();
        let others = self.addresses.discovery.iter().flat_map(|discovery| {
            let addresses = discovery.other_by_address.iter();
            addresses.map(|&(address, _)| SocketAddr::new(address, discovery.port))
        });
        let auxiliary = self.addresses.auxiliary.iter().copied();
        listeners.chain(others).chain(auxiliary)
    }

    /// Returns the addresses with the ports for TLS and DTLS.
    fn secure_listeners(&self) -> impl Iterator<Item = SocketAddr> {
        let listeners = self.addresses.listeners.iter();
        let listeners = listeners.map(|address| SocketAddr::new(address.ip(), self.tls.port));
        let others = self.addresses.discovery.iter().flat_map(|discovery| {
            let addresses = discovery.other_by_address.iter();
            addresses
                .filter_map(|&(address, _)| Some(SocketAddr::new(address, discovery.tls_port?)))
        });
        listeners.chain(others)
    }
}
