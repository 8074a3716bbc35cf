//! Bounds of connections and sessions of DTLS, most of all of those whose client has no allocation.

use std::time::Duration;

use crate::entry::{Group, Need};
use crate::row::{Row, Topic, number, seconds};
use crate::value::Kind;

/// Bounds of connections and sessions of DTLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientLimits {
    /// How long a client may take for its first message over a connection, and for each one from its first byte to its last.
    pub stream_deadline: Duration,
    /// How long a connection without an allocation may be idle.
    pub stream_idle: Duration,
    /// How long a connection or a session of DTLS may have no allocation, whatever it says.
    pub time_without_allocation: Duration,
    /// Connections of one shard without an allocation, at most; at least 1.
    pub connections_without_allocation: u32,
    /// The same from one address, or from one IPv6 prefix of 64 bits, to all shards.
    pub connections_without_allocation_per_address: u32,
    /// Sessions of DTLS of one shard without an allocation, at most; at least 1.
    pub dtls_without_allocation: u32,
    /// The same from one address or IPv6 prefix, at all shards.
    pub dtls_without_allocation_per_address: u32,
    /// Sessions of DTLS of one shard, at most; at least 1.
    pub dtls_sessions: u32,
}

impl Topic for ClientLimits {
    type Settings = Self;
}

type Key = Row<ClientLimits>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-098",
        "max-allocate-timeout",
        Group::Limits,
        Kind::number(1, 3600, "seconds"),
        "Closes connections that have no allocation and were idle for this time.",
    )
    .default("60")
    .live()
    .works(seconds!(stream_idle)),
    Key::own(
        "O-098",
        "stream-deadline",
        Group::Limits,
        Kind::number(1, 300, "seconds"),
        "Closes connections whose first message, or any message from its first byte to its last, \
         takes longer.",
    )
    .default("10")
    .live()
    .works(seconds!(stream_deadline)),
    Key::own(
        "O-098",
        "max-time-without-allocation",
        Group::Limits,
        Kind::number(1, 86_400, "seconds"),
        "Closes connections and ends DTLS sessions that have had no allocation for this time, \
         whatever they send.",
    )
    .default("600")
    .live()
    .works(seconds!(time_without_allocation)),
    Key::own(
        "O-098",
        "max-connections-without-allocation",
        Group::Limits,
        Kind::number(1, 1 << 20, "connections"),
        "Connections of one shard whose client has no allocation, whatever they have sent; at \
         most half of the descriptors are theirs. Beyond it the oldest of the address that has \
         the most is closed.",
    )
    .default("4096")
    .live()
    .works(number!(connections_without_allocation)),
    Key::own(
        "O-098",
        "max-connections-without-allocation-per-address",
        Group::Limits,
        Kind::number(1, 1 << 20, "connections"),
        "The same from one address, or one IPv6 prefix of 64 bits, to all shards, each of which \
         takes its part. Beyond it the oldest from there is closed.",
    )
    .default("1024")
    .live()
    .works(number!(connections_without_allocation_per_address)),
    Key::own(
        "O-098",
        "max-dtls-sessions-without-allocation",
        Group::Limits,
        Kind::number(1, 1 << 20, "sessions"),
        "DTLS sessions of one shard whose client has no allocation, half-open ones among them; \
         as many connections of QUIC, which are counted apart. Beyond it the oldest of the address \
         that has the most is ended.",
    )
    .default("2048")
    .needs(Need::DtlsOrQuic)
    .live()
    .works(number!(dtls_without_allocation)),
    Key::own(
        "O-098",
        "max-dtls-sessions-without-allocation-per-address",
        Group::Limits,
        Kind::number(1, 1 << 20, "sessions"),
        "The same from one address, or one IPv6 prefix of 64 bits, at all shards, each of which \
         takes its part. Beyond it the oldest from there is ended.",
    )
    .default("256")
    .needs(Need::DtlsOrQuic)
    .live()
    .works(number!(dtls_without_allocation_per_address)),
    Key::own(
        "O-098",
        "max-dtls-sessions",
        Group::Limits,
        Kind::number(1, 1 << 20, "sessions"),
        "DTLS sessions of one shard. Beyond it one without an allocation is ended, and if there \
         is none, no further one begins.",
    )
    .default("16384")
    .needs(Need::Dtls)
    .live()
    .works(number!(dtls_sessions)),
];
