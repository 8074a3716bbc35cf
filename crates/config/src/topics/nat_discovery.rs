//! NAT behaviour discovery (RFC 5780): which listening addresses stand in for each other, and with which ports.

use std::net::IpAddr;

use super::addresses::external::ExternalAddress;
use super::tls::Tls;
use crate::entry::Group;
use crate::findings::Findings;
use crate::host::is_private;
use crate::row::{Row, Setting, Topic, one};
use crate::value::Kind;

/// The given values about NAT behaviour discovery.
#[derive(Default)]
pub(crate) struct GivenNatDiscovery {
    is_wanted: bool,
    /// Zero means the port after the one for clients.
    port: u16,
    /// Zero means the port after the one for TLS.
    tls_port: u16,
}

/// NAT behaviour discovery (RFC 5780 §6): two addresses with two ports each, whose four combinations answer for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatDiscovery {
    /// The port beside the listening port; no listener has it otherwise.
    pub port: u16,
    /// The port beside the one for TLS; none if TLS is not spoken, or on the listening port only.
    pub tls_port: Option<u16>,
    /// Each listening address that takes part, with the one that stands in for it, which is of its family and not itself.
    pub other_by_address: Vec<(IpAddr, IpAddr)>,
}

impl Topic for GivenNatDiscovery {
    type Settings = Option<NatDiscovery>;
}

type Key = Row<GivenNatDiscovery>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-004",
        "alt-listening-port",
        Group::Addresses,
        Kind::number(0, 65535, ""),
        "Second port for NAT behaviour discovery, open with `rfc5780` only; 0 means \
         listening-port + 1.",
    )
    .default("0")
    .works(Setting {
        take: |given, written| {
            given.port = written.value.number()?;
            Ok(())
        },
        show: |discovery| one(discovery.as_ref().map_or(0, |discovery| discovery.port)),
    }),
    Key::new(
        "O-005",
        "alt-tls-listening-port",
        Group::Addresses,
        Kind::number(0, 65535, ""),
        "Second port for TLS, open with `rfc5780` only; 0 means tls-listening-port + 1.",
    )
    .default("0")
    .works(Setting {
        take: |given, written| {
            given.tls_port = written.value.number()?;
            Ok(())
        },
        show: |discovery| {
            let tls_port = discovery.as_ref().and_then(|discovery| discovery.tls_port);
            one(tls_port.unwrap_or(0))
        },
    }),
    Key::new(
        "O-125",
        "rfc5780",
        Group::Stun,
        Kind::Flag,
        "NAT behaviour discovery (RFC 5780): second ports are opened, and Binding requests may \
         ask for an answer from the other address or port, to another port, or padded. Needs two \
         `listening-ip` of one family that the same clients reach.",
    )
    .default("false")
    .stricter(
        "the value counts, where coturn ignores it and always switches on; with one address it \
         is refused; PADDING for who proved nothing is no longer than the request's",
    )
    .always_on_in_coturn()
    .works(Setting {
        take: |given, written| {
            given.is_wanted = written.value.flag();
            Ok(())
        },
        show: |discovery| one(discovery.is_some()),
    }),
    Key::new(
        "O-126",
        "no-rfc5780",
        Group::Stun,
        Kind::Flag,
        "Does nothing in coturn either.",
    )
    .no_effect("NAT behaviour discovery is off unless `rfc5780` is set"),
    Key::new(
        "O-126",
        "response-origin-only-with-rfc5780",
        Group::Stun,
        Kind::Flag,
        "Does nothing in coturn either.",
    )
    .no_effect("RESPONSE-ORIGIN belongs to NAT behaviour discovery here too"),
];

/// Services that the listening addresses offer in any case.
pub(crate) struct Service<'a> {
    pub(crate) port: u16,
    pub(crate) tls: &'a Tls,
    pub(crate) answers_binding: bool,
}

/// Completes the second ports, and finds for each of `listeners` the one that stands in for it: the next one that the same clients reach.
pub(crate) fn finish(
    given: &GivenNatDiscovery,
    service: &Service<'_>,
    listeners: &[IpAddr],
    external: &[ExternalAddress],
    findings: &mut Findings,
) -> Option<NatDiscovery> {
    if !given.is_wanted {
        for key in ["alt-listening-port", "alt-tls-listening-port"] {
            if findings.is_given(key) {
                findings.note(
                    key,
                    "has no effect without `rfc5780`: no second port is opened",
                );
            }
        }
        return None;
    }
    if !service.answers_binding {
        findings.problem(
            "rfc5780",
            "needs Binding requests, which `no-stun` turns off; give one of the two",
        );
    }
    let seen = |local: IpAddr| {
        let entry = external.iter().find(|entry| entry.private == local);
        entry.map_or(local, |entry| entry.public)
    };
    let other_by_address: Vec<_> = listeners
        .iter()
        .enumerate()
        .filter_map(|(index, &address)| {
            let mut others = listeners[index + 1..].iter().chain(&listeners[..index]);
            let other = others.find(|&&other| are_a_pair(seen(address), seen(other)))?;
            Some((address, *other))
        })
        .collect();
    if other_by_address.is_empty() && !listeners.is_empty() {
        let list: Vec<String> = listeners.iter().map(|&one| seen(one).to_string()).collect();
        findings.problem(
            "rfc5780",
            format!(
                "needs two listening addresses of one family, both public, both private or both \
                 loopback, that clients can tell apart; there are {}; give a second \
                 `listening-ip`, or remove the line",
                list.join(", ")
            ),
        );
    }
    let (port, tls) = (service.port, service.tls.port);
    let has_tls_port = service.tls.is_spoken() && tls != port;
    let mut taken = vec![port];
    taken.extend(has_tls_port.then_some(tls));
    let alternate = second_port("alt-listening-port", given.port, port, findings);
    let alternate = free("alt-listening-port", alternate, &taken, findings);
    taken.push(alternate);
    let tls_port = has_tls_port.then(|| {
        let key = "alt-tls-listening-port";
        let alternate = second_port(key, given.tls_port, tls, findings);
        free(key, alternate, &taken, findings)
    });
    Some(NatDiscovery {
        port: alternate,
        tls_port,
        other_by_address,
    })
}

/// Returns whether clients that reach one of two addresses, as they see them, reach the other one too.
fn are_a_pair(one: IpAddr, other: IpAddr) -> bool {
    one != other
        && one.is_ipv4() == other.is_ipv4()
        && one.is_loopback() == other.is_loopback()
        && is_private(one) == is_private(other)
}

/// Returns the port beside `first`: the one that is given, or the next one.
fn second_port(key: &str, given: u16, first: u16, findings: &mut Findings) -> u16 {
    if given != 0 {
        return given;
    }
    first.checked_add(1).unwrap_or_else(|| {
        let message =
            format!("needs a port beside {first}, and there is none above it; give `{key}`");
        findings.problem("rfc5780", message);
        // A port that is free, lest it be reported a second time.
        first - 1
    })
}

/// Reports a port that is `taken`.
fn free(key: &str, port: u16, taken: &[u16], findings: &mut Findings) -> u16 {
    if taken.contains(&port) {
        let message =
            format!("`{port}` is the port of another listener; allowed: a port that is free");
        if findings.is_given(key) {
            findings.problem(key, message);
        } else {
            findings.problem(
                "rfc5780",
                format!("needs another port, and {message}; give `{key}`"),
            );
        }
    }
    port
}
