//! Reads the files with the server's certificate and key, the same way for TLS, DTLS and QUIC.
//!
//! The server shows its certificate and does not judge it: X.509 version 1, an unknown extension or a date in the past are for
//! clients to refuse. Only what no handshake can be made with is an error here. Errors name the key of the configuration, the
//! file, what is wrong with it and what to do; none has the words of a library in it.

use std::fs;
use std::path::Path;

use openssl::asn1::Asn1Time;
use openssl::pkey::{PKey, Private};
use openssl::x509::X509;

use crate::config::{Secret, Tls};

/// A certificate with those between it and an authority, and its key.
pub(crate) struct Pair {
    /// Not empty; the server's own is the first.
    pub(crate) chain: Vec<X509>,
    pub(crate) key: PKey<Private>,
}

impl Pair {
    /// Reads both files.
    ///
    /// # Errors
    ///
    /// What is wrong with one of them, or that they do not belong together.
    pub(crate) fn read(config: &Tls, (certificate, key): (&Path, &Path)) -> Result<Self, String> {
        let chain = certificates("cert", certificate)?;
        let private = private_key(key, config.key_password.as_ref())?;
        let own = chain.first().and_then(|own| own.public_key().ok());
        if !own.is_some_and(|own| own.public_eq(&private)) {
            return Err(format!(
                "cert {} and pkey {}: the key is not that of the first certificate; give the key that it was made with, and put the \
                 server's own certificate first in its file",
                certificate.display(),
                key.display()
            ));
        }
        Ok(Self {
            chain,
            key: private,
        })
    }
}

/// Returns the certificates in `file`, at least one. `name` is the key that names it.
///
/// # Errors
///
/// The file cannot be read, or holds none.
pub(crate) fn certificates(name: &str, file: &Path) -> Result<Vec<X509>, String> {
    let text = read(name, file)?;
    let chain = X509::stack_from_pem(&text).unwrap_or_default();
    if chain.is_empty() {
        return Err(format!(
            "{name} {}: no certificate in it; a file in PEM form is needed, with `-----BEGIN CERTIFICATE-----` in it \
             (`openssl x509 -inform der -in FILE -out NEW` makes one of a DER file)",
            file.display()
        ));
    }
    Ok(chain)
}

/// Returns the private key in `file`, which may be encrypted with `password`.
///
/// # Errors
///
/// The file cannot be read, holds no key, or is encrypted with another password.
pub(crate) fn private_key(file: &Path, password: Option<&Secret>) -> Result<PKey<Private>, String> {
    let pem = read("pkey", file)?;
    let mut is_encrypted = false;
    // Without an answer of ours OpenSSL would ask the terminal for a password.
    let key = PKey::private_key_from_pem_callback(&pem, |room| {
        is_encrypted = true;
        let password = password.map(Secret::expose).unwrap_or_default();
        let len = password.len().min(room.len());
        room[..len].copy_from_slice(&password[..len]);
        Ok(len)
    });
    key.map_err(|_| {
        let what = match (is_encrypted, password) {
            (true, Some(_)) => "it is encrypted with another password than `pkey-pwd`",
            (true, None) => "it is encrypted; give `pkey-pwd`, or decrypt it with `openssl pkey -in FILE -out NEW`",
            (false, _) => "no private key in it; a file in PEM form is needed, with `PRIVATE KEY-----` in it (`openssl pkey -in FILE` shows whether there is one)",
        };
        format!("pkey {}: {what}", file.display())
    })
}

/// Reads what a configuration would show clients, and says how long it is good; `None` if it shows nothing.
pub(crate) fn examine(config: &Tls) -> Option<Result<String, String>> {
    let files = (config.files())
        .or_else(|| config.dtls_files())
        .or_else(|| config.quic_files())?;
    let read = Pair::read(config, files);
    Some(read.map(|pair| {
        let own = pair.chain.first();
        own.map_or_else(String::new, |own| validity(files.0, own))
    }))
}

