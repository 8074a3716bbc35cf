//! Other servers that clients are sent to: names looked up, and whether a client can go there.

use std::net::{IpAddr, SocketAddr};

use turnbuckle_engine::Alternate;

use super::addresses::{resolve, unfit_external};
use super::draft::Draft;
use super::machine::Machine;
use super::problem::Origin;
use super::settings::{Addresses, Redirection};

/// Longest ALTERNATE-DOMAIN (RFC 8489 §14.16).
const DOMAIN_LEN_MAX: usize = 255;

/// Servers as they were written.
#[derive(Default)]
pub(super) struct Written {
    pub(super) any: Vec<(String, Origin)>,
    pub(super) tcp: Vec<(String, Origin)>,
    pub(super) tls: Vec<(String, Origin)>,
    pub(super) udp: Vec<(String, Origin)>,
}

/// Looks the servers up.
pub(super) fn redirection(
    draft: &mut Draft,
    addresses: &Addresses,
    machine: &Machine,
) -> Redirection {
    let Written { any, tcp, tls, udp } = std::mem::take(&mut draft.alternates);
    let mut of = |key, written, port| servers(draft, key, written, port, addresses, machine);
    Redirection {
        any: of("alternate-server", any, 3478),
        tcp: of("tcp-alternate-server", tcp, 3478),
        tls: of("tls-alternate-server", tls, 5349),
        udp: of("udp-alternate-server", udp, 3478),
    }
}

fn servers(
    draft: &mut Draft,
    key: &str,
    written: Vec<(String, Origin)>,
    default_port: u16,
    addresses: &Addresses,
    machine: &Machine,
) -> Vec<Alternate> {
    let mut found = Vec::new();
    for (text, origin) in written {
        match server(&text, default_port, machine) {
            Ok(servers) => found.extend(servers),
            Err(message) => draft.misfit(&origin, key, message, "nobody is sent there"),
        }
    }
    let own = addresses.listeners.iter().find(|listener| {
        let ips = [listener.ip(), addresses.public(listener.ip())];
        found
            .iter()
            .any(|alternate| ips.contains(&alternate.address.ip()))
    });
    if let Some(own) = own {
        draft.note(
            key,
            format!("names this server: clients that come to a listed address, {own} perhaps, are served and not redirected"),
        );
    }
    found
}

/// One server, or one for each address of its name. A name is also what its certificate is for.
fn server(text: &str, default_port: u16, machine: &Machine) -> Result<Vec<Alternate>, String> {
    let (host, port) = split(text, default_port)?;
    let ips = resolve(host, machine)?;
    let is_name = host.parse::<IpAddr>().is_err();
    if is_name && host.len() > DOMAIN_LEN_MAX {
        return Err(format!("is longer than the {DOMAIN_LEN_MAX} bytes allowed"));
    }
    // guard: V-14-loopback
    if let Some(message) = ips.iter().find_map(|ip| unfit_external(*ip)) {
        return Err(message);
    }
    let domain = is_name.then(|| Box::from(host));
    Ok(ips
        .into_iter()
        .map(|ip| Alternate {
            address: SocketAddr::new(ip, port),
            domain: domain.clone(),
        })
        .collect())
}

/// `host`, `host:port`, an IPv6 address as it is, or `[IPv6]:port`.
fn split(text: &str, default_port: u16) -> Result<(&str, u16), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or(""))),
            None => {
                return Err("has no `]` behind the address; write [IPv6 address]:port".to_owned());
            }
        },
        None if text.matches(':').count() > 1 => (text, None),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        None => default_port,
        Some(digits) => digits
            .parse()
            .ok()
            .filter(|&port| port != 0)
            .ok_or("has a port that is none; allowed: 1 to 65535")?,
    };
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_every_form_of_an_address_with_a_port() {
        assert_eq!(split("198.51.100.1", 3478), Ok(("198.51.100.1", 3478)));
        assert_eq!(split("198.51.100.1:99", 3478), Ok(("198.51.100.1", 99)));
        assert_eq!(split("2001:db8::1", 3478), Ok(("2001:db8::1", 3478)));
        assert_eq!(split("[2001:db8::1]", 5349), Ok(("2001:db8::1", 5349)));
        assert_eq!(split("[2001:db8::1]:99", 3478), Ok(("2001:db8::1", 99)));
        assert_eq!(
            split("turn.example.org:99", 3478),
            Ok(("turn.example.org", 99))
        );
        for wrong in ["a:0", "a:", "a:65536", "[::1", "[::1]99", "a:b"] {
            assert!(split(wrong, 3478).is_err(), "{wrong}");
        }
    }
}
