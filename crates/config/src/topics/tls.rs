//! TLS, DTLS and QUIC (coturn inventory §1.4): which suites and groups a list in OpenSSL's words means, and whether the keys fit together.

use std::path::{Path, PathBuf};

use turnbuckle_users::{MASK, Secret};

use crate::entry::{Group, Need};
use crate::findings::Findings;
use crate::row::{Row, Setting, Topic, each, file_path, flag, number, off, one};
use crate::search::find;
use crate::value::Kind;

/// Clients that come by TLS or DTLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// It is wanted; without certificate and key there is none all the same.
    pub wanted: bool,
    /// DTLS is wanted; without certificate and key there is none all the same.
    pub dtls_wanted: bool,
    /// Clients that come by QUIC.
    pub quic: Quic,
    /// Port on which TLS and DTLS are expected; they are recognised on the other one too.
    pub port: u16,
    /// File with the server's certificate and those between it and an authority, in PEM form. Given together with [`Self::key`] or
    /// not at all.
    pub certificate: Option<PathBuf>,
    /// File with the private key in PEM form.
    pub key: Option<PathBuf>,
    /// What the private key is encrypted with.
    pub key_password: Option<Secret>,
    /// File with the authorities of client certificates, which are required then.
    pub client_authorities: Option<PathBuf>,
    /// TLS 1.2 is not offered.
    pub only_tls13: bool,
    /// Cipher suites by OpenSSL's names, best first; not empty.
    pub cipher_suites: Vec<&'static str>,
    /// Groups for the key exchange by OpenSSL's names, best first; not empty.
    pub groups: Vec<&'static str>,
    /// The protocols that clients offer (RFC 7301).
    pub alpn: Alpn,
}

/// The protocols that clients offer (RFC 7301).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Alpn {
    /// HTTP is spoken inside of TLS over TCP, and chosen there.
    pub has_http: bool,
    /// A client that offers none that is spoken here is served all the same, as coturn does; otherwise it is refused (RFC 7301
    /// §3.2).
    pub serves_any: bool,
}

/// Clients that come by QUIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quic {
    /// It is wanted; without certificate and key there is none all the same.
    pub wanted: bool,
    /// The kernel is to give datagrams to the shard that has their connection.
    pub is_steered: bool,
}

impl Tls {
    /// Returns certificate and key, if TLS is spoken.
    #[must_use]
    pub fn files(&self) -> Option<(&Path, &Path)> {
        let files = self.certificate.as_deref().zip(self.key.as_deref());
        files.filter(|_| self.wanted)
    }

    /// Returns certificate and key, if DTLS is spoken.
    #[must_use]
    pub fn dtls_files(&self) -> Option<(&Path, &Path)> {
        let files = self.certificate.as_deref().zip(self.key.as_deref());
        files.filter(|_| self.dtls_wanted)
    }

    /// Returns certificate and key, if QUIC is spoken.
    #[must_use]
    pub fn quic_files(&self) -> Option<(&Path, &Path)> {
        let files = self.certificate.as_deref().zip(self.key.as_deref());
        files.filter(|_| self.quic.wanted)
    }

    /// Returns whether certificates are needed at all.
    #[must_use]
    pub fn is_spoken(&self) -> bool {
        let all = [self.files(), self.dtls_files(), self.quic_files()];
        all.iter().any(Option::is_some)
    }
}

impl Topic for Tls {
    type Settings = Self;
}

