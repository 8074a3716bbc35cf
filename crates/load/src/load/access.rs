//! By what clients reach the server, and what they make of its certificate.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use openssl::ssl::{SslContext, SslMethod, SslOptions, SslSessionCacheMode, SslVerifyMode};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;

use crate::authorities::trusting;
use turnbuckle_client::certificates::{self, Signatures};
use turnbuckle_client::{Credentials, Transport};

/// RFC 7443 §3.
const ALPN: &[u8] = b"stun.turn";
/// RFC 9114 §3.1.
const ALPN_HTTP3: &[u8] = b"h3";

/// By what a thread's clients reach the server.
#[derive(Clone, Debug)]
pub(super) enum Access {
    Udp,
    Tcp,
    Tls(Tls),
    Dtls(Dtls),
    Masque(Masque),
}

/// What a client of HTTP/3 is told at start.
#[derive(Clone, Debug)]
pub(super) struct Masque {
    pub(super) config: Arc<ClientConfig>,
    /// Whose certificate it must be, and SNI.
    pub(super) name: String,
    pub(super) asking: Asking,
    /// Tunnels of each connection.
    pub(super) tunnels: u32,
    /// Where tunnels lead, in turn.
    pub(super) targets: Vec<SocketAddr>,
}

/// What requests for tunnels have in common.
#[derive(Clone, Default)]
pub(super) struct Asking {
    /// Host and port of the server.
    pub(super) authority: String,
    /// Name and password.
    pub(super) user: (String, String),
}

impl fmt::Debug for Asking {
    /// Leaves the password out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asking")
            .field("authority", &self.authority)
            .finish_non_exhaustive()
    }
}

impl Masque {
    /// Prepares tunnels of `user` by `server`, whose certificate one of the authorities in `ca_file` must have given to `tls_name`.
    ///
    /// # Errors
    /// What is wrong with the file of authorities, or the name; a user without a password.
    pub(super) fn new(
        (server, tls_name): (SocketAddr, Option<&str>),
        ca_file: Option<&Path>,
        user: &Credentials,
        tunnels: u32,
        targets: Vec<SocketAddr>,
    ) -> anyhow::Result<Self> {
        let password = user.password().context("tunnels need a password")?;
        Ok(Self {
            config: Arc::new(config(ca_file, ALPN_HTTP3)?),
            name: name(tls_name, server)?.to_str().into_owned(),
            asking: Asking {
                authority: match tls_name {
                    Some(name) => format!("{name}:{}", server.port()),
                    None => server.to_string(),
                },
                user: (user.username().to_owned(), password.to_owned()),
            },
            tunnels,
            targets,
        })
    }

    /// Returns where the tunnel of a client leads.
    pub(super) fn target(&self, client: u32) -> Option<SocketAddr> {
        let place = usize::try_from(client).ok()? % self.targets.len().max(1);
        self.targets.get(place).copied()
    }
}

/// What a DTLS client is told at start.
#[derive(Clone)]
pub(super) struct Dtls {
    pub(super) context: SslContext,
    /// Whose certificate it must be, a domain name or an address.
    pub(super) name: String,
}

impl fmt::Debug for Dtls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dtls")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What a TLS client is told at start.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub(super) config: Arc<ClientConfig>,
    /// Whose certificate it must be, and SNI.
    pub(super) name: ServerName<'static>,
}

impl Access {
    /// Prepares a way to `server`, whose certificate one of the authorities in `ca_file` must have given to `tls_name`.
    ///
    /// # Errors
    /// What is wrong with the file of authorities, or the name.
    pub(super) fn new(
        transport: Transport,
        server: Option<SocketAddr>,
        ca_file: Option<&Path>,
        tls_name: Option<&str>,
    ) -> anyhow::Result<Self> {
        let name = || name(tls_name, server.context("keys without a server")?);
        Ok(match transport {
            Transport::Udp => Self::Udp,
            Transport::Tcp => Self::Tcp,
            Transport::Tls => Self::Tls(Tls {
                config: Arc::new(config(ca_file, ALPN)?),
                name: name()?,
            }),
            Transport::Dtls => Self::Dtls(Dtls {
                context: context(ca_file)?,
                // Checked in the same way for both.
                name: name()?.to_str().into_owned(),
            }),
        })
    }
}

fn name(name: Option<&str>, server: SocketAddr) -> anyhow::Result<ServerName<'static>> {
    match name {
        None => Ok(ServerName::IpAddress(server.ip().into())),
        Some(name) => ServerName::try_from(name.to_owned())
            .with_context(|| format!("--tls-name {name}: allowed: a domain name or an address")),
    }
}

fn config(authorities: Option<&Path>, alpn: &[u8]) -> anyhow::Result<ClientConfig> {
    let mut config = match authorities {
        None => certificates::taking_any(Signatures::Checked)?,
        Some(file) => trusting(file)?,
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    // Each connection is a client of its own, which the server has not met before.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn context(authorities: Option<&Path>) -> anyhow::Result<SslContext> {
    let mut builder = SslContext::builder(SslMethod::dtls_client())?;
    builder.set_options(SslOptions::NO_QUERY_MTU | SslOptions::NO_TICKET);
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    builder.set_alpn_protos(&[&[9], ALPN].concat())?;
    match authorities {
        None => builder.set_verify(SslVerifyMode::NONE),
        Some(file) => {
            builder.set_verify(SslVerifyMode::PEER);
            builder
                .set_ca_file(file)
                .with_context(|| format!("--ca-file {}", file.display()))?;
        }
    }
    Ok(builder.build())
}
