//! One tunnel: a relay socket for one peer, whose client needs neither requests nor permissions.

use core::time::Duration;
use std::sync::Arc;

use super::opening::Openings;
use super::relay::Relay;
use crate::account::Account;
use crate::change::Usage;
use crate::id::ClientTuple;
use crate::policy::AllowedPeer;
use crate::time::Time;

/// How long a tunnel may relay nothing. RFC 9298 §3.1 wants at least two minutes.
// guard: V-91-idle
const IDLE_MAX: Duration = Duration::from_secs(130);

/// A tunnel between a client and one peer.
#[derive(Debug)]
pub(crate) struct Tunnel {
    pub(crate) client: ClientTuple,
    /// The account of the session that it belongs to, which other tunnels may have too.
    pub(crate) account: Arc<Account>,
    pub(crate) target: AllowedPeer,
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
    pub(crate) relay: Relay,
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
}

impl Tunnel {
    pub(crate) fn openings_mut(&mut self) -> Option<&mut Openings> {
        match &mut self.state {
            TunnelState::Opening(openings) => Some(openings),
            TunnelState::Open(_) => None,
        }
    }
}