type Key = Row<Tls>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-003",
        "tls-listening-port",
        Group::Addresses,
        Kind::Port,
        "Port for TLS and DTLS, if `cert` and `pkey` are given. They are recognised on \
         `listening-port` too, and plain TCP and UDP here, unless switched off.",
    )
    .default("5349")
    .stricter("port 0 is refused")
    .needs(Need::Tls)
    .works(number!(port)),
    Key::new(
        "O-018",
        "no-tls",
        Group::Addresses,
        Kind::Flag,
        "No TLS, neither on `tls-listening-port` nor on `listening-port`.",
    )
    .default("false")
    .works(off!(wanted)),
    Key::new(
        "O-019",
        "dtls",
        Group::Addresses,
        Kind::Flag,
        "DTLS 1.2, if `cert` and `pkey` are given: on `tls-listening-port` by UDP, and \
         recognised on `listening-port`.",
    )
    .default("false")
    .works(flag!(dtls_wanted)),
    Key::new(
        "O-020",
        "no-dtls",
        Group::Addresses,
        Kind::Flag,
        "No DTLS (old form of dtls).",
    )
    .default("true")
    .works(off!(dtls_wanted)),
    Key::own(
        "O-020",
        "quic",
        Group::Addresses,
        Kind::Flag,
        "QUIC version 1 with HTTP/3, if `cert` and `pkey` are given: on all ports for UDP and on \
         `tls-listening-port` by UDP, beside TURN. With `masque` tunnels of UDP are served over \
         it, without it each request is rejected. How many connections there may be and for how \
         long, the options about DTLS sessions without an allocation say.",
    )
    .default("false")
    .works(Setting {
        take: |tls, written| {
            tls.quic.wanted = written.value.flag();
            Ok(())
        },
        show: |tls| one(tls.quic.wanted),
    }),
    Key::own(
        "O-020",
        "quic-steering",
        Group::Threads,
        Kind::Flag,
        "The kernel gives each datagram of QUIC to the thread that has its connection, by its \
         connection id. Off: by the hash of the addresses, and where a client has changed its \
         address, one thread hands each datagram over to another. A kernel that refuses is told \
         of with a warning.",
    )
    .default("true")
    .needs(Need::Quic)
    .works(Setting {
        take: |tls, written| {
            tls.quic.is_steered = written.value.flag();
            Ok(())
        },
        show: |tls| one(tls.quic.is_steered),
    }),
    Key::new(
        "O-070",
        "cert",
        Group::Tls,
        Kind::File,
        "Certificate in PEM form, and those between it and an authority. Read again when the \
         file changes, and on SIGUSR2; connections keep what they began with.",
    )
    .stricter("is used as given, not looked for in other directories, and must be readable")
    .example("/etc/turnbuckle/certificate.pem")
    .live()
    .works(file_path!(certificate)),
    Key::new(
        "O-071",
        "pkey",
        Group::Tls,
        Kind::File,
        "Private key in PEM form, RSA or ECDSA; may be the file of `cert`. Read again with it.",
    )
    .stricter("is used as given, must be readable, and must belong to the certificate")
    .example("/etc/turnbuckle/key.pem")
    .live()
    .works(file_path!(key)),
    Key::new(
        "O-072",
        "pkey-pwd",
        Group::Tls,
        Kind::Text(1024),
        "Passphrase of the private key.",
    )
    .secret()
    .example("the-passphrase-of-the-key")
    .needs(Need::Tls)
    .live()
    .works(Setting {
        take: |tls, written| {
            tls.key_password = Some(Secret::new(written.value.text().as_bytes()));
            Ok(())
        },
        show: |tls| each(tls.key_password.iter().map(|_| MASK)),
    }),
    Key::new(
        "O-073",
        "CA-file",
        Group::Tls,
        Kind::File,
        "Authorities in PEM form; clients have to show a certificate of theirs. Read again with \
         `cert`.",
    )
    .stricter("is used as given and must be readable")
    .example("/etc/turnbuckle/client-authorities.pem")
    .needs(Need::Tls)
    .live()
    .works(file_path!(client_authorities)),
    Key::new(
        "O-074",
        "cipher-list",
        Group::Tls,
        Kind::Text(1024),
        "Cipher suites by OpenSSL's names, best first. Those that are not served are passed \
         over; a list without suites of TLS 1.3 leaves those as they are.",
    )
    .default("DEFAULT")
    .stricter(
        "suites without forward secrecy or authenticated encryption, and finite-field \
         Diffie-Hellman, are not served",
    )
    .needs(Need::Tls)
    .live()
    .works(Setting {
        take: |tls, written| {
            tls.cipher_suites = cipher_suites(written.value.text())?;
            Ok(())
        },
        show: |tls| match tls.cipher_suites == CIPHER_SUITES {
            true => one("DEFAULT"),
            false => one(tls.cipher_suites.join(":")),
        },
    }),
    Key::new(
        "O-075",
        "ec-curve-name",
        Group::Tls,
        Kind::Text(255),
        "Groups for key exchange, best first.",
    )
    .default("X25519:prime256v1:secp384r1:X25519MLKEM768")
    .stricter("only these four are served")
    .needs(Need::Tls)
    .live()
    .works(Setting {
        take: |tls, written| {
            tls.groups = groups(written.value.text())?;
            Ok(())
        },
        show: |tls| one(tls.groups.join(":")),
    }),
    Key::new(
        "O-076",
        "dh566",
        Group::Tls,
        Kind::Flag,
        "566-bit Diffie-Hellman parameters.",
    )
    .default("false")
    .only(&["false"], "parameters of this size can be broken"),
    Key::new(
        "O-076",
        "dh1066",
        Group::Tls,
        Kind::Flag,
        "1066-bit Diffie-Hellman parameters.",
    )
    .default("false")
    .only(&["false"], "parameters of this size can be broken"),
    Key::new(
        "O-076",
        "dh-file",
        Group::Tls,
        Kind::File,
        "Diffie-Hellman parameters.",
    )
    .refused("key exchange uses elliptic curves, which every client of the last decade has"),
    Key::new("O-077", "tlsv1", Group::Tls, Kind::Flag, "Offers TLS 1.0.")
        .default("false")
        .only(&["false"], "TLS 1.0 is deprecated (RFC 8996)"),
    Key::new(
        "O-077",
        "tlsv1_1",
        Group::Tls,
        Kind::Flag,
        "Offers TLS 1.1.",
    )
    .default("false")
    .only(&["false"], "TLS 1.1 is deprecated (RFC 8996)"),
    Key::new(
        "O-078",
        "no-tlsv1_2",
        Group::Tls,
        Kind::Flag,
        "Offers TLS 1.3 only.",
    )
    .default("false")
    .needs(Need::Tls)
    .live()
    .works(flag!(only_tls13)),
    Key::new(
        "O-079",
        "raw-public-keys",
        Group::Tls,
        Kind::Flag,
        "Raw public keys (RFC 7250).",
    )
    .default("false")
    .only(&["false"], "raw public keys are not implemented yet"),
];

