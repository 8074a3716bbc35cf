//! Names for endpoints, clients, allocations and relay sockets.

use core::net::SocketAddr;

use turnbuckle_wire::AddressFamily;

/// The host's name for a bound socket: a UDP socket, or one that listens for connections. The engine hands it back and never looks inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(pub u32);

/// What carries messages between a client and this server (RFC 8656 §3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// DTLS over UDP.
    Dtls,
    /// QUIC. Only tunnels have it.
    Quic,
    /// TCP.
    Tcp,
    /// TLS over TCP.
    Tls,
    /// UDP.
    #[default]
    Udp,
}

impl Transport {
    /// Returns whether messages follow each other in a stream of bytes.
    pub const fn is_stream(self) -> bool {
        matches!(self, Self::Tcp | Self::Tls)
    }

    /// Returns whether the client's address is proven. A connection or a session takes a handshake that a forged source cannot
    /// complete.
    pub const fn proves_address(self) -> bool {
        matches!(self, Self::Dtls | Self::Quic | Self::Tcp | Self::Tls)
    }

    /// Returns the name for people and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dtls => "DTLS",
            Self::Quic => "QUIC",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
            Self::Udp => "UDP",
        }
    }
}

/// The host's name for a connection of a client. The engine hands it back and never looks inside.
///
/// The default names no connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection {
    /// Where the host keeps it; used again for later connections.
    pub place: u32,
    /// Distinguishes the connections of the whole server; not used again.
    pub serial: u64,
}

impl Connection {
    /// Makes a name of these two parts.
    pub const fn new(place: u32, serial: u64) -> Self {
        Self { place, serial }
    }
}

/// The 5-tuple of a client (RFC 8656 §3): the listener's address, the client's address, and the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientTuple {
    /// The listener the datagram or connection came to.
    pub listener: Endpoint,
    /// The client's address in canonical form: never an IPv4 address mapped into IPv6.
    pub remote: SocketAddr,
    /// What carries the messages.
    pub transport: Transport,
    /// The connection; the default where there is none. A later connection from the same address is another client.
    pub connection: Connection,
}

impl ClientTuple {
    /// Returns a client that sends plain UDP datagrams.
    pub const fn udp(listener: Endpoint, remote: SocketAddr) -> Self {
        Self {
            listener,
            remote,
            transport: Transport::Udp,
            connection: Connection::new(0, 0),
        }
    }
}

/// The transport protocol between a relayed transport address and peers, and so the kind of allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RelayProtocol {
    /// TCP (RFC 6062).
    Tcp,
    /// UDP (RFC 8656).
    #[default]
    Udp,
}

impl RelayProtocol {
    /// Returns the name for people and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// Names one peer data connection of the whole server: the value of CONNECTION-ID (RFC 6062 §6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// The family of a relayed transport address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns the family of `address`.
    pub const fn of(address: &SocketAddr) -> Self {
        match address {
            SocketAddr::V4(_) => Self::V4,
            SocketAddr::V6(_) => Self::V6,
        }
    }

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::V4 => 0,
            Self::V6 => 1,
        }
    }
}

impl From<Family> for AddressFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4,
            Family::V6 => Self::V6,
        }
    }
}

/// Names one allocation of one engine. A name is not used again while a record of it can be around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId {
    pub(crate) index: u32, // < 2^31
    pub(crate) generation: u32,
}

impl AllocationId {
    /// Returns the place of the allocation in its engine's table, used again for later ones.
    pub const fn slot(self) -> u32 {
        self.index
    }

    /// Returns the name as a number.
    pub const fn to_u64(self) -> u64 {
        ((self.generation as u64) << 32) | self.index as u64
    }

    /// Returns the name that [`AllocationId::to_u64`] made a number of. Any number is valid, but may name no allocation.
    #[expect(clippy::cast_possible_truncation, reason = "takes the number apart")]
    pub const fn from_u64(number: u64) -> Self {
        Self {
            index: number as u32 & 0x7FFF_FFFF,
            generation: (number >> 32) as u32,
        }
    }
}

/// Names one relay socket of one allocation. The host keeps it beside the socket and hands it back with what arrives there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayHandle {
    pub(crate) allocation: AllocationId,
    pub(crate) family: Family,
}

impl RelayHandle {
    /// Returns the allocation the socket belongs to.
    pub const fn allocation(self) -> AllocationId {
        self.allocation
    }

    /// Returns the handle as a number, for a place that stores numbers.
    pub const fn to_u64(self) -> u64 {
        self.allocation.to_u64() | ((self.family as u64) << 31)
    }

    /// Returns the handle that [`RelayHandle::to_u64`] made a number of. Any number is valid, but may name no socket.
    pub const fn from_u64(number: u64) -> Self {
        let family = if number & (1 << 31) == 0 {
            Family::V4
        } else {
            Family::V6
        };
        Self {
            allocation: AllocationId::from_u64(number),
            family,
        }
    }
}

/// Names one wish for a relay socket, so that an answer that comes too late is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayRequest {
    pub(crate) handle: RelayHandle,
    pub(crate) attempt: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_handle_survives_being_a_number() {
        for family in [Family::V4, Family::V6] {
            for (index, generation) in [(0, 0), (1, 2), (0x7FFF_FFFF, u32::MAX)] {
                let handle = RelayHandle {
                    allocation: AllocationId { index, generation },
                    family,
                };
                assert_eq!(RelayHandle::from_u64(handle.to_u64()), handle);
                assert_eq!(
                    AllocationId::from_u64(handle.allocation.to_u64()),
                    handle.allocation
                );
            }
        }
    }
}
