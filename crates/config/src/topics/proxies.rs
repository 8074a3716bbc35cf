//! Trusted proxies, and checks of their settings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use turnbuckle_engine::AddressRange;

use crate::entry::Group;
use crate::findings::Findings;
use crate::row::{Row, Setting, Topic, each};
use crate::value::Kind;

/// Proxies that announce the client's address in a PROXY protocol header.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Proxies {
    /// Port on which proxies, and nobody else, connect. There is no other port for connections then.
    pub port: Option<u16>,
    /// From where every connection begins with a header; from elsewhere none may.
    pub sources: Vec<AddressRange>,
    /// From where every datagram begins with a header of version 2.
    pub datagram_sources: Vec<AddressRange>,
}

impl Topic for Proxies {
    type Settings = Self;
}

type Key = Row<Proxies>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-006",
        "tcp-proxy-port",
        Group::Addresses,
        Kind::Port,
        "TCP port for proxies: every connection begins with a PROXY protocol header, version 1 \
         or 2, and comes from a `proxy-protocol-source`. It takes the place of the other ports \
         for TCP and TLS; TLS is recognised behind the header.",
    )
    .stricter("needs `proxy-protocol-source`")
    .example("8443")
    .works(Setting {
        take: |proxies, written| {
            proxies.port = Some(written.value.number()?);
            Ok(())
        },
        show: |proxies| each(proxies.port),
    }),
    Key::own(
        "O-006",
        "proxy-protocol-source",
        Group::Addresses,
        Kind::PeerRange,
        "Addresses of proxies: connections from there begin with a PROXY protocol header, \
         version 1 or 2, on whatever port; connections from elsewhere that begin with one are \
         closed.",
    )
    .repeatable()
    .default("(none)")
    .example("192.0.2.10")
    .live()
    .works(Setting {
        take: |proxies, written| {
            proxies.sources.push(written.value.range().canonical());
            Ok(())
        },
        show: |proxies| each(&proxies.sources),
    }),
    Key::own(
        "O-006",
        "udp-proxy-protocol-source",
        Group::Addresses,
        Kind::PeerRange,
        "Addresses of proxies for UDP: each datagram from there begins with a PROXY protocol \
         header, version 2. Sources of datagrams can be forged: name only what a firewall keeps \
         others from using. DTLS is recognised behind the header.",
    )
    .repeatable()
    .default("(none)")
    .example("192.0.2.10")
    .live()
    .works(Setting {
        take: |proxies, written| {
            proxies
                .datagram_sources
                .push(written.value.range().canonical());
            Ok(())
        },
        show: |proxies| each(&proxies.datagram_sources),
    }),
];

/// Reports what is missing, and what an operator should know. `has_plain_tcp` and `has_tls` say what else is served over connections.
pub(crate) fn check(
    proxies: &mut Proxies,
    has_plain_tcp: bool,
    has_tls: bool,
    findings: &mut Findings,
) {
    let has_port = proxies.port.is_some();
    if has_port && proxies.sources.is_empty() {
        // coturn believes everybody.
        if findings.is_lenient() {
            proxies.sources = everybody().to_vec();
        } else {
            findings.problem(
                "tcp-proxy-port",
                "whoever reaches the port could claim any address; give `proxy-protocol-source` \
                 too",
            );
        }
    }
    let everywhere: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    for (key, sources) in [
        ("proxy-protocol-source", &proxies.sources),
        ("udp-proxy-protocol-source", &proxies.datagram_sources),
    ] {
        let holds_one = |range: &&AddressRange| everywhere.iter().any(|one| range.contains(*one));
        if let Some(range) = sources.iter().find(holds_one) {
            findings.note(
                key,
                format!(
                    "{range}: whoever reaches this server can claim any address; let a firewall \
                     admit proxies only"
                ),
            );
        }
    }
    if !has_port {
        return;
    }
    if !has_plain_tcp && !has_tls {
        findings.problem(
            "tcp-proxy-port",
            "together with `no-tcp` and without TLS serves nobody; remove one of them",
        );
    }
    if findings.is_given("tls-listening-port") {
        findings.note(
            "tls-listening-port",
            "has no effect: `tcp-proxy-port` takes its place, with TLS in it",
        );
    }
}

/// Returns all addresses of both families.
fn everybody() -> [AddressRange; 2] {
    let ends: [[IpAddr; 2]; 2] = [
        [Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::BROADCAST.into()],
        [
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::from_bits(u128::MAX).into(),
        ],
    ];
    // The first is not above the last, of one family.
    ends.map(|[first, last]| AddressRange::new(first, last).unwrap_or_else(|_| first.into()))
}
