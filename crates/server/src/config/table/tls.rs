//! TLS and DTLS (coturn inventory §1.4).

use std::path::Path;

use crate::config::entry::{Entry, Group};
use crate::config::secret::{MASK, Secret};
use crate::config::tls::{CIPHER_SUITES, cipher_suites, groups};
use crate::config::value::Kind;

use super::{flag, one};

const GROUP: Group = Group::Tls;

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new(
        "O-070",
        "cert",
        GROUP,
        Kind::File,
        "Certificate in PEM form, and those between it and an authority. Read again when the file changes, and on SIGUSR2; connections keep \
         what they began with.",
    )
    .stricter("is used as given, not looked for in other directories, and must be readable")
    .works(
        |draft, value, _| {
            draft.tls.certificate = Some(value.text().into());
            Ok(())
        },
        |config| path(config.tls.certificate.as_deref()),
    ),
    Entry::new(
        "O-071",
        "pkey",
        GROUP,
        Kind::File,
        "Private key in PEM form, RSA or ECDSA; may be the file of `cert`. Read again with it.",
    )
    .stricter("is used as given, must be readable, and must belong to the certificate")
    .works(
        |draft, value, _| {
            draft.tls.key = Some(value.text().into());
            Ok(())
        },
        |config| path(config.tls.key.as_deref()),
    ),
    Entry::new(
        "O-072",
        "pkey-pwd",
        GROUP,
        Kind::Text(1024),
        "Passphrase of the private key.",
    )
    .secret()
    .works(
        |draft, value, _| {
            draft.tls.key_password = Some(Secret::new(value.text().as_bytes()));
            Ok(())
        },
        |config| config.tls.key_password.iter().map(|_| MASK.to_owned()).collect(),
    ),
    Entry::new(
        "O-073",
        "CA-file",
        GROUP,
        Kind::File,
        "Authorities in PEM form; clients have to show a certificate of theirs. Read again with `cert`.",
    )
    .stricter("is used as given and must be readable")
    .works(
        |draft, value, _| {
            draft.tls.client_authorities = Some(value.text().into());
            Ok(())
        },
        |config| path(config.tls.client_authorities.as_deref()),
    ),
    Entry::new(
        "O-074",
        "cipher-list",
        GROUP,
        Kind::Text(1024),
        "Cipher suites by OpenSSL's names, best first. Those that are not served are passed over; a list without suites of TLS 1.3 leaves \
         those as they are.",
    )
    .default("DEFAULT")
    .stricter("suites without forward secrecy or authenticated encryption, and finite-field Diffie-Hellman, are not served")
    .works(
        |draft, value, _| {
            draft.tls.cipher_suites = cipher_suites(value.text())?;
            Ok(())
        },
        |config| {
            one(if config.tls.cipher_suites == CIPHER_SUITES {
                "DEFAULT".to_owned()
            } else {
                config.tls.cipher_suites.join(":")
            })
        },
    ),
    Entry::new(
        "O-075",
        "ec-curve-name",
        GROUP,
        Kind::Text(255),
        "Groups for key exchange, best first.",
    )
    .default("X25519:prime256v1:secp384r1:X25519MLKEM768")
    .stricter("only these four are served")
    .works(
        |draft, value, _| {
            draft.tls.groups = groups(value.text())?;
            Ok(())
        },
        |config| one(config.tls.groups.join(":")),
    ),
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
    .works(
        |draft, value, _| {
            draft.tls.only_tls13 = value.flag();
            Ok(())
        },
        |config| flag(config.tls.only_tls13),
    ),
    Entry::new(
        "O-079",
        "raw-public-keys",
        GROUP,
        Kind::Flag,
        "Raw public keys (RFC 7250).",
    )
    .default("false")
    .only(&["false"], "raw public keys are not implemented yet"),
    Entry::new(
        "O-083",
        "acme-redirect",
        GROUP,
        Kind::Text(1024),
        "Redirects ACME challenges (RFC 8555 §8.3) on plain TCP to this URL, with the token appended.",
    )
    .stricter("must be an http or https URL")
    .works(
        |draft, value, _| {
            draft.http.acme_redirect = Some(url(value.text())?.into());
            Ok(())
        },
        |config| config.http.acme_redirect.iter().map(ToString::to_string).collect(),
    ),
    Entry::new(
        "O-084",
        "respond-http-unsupported",
        GROUP,
        Kind::Flag,
        "Answers HTTP on TURN ports, with TLS or without, with a small error page; otherwise the connection is closed without a word.",
    )
    .default("false")
    .works(
        |draft, value, _| {
            draft.http.answers = value.flag();
            Ok(())
        },
        |config| flag(config.http.answers),
    ),
];

/// A URL that can stand in the header of an HTTP response as it is.
fn url(text: &str) -> Result<&str, String> {
    let is_web = ["http://", "https://"]
        .iter()
        .any(|scheme| text.len() > scheme.len() && text.starts_with(scheme));
    if is_web && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text)
    } else {
        Err("is no URL to send a browser to; allowed: http:// or https:// and what follows, without blanks".to_owned())
    }
}

/// The name of a file, if there is one.
fn path(file: Option<&Path>) -> Vec<String> {
    file.map(|file| file.display().to_string())
        .into_iter()
        .collect()
}
