//! Listening, relay and external addresses: names looked up, wildcards replaced, and whether they fit together.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use turnbuckle_engine::AddressRange;

use super::auxiliary::auxiliary;
use super::draft::Draft;
use super::machine::Machine;
use super::nat_discovery::nat_discovery;
use super::persona::Persona;
use super::problem::Origin;
use super::settings::{Addresses, DefaultFamily, ExternalAddress, PortRange};

/// What `turnserver` does with an address that it cannot use.
const PASSED_OVER: &str = "passed over";

/// Completes the addresses with those of `machine`.
pub(super) fn addresses(draft: &mut Draft, machine: &Machine) -> Addresses {
    let listening = std::mem::take(&mut draft.listening_ips);
    let relaying = std::mem::take(&mut draft.relay_ips);
    let problems_before = draft.problems.len();

    let mut listeners = local_addresses(
        draft,
        "listening-ip",
        &listening,
        machine,
        &machine.addresses,
    );
    let outward = outward(&machine.addresses);
    let mut relays = local_addresses(draft, "relay-ip", &relaying, machine, &outward);
    let is_lenient = draft.persona == Persona::Turnserver;
    let is_usable = |given: &[(String, Origin)], found: &[IpAddr]| {
        !given.is_empty() && (!found.is_empty() || !is_lenient)
    };
    let has_listeners = is_usable(&listening, &listeners);
    let has_relays = is_usable(&relaying, &relays);
    if !has_listeners {
        listeners.clone_from(&machine.addresses);
    }
    if !listening.is_empty() && !has_listeners {
        draft.note(
            "listening-ip",
            "nothing of what is given can be listened on: all addresses of this machine are, as in coturn",
        );
    }
    let has_given_listeners = has_listeners && listening.iter().any(|(text, _)| !is_wildcard(text));
    if !has_relays {
        relays = if has_given_listeners {
            listeners.clone()
        } else {
            relays_of_wildcard(draft, &listening, outward)
        };
    }
    if !relaying.is_empty() && !has_relays {
        draft.note(
            "relay-ip",
            format!(
                "nothing of what is given can be relayed from: {} instead",
                list(&relays)
            ),
        );
    }
    if problems_before == draft.problems.len() {
        if listeners.is_empty() {
            draft.problem(
                "listening-ip",
                "this machine has no address to listen on; give one",
            );
        } else if relays.is_empty() {
            draft.problem(
                "relay-ip",
                "this machine has no address to relay from; give one",
            );
        }
    }
    let is_chosen = has_given_listeners || has_relays;
    let is_ambiguous = |is_ipv4| {
        relays
            .iter()
            .filter(|address| address.is_ipv4() == is_ipv4)
            .count()
            > 1
    };
    if !is_chosen && (is_ambiguous(true) || is_ambiguous(false)) {
        draft.note(
            "relay-ip",
            format!(
                "not given: allocations get {} in turn; name those that peers can reach",
                list(&relays)
            ),
        );
    }
    let is_lenient = draft.persona == Persona::Turnserver;
    let has_wildcard = |wildcard: &str| listening.iter().any(|(text, _)| text == wildcard);
    let every_ipv6 = has_wildcard("::");
    let every_ipv4 = has_wildcard("0.0.0.0") || (every_ipv6 && is_lenient);
    let (external, external_of_all) = external_addresses(draft, &relays, machine);
    let follows_relays = !has_relays && !has_given_listeners && (every_ipv4 || every_ipv6);
    let relays_ipv6 = !is_closed_to_ipv6(draft, &listening);
    let port = draft.listening_port;
    let discovery = nat_discovery(draft, &listeners, &external);
    let auxiliary = auxiliary(draft, &listeners, discovery.as_ref(), machine);
    let nonzero = |port| NonZeroU16::new(port).unwrap_or(NonZeroU16::MIN);
    Addresses {
        listeners: listeners
            .into_iter()
            .map(|ip| SocketAddr::new(ip, port))
            .collect(),
        every_ipv4,
        every_ipv6,
        follows_relays,
        relays_ipv6,
        external_of_all,
        auxiliary,
        discovery,
        udp: !draft.no_udp,
        tcp: !draft.no_tcp,
        relays,
        external,
        relay_ports: PortRange {
            min: nonzero(draft.min_port),
            max: nonzero(draft.max_port),
        },
        default_family: if draft.keep_family {
            DefaultFamily::Client
        } else {
            draft.default_family
        },
        listening_device: draft.listening_device.take(),
        relay_device: draft.relay_device.take(),
    }
}

