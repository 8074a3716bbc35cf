//! The settings of a client, and the events that it reports.

use std::net::SocketAddr;

use turnbuckle_wire::{AddressFamily, ChannelNumber};

use crate::credentials::Credentials;

/// REQUESTED-TRANSPORT of a relay for datagrams (IANA's number).
pub const UDP: u8 = 17;
/// REQUESTED-TRANSPORT of a relay for connections (RFC 6062 §5.1).
pub const TCP: u8 = 6;

/// How data is to be sent to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// ChannelData on this channel.
    Channel(ChannelNumber),
    /// Send indications.
    Indications,
    /// A TCP connection (RFC 6062), of an allocation with [`Relay::Tcp`]: the server connects to the peer, and then
    /// [`Client::connection_bind`](crate::Client::connection_bind) makes another connection to the server its other half.
    Connection,
}

/// What the relayed transport address is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relay {
    /// Datagrams.
    #[default]
    Udp,
    /// Connections (RFC 6062).
    Tcp,
}

/// The properties that a client requests of its allocation; by default one relayed address for datagrams, of the server's choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// REQUESTED-TRANSPORT.
    pub relay: Relay,
    /// ADDITIONAL-ADDRESS-FAMILY (RFC 8656 §7.1): a relayed address of each family.
    pub is_dual: bool,
    /// An empty MOBILITY-TICKET in the Allocate request (RFC 8016 §3.1.1); the allocation can then go on elsewhere, see
    /// [`Client::successor`](crate::Client::successor).
    pub mobility: bool,
    /// DONT-FRAGMENT in the Allocate request: the server is to promise that it can (RFC 8656 §7.1).
    pub dont_fragment: bool,
    /// REQUESTED-ADDRESS-FAMILY of the relayed address, where it is to differ from the server's default, IPv4.
    pub family: Option<AddressFamily>,
    /// Requested LIFETIME, seconds; the server's default without it.
    pub lifetime: Option<u32>,
}

/// The settings of a client.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its identity.
    pub credentials: Credentials,
    /// ORIGIN of every request, for servers that choose the realm by it.
    pub origin: Option<String>,
    /// The requested properties of the allocation.
    pub terms: Terms,
    /// To whom data is to go; `None` for an allocation alone, or until [`Client::open`](crate::Client::open).
    pub peer: Option<(SocketAddr, Path)>,
    /// Another peer, of IPv6, for a dual allocation; reached in the same way as the first one.
    pub second_peer: Option<(SocketAddr, Path)>,
    /// An address that is named beside the peer in a permission before the path to the peer is opened, as the port of RTCP beside that of
    /// RTP.
    pub companion: Option<SocketAddr>,
    /// Send indications are sent without a permission; the server drops them unless it is configured to need none.
    pub asks_for_no_permission: bool,
    /// Permissions, channels and lifetimes are requested again and again, some ten times a second each.
    pub asks_often: bool,
    /// Requests go over a connection, which repeats by itself what is lost.
    pub is_reliable: bool,
}

impl Plan {
    /// Returns the plan of a user's UDP allocation without a peer.
    pub fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            origin: None,
            terms: Terms::default(),
            peer: None,
            second_peer: None,
            companion: None,
            asks_for_no_permission: false,
            asks_often: false,
            is_reliable: false,
        }
    }
}

/// What became of the allocation with the last bytes or the last passing of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Data may flow.
    Ready,
    /// The allocation was deleted as requested.
    Released,
    /// It cannot be had, or was lost.
    Failed(Failure),
}

/// Why there is no allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// The server's error code.
    Refused(u16),
    /// No answer to any of the repetitions.
    Timeout,
    /// An answer without what it must have.
    BadAnswer,
    /// An allocation, but without the requested ticket (RFC 8016 §3.1.2).
    NoTicket,
    /// The connection to the server failed or was lost.
    Disconnected,
    /// The handshake failed, or the server's certificate is not to be trusted.
    Handshake,
}
