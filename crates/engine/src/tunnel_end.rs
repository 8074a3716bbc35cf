//! Why tunnels end.

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
