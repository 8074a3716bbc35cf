//! TLS of the metrics listener.
//!
//! The files are looked at when a connection comes, so that a certificate that was renewed counts without a restart. What cannot be read then leaves
//! what was read last.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use openssl::pkey::PKey;
use openssl::x509::X509;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::TlsAcceptor;
use turnbuckle_server::config::{Config, Secret};

/// What connections are protected with.
pub(crate) struct Tls {
    files: Files,
    current: Mutex<Current>,
}

/// Certificate, key, and what the key is encrypted with.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    password: Option<Secret>,
}

/// What was read last, and of which times the files were.
struct Current {
    acceptor: TlsAcceptor,
    modified: [Option<SystemTime>; 2],
}

impl Tls {
    /// Reads certificate and key, if metrics are to be protected.
    ///
    /// # Errors
    ///
    /// Which of them there is not, or what is wrong with them.
    pub(crate) fn load(config: &Config) -> Result<Option<Self>, String> {
        let exporter = &config.process.exporter;
        if !exporter.has_tls {
            return Ok(None);
        }
        let own = exporter.certificate.as_ref().zip(exporter.key.as_ref());
        let (certificate, key) = own
            .or_else(|| config.tls.certificate.as_ref().zip(config.tls.key.as_ref()))
            .ok_or("prometheus-tls: there is neither `prometheus-cert` and `prometheus-key` nor `cert` and `pkey`")?;
        let files = Files {
            certificate: certificate.clone(),
            key: key.clone(),
            password: config.tls.key_password.clone(),
        };
        let current = Mutex::new(files.read()?);
        Ok(Some(Self { files, current }))
    }

    /// Returns what a connection that comes now is protected with.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.modified != self.files.modified()
            && let Ok(read) = self.files.read()
        {
            *current = read;
        }
        current.acceptor.clone()
    }
}

impl Files {
    fn modified(&self) -> [Option<SystemTime>; 2] {
        [&self.certificate, &self.key].map(|file| fs::metadata(file).ok()?.modified().ok())
    }

    fn read(&self) -> Result<Current, String> {
        let modified = self.modified();
        let about = |file: &Path, what: &dyn std::fmt::Display| {
            format!("prometheus-tls: {}: {what}", file.display())
        };
        let text = |file: &Path| fs::read(file).map_err(|error| about(file, &error));
        let no_certificate = "holds no certificate in PEM form";
        let chain = X509::stack_from_pem(&text(&self.certificate)?)
            .ok()
            .filter(|chain| !chain.is_empty())
            .ok_or_else(|| about(&self.certificate, &no_certificate))?;
        let own = chain.first().and_then(|own| own.public_key().ok());
        let chain: Result<Vec<_>, _> = chain.iter().map(|it| it.to_der()).collect();
        let chain = chain.map_err(|_| about(&self.certificate, &no_certificate))?;
        // OpenSSL would ask a terminal for a password that is not given.
        let password = self.password.as_ref().map_or(&b""[..], Secret::expose);
        let key =
            PKey::private_key_from_pem_passphrase(&text(&self.key)?, password).map_err(|_| {
                about(
                    &self.key,
                    &"holds no private key, or one with another password",
                )
            })?;
        if !own.is_some_and(|own| own.public_eq(&key)) {
            let what = format!(
                "is not the key of the first certificate in {}; give the key that it was made with",
                self.certificate.display()
            );
            return Err(about(&self.key, &what));
        }
        // The listener shows its certificate and does not judge it.
        let provider = Arc::new(default_provider());
        let signing = key.private_key_to_pkcs8().ok().and_then(|der| {
            let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der));
            provider.key_provider.load_private_key(der).ok()
        });
        let signing = signing.ok_or_else(|| {
            let what = "TLS takes no key of this kind; make an ECDSA key (P-256, P-384) or an RSA key of 2,048 to 8,192 bits";
            about(&self.key, &what)
        })?;
        let chain = chain.into_iter().map(CertificateDer::from).collect();
        let shown = SingleCertAndKey::from(CertifiedKey::new(chain, signing));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("prometheus-tls: {error}"))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(shown));
        Ok(Current {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            modified,
        })
    }
}
