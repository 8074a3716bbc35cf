//! TLS and DTLS (coturn inventory §1.4).

use crate::config::entry::{Entry, Group};
use crate::config::value::Kind;

const GROUP: Group = Group::Tls;
const TLS: &str = "TLS is";
const NO_TLS: &str = "TLS is not implemented yet";

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new(
        "O-070",
        "cert",
        GROUP,
        Kind::File,
        "Certificate chain in PEM form.",
    )
    .not_yet(TLS),
    Entry::new(
        "O-071",
        "pkey",
        GROUP,
        Kind::File,
        "Private key in PEM form.",
    )
    .not_yet(TLS),
    Entry::new(
        "O-072",
        "pkey-pwd",
        GROUP,
        Kind::Text(1024),
        "Passphrase of the private key.",
    )
    .secret()
    .not_yet(TLS),
    Entry::new(
        "O-073",
        "CA-file",
        GROUP,
        Kind::File,
        "Authorities whose client certificates are required.",
    )
    .not_yet(TLS),
    Entry::new(
        "O-074",
        "cipher-list",
        GROUP,
        Kind::Text(1024),
        "Cipher suites.",
    )
    .not_yet(TLS),
    Entry::new(
        "O-075",
        "ec-curve-name",
        GROUP,
        Kind::Text(255),
        "Groups for key exchange.",
    )
    .not_yet(TLS),
    Entry::new(
        "O-076",
        "dh566",
        GROUP,
        Kind::Flag,
        "566-bit Diffie-Hellman parameters.",
    )
    .default("false")
    .only(&["false"], "parameters of this size can be broken"),
    Entry::new(
        "O-076",
        "dh1066",
        GROUP,
        Kind::Flag,
        "1066-bit Diffie-Hellman parameters.",
    )
    .default("false")
    .only(&["false"], "parameters of this size can be broken"),
    Entry::new(
        "O-076",
        "dh-file",
        GROUP,
        Kind::File,
        "Diffie-Hellman parameters.",
    )
    .refused("key exchange uses elliptic curves, which every client of the last decade has"),
    Entry::new("O-077", "tlsv1", GROUP, Kind::Flag, "Offers TLS 1.0.")
        .default("false")
        .only(&["false"], "TLS 1.0 is deprecated (RFC 8996)"),
    Entry::new("O-077", "tlsv1_1", GROUP, Kind::Flag, "Offers TLS 1.1.")
        .default("false")
        .only(&["false"], "TLS 1.1 is deprecated (RFC 8996)"),
    Entry::new(
        "O-078",
        "no-tlsv1_2",
        GROUP,
        Kind::Flag,
        "Offers TLS 1.3 only.",
    )
    .default("false")
    .only(&["false"], NO_TLS),
    Entry::new(
        "O-079",
        "raw-public-keys",
        GROUP,
        Kind::Flag,
        "Raw public keys (RFC 7250).",
    )
    .default("false")
    .only(&["false"], NO_TLS),
    Entry::new(
        "O-083",
        "acme-redirect",
        GROUP,
        Kind::Text(1024),
        "Redirects ACME challenges on plain TCP to this URL.",
    )
    .not_yet("answering HTTP is"),
    Entry::new(
        "O-084",
        "respond-http-unsupported",
        GROUP,
        Kind::Flag,
        "Answers HTTP on TURN ports with a small error page.",
    )
    .default("false")
    .only(&["false"], "answering HTTP is not implemented yet"),
];
