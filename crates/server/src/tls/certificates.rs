//! Certificates: read at start, read again when their files change or SIGUSR2 says so, handed to new connections.
//!
//! Invariant: what shards use is a whole, checked set. Files that cannot be read, or do not belong together (a new certificate beside the old
//! key, in the middle of a renewal), leave the set before them in use. Connections keep what they began with.

use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use openssl::ssl::SslContext;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CipherSuite, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
    version,
};

use crate::config::{CIPHER_SUITES, Tls};
use crate::shard::front::dtls::{CurrentDtls, context, private_key};

const ONLY_TLS13: &[&SupportedProtocolVersion] = &[&version::TLS13];

/// The protocols of RFC 7443. A client that offers others alone is refused (RFC 7301 §3.2); one that offers none is not.
const ALPN: [&[u8]; 2] = [b"stun.turn", b"stun.nat-discovery"];

/// The protocol that is spoken over QUIC (RFC 9114 §3.1).
const ALPN_QUIC: [&[u8]; 1] = [b"h3"];

/// The protocol of requests for tunnels (RFC 7301 §6).
const HTTP: &[u8] = b"http/1.1";

/// The set that new connections begin with; shared by all shards. It is locked once per handshake and per renewal.
pub(crate) type CurrentTls = Arc<RwLock<Arc<ServerConfig>>>;

/// Returns the set in use now.
pub(crate) fn current(tls: &CurrentTls) -> Arc<ServerConfig> {
    Arc::clone(&tls.read().unwrap_or_else(PoisonError::into_inner))
}

/// Files of certificates, and the set made of them.
pub(crate) struct Certificates {
    config: Tls,
    files: Vec<PathBuf>,
    stamps: Vec<Option<Stamp>>,
    current: Option<CurrentTls>,
    current_dtls: Option<CurrentDtls>,
    current_quic: Option<CurrentTls>,
}

/// What tells that a file is another one than before, or has been written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

impl Certificates {
    /// Reads the files for the first time.
    ///
    /// # Errors
    ///
    /// Which key of the configuration cannot be followed, and why.
    pub(crate) fn load(config: &Tls) -> Result<Self, String> {
        // The files are looked at before they are read, so that a change in between is seen as one.
        let Prepared {
            config,
            files,
            stamps,
            sets: Sets { tls, dtls, quic },
        } = Self::prepare(config)?;
        Ok(Self {
            config,
            files,
            stamps,
            current: tls.map(|set| Arc::new(RwLock::new(set))),
            current_dtls: dtls.map(|set| Arc::new(RwLock::new(set))),
            current_quic: quic.map(|set| Arc::new(RwLock::new(set))),
        })
    }

    /// Returns what shards share for TLS, if it is spoken.
    pub(crate) fn shared(&self) -> Option<CurrentTls> {
        self.current.clone()
    }

    /// Returns what shards share for DTLS, if it is spoken.
    pub(crate) fn shared_dtls(&self) -> Option<CurrentDtls> {
        self.current_dtls.clone()
    }

    /// Returns what shards share for QUIC, if it is spoken.
    pub(crate) fn shared_quic(&self) -> Option<CurrentTls> {
        self.current_quic.clone()
    }

    /// Reads the files again if they have changed. `None`: they have not.
    pub(crate) fn follow(&mut self) -> Option<Result<(), String>> {
        // guard: V-48-pair
        if stamps(&self.files) == self.stamps {
            return None;
        }
        Some(self.reload())
    }

    /// Reads what other settings name, and changes nothing yet.
    ///
    /// # Errors
    ///
    /// Which key cannot be followed, and why.
    pub(crate) fn prepare(config: &Tls) -> Result<Prepared, String> {
        let files = files(config);
        let stamps = stamps(&files);
        Ok(Prepared {
            config: config.clone(),
            files,
            stamps,
            sets: Sets::read(config)?,
        })
    }

    /// Uses what was prepared for new connections. Whether TLS and DTLS are spoken stays as it was.
    pub(crate) fn take(&mut self, prepared: Prepared) {
        self.config = prepared.config;
        self.files = prepared.files;
        self.stamps = prepared.stamps;
        self.put(prepared.sets);
    }

    /// Reads the files again. What is wrong with them leaves everything as it was.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub(crate) fn reload(&mut self) -> Result<(), String> {
        self.stamps = stamps(&self.files);
        self.put(Sets::read(&self.config)?);
        Ok(())
    }

    fn put(&self, Sets { tls, dtls, quic }: Sets) {
        for (current, next) in [(&self.current, tls), (&self.current_quic, quic)] {
            if let Some((current, next)) = current.as_ref().zip(next) {
                *current.write().unwrap_or_else(PoisonError::into_inner) = next;
            }
        }
        if let Some((current, next)) = self.current_dtls.as_ref().zip(dtls) {
            *current.write().unwrap_or_else(PoisonError::into_inner) = next;
        }
    }
}

/// Other settings, and the set made of the files that they name.
pub(crate) struct Prepared {
    config: Tls,
    files: Vec<PathBuf>,
    stamps: Vec<Option<Stamp>>,
    sets: Sets,
}

fn files(config: &Tls) -> Vec<PathBuf> {
    let files = [&config.certificate, &config.key, &config.client_authorities];
    files.into_iter().flatten().cloned().collect()
}

/// What is made of one reading of the files.
struct Sets {
    tls: Option<Arc<ServerConfig>>,
    dtls: Option<SslContext>,
    quic: Option<Arc<ServerConfig>>,
}

