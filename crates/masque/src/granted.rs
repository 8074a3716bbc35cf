//! What a request is granted, whichever version of HTTP it came by.

use std::net::SocketAddr;

use crate::bind::{CONNECT_UDP_BIND, PROXY_PUBLIC_ADDRESS, public_addresses};

/// The name of the relay in Proxy-Status (RFC 9209 §2). It says nothing about the software.
pub(crate) const PROXY_NAME: &str = "relay";

/// What a request is granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// A tunnel to one address.
    Tunnel {
        /// The address.
        next_hop: SocketAddr,
    },
    /// A tunnel that is bound to these addresses, as peers see them. One it has at least.
    Bound {
        /// The addresses.
        addresses: Vec<SocketAddr>,
    },
}

impl Granted {
    /// Returns whether the tunnel is bound.
    pub(crate) const fn is_bound(&self) -> bool {
        matches!(self, Self::Bound { .. })
    }

    /// Returns the fields of the answer that say what is granted. HTTP/3 has their names in small letters.
    pub(crate) fn fields(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Tunnel { next_hop } => {
                let status = format!("{PROXY_NAME}; next-hop=\"{}\"", next_hop.ip());
                vec![("Proxy-Status", status)]
            }
            Self::Bound { addresses } => vec![
                ("Proxy-Status", PROXY_NAME.to_owned()),
                (CONNECT_UDP_BIND, "?1".to_owned()),
                (PROXY_PUBLIC_ADDRESS, public_addresses(addresses)),
            ],
        }
    }
}
