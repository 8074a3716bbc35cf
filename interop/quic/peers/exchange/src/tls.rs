//! Clients that take any certificate, and know whether they were shown one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CipherSuite, DigitallySignedStruct};

use crate::ALPN;

/// A cipher suite of TLS 1.3.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Suite {
    Aes128,
    Aes256,
    Chacha20,
}

/// What a client offers.
pub struct Client {
    pub config: rustls::ClientConfig,
    shown: Arc<AtomicU32>,
}

impl Client {
    /// Makes a client with one suite or all, which resumes sessions or does not.
    pub fn new(suite: Option<Suite>, resumes: bool) -> anyhow::Result<Self> {
        let mut provider = aws_lc_rs::default_provider();
        if let Some(suite) = suite {
            let only = match suite {
                Suite::Aes128 => CipherSuite::TLS13_AES_128_GCM_SHA256,
                Suite::Aes256 => CipherSuite::TLS13_AES_256_GCM_SHA384,
                Suite::Chacha20 => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
            };
            provider.cipher_suites.retain(|suite| suite.suite() == only);
        }
        let (provider, shown) = (Arc::new(provider), Arc::default());
        let any = Any {
            provider: Arc::clone(&provider),
            shown: Arc::clone(&shown),
        };
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(any))
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = if resumes { Resumption::in_memory_sessions(16) } else { Resumption::disabled() };
        Ok(Self { config, shown })
    }

    /// Returns how many certificates it was shown: none for a session that was resumed.
    pub fn shown(&self) -> u32 {
        self.shown.load(Ordering::Relaxed)
    }
}

/// Takes any certificate whose key signed the handshake.
#[derive(Debug)]
struct Any {
    provider: Arc<CryptoProvider>,
    shown: Arc<AtomicU32>,
}

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.shown.fetch_add(1, Ordering::Relaxed);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("QUIC has TLS 1.3 only".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
