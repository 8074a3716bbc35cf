//! Redirection to other servers (coturn inventory §1.8): names looked up, and whether a client can go there.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use turnbuckle_engine::Alternate;

use super::addresses::Addresses;
use crate::entry::{Group, Need};
use crate::findings::Findings;
use crate::host::{resolve, unfit_external};
use crate::machine::Machine;
use crate::problem::Origin;
use crate::row::{Row, Setting, Topic, each};
use crate::value::Kind;

/// Longest ALTERNATE-DOMAIN (RFC 8489 §14.16).
const DOMAIN_LEN_MAX: usize = 255;
const STRICTER: &str = "only clients that proved who they are are redirected (RFC 8489 §14.8); \
                        loopback, multicast and link-local addresses are refused";

/// Servers as they were written.
#[derive(Default)]
pub(crate) struct GivenRedirection {
    any: Vec<(String, Origin)>,
    tcp: Vec<(String, Origin)>,
    tls: Vec<(String, Origin)>,
    udp: Vec<(String, Origin)>,
}

/// Servers that clients are sent to instead of being served here; one listed several times gets as many of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redirection {
    /// For clients that come by UDP or TCP, if those have no list of their own.
    pub any: Vec<Alternate>,
    /// For clients that come by TCP.
    pub tcp: Vec<Alternate>,
    /// For clients that come by TLS or DTLS.
    pub tls: Vec<Alternate>,
    /// For clients that come by UDP, and by DTLS if those have no list of their own.
    pub udp: Vec<Alternate>,
}

impl Topic for GivenRedirection {
    type Settings = Redirection;
}

type Key = Row<GivenRedirection>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-140",
        "alternate-server",
        Group::Redirection,
        Kind::AddressPort,
        "Server to which UDP and TCP clients are redirected (300, RFC 8489 §10) when they ask \
         for an allocation. Servers of the client's address family take turns; one that is given \
         several times gets as many of the clients. Clients that come to an address in the list \
         are served. Port 3478 if none is given.",
    )
    .repeatable()
    .stricter(STRICTER)
    .example("203.0.113.6:3478")
    .live()
    .works(Setting {
        take: |given, written| {
            given.any.push(written.placed_text());
            Ok(())
        },
        show: |redirection| show(&redirection.any),
    }),
    Key::new(
        "O-141",
        "tls-alternate-server",
        Group::Redirection,
        Kind::AddressPort,
        "The same for TLS and DTLS clients. If the server has another certificate give its name, \
         not its address: clients of RFC 8489 are told. Port 5349 if none is given.",
    )
    .repeatable()
    .stricter(STRICTER)
    .example("turn2.example.org:5349")
    .needs(Need::Tls)
    .live()
    .works(Setting {
        take: |given, written| {
            given.tls.push(written.placed_text());
            Ok(())
        },
        show: |redirection| show(&redirection.tls),
    }),
    Key::new(
        "O-142",
        "udp-alternate-server",
        Group::Redirection,
        Kind::AddressPort,
        "The same for UDP clients, instead of alternate-server, and for DTLS clients without \
         tls-alternate-server.",
    )
    .repeatable()
    .stricter(STRICTER)
    .example("203.0.113.6:3478")
    .live()
    .works(Setting {
        take: |given, written| {
            given.udp.push(written.placed_text());
            Ok(())
        },
        show: |redirection| show(&redirection.udp),
    }),
    Key::new(
        "O-143",
        "tcp-alternate-server",
        Group::Redirection,
        Kind::AddressPort,
        "The same for TCP clients, instead of alternate-server.",
    )
    .repeatable()
    .stricter(STRICTER)
    .example("203.0.113.6:3478")
    .live()
    .works(Setting {
        take: |given, written| {
            given.tcp.push(written.placed_text());
            Ok(())
        },
        show: |redirection| show(&redirection.tcp),
    }),
];

fn show(servers: &[Alternate]) -> Vec<String> {
    each(servers.iter().map(|server| server.address))
}

/// Looks the servers up.
pub(crate) fn finish(
    given: GivenRedirection,
    addresses: &Addresses,
    machine: &Machine,
    findings: &mut Findings,
) -> Redirection {
    let mut of = |key, written, port| servers(key, written, port, addresses, machine, findings);
    Redirection {
        any: of("alternate-server", given.any, 3478),
        tcp: of("tcp-alternate-server", given.tcp, 3478),
        tls: of("tls-alternate-server", given.tls, 5349),
        udp: of("udp-alternate-server", given.udp, 3478),
    }
}

fn servers(
    key: &str,
    written: Vec<(String, Origin)>,
    default_port: u16,
    addresses: &Addresses,
    machine: &Machine,
    findings: &mut Findings,
) -> Vec<Alternate> {
    let mut found = Vec::new();
    for (text, origin) in written {
        match server(&text, default_port, machine) {
            Ok(servers) => found.extend(servers),
            Err(message) => findings.misfit(&origin, key, message, "nobody is sent there"),
        }
    }
    let own = addresses.listeners.iter().find(|listener| {
        let ips = [listener.ip(), addresses.public(listener.ip())];
        found
            .iter()
            .any(|alternate| ips.contains(&alternate.address.ip()))
    });
    if let Some(own) = own {
        findings.note(
            key,
            format!(
                "names this server: clients that come to a listed address, {own} perhaps, are \
                 served and not redirected"
            ),
        );
    }
    found
}

/// Returns one server, or one for each address of its name. Its certificate must be for that name.
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

/// Splits `host`, `host:port`, a plain IPv6 address, or `[IPv6]:port`.
fn split(text: &str, default_port: u16) -> Result<(&str, u16), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or(""))),
            None => {
                return Err("has no `]` behind the address; write [IPv6 address]:port".to_owned());
            }
        },
        None if text.matches(':').count() > 1 => {
            if let Some((address, port)) = unbracketed(text) {
                return Err(format!(
                    "may mean port {port} of {address}, or an address with that end; write \
                     [{address}]:{port} or [{text}]"
                ));
            }
            (text, None)
        }
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

/// Returns the parts of an IPv6 address that would be an address and a port too.
fn unbracketed(text: &str) -> Option<(&str, u16)> {
    let (address, port) = text.rsplit_once(':')?;
    address.parse::<Ipv6Addr>().ok()?;
    let port = port.parse().ok().filter(|&port| port != 0)?;
    Some((address, port))
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
        let plain = "2001:db8::3:ff";
        assert_eq!(split(plain, 3478), Ok((plain, 3478)));
        for wrong in ["a:0", "a:", "a:65536", "[::1", "[::1]99", "a:b"] {
            assert!(split(wrong, 3478).is_err(), "{wrong}");
        }
        let ambiguous = split("2001:db8::3:3478", 3478).expect_err("one of two");
        let both = "[2001:db8::3]:3478 or [2001:db8::3:3478]";
        assert!(ambiguous.contains(both), "{ambiguous}");
    }
}
