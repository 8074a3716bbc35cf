//! What is published and revoked, whatever relays it.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use super::screen::Refused;

/// Time after which nothing that had found a line before it was revoked still uses it. The program runs with interrupts of its kind disabled, for less
/// than a microsecond.
pub const GRACE: Duration = Duration::from_millis(10);

/// A flow in one direction: what its datagrams look like, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Source of the datagrams.
    pub from: SocketAddr,
    /// Destination of the datagrams, an address of this host.
    pub to: SocketAddr,
    /// The 16 bits that a header of four bytes before their payload begins with; it is taken off. `None` for no header.
    pub label: Option<u16>,
    /// The source that they get, an address of this host.
    pub new_from: SocketAddr,
    /// The destination that they get.
    pub new_to: SocketAddr,
    /// The label of the header that is put before their payload.
    pub new_label: Option<u16>,
    /// When the kernel stops by itself, in nanoseconds of `CLOCK_BOOTTIME`.
    pub expires_ns: u64,
    /// The meter that its payload is charged to. Somebody holds it while the route is published.
    pub meter: Option<NonZeroU32>,
}

/// Names a published route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// The table that it is in, by family.
    pub is_v6: bool,
    /// Where in the table.
    pub index: u32,
}

/// Datagrams that a route has relayed since it was published, and their payload without headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Datagrams.
    pub datagrams: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What was dropped because it was beyond a meter's rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beyond {
    /// Datagrams of routes from a label.
    pub labelled: Carried,
    /// Datagrams of routes without.
    pub plain: Carried,
}

/// Something that relays what is published.
pub trait Routes {
    /// Publishes a route. Returns `None` if there is no room for it, or it cannot be relayed: four addresses of one family are needed.
    fn publish(&mut self, route: &Route) -> Option<Line>;

    /// Sets another time at which a published route ends.
    fn set_expiry(&mut self, line: Line, expires_ns: u64);

    /// Ends a route. Its line stays taken.
    fn revoke(&mut self, line: Line);

    /// Returns what a route has relayed.
    fn carried(&self, line: Line) -> Carried;

    /// Takes the counts of what was dropped beyond the rate of a meter: what came since they were taken last. It is final [`GRACE`] after the last
    /// of its routes was revoked.
    fn take_beyond(&mut self, meter: NonZeroU32) -> Beyond;

    /// Takes the counts of what came to listeners and was dropped: what came since anybody took them last.
    fn take_refused(&mut self) -> Refused;

    /// Gives the line of a revoked route back. It is called [`GRACE`] after the route was revoked, or later.
    fn free(&mut self, line: Line);
}
