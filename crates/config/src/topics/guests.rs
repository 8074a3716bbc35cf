//! Clients that are served without credentials (coturn inventory §1.3, `no-auth`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use turnbuckle_engine::AddressRange;

use crate::entry::Group;
use crate::findings::Findings;
use crate::row::{Row, Setting, Topic, each, one};
use crate::value::Kind;

const REQUIRED: &str = "authentication is required: an open relay is used by strangers within \
                        hours; give `guest-source` with the networks whose clients need none";

/// The given values about guests.
#[derive(Default)]
pub(crate) struct GivenGuests {
    are_served: bool,
    sources: Vec<AddressRange>,
}

/// Clients that are served without credentials.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Guests {
    /// Where they are. Nobody is served without credentials if it is empty.
    pub sources: Vec<AddressRange>,
}

impl Topic for GivenGuests {
    type Settings = Guests;
}

type Key = Row<GivenGuests>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-041",
        "no-auth",
        Group::Authentication,
        Kind::Flag,
        "Serves clients without credentials that are in the networks of guest-source; without it, \
         as turnserver, private ones if the server listens on private or loopback addresses alone \
         and has no external-ip.",
    )
    .short('z')
    .default("false")
    .coturn_default(
        "true",
        "coturn serves anyone if no credentials are configured, and strangers use an open relay \
         within hours; turnbuckle serve makes up a user with a random password",
    )
    .differs_as_serve_alone()
    .stricter(
        "clients elsewhere need credentials: an open relay is used by strangers within hours; \
         where it would serve nobody it is refused, and passed over as turnserver",
    )
    .live()
    .works(Setting {
        take: |given, written| {
            given.are_served = written.value.flag();
            Ok(())
        },
        show: |guests| one(!guests.sources.is_empty()),
    }),
    Key::own(
        "O-041",
        "guest-source",
        Group::Authentication,
        Kind::PeerRange,
        "Networks whose clients need no credentials, with no-auth. By UDP a source can be forged: \
         name only what a firewall keeps others from using.",
    )
    .repeatable()
    .default("(none)")
    .example("192.0.2.0/24")
    .live()
    .works(Setting {
        take: |given, written| {
            given.sources.push(written.value.range().canonical());
            Ok(())
        },
        show: |guests| each(&guests.sources),
    }),
];

/// Decides who is served without credentials by a server that listens on `listeners`, and whose addresses have others in front of them if
/// `has_external`.
pub(crate) fn finish(
    given: GivenGuests,
    listeners: &[SocketAddr],
    has_external: bool,
    findings: &mut Findings,
) -> Guests {
    let is_inside =
        !has_external && !listeners.is_empty() && listeners.iter().all(|it| is_inside(it.ip()));
    let sources = match (given.are_served, given.sources.is_empty()) {
        (false, true) => Vec::new(),
        (false, false) => {
            findings.note("guest-source", "has no effect without `no-auth`");
            Vec::new()
        }
        (true, false) => given.sources,
        (true, true) if findings.is_lenient() && is_inside => inside().to_vec(),
        (true, true) => {
            findings.grave_problem("no-auth", REQUIRED);
            Vec::new()
        }
    };
    if !sources.is_empty() {
        let ranges: Vec<String> = sources.iter().map(AddressRange::to_string).collect();
        let text = format!("clients from {} need no credentials", ranges.join(", "));
        findings.note("no-auth", text);
    }
    Guests { sources }
}

/// Returns whether an address is one of networks that strangers are not in. A carrier's (RFC 6598) is not: its other customers are there.
fn is_inside(address: IpAddr) -> bool {
    inside().iter().any(|range| range.contains(address))
}

/// Returns loopback and private networks (RFC 1918, RFC 4193).
fn inside() -> [AddressRange; 6] {
    let v4 = |a, b, last| {
        let first = Ipv4Addr::new(a, b, 0, 0);
        (IpAddr::V4(first), IpAddr::V4(last))
    };
    let v6 = |first: Ipv6Addr, last: Ipv6Addr| (IpAddr::V6(first), IpAddr::V6(last));
    let unique_local = (
        Ipv6Addr::new(0xFC00, 0, 0, 0, 0, 0, 0, 0),
        Ipv6Addr::from((0xFDFF_u128 << 112) | (u128::MAX >> 16)),
    );
    [
        v4(127, 0, Ipv4Addr::new(127, 255, 255, 255)),
        v4(10, 0, Ipv4Addr::new(10, 255, 255, 255)),
        v4(172, 16, Ipv4Addr::new(172, 31, 255, 255)),
        v4(192, 168, Ipv4Addr::new(192, 168, 255, 255)),
        v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
        v6(unique_local.0, unique_local.1),
    ]
    .map(|(first, last)| match AddressRange::new(first, last) {
        Ok(range) => range,
        Err(_) => unreachable!("each range begins before its end, in one family"),
    })
}
