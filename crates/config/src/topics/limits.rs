//! Quotas, bandwidth and lifetimes (coturn inventory §1.5).

use std::num::NonZeroU32;
use std::time::Duration;

use super::clients::ClientLimits;
use crate::entry::Group;
use crate::findings::Findings;
use crate::row::{Row, Topic, bound, number, seconds};
use crate::value::Kind;

/// Upper bounds, and lifetimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Allocations that one user of one realm may hold at once.
    pub allocations_per_user: Option<NonZeroU32>,
    /// Allocations of a whole realm at once.
    pub allocations_total: Option<NonZeroU32>,
    /// Allocations that one shard holds at most; at least 1.
    pub allocations_per_shard: u32,
    /// Permissions of one allocation at most; at least 1.
    pub permissions_per_allocation: u16,
    /// Channels of one allocation at most; at least 1.
    pub channels_per_allocation: u16,
    /// Longest lifetime granted to an allocation.
    pub allocation_lifetime_max: Duration,
    /// Lifetime of a channel binding.
    pub channel_lifetime: Duration,
    /// Lifetime of a permission.
    pub permission_lifetime: Duration,
    /// Payload that one allocation relays per second in one direction.
    pub bytes_per_second: Option<NonZeroU32>,
    /// Limit of the sum of the rates of all allocations; only together with [`Self::bytes_per_second`].
    pub capacity_bytes_per_second: Option<NonZeroU32>,
    /// A draining server ends when it has no more allocations than this.
    pub drained: u32,
    /// Bounds of connections and sessions of DTLS.
    pub clients: ClientLimits,
}

impl Topic for Limits {
    type Settings = Self;
}

type Key = Row<Limits>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-090",
        "user-quota",
        Group::Limits,
        Kind::number(0, 1_000_000_000, "allocations"),
        "Allocations and reserved ports that one user may hold at once; 0 means no limit. Beyond \
         it: 486.",
    )
    .short('q')
    .default("0")
    .stricter(
        "a port reserved with EVEN-PORT counts as one allocation until its token is used or it \
         ends",
    )
    .live()
    .works(bound!(allocations_per_user)),
    Key::new(
        "O-091",
        "total-quota",
        Group::Limits,
        Kind::number(0, 1_000_000_000, "allocations"),
        "Allocations and reserved ports that all users of the realm may hold at once; 0 means no \
         limit. Beyond it: 486.",
    )
    .short('Q')
    .default("0")
    .stricter(
        "a port reserved with EVEN-PORT counts as one allocation until its token is used or it \
         ends",
    )
    .live()
    .works(bound!(allocations_total)),
    Key::new(
        "O-092",
        "max-bps",
        Group::Limits,
        Kind::number(0, u32::MAX, "bytes per second"),
        "Data rate of one allocation, payload alone, each direction by itself; 0 means no limit. \
         What comes faster is dropped and counted as bandwidth_exceeded, and held back in TCP \
         relays; a second's worth may come at once.",
    )
    .short('s')
    .default("0")
    .stricter(
        "it holds for TCP relays too; datagrams of clients that come by TCP or TLS are dropped, \
         not held back",
    )
    .new_sessions()
    .works(bound!(bytes_per_second)),
    Key::new(
        "O-093",
        "bps-capacity",
        Group::Limits,
        Kind::number(0, u32::MAX, "bytes per second"),
        "What the data rates of all allocations may add up to, each counted with max-bps; 0 \
         means no limit. The last one gets what is left, and then: 486.",
    )
    .short('B')
    .default("0")
    .stricter("refused without max-bps")
    .new_sessions()
    .works(bound!(capacity_bytes_per_second)),
    Key::new(
        "O-095",
        "max-allocate-lifetime",
        Group::Limits,
        Kind::optional_number(1, 86_400, "seconds"),
        "Longest lifetime granted to an allocation; clients get 600 s unless they ask for more.",
    )
    .default("3600")
    .stricter("at most one day")
    .live()
    .works(seconds!(allocation_lifetime_max)),
    Key::new(
        "O-096",
        "channel-lifetime",
        Group::Limits,
        Kind::optional_number(1, 3600, "seconds"),
        "Lifetime of a channel binding. Clients reckon with 600 (RFC 8656 §12); less makes them \
         lose channels.",
    )
    .default("600")
    .stricter("at most one hour")
    .live()
    .works(seconds!(channel_lifetime)),
    Key::new(
        "O-097",
        "permission-lifetime",
        Group::Limits,
        Kind::optional_number(1, 3600, "seconds"),
        "Lifetime of a permission, also of one that a channel binding installs. Clients reckon \
         with 300 (RFC 8656 §9); less makes them lose permissions.",
    )
    .default("300")
    .stricter("at most one hour")
    .live()
    .works(seconds!(permission_lifetime)),
    Key::own(
        "O-098",
        "max-allocations",
        Group::Limits,
        Kind::number(1, 1 << 24, "allocations"),
        "Allocations that one shard holds. Beyond it: 508.",
    )
    .default("65536")
    .works(number!(allocations_per_shard)),
    Key::own(
        "O-098",
        "max-permissions",
        Group::Limits,
        Kind::number(1, 65_535, "permissions"),
        "Permissions that one allocation holds. Beyond it: 508.",
    )
    .default("1024")
    .live()
    .works(number!(permissions_per_allocation)),
    Key::own(
        "O-098",
        "max-channels",
        Group::Limits,
        Kind::number(1, 4096, "channels"),
        "Channels that one allocation holds; there are 4096 channel numbers (RFC 8656 §12). \
         Beyond it: 508.",
    )
    .default("1024")
    .live()
    .works(number!(channels_per_allocation)),
    Key::new(
        "O-178",
        "drain-min-allocations",
        Group::Process,
        Kind::number(0, u32::MAX, "allocations"),
        "SIGUSR1 drains the server: new allocations get 403, and it ends when it has no more \
         than this number, tunnels of UDP in HTTP included.",
    )
    .default("0")
    .live()
    .works(number!(drained)),
];

/// Reports a capacity that nothing shares out.
pub(crate) fn check(limits: &Limits, findings: &mut Findings) {
    if limits.capacity_bytes_per_second.is_some() && limits.bytes_per_second.is_none() {
        findings.problem(
            "bps-capacity",
            "shares out what `max-bps` promises; give that too",
        );
    }
}
