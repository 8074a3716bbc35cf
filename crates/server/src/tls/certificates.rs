//! Certificates: read at start, read again when their files change or SIGUSR2 says so, handed to new connections.
//!
//! Invariant: what shards use is a whole, checked set. Files that cannot be read, or do not belong together (a new certificate beside the old
//! key, in the middle of a renewal), leave the set before them in use. Connections keep what they began with.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use openssl::ssl::SslContext;
use openssl::x509::X509;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CipherSuite, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion,
    version,
};

use crate::config::{CIPHER_SUITES, Tls};
use crate::shard::front::dtls::{CurrentDtls, context};
use crate::tls::files::{Pair, certificates, name, validity};

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
    validity: String,
    /// A name that the certificate is for.
    name: Option<String>,
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
            sets:
                Sets {
                    tls,
                    dtls,
                    quic,
                    validity,
                    name,
                },
        } = Self::prepare(config)?;
        Ok(Self {
            config,
            files,
            stamps,
            current: tls.map(|set| Arc::new(RwLock::new(set))),
            current_dtls: dtls.map(|set| Arc::new(RwLock::new(set))),
            current_quic: quic.map(|set| Arc::new(RwLock::new(set))),
            validity,
            name,
        })
    }

    /// Returns a name that the certificate that was read last is for.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Says how long the certificate that was read last is good: a warning if clients refuse it today.
    pub(crate) fn validity(&self) -> &str {
        &self.validity
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
        let sets = Sets::read(&self.config)?;
        self.put(sets);
        Ok(())
    }

    fn put(&mut self, sets: Sets) {
        let Sets {
            tls,
            dtls,
            quic,
            validity,
            name,
        } = sets;
        (self.validity, self.name) = (validity, name);
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
    /// How long the certificate is good.
    validity: String,
    /// A name that the certificate is for.
    name: Option<String>,
}

impl Sets {
    fn read(config: &Tls) -> Result<Self, String> {
        let mut alpn = ALPN.to_vec();
        if config.alpn.has_http {
            alpn.push(HTTP);
        }
        let (tls, dtls, quic) = (config.files(), config.dtls_files(), config.quic_files());
        let Some(files) = tls.or(dtls).or(quic) else {
            return Ok(Self {
                tls: None,
                dtls: None,
                quic: None,
                validity: String::new(),
                name: None,
            });
        };
        // One reading for all, so that all have the same.
        let pair = Pair::read(config, files)?;
        let set = |versions, alpn: &[_]| server_config(config, files.1, &pair, versions, alpn);
        let tls = tls.map(|_| set(versions(config), &alpn));
        let quic = quic.map(|_| set(ONLY_TLS13, &ALPN_QUIC));
        let dtls = dtls.map(|_| context(config, files, &pair));
        Ok(Self {
            tls: tls.transpose()?.map(Arc::new),
            dtls: dtls.transpose()?,
            quic: quic.transpose()?.map(Arc::new),
            name: pair.chain.first().and_then(name),
            validity: pair
                .chain
                .first()
                .map_or_else(String::new, |own| validity(files.0, own)),
        })
    }
}

fn ders(chain: &[X509]) -> Vec<CertificateDer<'static>> {
    let ders = chain.iter().filter_map(|it| it.to_der().ok());
    ders.map(CertificateDer::from).collect()
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
    key_file: &Path,
    pair: &Pair,
    versions: &'static [&'static SupportedProtocolVersion],
    alpn: &[&[u8]],
) -> Result<ServerConfig, String> {
    let provider = Arc::new(provider(config));
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(
            |_| "cipher-list: no suite or group of it fits a version of TLS that is offered",
        )?;
    // guard: V-48-client-certificate
    let builder = match &config.client_authorities {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            let unusable = || {
                format!(
                    "CA-file {}: holds a certificate that cannot be an authority's; `openssl x509 -in FILE -text` shows it",
                    file.display()
                )
            };
            for certificate in ders(&certificates("CA-file", file)?) {
                roots.add(certificate).map_err(|_| unusable())?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
            let verifier = verifier.build().map_err(|_| unusable())?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = ders(&pair.chain);
    let signing = pair.key.private_key_to_pkcs8().ok().and_then(|key| {
        let key = PrivateKeyDer::Pkcs8(key.into());
        provider.key_provider.load_private_key(key).ok()
    });
    let signing = signing.ok_or_else(|| {
        format!(
            "pkey {}: TLS takes no key of this kind; make an ECDSA key (P-256, P-384) or an RSA key of 2,048 to 8,192 bits",
            key_file.display()
        )
    })?;
    let shown = SingleCertAndKey::from(CertifiedKey::new(chain, signing));
    let mut server = builder.with_cert_resolver(Arc::new(shown));
    server.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    // Resumption needs memory that shards would share, or keys that outlive connections; a call makes one handshake.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    // guard: V-95-keys
    server.send_tls13_tickets = 0;
    Ok(server)
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
