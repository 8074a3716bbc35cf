//! Connections to a Redis server: by TCP or by TLS, with name and password, on the chosen database.
//!
//! TLS is OpenSSL's, as in coturn's drivers: the name that a server is asked for need not be the host that is connected to, which the TLS of
//! `redis` does not allow.

use std::fmt;
use std::path::Path;
use std::pin::Pin;

use openssl::error::ErrorStack;
use openssl::ssl::{
    ConnectConfiguration, SslConnector, SslConnectorBuilder, SslFiletype, SslMethod, SslVerifyMode,
};
use openssl::x509::X509VerifyResult;
use openssl::x509::store::X509StoreBuilder;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ErrorKind, ProtocolVersion, RedisConnectionInfo, ServerErrorKind,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_openssl::SslStream;

use super::words::{RedisAddress, RedisTls};
use crate::tls::is_refused;

/// What went wrong with a Redis server. Its text holds no key, value or password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RedisFailure {
    what: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The server is not reached, or does not answer.
    Silence,
    /// The server answers with an error that may pass.
    Error,
    /// The server does not let this user do something.
    NoPermission,
    /// The server refuses this client, or this client the server.
    Refusal,
}

impl RedisFailure {
    fn new(kind: Kind, what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            kind,
        }
    }

    /// Returns the failure that the server is not reached, or does not answer.
    pub(super) fn silence(what: impl Into<String>) -> Self {
        Self::new(Kind::Silence, what)
    }

    /// Returns whether the server is there and has answered.
    pub(super) fn is_answer(&self) -> bool {
        self.kind != Kind::Silence
    }

    /// Returns whether trying again alone does not help.
    pub(super) fn is_permanent(&self) -> bool {
        matches!(self.kind, Kind::NoPermission | Kind::Refusal)
    }
}

impl fmt::Display for RedisFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for RedisFailure {}

impl From<redis::RedisError> for RedisFailure {
    /// Keeps the server's code and leaves out its text, which may repeat what it was sent.
    fn from(error: redis::RedisError) -> Self {
        if error.is_timeout() {
            return Self::silence("the server does not answer in time");
        }
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::new(
                Kind::Refusal,
                "the server refuses the name and the password",
            ),
            ErrorKind::Server(ServerErrorKind::BusyLoading) => {
                Self::new(Kind::Error, "the server is still loading its data")
            }
            ErrorKind::Server(ServerErrorKind::NoPerm) => {
                let what = "the server does not let this user do what is needed (NOPERM)";
                Self::new(Kind::NoPermission, what)
            }
            ErrorKind::Io => Self::silence(error.to_string()),
            _ => match error.code() {
                Some("NOAUTH") => Self::new(Kind::Refusal, "the server wants a password (NOAUTH)"),
                Some(code) => {
                    let what = format!("the server answers with an error ({code})");
                    Self::new(Kind::Error, what)
                }
                None => Self::new(Kind::Error, error.category().to_owned()),
            },
        }
    }
}

/// A stream of bytes to a server.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// What is told of a server's push messages.
pub(super) type Pushed = Box<dyn Fn(redis::PushInfo) + Send + Sync>;

/// A connection to a server. It is closed when this is dropped, even if the server reads nothing.
pub(super) struct RedisConnection {
    connection: MultiplexedConnection,
    driver: JoinHandle<()>,
}

impl Drop for RedisConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl RedisConnection {
    /// Connects to a server by the protocol that every version of it speaks. Must be called within a runtime.
    pub(super) async fn open(address: &RedisAddress) -> Result<Self, RedisFailure> {
        Self::open_as(address, ProtocolVersion::RESP2, None).await
    }

    /// Connects by the protocol that knows push messages, which servers speak from version 6 on.
    pub(super) async fn open_for_pushes(
        address: &RedisAddress,
        pushed: Pushed,
    ) -> Result<Self, RedisFailure> {
        Self::open_as(address, ProtocolVersion::RESP3, Some(pushed)).await
    }

    async fn open_as(
        address: &RedisAddress,
        protocol: ProtocolVersion,
        pushed: Option<Pushed>,
    ) -> Result<Self, RedisFailure> {
        let opening = Self::open_without_bound(address, protocol, pushed);
        tokio::time::timeout(address.timeout, opening)
            .await
            .unwrap_or_else(|_| Err(RedisFailure::silence("the server does not answer in time")))
    }

