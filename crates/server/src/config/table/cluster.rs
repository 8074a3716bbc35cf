//! Redirection to other servers (coturn inventory §1.8).

use crate::config::entry::{Entry, Group};
use crate::config::value::Kind;

const GROUP: Group = Group::Redirection;
const REDIRECTION: &str = "redirection is";

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new(
        "O-140",
        "alternate-server",
        GROUP,
        Kind::AddressPort,
        "Server to which clients are redirected (300), in turn.",
    )
    .repeatable()
    .not_yet(REDIRECTION),
    Entry::new(
        "O-141",
        "tls-alternate-server",
        GROUP,
        Kind::AddressPort,
        "The same for TLS and DTLS clients.",
    )
    .repeatable()
    .not_yet(REDIRECTION),
    Entry::new(
        "O-142",
        "udp-alternate-server",
        GROUP,
        Kind::AddressPort,
        "The same for UDP and DTLS clients.",
    )
    .repeatable()
    .not_yet(REDIRECTION),
    Entry::new(
        "O-143",
        "tcp-alternate-server",
        GROUP,
        Kind::AddressPort,
        "The same for TCP clients.",
    )
    .repeatable()
    .not_yet(REDIRECTION),
];
