//! Redirection to other servers (coturn inventory §1.8).

use crate::config::entry::{Entry, Group};
use crate::config::value::Kind;
use turnbuckle_engine::Alternate;

const GROUP: Group = Group::Redirection;
const STRICTER: &str = "only clients that proved who they are are redirected (RFC 8489 §14.8); loopback, multicast and link-local addresses are refused";

fn show(servers: &[Alternate]) -> Vec<String> {
    servers
        .iter()
        .map(|server| server.address.to_string())
        .collect()
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new(
        "O-140",
        "alternate-server",
        GROUP,
        Kind::AddressPort,
        "Server to which UDP and TCP clients are redirected (300, RFC 8489 §10) when they ask for an allocation. Servers of the client's address family take turns; \
         one that is given several times gets as many of the clients. Clients that come to an address in the list are served. Port 3478 if none is given.",
    )
    .repeatable()
    .stricter(STRICTER)
    .works(
        |draft, value, origin| {
            draft.alternates.any.push((value.text().to_owned(), origin.clone()));
            Ok(())
        },
        |config| show(&config.redirection.any),
    ),
    Entry::new(
        "O-141",
        "tls-alternate-server",
        GROUP,
        Kind::AddressPort,
        "The same for TLS and DTLS clients. If the server has another certificate give its name, not its address: clients of RFC 8489 are told. Port 5349 \
         if none is given.",
    )
    .repeatable()
    .stricter(STRICTER)
    .works(
        |draft, value, origin| {
            draft.alternates.tls.push((value.text().to_owned(), origin.clone()));
            Ok(())
        },
        |config| show(&config.redirection.tls),
    ),
    Entry::new(
        "O-142",
        "udp-alternate-server",
        GROUP,
        Kind::AddressPort,
        "The same for UDP clients, instead of alternate-server, and for DTLS clients without tls-alternate-server.",
    )
    .repeatable()
    .stricter(STRICTER)
    .works(
        |draft, value, origin| {
            draft.alternates.udp.push((value.text().to_owned(), origin.clone()));
            Ok(())
        },
        |config| show(&config.redirection.udp),
    ),
    Entry::new(
        "O-143",
        "tcp-alternate-server",
        GROUP,
        Kind::AddressPort,
        "The same for TCP clients, instead of alternate-server.",
    )
    .repeatable()
    .stricter(STRICTER)
    .works(
        |draft, value, origin| {
            draft.alternates.tcp.push((value.text().to_owned(), origin.clone()));
            Ok(())
        },
        |config| show(&config.redirection.tcp),
    ),
];
