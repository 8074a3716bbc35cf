//! Proxies: whether what is said about them fits together.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::draft::Draft;

/// Reports what is missing, and what an operator should know.
pub(super) fn check(draft: &mut Draft) {
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
    if draft.proxies.port.is_none() {
        return;
    }
    if draft.proxies.sources.is_empty() {
        draft.problem(
            "tcp-proxy-port",
            "whoever reaches the port could claim any address; give `proxy-protocol-source` too",
        );
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
