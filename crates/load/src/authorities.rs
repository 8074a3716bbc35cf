//! The authorities whose certificates a client takes.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// Returns a configuration that takes certificates of the authorities in `file` alone.
///
/// # Errors
/// What is wrong with the file.
pub(crate) fn trusting(file: &Path) -> anyhow::Result<ClientConfig> {
    let problem = || format!("--ca-file {}", file.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).with_context(problem)? {
        roots
            .add(certificate.with_context(problem)?)
            .with_context(problem)?;
    }
    anyhow::ensure!(!roots.is_empty(), "{}: no certificate in it", problem());
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    Ok(builder.with_no_client_auth())
}
