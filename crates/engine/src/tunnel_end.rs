//! Why tunnels end.

use crate::change::EndCause;

/// Why a tunnel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelEnd {
    /// The operator ended it ([`crate::Engine::cancel`]).
    Cancelled,
    /// The policy forbids its peer by now.
    Forbidden,
    /// Nothing was relayed for too long.
    Idle,
    /// The host could not open its socket.
    NotOpened,
    /// The network says that the peer cannot be reached.
    Unreachable,
    /// Its user would not be let in any more.
    UserGone,
}

impl TunnelEnd {
    /// Returns how the end of an open tunnel is on record; `None` for one that was never open.
    pub(crate) const fn cause(self) -> Option<EndCause> {
        Some(match self {
            Self::Cancelled => EndCause::Cancelled,
            Self::Forbidden => EndCause::Forbidden,
            Self::Idle => EndCause::Idle,
            Self::NotOpened => return None,
            Self::Unreachable => EndCause::Unreachable,
            Self::UserGone => EndCause::UserGone,
        })
    }
}