/// The suites there are, by OpenSSL's names, best first.
pub const CIPHER_SUITES: [&str; 9] = [
    "TLS_AES_256_GCM_SHA384",
    "TLS_AES_128_GCM_SHA256",
    "TLS_CHACHA20_POLY1305_SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-CHACHA20-POLY1305",
];

/// The groups there are, by OpenSSL's names, best first.
pub const KEY_EXCHANGE_GROUPS: [&str; 4] = ["X25519", "prime256v1", "secp384r1", "X25519MLKEM768"];

/// Words of OpenSSL's lists that stand for all suites that are any good.
const ALL: [&str; 6] = [
    "ALL",
    "COMPLEMENTOFDEFAULT",
    "DEFAULT",
    "ECDHE",
    "HIGH",
    "kECDHE",
];

/// Reads a list of suites in the form of `openssl ciphers`: names that are not served are passed over, as OpenSSL does with names it
/// does not know, and so is what follows `!`, `-` or `@`, because nothing of that kind is served. An error says
/// that nothing remains, or that something that is served is to be excluded.
fn cipher_suites(text: &str) -> Result<Vec<&'static str>, String> {
    let mut wanted = Vec::new();
    for word in text
        .split([':', ',', ' ', ';'])
        .filter(|word| !word.is_empty())
    {
        let excluded = word.strip_prefix(['!', '-']);
        if let Some(name) = excluded {
            if let Some(served) = CIPHER_SUITES.iter().find(|served| **served == name) {
                return Err(format!(
                    "excludes {served}; list the suites that are wanted instead"
                ));
            }
            continue;
        }
        if ALL.contains(&word) {
            wanted.extend(CIPHER_SUITES);
        }
        wanted.extend(CIPHER_SUITES.into_iter().find(|served| *served == word));
    }
    let mut suites: Vec<&str> = Vec::new();
    for suite in wanted {
        if !suites.contains(&suite) {
            suites.push(suite);
        }
    }
    if suites.is_empty() {
        let all = CIPHER_SUITES.join(":");
        return Err(format!(
            "names none of the suites that are served; allowed: {all}"
        ));
    }
    // The versions have suites of their own. A list that says nothing about one leaves its suites as they are, as in OpenSSL.
    for is_tls13 in [true, false] {
        let of_version = |suite: &&str| suite.starts_with("TLS_") == is_tls13;
        if !suites.iter().any(of_version) && is_tls13 {
            suites.extend(CIPHER_SUITES.into_iter().filter(|suite| of_version(suite)));
        }
    }
    Ok(suites)
}

/// Reads a list of groups, separated by colons. An error names a group that there is not.
fn groups(text: &str) -> Result<Vec<&'static str>, String> {
    let mut groups = Vec::new();
    for word in text.split([':', ',', ' ']).filter(|word| !word.is_empty()) {
        let same = |known: &&str| {
            let alias = match *known {
                "prime256v1" => "P-256",
                "secp384r1" => "P-384",
                _ => known,
            };
            known.eq_ignore_ascii_case(word) || alias.eq_ignore_ascii_case(word)
        };
        let known = KEY_EXCHANGE_GROUPS.into_iter().find(|known| same(known));
        let known = known.ok_or_else(|| {
            format!(
                "names a group that there is not; allowed: {}",
                KEY_EXCHANGE_GROUPS.join(":")
            )
        })?;
        if !groups.contains(&known) {
            groups.push(known);
        }
    }
    if groups.is_empty() {
        return Err(format!(
            "is empty; allowed: {}",
            KEY_EXCHANGE_GROUPS.join(":")
        ));
    }
    Ok(groups)
}

