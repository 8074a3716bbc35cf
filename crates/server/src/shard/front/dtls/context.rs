//! What handshakes are made with: the same files and lists as for TLS, in OpenSSL's form.

use std::path::Path;
use std::sync::{Arc, RwLock};

use openssl::error::ErrorStack;
use openssl::ssl::{
    AlpnError, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslSessionCacheMode,
    SslVerifyMode, SslVersion, select_next_proto,
};
use openssl::stack::Stack;
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;

use super::session::UNSEEN_COOKIE;
use crate::config::Tls;
use crate::tls::files::{Pair, certificates};

/// The protocols of RFC 7443 as they stand in a hello, each behind its length.
const ALPN: &[u8] = b"\x09stun.turn\x12stun.nat-discovery";

/// The set that new sessions begin with; shared by all shards.
pub(crate) type CurrentDtls = Arc<RwLock<SslContext>>;

/// Makes everything that a handshake needs.
///
/// # Errors
///
/// Which key of the configuration cannot be followed, and why.
pub(crate) fn context(
    config: &Tls,
    (certificate, key): (&Path, &Path),
    pair: &Pair,
) -> Result<SslContext, String> {
    let unusable = |_| "dtls: OpenSSL takes none of the cipher suites or groups; look at `cipher-list` and `ec-curve-name`";
    let mut builder = base(config).map_err(unusable)?;
    let set = |builder: &mut SslContextBuilder| {
        let (leaf, rest) = pair.chain.split_first().ok_or_else(ErrorStack::get)?;
        builder.set_certificate(leaf)?;
        for certificate in rest {
            builder.add_extra_chain_cert(certificate.clone())?;
        }
        builder.set_private_key(&pair.key)?;
        builder.check_private_key()
    };
    set(&mut builder).map_err(|_| {
        format!(
            "cert {} and pkey {}: DTLS takes no certificate or key of this kind; make an ECDSA key (P-256, P-384) or an RSA key of \
             2,048 to 8,192 bits",
            certificate.display(),
            key.display()
        )
    })?;
    if let Some(file) = &config.client_authorities {
        let authorities = certificates("CA-file", file)?;
        require_client_certificate(&mut builder, authorities).map_err(|_| {
            format!(
                "CA-file {}: holds a certificate that cannot be an authority's",
                file.display()
            )
        })?;
    }
    Ok(builder.build())
}

pub(super) fn base(config: &Tls) -> Result<SslContextBuilder, ErrorStack> {
    let mut builder = SslContext::builder(SslMethod::dtls_server())?;
    builder.set_min_proto_version(Some(SslVersion::DTLS1_2))?;
    // A later version has another way with cookies than the one that `cookie.rs` knows.
    builder.set_max_proto_version(Some(SslVersion::DTLS1_2))?;
    builder.set_options(
        SslOptions::COOKIE_EXCHANGE
            | SslOptions::CIPHER_SERVER_PREFERENCE
            | SslOptions::NO_COMPRESSION
            | SslOptions::NO_QUERY_MTU
            | SslOptions::NO_RENEGOTIATION
            | SslOptions::NO_TICKET,
    );
    builder.set_mode(SslMode::RELEASE_BUFFERS);
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    // Those of TLS 1.3 are set in another way, and have no meaning here.
    let of_dtls = |name: &&&str| !name.starts_with("TLS_");
    let suites: Vec<_> = config
        .cipher_suites
        .iter()
        .filter(of_dtls)
        .copied()
        .collect();
    builder.set_cipher_list(&suites.join(":"))?;
    let of_dtls = |name: &&&str| !name.contains("MLKEM");
    let groups: Vec<_> = config.groups.iter().filter(of_dtls).copied().collect();
    builder.set_groups_list(&groups.join(":"))?;
    let otherwise = match config.alpn.serves_any {
        true => AlpnError::NOACK,
        false => AlpnError::ALERT_FATAL,
    };
    builder.set_alpn_select_callback(move |_, offered| {
        select_next_proto(ALPN, offered).ok_or(otherwise)
    });
    // The cookie of the client was checked before there was a session.
    builder.set_cookie_generate_cb(|_, cookie| {
        cookie[..UNSEEN_COOKIE.len()].copy_from_slice(&UNSEEN_COOKIE);
        Ok(UNSEEN_COOKIE.len())
    });
    builder.set_cookie_verify_cb(|_, _| true);
    Ok(builder)
}

fn require_client_certificate(
    builder: &mut SslContextBuilder,
    authorities: Vec<X509>,
) -> Result<(), ErrorStack> {
    let mut store = X509StoreBuilder::new()?;
    let mut names = Stack::new()?;
    for authority in authorities {
        names.push(authority.subject_name().to_owned()?)?;
        store.add_cert(authority)?;
    }
    builder.set_cert_store(store.build());
    builder.set_client_ca_list(names);
    builder.set_session_id_context(b"turnbuckle")?;
    builder.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    Ok(())
}
