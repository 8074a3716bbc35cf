//! Lifetimes and limits.

use core::num::NonZeroU32;
use core::time::Duration;

/// The lifetimes of allocations, permissions, channels and reservations.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    /// The shortest lifetime of an allocation, given when the client asks for less or nothing (600 s).
    pub allocation_default: Duration,
    /// The longest lifetime of an allocation (3600 s).
    pub allocation_max: Duration,
    /// A permission's lifetime; RFC 8656 §9 fixes it at 300 s.
    pub permission: Duration,
    /// A channel binding's lifetime; RFC 8656 §12 fixes it at 600 s.
    pub channel: Duration,
    /// How long a reserved port waits for its token; at least 30 s (RFC 8656 §7.2).
    pub reservation: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            allocation_default: Duration::from_secs(600),
            allocation_max: Duration::from_secs(3600),
            permission: Duration::from_secs(300),
            channel: Duration::from_secs(600),
            reservation: Duration::from_secs(60),
        }
    }
}

/// Upper bounds. The answer a client gets at each of them stands beside it.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Allocations of one engine, pending ones included: 508.
    pub allocations: u32,
    /// Allocations of one engine that wait for the host to open a relay socket: 508.
    pub pending_opens: u32,
    /// Allocations per username of a realm over all engines, `None` for no bound: 486.
    pub user_quota: Option<u32>,
    /// Allocations per realm over all engines, `None` for no bound: 486.
    pub total_quota: Option<u32>,
    /// How fast allocations may relay.
    pub bandwidth: Bandwidth,
    /// Permissions of one allocation: 508.
    pub permissions_per_allocation: u16,
    /// Channels of one allocation: 508.
    pub channels_per_allocation: u16,
    /// Reserved ports over all engines: 508.
    pub reservations: u32,
    /// Other ports tried when the host finds one in use: 508.
    pub relay_open_attempts: u8,
    /// Number of finished transactions that are recorded against replay (V-22), for as long as a nonce can be valid: two for each
    /// allocation that ends. The oldest record is discarded first, and counted.
    pub tombstones: u32,
    /// Replies waiting to be drained, in bytes; what does not fit is dropped as `reply_queue_full`.
    pub reply_queue_bytes: usize,
    /// Timers handled by one call of `handle_timeout`; the rest stays due.
    pub timeouts_per_call: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            allocations: 65_536,
            pending_opens: 4_096,
            user_quota: None,
            total_quota: None,
            bandwidth: Bandwidth::default(),
            permissions_per_allocation: 1_024,
            channels_per_allocation: 1_024,
            reservations: 1_024,
            relay_open_attempts: 16,
            // guard: V-22-memory
            tombstones: 2 * 65_536,
            reply_queue_bytes: 1 << 20,
            timeouts_per_call: 256,
        }
    }
}

/// How fast allocations may relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bandwidth {
    /// Bytes of payload per second of one allocation in one direction; `None` for no limit.
    pub bytes_per_s: Option<NonZeroU32>,
    /// The limit of the sum of the rates of all allocations, in bytes per second; `None` for no limit. The last one gets the
    /// remainder, and beyond it the answer is 486. For allocations without a rate it means nothing.
    pub capacity_bytes_per_s: Option<NonZeroU32>,
}

/// The limits of one realm that replace the same ones in [`Limits`] and [`Bandwidth`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RealmLimits {
    /// As [`Limits::user_quota`].
    pub user_quota: Option<u32>,
    /// As [`Limits::total_quota`].
    pub total_quota: Option<u32>,
    /// As [`Bandwidth::bytes_per_s`].
    pub bytes_per_s: Option<NonZeroU32>,
}
