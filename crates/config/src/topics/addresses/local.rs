//! Which addresses of the machine are listened on and relayed from, now and when it gets others.

use std::net::IpAddr;

use turnbuckle_engine::AddressRange;

use crate::findings::Findings;
use crate::host::{is_private, list, local_addresses};
use crate::machine::Machine;
use crate::problem::Origin;

/// Network interfaces that sockets are bound to, beside their addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Devices {
    /// The one that listeners belong to.
    pub listening: Option<Box<str>>,
    /// The one that relay sockets belong to.
    pub relay: Option<Box<str>>,
}

/// How addresses that the machine gets after the start are treated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaterAddresses {
    /// IPv4 addresses that the machine gets later are listened on too: `0.0.0.0` was written, or nothing.
    pub every_ipv4: bool,
    /// The same for IPv6: `::` was written, or nothing.
    pub every_ipv6: bool,
    /// Relay addresses follow the addresses of the machine: no relay address was written, and no listening address but wildcards.
    pub follows_relays: bool,
    /// IPv6 is relayed too in that case.
    pub relays_ipv6: bool,
    /// Relay addresses are those that the machine had: neither they nor addresses to listen on were named.
    pub relays_are_found: bool,
    /// External addresses of relay addresses that come later; the first of a family is used.
    pub external_of_all: Vec<IpAddr>,
}

/// Addresses of both sides, and how they follow the machine.
pub(crate) struct Chosen {
    pub(crate) listeners: Vec<IpAddr>,
    pub(crate) relays: Vec<IpAddr>,
    pub(crate) later: LaterAddresses,
}

/// Looks up the given addresses, and takes those of `machine` on the given interfaces where none is given.
pub(crate) fn choose(
    listening: &[(String, Origin)],
    relaying: &[(String, Origin)],
    devices: &Devices,
    denied_peers: &[AddressRange],
    machine: &Machine,
    findings: &mut Findings,
) -> Chosen {
    let problems_before = findings.problems.len();
    let system = &machine.addresses_on(devices.listening.as_deref());
    let outward = outward(&machine.addresses_on(devices.relay.as_deref()));
    let mut listeners = local_addresses("listening-ip", listening, machine, system, findings);
    let mut relays = local_addresses("relay-ip", relaying, machine, &outward, findings);
    let is_lenient = findings.is_lenient();
    let is_usable = |given: &[(String, Origin)], found: &[IpAddr]| {
        !given.is_empty() && (!found.is_empty() || !is_lenient)
    };
    let has_listeners = is_usable(listening, &listeners);
    let has_relays = is_usable(relaying, &relays);
    if !has_listeners {
        listeners.clone_from(system);
    }
    if !listening.is_empty() && !has_listeners {
        findings.note(
            "listening-ip",
            "nothing of what is given can be listened on: all addresses of this machine are, as \
             in coturn",
        );
    }
    let has_given_listeners = has_listeners && listening.iter().any(|(text, _)| !is_wildcard(text));
    let is_closed = is_lenient && is_closed_to_ipv6(listening, denied_peers);
    if !has_relays {
        relays = match has_given_listeners {
            true => listeners.clone(),
            false => relays_of_wildcard(is_closed, outward, findings),
        };
    }
    if !relaying.is_empty() && !has_relays {
        findings.note(
            "relay-ip",
            format!(
                "nothing of what is given can be relayed from: {} instead",
                list(&relays)
            ),
        );
    }
    if problems_before == findings.problems.len() {
        if listeners.is_empty() {
            findings.problem(
                "listening-ip",
                "this machine has no address to listen on; give one",
            );
        } else if relays.is_empty() {
            findings.problem(
                "relay-ip",
                "this machine has no address to relay from; give one",
            );
        }
    }
    let is_ambiguous = |is_ipv4| relays.iter().filter(|one| one.is_ipv4() == is_ipv4).count() > 1;
    let is_chosen = has_given_listeners || has_relays;
    if !is_chosen && (is_ambiguous(true) || is_ambiguous(false)) {
        findings.note(
            "relay-ip",
            format!(
                "not given: allocations get {} in turn; name those that peers can reach",
                list(&relays)
            ),
        );
    }
    let has_wildcard = |wildcard: &str| listening.iter().any(|(text, _)| text == wildcard);
    // Without the key both wildcards are meant.
    let every_ipv6 = !has_listeners || has_wildcard("::");
    let every_ipv4 = !has_listeners || has_wildcard("0.0.0.0") || (every_ipv6 && is_lenient);
    if !has_given_listeners && relays.iter().all(IpAddr::is_loopback) && !relays.is_empty() {
        let what = match is_chosen {
            true => "clients on other machines are served only",
            false => "other machines are served only",
        };
        findings.note(
            "listening-ip",
            format!(
                "this machine has only loopback addresses now; {what} once it gets another, which \
                 is then used without a restart"
            ),
        );
    }
    Chosen {
        listeners,
        relays,
        later: LaterAddresses {
            every_ipv4,
            every_ipv6,
            follows_relays: !is_chosen && (every_ipv4 || every_ipv6),
            relays_ipv6: !is_closed,
            relays_are_found: !is_chosen,
            external_of_all: Vec::new(),
        },
    }
}

/// Returns the addresses that peers may reach: of each family the public ones, else the private ones; loopback only where there is nothing else.
pub(crate) fn outward(system: &[IpAddr]) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    for is_ipv4 in [true, false] {
        let family = || {
            system
                .iter()
                .copied()
                .filter(move |address| address.is_ipv4() == is_ipv4)
        };
        let public: Vec<IpAddr> = family().filter(|address| !is_private(*address)).collect();
        let private = family().filter(|address| !address.is_loopback());
        if public.is_empty() {
            found.extend(private)
        } else {
            found.extend(public)
        }
    }
    if found.is_empty() {
        system.to_vec()
    } else {
        found
    }
}

/// Returns the part of `outward` that is relayed from where `relay-ip` is not given: without IPv6 if that `is_closed`.
fn relays_of_wildcard(
    is_closed: bool,
    outward: Vec<IpAddr>,
    findings: &mut Findings,
) -> Vec<IpAddr> {
    let (kept, left_out): (Vec<IpAddr>, Vec<IpAddr>) = outward
        .iter()
        .partition(|address| !is_closed || address.is_ipv4());
    if kept.is_empty() || left_out.is_empty() {
        return outward;
    }
    let lines: Vec<String> = kept
        .iter()
        .chain(&left_out)
        .map(|address| format!("`relay-ip={address}`"))
        .collect();
    findings.note(
        "relay-ip",
        format!(
            "not given, and nothing denies IPv6 peers: IPv4 alone is relayed, as in coturn; {} \
             relay IPv6 too",
            lines.join(" and ")
        ),
    );
    kept
}

/// Returns whether IPv6 is not relayed although the machine has it. With `listening-ip=0.0.0.0`, with or without `::`, coturn in practice relays
/// IPv4 alone. IPv6 peers, which were never reachable through it and which no deny list names, stay closed.
fn is_closed_to_ipv6(listening: &[(String, Origin)], denied_peers: &[AddressRange]) -> bool {
    // Mapped forms are not IPv6 addresses of the machine.
    let covers_ipv6 = |range: &AddressRange| match range.last() {
        IpAddr::V4(_) => false,
        IpAddr::V6(last) => last.to_ipv4_mapped().is_none(),
    };
    listening.iter().any(|(text, _)| text == "0.0.0.0") && !denied_peers.iter().any(covers_ipv6)
}

fn is_wildcard(text: &str) -> bool {
    matches!(text.parse::<IpAddr>(), Ok(address) if address.is_unspecified())
}
