//! Proxies: whether what is said about them fits together.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use turnbuckle_engine::AddressRange;

use super::draft::Draft;
use super::persona::Persona;

/// Reports what is missing, and what an operator should know.
pub(super) fn check(draft: &mut Draft) {
    let has_port = draft.proxies.port.is_some();
    if has_port && draft.proxies.sources.is_empty() {
        match draft.persona {
            Persona::Turnbuckle => draft.problem(
                "tcp-proxy-port",
                "whoever reaches the port could claim any address; give `proxy-protocol-source` too",
            ),
            // coturn believes everybody.
            Persona::Turnserver => draft.proxies.sources = everybody().to_vec(),
        }
    }
    let everywhere: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    for (key, sources) in [
        ("proxy-protocol-source", draft.proxies.sources.clone()),
        (
            "udp-proxy-protocol-source",
            draft.proxies.datagram_sources.clone(),
        ),
    ] {
        if let Some(range) = sources
            .iter()
            .find(|range| everywhere.iter().any(|address| range.contains(*address)))
        {
            draft.note(
                key,
                format!("{range}: whoever reaches this server can claim any address; let a firewall admit proxies only"),
            );
        }
    }
    if !has_port {
        return;
    }
    if draft.no_tcp && draft.tls.files().is_none() {
        draft.problem(
            "tcp-proxy-port",
            "together with `no-tcp` and without TLS serves nobody; remove one of them",
        );
    }
    if draft.is_given("tls-listening-port") {
        draft.note(
            "tls-listening-port",
            "has no effect: `tcp-proxy-port` takes its place, with TLS in it",
        );
    }
}

/// All addresses of both families.
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
