//! Certificates of the bench: files, or one that is made for the run and that nobody trusts.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use openssl::asn1::Asn1Time;
use openssl::bn::BigNum;
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::{X509, X509NameBuilder};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use turnbuckle_client::certificates::{self, Signatures};

use super::exchange::ALPN;
use crate::authorities::trusting;

/// Returns the server's configuration.
///
/// # Errors
/// What is wrong with the files.
pub(super) fn server(files: Option<(&Path, &Path)>) -> anyhow::Result<Arc<rustls::ServerConfig>> {
    let (chain, key) = match files {
        None => made()?,
        Some((certificates, key)) => {
            let problem = || format!("--cert {}", certificates.display());
            let chain = CertificateDer::pem_file_iter(certificates).with_context(problem)?;
            let chain = chain.collect::<Result<Vec<_>, _>>().with_context(problem)?;
            let read = PrivateKeyDer::from_pem_file(key);
            (
                chain,
                read.with_context(|| format!("--key {}", key.display()))?,
            )
        }
    };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("certificate and key")?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// Returns the client's configuration: it takes the certificates of these authorities, or without them any.
///
/// # Errors
/// What is wrong with the file.
pub(super) fn client(authorities: Option<&Path>) -> anyhow::Result<Arc<rustls::ClientConfig>> {
    let mut config = match authorities {
        None => certificates::taking_any(Signatures::Checked)?,
        Some(file) => trusting(file)?,
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Each handshake is measured whole.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Makes a certificate for a day, ECDSA with P-256.
fn made() -> anyhow::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    let key = PKey::from_ec_key(EcKey::generate(&group)?)?;
    let mut name = X509NameBuilder::new()?;
    name.append_entry_by_nid(Nid::COMMONNAME, "turnbuckle quic-server")?;
    let name = name.build();
    let mut certificate = X509::builder()?;
    certificate.set_version(2)?;
    // It must be positive (RFC 5280 §4.1.2.2).
    certificate.set_serial_number(BigNum::from_u32(1)?.to_asn1_integer()?.as_ref())?;
    certificate.set_subject_name(&name)?;
    certificate.set_issuer_name(&name)?;
    certificate.set_pubkey(&key)?;
    certificate.set_not_before(Asn1Time::days_from_now(0)?.as_ref())?;
    certificate.set_not_after(Asn1Time::days_from_now(1)?.as_ref())?;
    certificate.sign(&key, MessageDigest::sha256())?;
    let certificate = CertificateDer::from(certificate.build().to_der()?);
    let key = PrivatePkcs8KeyDer::from(key.private_key_to_pkcs8()?);
    Ok((vec![certificate], key.into()))
}
