//! The sockets that clients reach a server at.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::collections::BTreeMap;

use crate::change::Path;
use crate::discovery::Discovery;
use crate::id::{ClientTuple, Endpoint};

/// Stands for a listener the host has not made known.
const UNKNOWN_LISTENER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Listeners in the order in which they were made known.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    /// Those that other engines alone have are in their places without a name.
    list: Vec<(Option<Endpoint>, SocketAddr)>,
    /// Those that serve NAT behaviour discovery.
    discovery: BTreeMap<Endpoint, Discovery>,
}

impl Listeners {
    pub(crate) fn add(&mut self, endpoint: Endpoint, local: SocketAddr) {
        self.list.push((Some(endpoint), local));
    }

    /// Leaves the place of a listener that other engines alone have.
    pub(crate) fn skip(&mut self, local: SocketAddr) {
        self.list.push((None, local));
    }

    /// Has a listener serve NAT behaviour discovery.
    pub(crate) fn set_discovery(&mut self, listener: Endpoint, discovery: Discovery) {
        self.discovery.insert(listener, discovery);
    }

    /// Returns the addresses with which a listener serves NAT behaviour discovery, if it does.
    pub(crate) fn discovery(&self, listener: Endpoint) -> Option<&Discovery> {
        self.discovery.get(&listener)
    }

    /// Returns the address of a listener.
    pub(crate) fn address(&self, endpoint: Endpoint) -> SocketAddr {
        let mut listeners = self.list.iter();
        let found = listeners.find(|(listener, _)| *listener == Some(endpoint));
        found.map_or(UNKNOWN_LISTENER, |&(_, local)| local)
    }

    /// Returns a client's 5-tuple in the form that the records use.
    pub(crate) fn path(&self, client: &ClientTuple) -> Path {
        Path {
            server: self.address(client.listener),
            client: client.remote,
            transport: client.transport,
            connection: client.connection,
        }
    }

    /// Returns the first listener at an address.
    pub(crate) fn named(&self, local: SocketAddr) -> Option<Endpoint> {
        let mut listeners = self.list.iter();
        listeners.find_map(|&(listener, address)| listener.filter(|_| address == local))
    }

    /// Returns the addresses of all listeners.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.list.iter().map(|&(_, local)| local)
    }

    /// Returns the place of a listener in the order in which the listeners were added.
    pub(crate) fn index(&self, endpoint: Endpoint) -> Option<usize> {
        let mut listeners = self.list.iter();
        listeners.position(|&(listener, _)| listener == Some(endpoint))
    }

    /// Returns the listener at this place.
    pub(crate) fn at(&self, index: usize) -> Option<Endpoint> {
        self.list.get(index)?.0
    }

    /// Returns whether `source` can be a client's address. An answer to one of the server's own listeners would come back as a
    /// message (V-41).
    pub(crate) fn is_possible_source(&self, source: SocketAddr) -> bool {
        let is_client = match source.ip() {
            IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast(),
            IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast(),
        };
        is_client && source.port() != 0 && !self.addresses().any(|local| local == source)
    }
}