impl Sets {
    fn read(config: &Tls) -> Result<Self, String> {
        let mut alpn = ALPN.to_vec();
        if config.offers_http {
            alpn.push(HTTP);
        }
        let tls = config.files();
        let tls = tls.map(|files| server_config(config, files, versions(config), &alpn));
        let quic = config.quic_files();
        let quic = quic.map(|files| server_config(config, files, ONLY_TLS13, &ALPN_QUIC));
        let dtls = config.dtls_files().map(|files| context(config, files));
        Ok(Self {
            tls: tls.transpose()?.map(Arc::new),
            dtls: dtls.transpose()?,
            quic: quic.transpose()?.map(Arc::new),
        })
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |metadata: Metadata| Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        len: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    };
    files
        .iter()
        .map(|file| fs::metadata(file).ok().map(stamp))
        .collect()
}

/// Returns everything that a handshake needs.
fn server_config(
    config: &Tls,
    (certificate_file, key_file): (&Path, &Path),
    versions: &'static [&'static SupportedProtocolVersion],
    alpn: &[&[u8]],
) -> Result<ServerConfig, String> {
    let provider = Arc::new(provider(config));
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| format!("cipher-list: {error}"))?;
    // guard: V-48-client-certificate
    let builder = match &config.client_authorities {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates("CA-file", file)? {
                roots
                    .add(certificate)
                    .map_err(|error| format!("CA-file {}: {error}", file.display()))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            let verifier = verifier
                .build()
                .map_err(|error| format!("CA-file {}: {error}", file.display()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = certificates("cert", certificate_file)?;
    let mut server = builder
        .with_single_cert(chain, key(config, key_file)?)
        .map_err(|error| {
            format!(
                "cert {} and pkey {}: {error}",
                certificate_file.display(),
                key_file.display()
            )
        })?;
    server.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    // Resumption needs memory that shards would share, or keys that outlive connections; a call makes one handshake.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    // guard: V-95-keys
    server.send_tls13_tickets = 0;
    Ok(server)
}

fn certificates(name: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = read.map_err(|error| format!("{name} {}: {error}", file.display()))?;
    if chain.is_empty() {
        return Err(format!("{name} {}: no certificate in it", file.display()));
    }
    Ok(chain)
}

fn key(config: &Tls, file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let about = |what: &dyn fmt::Display| format!("pkey {}: {what}", file.display());
    // rustls knows nothing of encrypted keys.
    let is_encrypted = fs::read_to_string(file).is_ok_and(|text| text.contains("ENCRYPTED"));
    if !is_encrypted {
        return PrivateKeyDer::from_pem_file(file).map_err(|error| about(&error));
    }
    let key = private_key(file, config.key_password.as_ref())?.private_key_to_pkcs8();
    key.map(|der| PrivateKeyDer::Pkcs8(der.into()))
        .map_err(|error| about(&error))
}

fn versions(config: &Tls) -> &'static [&'static SupportedProtocolVersion] {
    if config.only_tls13 {
        ONLY_TLS13
    } else {
        rustls::DEFAULT_VERSIONS
    }
}

/// Returns AWS-LC with the suites and groups that are wanted, in the order in which they are wanted.
fn provider(config: &Tls) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    let suites = config.cipher_suites.iter();
    provider.cipher_suites = suites.filter_map(|name| suite(name)).collect();
    provider.kx_groups = config
        .groups
        .iter()
        .filter_map(|name| group(name))
        .collect();
    provider
}

/// Returns the suite with one of the names of the configuration's list.
fn suite(name: &str) -> Option<SupportedCipherSuite> {
    use aws_lc_rs::cipher_suite as suites;
    Some(match name {
        "TLS_AES_256_GCM_SHA384" => suites::TLS13_AES_256_GCM_SHA384,
        "TLS_AES_128_GCM_SHA256" => suites::TLS13_AES_128_GCM_SHA256,
        "TLS_CHACHA20_POLY1305_SHA256" => suites::TLS13_CHACHA20_POLY1305_SHA256,
        "ECDHE-ECDSA-AES256-GCM-SHA384" => suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-ECDSA-AES128-GCM-SHA256" => suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-ECDSA-CHACHA20-POLY1305" => suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-RSA-AES256-GCM-SHA384" => suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-RSA-AES128-GCM-SHA256" => suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-RSA-CHACHA20-POLY1305" => suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        _ => return None,
    })
}

/// Returns the name of a suite in the configuration's list.
pub(crate) fn suite_name(suite: CipherSuite) -> Option<&'static str> {
    let mut names = CIPHER_SUITES.into_iter();
    names.find(|name| self::suite(name).is_some_and(|known| known.suite() == suite))
}

/// Returns the group with one of the names of the configuration's list.
fn group(name: &str) -> Option<&'static dyn SupportedKxGroup> {
    use aws_lc_rs::kx_group as groups;
    Some(match name {
        "X25519" => groups::X25519,
        "prime256v1" => groups::SECP256R1,
        "secp384r1" => groups::SECP384R1,
        "X25519MLKEM768" => groups::X25519MLKEM768,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KEY_EXCHANGE_GROUPS;

    #[test]
    fn every_name_that_the_configuration_takes_stands_for_something() {
        for name in CIPHER_SUITES {
            assert!(suite(name).is_some(), "{name}");
        }
        for name in KEY_EXCHANGE_GROUPS {
            assert!(group(name).is_some(), "{name}");
        }
        assert_eq!(CIPHER_SUITES.len(), aws_lc_rs::ALL_CIPHER_SUITES.len());
    }
}
