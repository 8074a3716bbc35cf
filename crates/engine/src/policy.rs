//! Which peers clients may reach: the one check in front of every path towards a peer.

use core::net::{IpAddr, SocketAddr};

/// Allow and deny rules, own addresses.
#[derive(Clone, Debug, Default)]
pub struct PolicyRules {}

/// A peer that the policy permits. Only [`Policy::check`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllowedPeer(SocketAddr);

impl AllowedPeer {
    /// The address to send to.
    pub fn address(self) -> SocketAddr {
        self.0
    }

    /// The address that permissions are compared with.
    pub fn ip(self) -> IpAddr {
        self.0.ip()
    }
}