/// Looks for the files where coturn looks, under its names if none are given. Without both there is no TLS.
pub(crate) fn find_files(tls: &mut Tls, findings: &mut Findings) {
    if !tls.wanted {
        return;
    }
    let name = |given: &Option<PathBuf>, usual: &str| {
        given
            .as_ref()
            .map_or_else(|| usual.to_owned(), |path| path.display().to_string())
    };
    let certificate = name(&tls.certificate, "turn_server_cert.pem");
    let key = name(&tls.key, "turn_server_pkey.pem");
    match (find(&certificate), find(&key)) {
        (Some(certificate), Some(key)) => {
            (tls.certificate, tls.key) = (Some(certificate), Some(key));
        }
        (found, _) => {
            let missing = if found.is_some() { &key } else { &certificate };
            findings.note(
                "cert",
                format!("cannot find {missing}; there is no TLS and no DTLS"),
            );
            (tls.certificate, tls.key) = (None, None);
        }
    }
    if let Some(authorities) = &tls.client_authorities
        && let Some(found) = find(&authorities.display().to_string())
    {
        tls.client_authorities = Some(found);
    }
}

/// Reports what is missing.
pub(crate) fn check(tls: &Tls, findings: &mut Findings) {
    let missing = match (&tls.certificate, &tls.key) {
        (Some(_), None) => Some(("cert", "pkey")),
        (None, Some(_)) => Some(("pkey", "cert")),
        _ => None,
    };
    if let Some((given, missing)) = missing {
        findings.problem(
            given,
            format!("needs `{missing}` too; one file may hold both"),
        );
    }
    check_dtls(tls, findings);
    if tls.quic.wanted && tls.quic_files().is_none() {
        findings.note(
            "quic",
            "there is none all the same: QUIC needs `cert` and `pkey`",
        );
    }
}

/// Reports what stands in the way of DTLS.
fn check_dtls(tls: &Tls, findings: &mut Findings) {
    if findings.is_lenient() && findings.is_given("no-dtls") {
        // In coturn's words, which scripts look for.
        findings.note(
            "no-dtls",
            match tls.dtls_wanted && !findings.is_given("dtls") {
                true => "no-dtls=false is deprecated; `dtls` says the same",
                false => "no-dtls is deprecated; there is no DTLS unless `dtls` is given",
            },
        );
    }
    if !tls.dtls_wanted {
        return;
    }
    let key = match findings.is_given("dtls") {
        true => "dtls",
        false => "no-dtls",
    };
    if tls.dtls_files().is_none() {
        findings.note(
            key,
            "there is none all the same: DTLS needs `cert` and `pkey`",
        );
        return;
    }
    if tls.only_tls13 {
        findings.problem(
            key,
            "together with `no-tlsv1_2` nothing remains: DTLS is served in version 1.2; give one \
             of the two",
        );
    }
    let mut suites = tls.cipher_suites.iter();
    if suites.all(|suite| suite.starts_with("TLS_")) {
        findings.problem(
            "cipher-list",
            "has only suites of TLS 1.3, and DTLS is served in version 1.2; allowed: a list with \
             at least one that begins with ECDHE",
        );
    }
    if tls.groups == ["X25519MLKEM768"] {
        findings.problem(
            "ec-curve-name",
            "has no group for DTLS; allowed: a list with X25519, prime256v1 or secp384r1",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_openssls_lists() {
        assert_eq!(cipher_suites("DEFAULT").unwrap(), CIPHER_SUITES);
        assert_eq!(
            cipher_suites("TLS_AES_128_GCM_SHA256:ECDHE-RSA-AES128-GCM-SHA256:!aNULL:@STRENGTH")
                .unwrap(),
            ["TLS_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"]
        );
        // What is not served is passed over, and TLS 1.3 keeps its suites.
        assert_eq!(
            cipher_suites("ECDHE-ECDSA-AES256-GCM-SHA384:DHE-RSA-AES256-SHA").unwrap(),
            [
                "ECDHE-ECDSA-AES256-GCM-SHA384",
                "TLS_AES_256_GCM_SHA384",
                "TLS_AES_128_GCM_SHA256",
                "TLS_CHACHA20_POLY1305_SHA256",
            ]
        );
        for wrong in [
            "",
            "RC4",
            "DHE-RSA-AES256-SHA",
            "HIGH:!ECDHE-RSA-CHACHA20-POLY1305",
        ] {
            assert!(cipher_suites(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_groups_by_either_name() {
        assert_eq!(
            groups("P-256:x25519:prime256v1").unwrap(),
            ["prime256v1", "X25519"]
        );
        assert!(groups("P-256:brainpoolP256r1").is_err());
        assert!(groups(":").is_err());
    }
}
