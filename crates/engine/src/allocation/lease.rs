//! The right to a relayed transport address: a port of the allocation's own, or the shared relay socket of the engine.

use core::net::SocketAddr;
use std::sync::Arc;

use crate::id::{Endpoint, RelayProtocol};
use crate::ports::PortLease;

/// A relay socket that all UDP allocations of an engine have in common (coturn's `multiplex-peer`).
#[derive(Debug)]
pub(crate) struct SharedRelay {
    pub(crate) endpoint: Endpoint,
    /// The address bound on this host.
    pub(crate) local: SocketAddr,
    /// The address clients and peers see.
    pub(crate) external: SocketAddr,
}

/// What a relayed transport address is held by.
#[derive(Debug)]
pub(crate) enum Lease {
    /// A port that nobody else has. The host opens its socket for the allocation, and closes it with the allocation.
    Own(PortLease),
    /// The shared relay socket, which no allocation opens or closes.
    Shared(Arc<SharedRelay>),
}

impl Lease {
    /// Notes that the host has the socket: from now on other allocations may send there. Nobody may send to a shared one.
    pub(crate) fn open(&self) {
        match self {
            Self::Own(port) => port.open(),
            Self::Shared(_) => {}
        }
    }

    /// Returns the transport protocol between the address and peers.
    pub(crate) fn protocol(&self) -> RelayProtocol {
        match self {
            Self::Own(port) => port.protocol(),
            Self::Shared(_) => RelayProtocol::Udp,
        }
    }

    /// Returns the address bound on this host.
    pub(crate) fn local(&self) -> SocketAddr {
        match self {
            Self::Own(port) => port.local(),
            Self::Shared(relay) => relay.local,
        }
    }

    /// Returns the address clients and peers see.
    pub(crate) fn external(&self) -> SocketAddr {
        match self {
            Self::Own(port) => port.external(),
            Self::Shared(relay) => relay.external,
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }
}
