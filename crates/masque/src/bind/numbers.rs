//! The numbers and names of draft-ietf-masque-connect-udp-listen, as versions 10 and 11 have them. They are provisional, and stand nowhere else.

/// The field by which a client asks for a bound tunnel, and by which it is granted (§6).
pub const CONNECT_UDP_BIND: &str = "Connect-UDP-Bind";
/// The field of an answer that says to which addresses a tunnel is bound (§7).
pub const PROXY_PUBLIC_ADDRESS: &str = "Proxy-Public-Address";
/// The IP version of a registration without an address (§3.1).
pub(super) const NO_VERSION: u8 = 0;
/// The IP versions of those that have one.
pub(super) const VERSION_4: u8 = 4;
pub(super) const VERSION_6: u8 = 6;

/// A capsule about a context (§3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextCapsule {
    /// COMPRESSION_ASSIGN: registers a context.
    Assign,
    /// COMPRESSION_ACK: takes a registration.
    Ack,
    /// COMPRESSION_CLOSE: refuses a registration, or ends one.
    Close,
}

impl ContextCapsule {
    /// Returns the one of this capsule type, if there is one.
    #[must_use]
    pub const fn of_kind(kind: u64) -> Option<Self> {
        match kind {
            0x11 => Some(Self::Assign),
            0x12 => Some(Self::Ack),
            0x13 => Some(Self::Close),
            _ => None,
        }
    }

    /// Returns the capsule type.
    #[must_use]
    pub const fn kind(self) -> u64 {
        match self {
            Self::Assign => 0x11,
            Self::Ack => 0x12,
            Self::Close => 0x13,
        }
    }
}
