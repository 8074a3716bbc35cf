//! What there is of a connection that asks for tunnels.

use turnbuckle_engine::{AllocationId, TunnelSession};
use turnbuckle_masque::bind::Contexts;
use turnbuckle_masque::{Asked, BoundPiece, Capsules, Piece};

/// A connection that asks for tunnels.
#[derive(Default)]
pub(super) struct Visit {
    pub(super) state: State,
    /// What its tunnel is charged to.
    pub(super) session: Option<TunnelSession>,
    pub(super) failures: u8,
    /// What came before the tunnel was open, or the rest of that.
    pub(super) early: Vec<u8>,
}

/// How far a connection is with its request.
#[derive(Default)]
pub(super) enum State {
    /// A request is to come.
    #[default]
    Asking,
    /// The user database is being asked who asks.
    Identifying { asked: Box<Asked> },
    /// The name of its target is being resolved.
    Resolving { number: u64, port: u16 },
    /// The socket is being opened.
    Opening,
    /// Capsules come.
    Open {
        tunnel: AllocationId,
        capsules: Capsules,
        /// What the client has registered, if the tunnel is bound.
        contexts: Option<Box<Contexts>>,
    },
}

impl Visit {
    /// Returns how many bytes the capsule has whose beginning `rest` is, if that is known.
    pub(super) fn announced_len(&self, rest: &[u8]) -> Option<usize> {
        let mut capsules = Capsules::default();
        match &self.state {
            State::Open { contexts: None, .. } => match capsules.next(rest, 1) {
                Ok(Piece::Incomplete { whole_len }) => whole_len,
                _ => None,
            },
            State::Open { .. } => match capsules.next_bound(rest) {
                Ok(BoundPiece::Incomplete { whole_len }) => whole_len,
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns what the client has registered, if its tunnel is bound.
    pub(super) fn contexts(&self) -> Option<&Contexts> {
        match &self.state {
            State::Open { contexts, .. } => contexts.as_deref(),
            _ => None,
        }
    }
}
