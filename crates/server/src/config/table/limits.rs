//! Quotas, bandwidth and lifetimes (coturn inventory §1.5).

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use crate::config::entry::{Entry, Group};
use crate::config::value::Kind;

use super::{flag, one};

const GROUP: Group = Group::Limits;

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new(
        "O-090",
        "user-quota",
        GROUP,
        Kind::Integer { min: 0, max: 1_000_000_000, unit: "allocations" },
        "Allocations that one user may hold at once; 0 means no limit. Beyond it: 486.",
    )
    .short('q')
    .default("0")
    .works(
        |draft, value, _| {
            draft.limits.allocations_per_user = NonZeroU32::new(value.integer());
            Ok(())
        },
        |config| one(config.limits.allocations_per_user.map_or(0, NonZeroU32::get)),
    ),
    Entry::new(
        "O-091",
        "total-quota",
        GROUP,
        Kind::Integer { min: 0, max: 1_000_000_000, unit: "allocations" },
        "Allocations that all users of the realm may hold at once; 0 means no limit. Beyond it: 486.",
    )
    .short('Q')
    .default("0")
    .works(
        |draft, value, _| {
            draft.limits.allocations_total = NonZeroU32::new(value.integer());
            Ok(())
        },
        |config| one(config.limits.allocations_total.map_or(0, NonZeroU32::get)),
    ),
    Entry::new(
        "O-092",
        "max-bps",
        GROUP,
        Kind::Integer { min: 0, max: u32::MAX, unit: "bytes per second" },
        "Data rate of one allocation, payload alone, each direction by itself; 0 means no limit. What comes faster is dropped and counted as \
         bandwidth_exceeded, and held back in TCP relays; a second's worth may come at once.",
    )
    .short('s')
    .default("0")
    .stricter("it holds for TCP relays too; datagrams of clients that come by TCP or TLS are dropped, not held back")
    .works(
        |draft, value, _| {
            draft.limits.bytes_per_second = NonZeroU32::new(value.integer());
            Ok(())
        },
        |config| one(config.limits.bytes_per_second.map_or(0, NonZeroU32::get)),
    ),
    Entry::new(
        "O-093",
        "bps-capacity",
        GROUP,
        Kind::Integer { min: 0, max: u32::MAX, unit: "bytes per second" },
        "What the data rates of all allocations may add up to, each counted with max-bps; 0 means no limit. The last one gets what is left, and then: 486.",
    )
    .short('B')
    .default("0")
    .stricter("refused without max-bps")
    .works(
        |draft, value, _| {
            draft.limits.capacity_bytes_per_second = NonZeroU32::new(value.integer());
            Ok(())
        },
        |config| one(config.limits.capacity_bytes_per_second.map_or(0, NonZeroU32::get)),
    ),
    Entry::new(
        "O-095",
        "max-allocate-lifetime",
        GROUP,
        Kind::OptionalInteger { min: 1, max: 86_400, unit: "seconds" },
        "Longest lifetime granted to an allocation; clients get 600 s unless they ask for more.",
    )
    .default("3600")
    .stricter("at most one day")
    .works(
        |draft, value, _| {
            draft.limits.allocation_lifetime_max = Duration::from_secs(value.integer().into());
            Ok(())
        },
        |config| one(config.limits.allocation_lifetime_max.as_secs()),
    ),
    Entry::new(
        "O-096",
        "channel-lifetime",
        GROUP,
        Kind::OptionalInteger { min: 1, max: 3600, unit: "seconds" },
        "Lifetime of a channel binding. Clients reckon with 600 (RFC 8656 §12); less makes them lose channels.",
    )
    .default("600")
    .stricter("at most one hour")
    .works(
        |draft, value, _| {
            draft.limits.channel_lifetime = Duration::from_secs(value.integer().into());
            Ok(())
        },
        |config| one(config.limits.channel_lifetime.as_secs()),
    ),
    Entry::new(
        "O-097",
        "permission-lifetime",
        GROUP,
        Kind::OptionalInteger { min: 1, max: 3600, unit: "seconds" },
        "Lifetime of a permission, also of one that a channel binding installs. Clients reckon with 300 (RFC 8656 §9); less makes them lose permissions.",
    )
    .default("300")
    .stricter("at most one hour")
    .works(
        |draft, value, _| {
            draft.limits.permission_lifetime = Duration::from_secs(value.integer().into());
            Ok(())
        },
        |config| one(config.limits.permission_lifetime.as_secs()),
    ),
    Entry::new(
        "O-098",
        "max-allocate-timeout",
        GROUP,
        Kind::Integer { min: 1, max: 3600, unit: "seconds" },
        "Closes connections that have no allocation and were idle for this time.",
    )
    .default("60")
    .works(
        |draft, value, _| {
            draft.limits.stream_idle = Duration::from_secs(value.integer().into());
            Ok(())
        },
        |config| one(config.limits.stream_idle.as_secs()),
    ),
    Entry::new(
        "",
        "stream-deadline",
        GROUP,
        Kind::Integer { min: 1, max: 300, unit: "seconds" },
        "Closes connections whose first message, or any message from its first byte to its last, takes longer.",
    )
    .default("10")
    .works(
        |draft, value, _| {
            draft.limits.stream_deadline = Duration::from_secs(value.integer().into());
            Ok(())
        },
        |config| one(config.limits.stream_deadline.as_secs()),
    ),
    Entry::new(
        "",
        "max-time-without-allocation",
        GROUP,
        Kind::Integer { min: 1, max: 86_400, unit: "seconds" },
        "Closes connections and ends DTLS sessions that have had no allocation for this time, whatever they send.",
    )
    .default("600")
    .works(
        |draft, value, _| {
            draft.limits.time_without_allocation = Duration::from_secs(value.integer().into());
            Ok(())
        },
        |config| one(config.limits.time_without_allocation.as_secs()),
    ),
    Entry::new(
        "",
        "max-connections-without-allocation",
        GROUP,
        Kind::Integer { min: 1, max: 1 << 20, unit: "connections" },
        "Connections of one shard whose client has no allocation, whatever they have sent; at most half of the descriptors are theirs. Beyond it the \
         oldest of the address that has the most is closed.",
    )
    .default("4096")
    .works(
        |draft, value, _| {
            draft.limits.connections_without_allocation = value.nonzero()?;
            Ok(())
        },
        |config| one(config.limits.connections_without_allocation),
    ),
    Entry::new(
        "",
        "max-connections-without-allocation-per-address",
        GROUP,
        Kind::Integer { min: 1, max: 1 << 20, unit: "connections" },
        "The same from one address, or one IPv6 prefix of 64 bits, to all shards, each of which takes its part. Beyond it the oldest from there is closed.",
    )
    .default("1024")
    .works(
        |draft, value, _| {
            draft.limits.connections_without_allocation_per_address = value.nonzero()?;
            Ok(())
        },
        |config| one(config.limits.connections_without_allocation_per_address),
    ),
    Entry::new(
        "",
        "max-dtls-sessions-without-allocation",
        GROUP,
        Kind::Integer { min: 1, max: 1 << 20, unit: "sessions" },
        "DTLS sessions of one shard whose client has no allocation, half-open ones among them. Beyond it the oldest of the address that has the most is ended.",
    )
    .default("2048")
    .works(
        |draft, value, _| {
            draft.limits.dtls_without_allocation = value.nonzero()?;
            Ok(())
        },
        |config| one(config.limits.dtls_without_allocation),
    ),
    Entry::new(
        "",
        "max-dtls-sessions-without-allocation-per-address",
        GROUP,
        Kind::Integer { min: 1, max: 1 << 20, unit: "sessions" },
        "The same from one address, or one IPv6 prefix of 64 bits, at all shards, each of which takes its part. Beyond it the oldest from there is ended.",
    )
    .default("256")
    .works(
        |draft, value, _| {
            draft.limits.dtls_without_allocation_per_address = value.nonzero()?;
            Ok(())
        },
        |config| one(config.limits.dtls_without_allocation_per_address),
    ),
    Entry::new(
        "",
        "max-dtls-sessions",
        GROUP,
        Kind::Integer { min: 1, max: 1 << 20, unit: "sessions" },
        "DTLS sessions of one shard. Beyond it one without an allocation is ended, and if there is none, no further one begins.",
    )
    .default("16384")
    .works(
        |draft, value, _| {
            draft.limits.dtls_sessions = value.nonzero()?;
            Ok(())
        },
        |config| one(config.limits.dtls_sessions),
    ),
    Entry::new(
        "",
        "min-connect-port",
        GROUP,
        Kind::Port,
        "Lowest port of peers that clients with TCP relay addresses may connect to. Below it: 403.",
    )
    .default("1024")
    .works(
        |draft, value, _| {
            draft.relays.connect_port_min = value.port();
            Ok(())
        },
        |config| one(config.relays.connect_port_min),
    ),
    Entry::new(
        "",
        "mask-connect-errors",
        GROUP,
        Kind::Flag,
        "Tells a client that a peer refused its connection only after the 30 s that a silent peer takes, so that time tells nothing about the peer's network.",
    )
    .default("false")
    .works(
        |draft, value, _| {
            draft.relays.masks_connect_errors = value.flag();
            Ok(())
        },
        |config| flag(config.relays.masks_connect_errors),
    ),
    Entry::new(
        "",
        "max-connects-per-second",
        GROUP,
        Kind::Integer { min: 1, max: 1_000_000, unit: "connections per second" },
        "Connections to peers that one user may begin, ten seconds' worth at once. Beyond it: 486.",
    )
    .default("10")
    .works(
        |draft, value, _| {
            draft.relays.connects_per_second = value.nonzero()?;
            Ok(())
        },
        |config| one(config.relays.connects_per_second),
    ),
    Entry::new(
        "",
        "max-pending-connects",
        GROUP,
        Kind::Integer { min: 1, max: 1_000_000, unit: "connections" },
        "Connections to peers that one user may have under way, until a ConnectionBind takes them up. Beyond it: 486.",
    )
    .default("64")
    .works(
        |draft, value, _| {
            draft.relays.pending_connects = value.nonzero()?;
            Ok(())
        },
        |config| one(config.relays.pending_connects),
    ),
    Entry::new(
        "",
        "max-peer-connections",
        GROUP,
        Kind::Integer { min: 1, max: 65_535, unit: "connections" },
        "Connections with peers that one allocation may have. Beyond it: 508, or the peer's is closed.",
    )
    .default("256")
    .works(
        |draft, value, _| {
            draft.relays.connections_per_allocation = value.nonzero()?.try_into().unwrap_or(NonZeroU16::MAX);
            Ok(())
        },
        |config| one(config.relays.connections_per_allocation),
    ),
    Entry::new(
        "",
        "max-allocations",
        GROUP,
        Kind::Integer { min: 1, max: 1 << 24, unit: "allocations" },
        "Allocations that one shard holds. Beyond it: 508.",
    )
    .default("65536")
    .works(
        |draft, value, _| {
            draft.limits.allocations_per_shard = value.nonzero()?;
            Ok(())
        },
        |config| one(config.limits.allocations_per_shard),
    ),
    Entry::new(
        "",
        "max-permissions",
        GROUP,
        Kind::Integer { min: 1, max: 65_535, unit: "permissions" },
        "Permissions that one allocation holds. Beyond it: 508.",
    )
    .default("1024")
    .works(
        |draft, value, _| {
            draft.limits.permissions_per_allocation = value.nonzero()?.try_into().unwrap_or(NonZeroU16::MAX);
            Ok(())
        },
        |config| one(config.limits.permissions_per_allocation),
    ),
    Entry::new(
        "",
        "max-channels",
        GROUP,
        Kind::Integer { min: 1, max: 4096, unit: "channels" },
        "Channels that one allocation holds; there are 4096 channel numbers (RFC 8656 §12). Beyond it: 508.",
    )
    .default("1024")
    .works(
        |draft, value, _| {
            draft.limits.channels_per_allocation = value.nonzero()?.try_into().unwrap_or(NonZeroU16::MAX);
            Ok(())
        },
        |config| one(config.limits.channels_per_allocation),
    ),
];
