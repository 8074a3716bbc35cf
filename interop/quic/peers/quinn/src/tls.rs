//! The server's certificate, which is made for the run.

use std::sync::Arc;

use exchange::ALPN;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

pub(crate) fn server() -> anyhow::Result<rustls::ServerConfig> {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(certified.cert)], key.into())?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(config)
}
