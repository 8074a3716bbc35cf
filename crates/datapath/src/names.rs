//! Names of endpoints, connections and listeners. A name is never a descriptor.

use std::net::SocketAddr;

/// Bits of a name that are an index; the others count how often it was used.
pub(crate) const INDEX_BITS: u32 = 22;
/// The same as a mask.
pub(crate) const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
/// How often an endpoint's index is counted, as a mask.
pub(crate) const ENDPOINT_GENERATION_MASK: u32 = (1 << (EndpointId::BITS - INDEX_BITS)) - 1;

/// The name of a bound socket: a table index and a count of how often that index was used, so that a name outlives its
/// socket without ever meaning another one soon. Never a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointId(u32);

impl EndpointId {
    /// Bits that a name takes. A caller may use the bit above them for data of its own.
    pub const BITS: u32 = 31;

    pub(crate) fn new(index: usize, generation: u32) -> Self {
        Self((generation << INDEX_BITS) | (narrow(index) & INDEX_MASK))
    }

    /// Returns the index in a table, small and reused after close.
    pub const fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    /// Returns the name in an event's data.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "event data is set from a 32-bit name"
    )]
    pub(crate) const fn from_u64(data: u64) -> Self {
        Self(data as u32)
    }

    /// Returns the whole name as a number.
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// Returns the name whose number [`to_u32`](Self::to_u32) returned.
    pub const fn from_u32(name: u32) -> Self {
        Self(name)
    }
}

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointKind {
    /// Clients of all kinds send here: large buffers, deep batches.
    Listener {
        /// Join the group of sockets with the same address among which the kernel spreads clients. Nothing is received
        /// until [`Datapath::admit_clients`](crate::Datapath::admit_clients): which socket gets a client depends on how
        /// many there are, so all must be bound before the first one answers.
        reuseport: bool,
    },
    /// A relayed transport address of many allocations: buffers and batches as for clients, ICMP errors reported.
    SharedRelay,
    /// One allocation's relayed transport address: a small buffer that grows when needed, ICMP errors reported.
    Relay,
}

/// What to bind.
#[derive(Clone, Copy, Debug)]
pub struct Bind {
    /// Local address; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// What the socket is for.
    pub kind: EndpointKind,
    /// A number passed back with every message.
    pub token: u64,
}

/// The name of a connection; as with [`EndpointId`](crate::EndpointId), an index that is used again and a count of how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(u32);

impl StreamId {
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self((generation << INDEX_BITS) | (index & INDEX_MASK))
    }

    /// Returns the index in a table, small and reused after close.
    pub const fn index(self) -> usize {
        (self.0 & INDEX_MASK) as usize
    }

    /// Returns the whole name as a number.
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// Returns the name whose number [`to_u32`](Self::to_u32) returned.
    pub const fn from_u32(name: u32) -> Self {
        Self(name)
    }
}

/// The name of a socket on which connections arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamListenerId(pub(crate) u32);

impl StreamListenerId {
    /// Returns the name as a number, small and reused after close.
    pub const fn to_u32(self) -> u32 {
        self.0
    }

    /// Returns the name whose number [`to_u32`](Self::to_u32) returned.
    pub const fn from_u32(name: u32) -> Self {
        Self(name)
    }
}

/// Where to listen for connections.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// Local address; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// A number passed with every connection.
    pub token: u64,
}

/// Returns an offset or count of one turn as 32 bits: each is far below 2^32, because slots hold 64 KiB each.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "bounded by the memory of one turn"
)]
pub(crate) fn narrow(value: usize) -> u32 {
    debug_assert!(u32::try_from(value).is_ok());
    value as u32
}