/// Addresses that peers may reach: of each family the public ones, else the private ones; loopback only where there is nothing else.
fn outward(system: &[IpAddr]) -> Vec<IpAddr> {
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

/// Loopback, RFC 1918, RFC 6598 (behind a carrier's translator) and RFC 4193.
pub(super) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let is_shared = v4.octets()[0] == 100 && v4.octets()[1] & 0xC0 == 64;
            v4.is_loopback() || v4.is_private() || is_shared
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local(),
    }
}

/// Of `outward`, what is relayed from where `relay-ip` is not given. With `listening-ip=0.0.0.0`, `::` beside it or not, coturn in practice relays IPv4
/// alone: what was never reachable through it, and no deny list tells of, is not opened.
fn relays_of_wildcard(
    draft: &mut Draft,
    listening: &[(String, Origin)],
    outward: Vec<IpAddr>,
) -> Vec<IpAddr> {
    let is_closed = is_closed_to_ipv6(draft, listening);
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
    draft.note(
        "relay-ip",
        format!(
            "not given, and nothing denies IPv6 peers: IPv4 alone is relayed, as in coturn; {} relay IPv6 too",
            lines.join(" and ")
        ),
    );
    kept
}

/// Whether IPv6 is not to be relayed though the machine has it.
fn is_closed_to_ipv6(draft: &Draft, listening: &[(String, Origin)]) -> bool {
    // Mapped forms are none of IPv6's own.
    let covers_ipv6 = |range: &AddressRange| match range.last() {
        IpAddr::V4(_) => false,
        IpAddr::V6(last) => last.to_ipv4_mapped().is_none(),
    };
    draft.persona == Persona::Turnserver
        && listening.iter().any(|(text, _)| text == "0.0.0.0")
        && !draft.denied_peers.iter().any(covers_ipv6)
}

impl Addresses {
    /// What is relayed from on a machine that has the addresses `system` by now, link-local ones left out, where `relay-ip` does not say it.
    pub(crate) fn relays_among(&self, system: &[IpAddr]) -> Vec<IpAddr> {
        let mut relays = outward(system);
        if !self.relays_ipv6 && relays.iter().any(IpAddr::is_ipv4) {
            relays.retain(IpAddr::is_ipv4);
        }
        relays
    }
}

fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    texts.join(", ")
}

fn is_wildcard(text: &str) -> bool {
    matches!(text.parse::<IpAddr>(), Ok(address) if address.is_unspecified())
}

/// Addresses named by a repeatable key, each once; wildcards stand for those of `system` that have their family.
pub(super) fn local_addresses(
    draft: &mut Draft,
    key: &str,
    given: &[(String, Origin)],
    machine: &Machine,
    system: &[IpAddr],
) -> Vec<IpAddr> {
    let is_lenient = draft.persona == Persona::Turnserver;
    let mut found = Vec::new();
    for (text, origin) in given {
        let addresses = match resolve(text, machine) {
            Ok(addresses) => addresses,
            Err(message) => {
                draft.misfit(origin, key, message, PASSED_OVER);
                continue;
            }
        };
        for address in addresses {
            let expanded: Vec<IpAddr> = if address.is_unspecified() {
                // A socket of coturn's for `::` takes IPv4 too.
                let is_dual = is_lenient && address.is_ipv6();
                system
                    .iter()
                    .copied()
                    .filter(|one| is_dual || one.is_ipv4() == address.is_ipv4())
                    .collect()
            } else if is_lenient {
                vec![address.to_canonical()]
            } else {
                vec![address]
            };
            if expanded.is_empty() {
                let message = format!(
                    "this machine has no address that `{address}` could stand for; write one, or leave the line out"
                );
                draft.misfit(origin, key, message, PASSED_OVER);
            }
            if let Some(message) = expanded.iter().find_map(|one| unfit(*one)) {
                draft.misfit(origin, key, message, PASSED_OVER);
                continue;
            }
            for one in expanded {
                if !found.contains(&one) {
                    found.push(one);
                }
            }
        }
    }
    found
}

/// Why no socket can be bound to an address in the way a relay needs.
fn unfit(address: IpAddr) -> Option<String> {
    let reason = match address {
        IpAddr::V4(v4) if v4.is_broadcast() => "is the broadcast address",
        IpAddr::V4(v4) if v4.is_link_local() => {
            "is a link-local address, which clients elsewhere cannot reach"
        }
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            "is a link-local address, which clients elsewhere cannot reach"
        }
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => "writes IPv4 as IPv6; write it as IPv4",
        _ if address.is_multicast() => "is a multicast address",
        _ => return None,
    };
    Some(format!(
        "`{address}` {reason}; allowed: a unicast address of this machine"
    ))
}