/// Says how long a certificate is good, for a log: a warning if clients refuse it today.
pub(crate) fn validity(file: &Path, certificate: &X509) -> String {
    let file = file.display();
    let (begin, end) = (certificate.not_before(), certificate.not_after());
    let days_left = |now: Asn1Time| Some((end < now, begin > now, now.diff(end).ok()?.days));
    match Asn1Time::days_from_now(0).ok().and_then(days_left) {
        Some((true, ..)) => format!(
            "warning: the certificate {file} has expired ({end}): clients refuse TLS, DTLS and QUIC until it is renewed"
        ),
        Some((_, true, _)) => format!(
            "warning: the certificate {file} is not valid before {begin}: clients refuse TLS, DTLS and QUIC until then"
        ),
        Some((.., days)) => format!("certificate {file}: {days} days left, until {end}"),
        None => format!("certificate {file}: valid until {end}"),
    }
}

/// Returns the first name of a host that a certificate is for; none if it is for whole domains or addresses alone.
pub(crate) fn name(certificate: &X509) -> Option<String> {
    let names = certificate.subject_alt_names()?;
    let mut names = names.iter().filter_map(|name| name.dnsname());
    names.find(|name| !name.contains('*')).map(str::to_owned)
}

fn read(name: &str, file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| {
        format!(
            "{name} {}: cannot be read: {error}; the relay's user needs to be allowed to read it",
            file.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use openssl::bn::BigNum;
    use openssl::hash::MessageDigest;
    use openssl::rsa::Rsa;
    use openssl::x509::X509Name;

    use super::*;

    /// Returns a key, and a certificate of it in this version, which ends in so many days.
    fn issued(version: i32, days: u32) -> (X509, PKey<Private>) {
        let key = PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap();
        let mut name = X509Name::builder().unwrap();
        name.append_entry_by_text("CN", "relay.example.org")
            .unwrap();
        let name = name.build();
        let mut builder = X509::builder().unwrap();
        builder.set_version(version).unwrap();
        let serial = BigNum::from_u32(1).unwrap().to_asn1_integer().unwrap();
        builder.set_serial_number(&serial).unwrap();
        builder.set_subject_name(&name).unwrap();
        builder.set_issuer_name(&name).unwrap();
        builder.set_pubkey(&key).unwrap();
        let begin = Asn1Time::from_unix(0).unwrap();
        builder.set_not_before(&begin).unwrap();
        let end = match days {
            0 => Asn1Time::from_unix(86_400).unwrap(),
            _ => Asn1Time::days_from_now(days).unwrap(),
        };
        builder.set_not_after(&end).unwrap();
        builder.sign(&key, MessageDigest::sha256()).unwrap();
        (builder.build(), key)
    }

    #[test]
    fn the_server_shows_its_certificate_and_does_not_judge_it() {
        let directory = tempfile::tempdir().unwrap();
        let [cert, pkey, other] =
            ["cert.pem", "pkey.pem", "other.pem"].map(|it| directory.path().join(it));
        let (first_version, key) = issued(0, 0);
        fs::write(&cert, first_version.to_pem().unwrap()).unwrap();
        fs::write(&pkey, key.private_key_to_pem_pkcs8().unwrap()).unwrap();
        fs::write(&other, issued(2, 9).1.private_key_to_pem_pkcs8().unwrap()).unwrap();
        let tls = Tls::default();
        assert!(Pair::read(&tls, (&cert, &pkey)).is_ok());
        let line = validity(&cert, &first_version);
        assert!(
            line.starts_with("warning: ") && line.contains("has expired"),
            "{line}"
        );
        let line = validity(&cert, &issued(2, 9).0);
        assert!(
            line.contains(": 8 days left") || line.contains(": 9 days left"),
            "{line}"
        );

        let gone = directory.path().join("gone.pem");
        for (pair, what) in [
            (
                (&cert, &other),
                "the key is not that of the first certificate",
            ),
            ((&cert, &cert), "no private key in it"),
            ((&pkey, &pkey), "no certificate in it"),
            ((&gone, &pkey), "cannot be read"),
        ] {
            let Err(why) = Pair::read(&tls, (pair.0, pair.1)) else {
                panic!("{pair:?}")
            };
            assert!(why.contains(what), "{why}");
            assert!(why.contains(".pem: "), "{why}");
            assert!(!why.contains("error:") && !why.contains("Error"), "{why}");
        }
    }
}
