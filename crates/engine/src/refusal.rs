//! Why requests are refused, for the operator.
//!
//! The invariant: a client learns nothing of it. A reason leaves the engine beside the answer and is no part of it, and finding it
//! takes the same steps for an unknown user as for a wrong password (V-26).

use crate::id::Family;

/// Why a request is refused, where its error code alone does not say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The realm has no user of this name.
    UserUnknown,
    /// The user's key, or every shared secret, gives another MESSAGE-INTEGRITY.
    KeyWrong,
    /// The key matches, but the credential expired at this time, in seconds since 1970.
    Expired {
        /// The last second in which it was good.
        at_unix_s: u64,
    },
    /// The token was not issued by a known authorization server, has expired, or its key does not match.
    TokenInvalid,
    /// REALM is another one than this server sent.
    RealmForeign,
    /// The request uses a password algorithm that this server does not offer.
    AlgorithmNotOffered,
    /// An attribute that authentication needs is missing, malformed or contradicts another one.
    CredentialsMalformed,
    /// The nonce is older than its lifetime.
    NonceStale,
    /// The nonce was not issued by this server to this client.
    NonceForeign,
    /// What is wrong with the request.
    Malformed(&'static str),
    /// The server drains.
    Draining,
    /// The address of the client is denied.
    ClientDenied,
    /// RESERVATION-TOKEN is unknown or has expired.
    ReservationUnknown,
    /// Nothing is wrong with the request, but a limit of the server is reached.
    Limit(Limit),
}

impl Refusal {
    /// Returns whether a client failed to prove who it is, from an address that it has proven with a fresh nonce or by a handshake.
    pub const fn is_failed_authentication(self) -> bool {
        matches!(
            self,
            Self::UserUnknown
                | Self::KeyWrong
                | Self::Expired { .. }
                | Self::TokenInvalid
                | Self::RealmForeign
                | Self::AlgorithmNotOffered
        )
    }
}

/// A limit that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Allocations and reserved ports of one user.
    User(u32),
    /// The same of one realm.
    Realm(u32),
    /// The sum of the rates of all allocations.
    Bandwidth,
    /// Allocations and tunnels of one engine.
    Allocations(u32),
    /// Relay sockets of one engine that the host has not opened yet.
    PendingOpens(u32),
    /// All relay ports of a family are taken.
    Ports {
        /// The family.
        family: Family,
        /// The first port that may be leased.
        first: u16,
        /// The last one.
        last: u16,
    },
    /// The host could not open the relay socket.
    Socket(RelayOpenError),
    /// The host took too long to open the relay socket.
    SocketLate,
    /// Reserved ports that wait for their token.
    Reservations,
    /// Permissions of one allocation.
    Permissions(u16),
    /// Channels of one allocation.
    Channels(u16),
    /// Connections with peers of one allocation.
    PeerConnections(u16),
    /// Connect requests of one user, per second or under way.
    Connects,
}

/// Why the host could not open a relay socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayOpenError {
    /// Another process has the port: the engine tries another one.
    AddressInUse,
    /// Out of descriptors or memory: the client gets 508.
    OutOfResources,
    /// Anything else: the client gets 508.
    Other,
}

impl From<Limit> for Refusal {
    fn from(limit: Limit) -> Self {
        Self::Limit(limit)
    }
}
