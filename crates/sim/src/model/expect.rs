//! What the model allows to become of a message.

use std::net::SocketAddr;

use turnbuckle_engine::DropReason;

use super::memory::Pending;

/// Says what may become of a message. Everything else is a bug, in the engine or in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Exactly one answer: success, or an error with one of these codes.
    Answer {
        /// Whether success is right.
        success: bool,
        /// The error codes that are right.
        codes: Vec<u16>,
    },
    /// A relay socket must be asked for; the answer comes when it is open.
    Open(Pending),
    /// The payload goes from a relayed address to a peer.
    Relay {
        /// The relayed address.
        from: SocketAddr,
        /// The peer.
        to: SocketAddr,
        /// The payload.
        data: Vec<u8>,
        /// Whether DF was asked for.
        dont_fragment: bool,
    },
    /// The engine is not even asked: it is no whole message.
    Malformed,
    /// No answer and no effect, for one of these reasons.
    Silence(Vec<DropReason>),
}

impl Expect {
    pub(super) fn success() -> Self {
        Self::Answer {
            success: true,
            codes: Vec::new(),
        }
    }

    pub(super) fn error(code: u16) -> Self {
        Self::errors(vec![code])
    }

    pub(super) fn errors(codes: Vec<u16>) -> Self {
        Self::Answer {
            success: false,
            codes,
        }
    }

    pub(super) fn silence(reason: DropReason) -> Self {
        Self::Silence(vec![reason])
    }
}
