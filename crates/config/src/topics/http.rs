//! HTTP on the listening ports: the response to an HTTP client, before its connection is closed.

use crate::choice::{Choice, kind_of};
use crate::entry::Group;
use crate::row::{Row, Setting, Topic, choice, each, flag};
use crate::value::Kind;

/// The response to an HTTP client, before its connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Http {
    /// Whether clients get a response, which says that this port does not serve HTTP; otherwise they get nothing.
    pub answers: bool,
    /// The URL where an ACME challenge is answered, for clients that request it without TLS. The token is appended.
    pub acme_redirect: Option<Box<str>>,
    /// Who may ask for tunnels of UDP (RFC 9298).
    pub masque: Masque,
    /// Whether these tunnels may be bound to an address of the relay, and lead to whomever their clients name.
    pub masque_bind: bool,
}

/// Which connections may ask for tunnels of UDP in HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Masque {
    /// None.
    #[default]
    Off,
    /// Those with TLS.
    Tls,
    /// All: passwords cross the network as they are.
    Plain,
}

impl Choice for Masque {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("off", Self::Off),
        ("tls", Self::Tls),
        ("plain", Self::Plain),
    ];
}

impl Topic for Http {
    type Settings = Self;
}

type Key = Row<Http>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-083",
        "acme-redirect",
        Group::Tls,
        Kind::Text(1024),
        "Redirects ACME challenges (RFC 8555 §8.3) on plain TCP to this URL, with the token \
         appended.",
    )
    .stricter("must be an http or https URL")
    .example("https://acme.example.org/.well-known/acme-challenge/")
    .live()
    .works(Setting {
        take: |http, written| {
            http.acme_redirect = Some(url(written.value.text())?.into());
            Ok(())
        },
        show: |http| each(&http.acme_redirect),
    }),
    Key::new(
        "O-084",
        "respond-http-unsupported",
        Group::Tls,
        Kind::Flag,
        "Answers HTTP on TURN ports, with TLS or without, with a small error page; otherwise the \
         connection is closed without a word.",
    )
    .default("false")
    .live()
    .works(flag!(answers)),
    Key::own(
        "O-084",
        "masque",
        Group::Tls,
        kind_of!(Masque),
        "Opens tunnels of UDP in HTTP (CONNECT-UDP, RFC 9298) on the TURN ports, by HTTP/1.1 \
         Upgrade and with `quic` by HTTP/3, for users with their names and passwords by Basic, \
         under the same quotas and peer rules as allocations; 'tls' on connections with TLS or \
         QUIC, 'plain' on those without either too, where passwords cross the network as they \
         are.",
    )
    .default("off")
    .works(choice!(masque)),
    Key::own(
        "O-084",
        "masque-bind",
        Group::Tls,
        Kind::Flag,
        "Opens bound tunnels too (draft-ietf-masque-connect-udp-listen), where `masque` opens \
         tunnels: they are bound to an address of the relay and lead to all peers that may be \
         reached, each datagram to the one that it names.",
    )
    .default("false")
    .works(flag!(masque_bind)),
];

/// Checks that a URL is valid in the header of an HTTP response.
fn url(text: &str) -> Result<&str, String> {
    let is_web = ["http://", "https://"]
        .iter()
        .any(|scheme| text.len() > scheme.len() && text.starts_with(scheme));
    if is_web && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text)
    } else {
        Err(
            "is no URL to send a browser to; allowed: http:// or https:// and what follows, \
             without blanks"
                .to_owned(),
        )
    }
}
