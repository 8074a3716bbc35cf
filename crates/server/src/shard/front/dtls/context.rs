//! What handshakes are made with: the same files and lists as for TLS, in OpenSSL's form.

use std::fs;
use std::path::Path;
use std::sync::{Arc, RwLock};

use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Private};
use openssl::ssl::{
    AlpnError, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslSessionCacheMode,
    SslVerifyMode, SslVersion, select_next_proto,
};
use openssl::stack::Stack;
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;

use super::session::UNSEEN_COOKIE;
use crate::config::{Secret, Tls};

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
) -> Result<SslContext, String> {
    let mut builder = base(config).map_err(|error| format!("dtls: {error}"))?;
    let belongs = format!("cert {} and pkey {}", certificate.display(), key.display());
    let mut chain = certificates("cert", certificate)?.into_iter();
    let key = private_key(key, config.key_password.as_ref())?;
    let leaf = chain.next().ok_or("cert: no certificate")?;
    let set = |builder: &mut SslContextBuilder| {
        builder.set_certificate(&leaf)?;
        for certificate in chain {
            builder.add_extra_chain_cert(certificate)?;
        }
        builder.set_private_key(&key)?;
        builder.check_private_key()
    };
    set(&mut builder).map_err(|error| format!("{belongs}: {error}"))?;
    if let Some(file) = &config.client_authorities {
        let authorities = certificates("CA-file", file)?;
        require_client_certificate(&mut builder, authorities)
            .map_err(|error| format!("CA-file {}: {error}", file.display()))?;
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
    builder.set_alpn_select_callback(|_, offered| {
        select_next_proto(ALPN, offered).ok_or(AlpnError::ALERT_FATAL)
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

fn certificates(name: &str, file: &Path) -> Result<Vec<X509>, String> {
    let text = read(name, file)?;
    let chain = X509::stack_from_pem(&text)
        .map_err(|error| format!("{name} {}: {error}", file.display()))?;
    if chain.is_empty() {
        return Err(format!("{name} {}: no certificate in it", file.display()));
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
    key.map_err(|error| {
        let what = match (is_encrypted, password) {
            (true, Some(_)) => "it is encrypted with another password than `pkey-pwd`".to_owned(),
            (true, None) => "it is encrypted; give `pkey-pwd`, or decrypt it with `openssl pkey -in FILE -out NEW`".to_owned(),
            (false, _) => error.to_string(),
        };
        format!("pkey {}: {what}", file.display())
    })
}

fn read(name: &str, file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("{name} {}: {error}", file.display()))
}
