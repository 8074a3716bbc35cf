//! Allocations and tunnels as an operator sees them, one after the other by their place in the table.
//!
//! A list is read in parts, and sessions come and go in between. Each has its place for life, so a reader that goes on at the next place sees
//! each session that is there all the time exactly once.

use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU32;
use std::sync::Arc;

use crate::account::Account;
use crate::allocation::relay::Relay;
use crate::allocation::tunnel::{OpenTunnel, Tunnel, TunnelState};
use crate::allocation::{Allocation, Entry};
use crate::auth::CanonicalOrigin;
use crate::change::{Path, Relayed, Usage};
use crate::credential::User;
use crate::id::{AllocationId, ClientTuple, RelayProtocol};
use crate::rules::Rules;
use crate::time::Time;

/// An allocation or a tunnel in use.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    id: AllocationId,
    path: Path,
    held: Held<'a>,
}

#[derive(Clone, Copy)]
enum Held<'a> {
    Allocation(&'a Allocation),
    Tunnel(&'a Tunnel, &'a OpenTunnel),
}

impl<'a> Session<'a> {
    /// Returns what this entry of the table is to an operator; `None` while it is being opened.
    pub(crate) fn of(id: AllocationId, entry: &'a Entry, rules: &Rules) -> Option<Self> {
        let held = match entry {
            Entry::Live(allocation) => Held::Allocation(allocation),
            Entry::Tunnel(tunnel) => match &tunnel.state {
                TunnelState::Open(open) => Held::Tunnel(tunnel, open),
                TunnelState::Opening(_) => return None,
            },
            Entry::Pending(_) => return None,
        };
        let path = rules.listeners.path(held.client());
        Some(Self { id, path, held })
    }

    /// Returns its name.
    pub const fn id(&self) -> AllocationId {
        self.id
    }

    /// Returns the client's 5-tuple.
    pub const fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the client's 5-tuple, as the host names it.
    pub const fn client(&self) -> &'a ClientTuple {
        self.held.client()
    }

    /// Returns the user whose it is.
    pub fn user(&self) -> &'a Arc<User> {
        match self.held {
            Held::Allocation(allocation) => allocation.account.user(),
            Held::Tunnel(tunnel, _) => &tunnel.user,
        }
    }

    /// Returns the peer of a tunnel, the unspecified address for a bound one; `None` for an allocation.
    pub fn tunnel_to(&self) -> Option<SocketAddr> {
        match self.held {
            Held::Allocation(_) => None,
            Held::Tunnel(tunnel, _) => Some(tunnel.target.on_record()),
        }
    }

    /// Returns the relayed transport addresses, one or two.
    pub fn relays(&self) -> impl Iterator<Item = Relayed> + use<'a> {
        let relays = match self.held {
            Held::Allocation(allocation) => &allocation.relays,
            Held::Tunnel(_, open) => &open.relays,
        };
        relays.iter().flatten().map(Relay::addresses)
    }

    /// Returns what runs between the relayed transport addresses and peers.
    pub fn protocol(&self) -> RelayProtocol {
        match self.held {
            Held::Allocation(allocation) => allocation.protocol(),
            Held::Tunnel(..) => RelayProtocol::Udp,
        }
    }

    /// Returns the ORIGIN of the request that created it. No tunnel has one.
    pub fn origin(&self) -> Option<&'a CanonicalOrigin> {
        match self.held {
            Held::Allocation(allocation) => allocation.rare.as_ref()?.origin.as_ref(),
            Held::Tunnel(..) => None,
        }
    }

    /// Returns when it was created.
    pub const fn created(&self) -> Time {
        match self.held {
            Held::Allocation(allocation) => allocation.created,
            Held::Tunnel(_, open) => open.created,
        }
    }

    /// Returns when it ends unless it is refreshed, or a tunnel unless something is relayed.
    pub fn expires(&self) -> Time {
        match self.held {
            Held::Allocation(allocation) => allocation.expires(),
            Held::Tunnel(_, open) => open.expires(),
        }
    }

    /// Returns how fast it may relay in each direction, in bytes of payload per second, the tunnels of a session together; `None` for no bound.
    pub fn bytes_per_s(&self) -> Option<NonZeroU32> {
        self.held.account().rate()
    }

    /// Returns what it has relayed up to now.
    pub const fn usage(&self) -> &'a Usage {
        match self.held {
            Held::Allocation(allocation) => &allocation.usage,
            Held::Tunnel(_, open) => &open.usage,
        }
    }

    /// Returns whether it may move to another 5-tuple (RFC 8016).
    pub const fn is_mobile(&self) -> bool {
        match self.held {
            Held::Allocation(allocation) => allocation.mobility.is_some(),
            Held::Tunnel(..) => false,
        }
    }

    /// Returns the peers that it has a permission for, in the order of their addresses, or the one of a tunnel.
    pub fn peers(&self) -> impl Iterator<Item = IpAddr> + use<'a> {
        let allocation = match self.held {
            Held::Allocation(allocation) => Some(allocation),
            Held::Tunnel(..) => None,
        };
        let permitted = allocation.map(|allocation| allocation.permissions.peers());
        let target = self.tunnel_to().map(|peer| peer.ip());
        permitted.into_iter().flatten().chain(target)
    }

    /// Returns how many channels are bound.
    pub fn channel_count(&self) -> usize {
        match self.held {
            Held::Allocation(allocation) => allocation.channels.len(),
            Held::Tunnel(..) => 0,
        }
    }
}

impl<'a> Held<'a> {
    const fn client(self) -> &'a ClientTuple {
        match self {
            Self::Allocation(allocation) => &allocation.client,
            Self::Tunnel(tunnel, _) => &tunnel.client,
        }
    }

    fn account(self) -> &'a Account {
        match self {
            Self::Allocation(allocation) => &allocation.account,
            Self::Tunnel(tunnel, _) => &tunnel.account,
        }
    }
}