pub(super) fn resolve(text: &str, machine: &Machine) -> Result<Vec<IpAddr>, String> {
    if let Ok(address) = text.parse() {
        return Ok(vec![address]);
    }
    // What cannot be a host name is a mistyped address; asking a name server about it would only delay the message.
    let is_name = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
        && !text.starts_with(['-', '.']);
    if !is_name {
        return Err(format!(
            "`{}` is neither an IP address nor a host name; allowed: one of these, without port",
            text.escape_debug()
        ));
    }
    match (machine.resolve)(text) {
        Ok(found) if found.is_empty() => Err(format!(
            "host name `{text}` has no address; write the address"
        )),
        Ok(found) => Ok(found),
        Err(error) => Err(format!(
            "host name `{text}` is not known: {error}; write the address"
        )),
    }
}

fn external_addresses(
    draft: &mut Draft,
    relays: &[IpAddr],
    machine: &Machine,
) -> (Vec<ExternalAddress>, Vec<IpAddr>) {
    let mut entries: Vec<ExternalAddress> = Vec::new();
    let mut of_all: Vec<IpAddr> = Vec::new();
    for (text, origin) in std::mem::take(&mut draft.external_ips) {
        let text = text.trim();
        let added = match text.split_once('/') {
            Some((public, private)) => pair(public, private, relays, machine),
            None => {
                let fit = resolve(text, machine).unwrap_or_default().into_iter();
                of_all.extend(fit.filter(|public| unfit_external(*public).is_none()));
                single(text, relays, machine)
            }
        };
        match added {
            Ok(added) => {
                let is_taken =
                    |new: &ExternalAddress| entries.iter().any(|old| old.private == new.private);
                if let Some(double) = added.iter().find(|new| is_taken(new)) {
                    let message = format!("`{}` is mapped twice; allowed once", double.private);
                    draft.misfit(&origin, "external-ip", message, "the first one counts");
                } else {
                    entries.extend(added);
                }
            }
            Err(message) => {
                let instead = "passed over: relay addresses are told to clients without it";
                draft.misfit(&origin, "external-ip", message, instead);
            }
        }
    }
    (entries, of_all)
}

fn pair(
    public: &str,
    private: &str,
    relays: &[IpAddr],
    machine: &Machine,
) -> Result<Vec<ExternalAddress>, String> {
    let public = resolve(public, machine)?;
    let private = resolve(private, machine)?;
    let ([public], [private]) = (public.as_slice(), private.as_slice()) else {
        return Err("names a host with several addresses; write both addresses".to_owned());
    };
    if public.is_ipv4() != private.is_ipv4() {
        return Err("maps IPv4 to IPv6; allowed: two addresses of one family".to_owned());
    }
    if let Some(message) = unfit_external(*public) {
        return Err(message);
    }
    if !relays.contains(private) {
        return Err(format!(
            "private address `{private}` is not a relay address; allowed: {}",
            list(relays)
        ));
    }
    Ok(vec![ExternalAddress {
        public: *public,
        private: *private,
    }])
}

/// One public address per family, for every relay address of that family except loopback.
fn single(
    text: &str,
    relays: &[IpAddr],
    machine: &Machine,
) -> Result<Vec<ExternalAddress>, String> {
    let mut entries = Vec::new();
    for public in resolve(text, machine)? {
        if let Some(message) = unfit_external(public) {
            return Err(message);
        }
        let fitting = relays
            .iter()
            .filter(|private| private.is_ipv4() == public.is_ipv4() && !private.is_loopback());
        let before = entries.len();
        entries.extend(fitting.map(|private| ExternalAddress {
            public,
            private: *private,
        }));
        if before == entries.len() {
            return Err(format!(
                "`{public}` would map no relay address: none of its family is there except loopback; give `relay-ip`"
            ));
        }
    }
    Ok(entries)
}

pub(super) fn unfit_external(address: IpAddr) -> Option<String> {
    if address.is_unspecified() || address.is_loopback() {
        return Some(format!(
            "`{address}` is no address that clients can send to; allowed: a public unicast address"
        ));
    }
    unfit(address).map(|_| format!("`{address}` is no unicast address that clients can send to; allowed: a public unicast address"))
}
