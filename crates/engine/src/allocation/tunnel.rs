//! One tunnel: a relay socket for one peer, or for whomever the client names, whose client needs neither requests nor permissions.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::sync::Arc;

use super::opening::Openings;
use super::relay::Relay;
use crate::account::Account;
use crate::change::Usage;
use crate::credential::User;
use crate::id::{ClientTuple, Family};
use crate::policy::AllowedPeer;
use crate::time::Time;

/// How long a tunnel may relay nothing. RFC 9298 §3.1 wants at least two minutes.
// guard: V-91-idle
const IDLE_MAX: Duration = Duration::from_secs(130);

/// Whom a tunnel leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// One peer.
    Peer(AllowedPeer),
    /// Whom the client names with each datagram. Each is judged.
    Anyone,
}

impl Target {
    /// Returns the peer that it is on record with. Nobody is where a bound tunnel leads to: the unspecified address.
    pub(crate) fn on_record(&self) -> SocketAddr {
        match self {
            Self::Peer(peer) => peer.peer().address(),
            Self::Anyone => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        }
    }
}

/// A tunnel between a client and one peer, or all that it may reach.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) client: ClientTuple,
    /// Who asked for it, with the name and key that were checked then.
    pub(crate) user: Arc<User>,
    /// The account of the session that it belongs to, which other tunnels may have too.
    pub(crate) account: Arc<Account>,
    pub(crate) target: Target,
    pub(crate) state: TunnelState,
}

/// How far a tunnel is.
#[derive(Debug)]
pub(crate) enum TunnelState {
    /// The host opens its socket.
    Opening(Openings),
    /// It is in use.
    Open(OpenTunnel),
}

/// A tunnel in use.
#[derive(Debug)]
pub(crate) struct OpenTunnel {
    /// One, or of a bound tunnel one for each family that there is.
    pub(crate) relays: [Option<Relay>; 2],
    pub(crate) usage: Usage,
    /// When something was relayed last, in either direction, or when it was opened.
    pub(crate) last_used: Time,
    pub(crate) created: Time,
    /// When its user is looked up again, as at a Refresh.
    pub(crate) renew: Time,
}

impl OpenTunnel {
    /// Returns when it ends if nothing is relayed.
    pub(crate) fn expires(&self) -> Time {
        self.last_used + IDLE_MAX
    }

    /// Returns the relay socket for peers of `family`.
    pub(crate) fn relay(&self, family: Family) -> Option<&Relay> {
        self.relays[family.index()].as_ref()
    }
}

impl Tunnel {
    pub(crate) fn openings_mut(&mut self) -> Option<&mut Openings> {
        match &mut self.state {
            TunnelState::Opening(openings) => Some(openings),
            TunnelState::Open(_) => None,
        }
    }
}
