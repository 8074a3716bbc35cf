//! NAT behaviour discovery: which listening addresses stand in for each other, and with which ports.

use std::net::IpAddr;

use super::addresses::is_private;
use super::draft::Draft;
use super::settings::{ExternalAddress, NatDiscovery};

/// Completes the second ports, and finds for each of `listeners` the one that stands in for it: the next one that the same clients reach.
pub(super) fn nat_discovery(
    draft: &mut Draft,
    listeners: &[IpAddr],
    external: &[ExternalAddress],
) -> Option<NatDiscovery> {
    if !draft.nat_discovery {
        for key in ["alt-listening-port", "alt-tls-listening-port"] {
            if draft.is_given(key) {
                draft.note(
                    key,
                    "has no effect without `rfc5780`: no second port is opened",
                );
            }
        }
        return None;
    }
    if draft.stun.no_binding {
        draft.problem(
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
        draft.problem(
            "rfc5780",
            format!(
                "needs two listening addresses of one family, both public, both private or both loopback, that clients can tell apart; \
                 there are {}; give a second `listening-ip`, or remove the line",
                list.join(", ")
            ),
        );
    }
    let (port, tls) = (draft.listening_port, draft.tls.port);
    let has_tls_port = draft.tls.is_spoken() && tls != port;
    let mut taken = vec![port];
    taken.extend(has_tls_port.then_some(tls));
    let alternate = second_port(draft, "alt-listening-port", draft.alt_listening_port, port);
    let alternate = free(draft, "alt-listening-port", alternate, &taken);
    taken.push(alternate);
    let tls_port = has_tls_port.then(|| {
        let key = "alt-tls-listening-port";
        let alternate = second_port(draft, key, draft.alt_tls_listening_port, tls);
        free(draft, key, alternate, &taken)
    });
    Some(NatDiscovery {
        port: alternate,
        tls_port,
        other_by_address,
    })
}

/// Whether clients that reach one of two addresses, as they see them, reach the other one too.
fn are_a_pair(one: IpAddr, other: IpAddr) -> bool {
    one != other
        && one.is_ipv4() == other.is_ipv4()
        && one.is_loopback() == other.is_loopback()
        && is_private(one) == is_private(other)
}

/// The port beside `first`: the one that is given, or the next one.
fn second_port(draft: &mut Draft, key: &str, given: u16, first: u16) -> u16 {
    if given != 0 {
        return given;
    }
    first.checked_add(1).unwrap_or_else(|| {
        let message =
            format!("needs a port beside {first}, and there is none above it; give `{key}`");
        draft.problem("rfc5780", message);
        // A port that is free, lest it be reported a second time.
        first - 1
    })
}

/// Reports a port that is `taken`.
fn free(draft: &mut Draft, key: &str, port: u16, taken: &[u16]) -> u16 {
    if taken.contains(&port) {
        let message =
            format!("`{port}` is the port of another listener; allowed: a port that is free");
        if draft.is_given(key) {
            draft.problem(key, message);
        } else {
            draft.problem(
                "rfc5780",
                format!("needs another port, and {message}; give `{key}`"),
            );
        }
    }
    port
}
