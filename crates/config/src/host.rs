//! Addresses and host names of a configuration: their lookup, and the uses that each address is fit for.

use std::net::IpAddr;

use crate::findings::Findings;
use crate::machine::Machine;
use crate::problem::Origin;

/// What `turnserver` does with an address that it cannot use.
pub(crate) const PASSED_OVER: &str = "passed over";

/// Returns whether an address is private: loopback, RFC 1918, RFC 6598 (behind a carrier's translator) and RFC 4193.
pub(crate) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let is_shared = v4.octets()[0] == 100 && v4.octets()[1] & 0xC0 == 64;
            v4.is_loopback() || v4.is_private() || is_shared
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local(),
    }
}

/// Returns addresses as one text.
pub(crate) fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    texts.join(", ")
}

/// Returns the addresses named by a repeatable key, each once; wildcards stand for those of `system` that have their family.
pub(crate) fn local_addresses(
    key: &str,
    given: &[(String, Origin)],
    machine: &Machine,
    system: &[IpAddr],
    findings: &mut Findings,
) -> Vec<IpAddr> {
    let is_lenient = findings.is_lenient();
    let mut found = Vec::new();
    for (text, origin) in given {
        let addresses = match resolve(text, machine) {
            Ok(addresses) => addresses,
            Err(message) => {
                findings.misfit(origin, key, message, PASSED_OVER);
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
                findings.misfit(origin, key, message, PASSED_OVER);
            }
            if let Some(message) = expanded.iter().find_map(|one| unfit(*one)) {
                findings.misfit(origin, key, message, PASSED_OVER);
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

/// Says why no socket can be bound to an address in the way a relay needs.
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

/// Returns the addresses that `text` names.
pub(crate) fn resolve(text: &str, machine: &Machine) -> Result<Vec<IpAddr>, String> {
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
    match machine.names.resolve(text) {
        Ok(found) if found.is_empty() => Err(format!(
            "host name `{text}` has no address; write the address"
        )),
        Ok(found) => Ok(found),
        Err(error) => Err(format!(
            "host name `{text}` is not known: {error}; write the address"
        )),
    }
}

/// Says why clients could not send to an address.
pub(crate) fn unfit_external(address: IpAddr) -> Option<String> {
    if address.is_unspecified() || address.is_loopback() {
        return Some(format!(
            "`{address}` is no address that clients can send to; allowed: a public unicast address"
        ));
    }
    unfit(address).map(|_| format!("`{address}` is no unicast address that clients can send to; allowed: a public unicast address"))
}
