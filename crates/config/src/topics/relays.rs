//! Relayed transport addresses: UDP and TCP, and the bounds of TCP (RFC 6062).

use super::peers::PeerRules;
use crate::entry::{Group, Need};
use crate::findings::Findings;
use crate::row::{Row, Topic, flag, number, off};
use crate::value::Kind;

/// Transports between relayed transport addresses and peers, and the limits of TCP there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Relays {
    /// Whether there are allocations with UDP relayed addresses.
    pub udp: bool,
    /// Whether there are allocations with TCP relayed addresses (RFC 6062).
    pub tcp: bool,
    /// The lowest port that clients may connect to.
    pub connect_port_min: u16,
    /// Whether a Connect that the peer refuses is answered no sooner than one that times out.
    pub masks_connect_errors: bool,
    /// Connections that a user may begin in a second; at least 1.
    pub connects_per_second: u32,
    /// Connections that a user may have under way; at least 1.
    pub pending_connects: u32,
    /// Connections with peers of one allocation; at least 1.
    pub connections_per_allocation: u16,
    /// Which peers may be reached.
    pub peers: PeerRules,
}

impl Topic for Relays {
    type Settings = Self;
}

type Key = Row<Relays>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-021",
        "no-udp-relay",
        Group::Addresses,
        Kind::Flag,
        "No allocations with UDP relay addresses, and no tunnels. A reload that sets it ends open \
         ones.",
    )
    .default("false")
    .live()
    .works(off!(udp)),
    Key::new(
        "O-022",
        "no-tcp-relay",
        Group::Addresses,
        Kind::Flag,
        "No allocations with TCP relay addresses (RFC 6062). With `no-tcp-relay=false` clients \
         that come by TCP or TLS can have connections to peers and from them. A reload that sets \
         it ends open ones.",
    )
    .default("true")
    .coturn_default(
        "false",
        "a relay of connections is a way to look for open ports; whoever needs it can have it",
    )
    .turnserver_default("false")
    .live()
    .works(off!(tcp)),
    Key::own(
        "O-098",
        "min-connect-port",
        Group::Limits,
        Kind::Port,
        "Lowest port of peers that clients with TCP relay addresses may connect to. Below it: \
         403.",
    )
    .default("1024")
    .coturn_default(
        "1",
        "below are services of machines, mail servers among them, which strangers abuse",
    )
    .turnserver_default("1")
    .needs(Need::TcpRelays)
    .live()
    .works(number!(connect_port_min)),
    Key::own(
        "O-098",
        "mask-connect-errors",
        Group::Limits,
        Kind::Flag,
        "Tells a client that a peer refused its connection only after the 30 s that a silent \
         peer takes, so that time tells nothing about the peer's network.",
    )
    .default("false")
    .needs(Need::TcpRelays)
    .live()
    .works(flag!(masks_connect_errors)),
    Key::own(
        "O-098",
        "max-connects-per-second",
        Group::Limits,
        Kind::number(1, 1_000_000, "connections per second"),
        "Connections to peers that one user may begin, ten seconds' worth at once. Beyond it: \
         486.",
    )
    .default("10")
    .needs(Need::TcpRelays)
    .live()
    .works(number!(connects_per_second)),
    Key::own(
        "O-098",
        "max-pending-connects",
        Group::Limits,
        Kind::number(1, 1_000_000, "connections"),
        "Connections to peers that one user may have under way, until a ConnectionBind takes \
         them up. Beyond it: 486.",
    )
    .default("64")
    .needs(Need::TcpRelays)
    .live()
    .works(number!(pending_connects)),
    Key::own(
        "O-098",
        "max-peer-connections",
        Group::Limits,
        Kind::number(1, 65_535, "connections"),
        "Connections with peers that one allocation may have. Beyond it: 508, or the peer's is \
         closed.",
    )
    .default("256")
    .needs(Need::TcpRelays)
    .live()
    .works(number!(connections_per_allocation)),
];

/// Notes that TCP relays are on where coturn's default alone has turned them on.
pub(crate) fn note_default(relays: &Relays, findings: &mut Findings) {
    if relays.tcp && findings.is_lenient() && !findings.is_given("no-tcp-relay") {
        findings.note(
            "no-tcp-relay",
            "clients can connect to TCP services of peers unless this key is given \
             (coturn's default; `turnbuckle serve` offers no TCP relays)",
        );
    }
}

/// Reports that nothing is relayed.
pub(crate) fn check(relays: &Relays, findings: &mut Findings) {
    if !relays.udp && !relays.tcp {
        findings.problem(
            "no-udp-relay",
            "without `no-tcp-relay=false` nothing would be relayed; use `stun-only` to turn \
             relaying off",
        );
    }
}