    async fn open_without_bound(
        address: &RedisAddress,
        protocol: ProtocolVersion,
        pushed: Option<Pushed>,
    ) -> Result<Self, RedisFailure> {
        let mut info = RedisConnectionInfo::default()
            .set_protocol(protocol)
            .set_skip_set_lib_name();
        if let Some(user) = &address.user {
            info = info.set_username(user);
        }
        let password = address.password.as_ref().map(crate::Secret::expose);
        if let Some(password) = password.or_else(|| address.user.as_ref().map(|_| &b""[..])) {
            // The string that it comes from is text.
            info = info.set_password(String::from_utf8_lossy(password));
        }
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(address.timeout))
            .set_response_timeout(Some(address.timeout));
        if let Some(pushed) = pushed {
            config = config.set_push_sender(move |push| {
                pushed(push);
                Ok::<(), ()>(())
            });
        }
        let stream = stream(address).await?;
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&info, stream, config).await?;
        let mut opened = Self {
            connection,
            driver: tokio::spawn(driver),
        };
        if address.database != 0 {
            opened.select(address.database).await?;
        }
        // A server that hangs accepts connections, and one that wants a password says so at the first command only.
        opened.heartbeat().await?;
        Ok(opened)
    }

    async fn select(&mut self, database: u32) -> Result<(), RedisFailure> {
        let selected = self
            .ask::<redis::Value>(redis::cmd("SELECT").arg(database))
            .await;
        selected
            .map(drop)
            .map_err(|failure| match failure.what.ends_with("(ERR)") {
                true => RedisFailure::new(
                    Kind::Refusal,
                    format!("the server has no database {database}"),
                ),
                false => failure,
            })
    }

    /// Sends one command and returns its answer.
    pub(super) async fn ask<T: redis::FromRedisValue>(
        &mut self,
        command: &redis::Cmd,
    ) -> Result<T, RedisFailure> {
        Ok(command.query_async(&mut self.connection).await?)
    }

    /// Asks for a sign of life: any answer but that a password is missing.
    pub(super) async fn heartbeat(&mut self) -> Result<(), RedisFailure> {
        match self.ask::<redis::Value>(&redis::cmd("PING")).await {
            Err(failure) if matches!(failure.kind, Kind::Silence | Kind::Refusal) => Err(failure),
            _ => Ok(()),
        }
    }

    /// Sends several commands and looks at none of their answers, unless one is an error.
    pub(super) async fn carry_out(
        &mut self,
        pipeline: &redis::Pipeline,
    ) -> Result<(), RedisFailure> {
        Ok(pipeline.query_async(&mut self.connection).await?)
    }

    /// Sends several commands at once and returns their answers. A command that fails has an error in its place.
    pub(super) async fn ask_each(
        &mut self,
        pipeline: &mut redis::Pipeline,
    ) -> Result<Vec<redis::RedisResult<redis::Value>>, RedisFailure> {
        pipeline.ignore_errors();
        Ok(pipeline.query_async(&mut self.connection).await?)
    }
}

/// Connects a stream to the server, and protects it if the address says so.
async fn stream(address: &RedisAddress) -> Result<Box<dyn Stream>, RedisFailure> {
    let connected = TcpStream::connect((address.host.as_str(), address.port)).await;
    let stream = connected.map_err(|error| RedisFailure::silence(error.to_string()))?;
    // Small commands wait for their answers.
    let _ = stream.set_nodelay(true);
    let Some(tls) = &address.tls else {
        return Ok(Box::new(stream));
    };
    let name = tls.server_name.as_deref().unwrap_or(&address.host);
    let ssl = configured(tls)?
        .into_ssl(name)
        .map_err(|error| RedisFailure::new(Kind::Refusal, format!("TLS: {error}")))?;
    let mut stream = SslStream::new(ssl, stream)
        .map_err(|error| RedisFailure::new(Kind::Refusal, format!("TLS: {error}")))?;
    if let Err(error) = Pin::new(&mut stream).connect().await {
        let verdict = stream.ssl().verify_result();
        return Err(match verdict {
            X509VerifyResult::OK => failed(&error),
            bad => RedisFailure::new(
                Kind::Refusal,
                format!("TLS: the server's certificate: {}", bad.error_string()),
            ),
        });
    }
    await_life(&mut stream)
        .await
        .map_err(|error| failed(&error))?;
    Ok(Box::new(stream))
}

/// Waits for any answer to a command: what the server thinks of our certificate it says after the handshake (RFC 8446 §4.4.2), and `redis` would not
/// say it further.
async fn await_life(stream: &mut SslStream<TcpStream>) -> std::io::Result<()> {
    stream.write_all(b"PING\r\n").await?;
    while stream.read_u8().await? != b'\n' {}
    Ok(())
}

/// Says of an error of TLS, other than one with the server's certificate, whether it will pass.
fn failed(error: &(dyn std::error::Error + 'static)) -> RedisFailure {
    let kind = match is_refused(error) {
        true => Kind::Refusal,
        false => Kind::Silence,
    };
    RedisFailure::new(kind, format!("TLS: {error}"))
}

/// Returns OpenSSL's settings for one connection.
fn configured(tls: &RedisTls) -> Result<ConnectConfiguration, RedisFailure> {
    let failed = |error: ErrorStack| RedisFailure::new(Kind::Refusal, format!("TLS: {error}"));
    let mut builder = SslConnector::builder(SslMethod::tls_client()).map_err(failed)?;
    trust(&mut builder, tls)?;
    if let (Some(certificate), Some(key)) = (&tls.certificate, &tls.key) {
        builder
            .set_certificate_chain_file(certificate)
            .map_err(|error| unreadable("cert", certificate, &error))?;
        builder
            .set_private_key_file(key, SslFiletype::PEM)
            .map_err(|error| unreadable("clientkey", key, &error))?;
    }
    if !tls.is_verified {
        builder.set_verify(SslVerifyMode::NONE);
    }
    let mut configured = builder.build().configure().map_err(failed)?;
    configured.set_verify_hostname(tls.is_verified);
    Ok(configured)
}

/// Trusts the named authorities alone; if none is named, those of the machine.
fn trust(builder: &mut SslConnectorBuilder, tls: &RedisTls) -> Result<(), RedisFailure> {
    let (file, directory) = (tls.ca.as_deref(), tls.ca_directory.as_deref());
    let Some(named) = file.or(directory) else {
        return Ok(());
    };
    let empty = X509StoreBuilder::new().map_err(|error| unreadable("ca", named, &error))?;
    builder.set_cert_store(empty.build());
    builder
        .load_verify_locations(file, directory)
        .map_err(|error| unreadable("ca", named, &error))
}

fn unreadable(key: &str, path: &Path, error: &ErrorStack) -> RedisFailure {
    RedisFailure::new(
        Kind::Refusal,
        format!("TLS: {key} {}: {error}", path.display()),
    )
}
