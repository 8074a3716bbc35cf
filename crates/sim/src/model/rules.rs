//! What the operator of the model's server decided.

use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Nanoseconds of a second.
pub(super) const SECOND: u64 = 1_000_000_000;

/// Holds what the operator decided.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How long things last.
    pub lifetimes: Lifetimes,
    /// How many of them there may be.
    pub bounds: Bounds,
    /// Relay addresses as peers see them, at most one of each family.
    pub relays: Vec<IpAddr>,
    /// Numbers that channels may have.
    pub channels: RangeInclusive<u16>,
    /// Ports of relayed addresses.
    pub ports: RangeInclusive<u16>,
    /// Whether DONT-FRAGMENT is understood.
    pub dont_fragment: bool,
    /// Whether clients may move (RFC 8016).
    pub mobility: bool,
}

/// Holds how long things last, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    /// An allocation whose client asks for less.
    pub allocation: u64,
    /// An allocation at most.
    pub allocation_max: u64,
    /// A permission.
    pub permission: u64,
    /// A channel.
    pub channel: u64,
    /// A reserved port that waits for its token.
    pub reservation: u64,
}

/// Holds how many of a kind there may be at once.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Allocations and reservations of one user.
    pub user_quota: usize,
    /// Allocations and reservations of the server.
    pub total_quota: usize,
    /// Allocations of one shard.
    pub shard: usize,
    /// Permissions of one allocation.
    pub permissions: usize,
    /// Channels of one allocation.
    pub channels: usize,
    /// Reservations of the server.
    pub reservations: usize,
}
