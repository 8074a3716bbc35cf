//! Who is where in the world of several shards, who may ask for something, and how long that may take.

use std::net::SocketAddr;
use std::time::Duration;

use turnbuckle_engine::AddressRange;
use turnbuckle_server::simulation::ConnectionLimits;

use super::super::client::User;
use crate::message::REALM;
use crate::plan::{self, LISTENERS};

/// Peers by IPv4, and with those by IPv6, which have the numbers behind them.
pub(super) const PEERS_V4: usize = 3;
pub(super) const PEERS: usize = 5;
/// How many of the users clients of TURN are at most; the last one of them is in some worlds only.
pub(super) const TURN_USERS: usize = 4;
/// Which user all clients of HTTP are where sessions are bounded.
pub(super) const BOUNDED_USER: usize = 4;
/// Who may ask for something. Whoever has no password shows tokens under the key of this name.
pub(super) const USERS: [User; 5] = [
    User {
        name: "alice",
        password: Some("correct horse"),
        realm: REALM,
    },
    User {
        name: "bertil",
        password: Some("battery staple"),
        realm: REALM,
    },
    User {
        name: "west",
        password: None,
        realm: REALM,
    },
    User {
        name: "carla",
        password: Some("tr0ub4dor"),
        realm: OTHER_REALM,
    },
    User {
        name: "dora",
        password: Some("under the doormat"),
        realm: BOUNDED_REALM,
    },
];
/// A realm with peer rules of its own, and an origin of its own.
pub(super) const OTHER_REALM: &str = "other.test";
/// A realm whose users may be bounded in their sessions, and with the peer rules that most users have.
pub(super) const BOUNDED_REALM: &str = "bounded.test";
/// Where peers are reached.
pub(super) const PEER_PORT: u16 = 4000;

/// Limits of connections.
pub(super) const LIMITS: ConnectionLimits = ConnectionLimits {
    message: Duration::from_secs(5),
    idle: Duration::from_secs(60),
    unallocated: Duration::from_secs(60),
    total: 1000,
    per_source: 100,
};

/// Returns the listener that an address reaches.
pub(super) fn listener_of(from: SocketAddr) -> SocketAddr {
    LISTENERS[usize::from(from.is_ipv6())]
}

/// Returns the address of a peer.
pub(super) fn peer_at(number: usize, port: u16) -> SocketAddr {
    plan::peer(number, number >= PEERS_V4, port)
}

/// Returns the addresses of all proxies of one family.
pub(super) fn proxies(is_v6: bool) -> AddressRange {
    let [first, last] = [0, 255].map(|number| plan::proxy(number, is_v6, 0).ip());
    AddressRange::new(first, last).expect("the first is before the last")
}
