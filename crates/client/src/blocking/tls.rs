//! TLS and DTLS of a client that accepts any certificate, by OpenSSL.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use openssl::ssl::{
    Error as SslError, ErrorCode, Ssl, SslContext, SslMethod, SslOptions, SslStream, SslVerifyMode,
};

/// How long a handshake may take.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);
/// How long a handshake waits before something is sent again.
pub(super) const FLIGHT_WAIT: Duration = Duration::from_millis(300);

/// The client's side of TLS and DTLS. Whose certificate a server shows does not matter to an attacker.
pub struct Contexts {
    tls: SslContext,
    dtls: SslContext,
}

impl Contexts {
    /// Returns the client's side of TLS and DTLS.
    ///
    /// # Errors
    /// OpenSSL has no memory.
    pub fn new() -> io::Result<Self> {
        let context = |method| {
            let mut builder = SslContext::builder(method)?;
            builder.set_verify(SslVerifyMode::NONE);
            builder.set_options(SslOptions::NO_QUERY_MTU);
            io::Result::Ok(builder.build())
        };
        Ok(Self {
            tls: context(SslMethod::tls_client())?,
            dtls: context(SslMethod::dtls_client())?,
        })
    }

    /// Returns what DTLS sessions are made of.
    pub fn dtls(&self) -> &SslContext {
        &self.dtls
    }

    /// Returns the client's side of a TLS connection.
    ///
    /// # Errors
    /// OpenSSL has no memory.
    pub fn tls_client(&self) -> io::Result<Ssl> {
        client(&self.tls)
    }

    /// Completes the handshake of a connection.
    ///
    /// # Errors
    /// The server refuses, or does not answer in five seconds.
    pub fn shake_hands(&self, stream: TcpStream) -> io::Result<SslStream<TcpStream>> {
        let mut stream = SslStream::new(self.tls_client()?, stream).map_err(io::Error::other)?;
        stream.get_ref().set_read_timeout(Some(FLIGHT_WAIT))?;
        shake_hands(&mut stream, HANDSHAKE_WAIT)?;
        Ok(stream)
    }

    /// Returns the first flight of a TLS client.
    ///
    /// # Errors
    /// OpenSSL has no memory.
    pub fn client_hello(&self) -> io::Result<Vec<u8>> {
        let mut stream = SslStream::new(self.tls_client()?, Written(Vec::new()))?;
        let _ = stream.do_handshake();
        Ok(std::mem::take(&mut stream.get_mut().0))
    }
}

/// Takes what is written, and has nothing to read.
#[derive(Debug)]
struct Written(Vec<u8>);

impl Read for Written {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(ErrorKind::WouldBlock.into())
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a client that has said nothing yet.
pub(super) fn client(context: &SslContext) -> io::Result<Ssl> {
    let mut ssl = Ssl::new(context)?;
    ssl.set_connect_state();
    Ok(ssl)
}

/// Completes the handshake.
///
/// # Errors
/// The server refuses, or does not answer in `wait`.
pub(super) fn shake_hands<S: Read + Write>(
    stream: &mut SslStream<S>,
    wait: Duration,
) -> io::Result<()> {
    let deadline = Instant::now() + wait;
    loop {
        match stream.do_handshake() {
            Ok(()) => return Ok(()),
            Err(error) if is_waiting(&error) && Instant::now() < deadline => {}
            Err(error) if is_waiting(&error) => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// Converts OpenSSL's error of a read to that of a socket.
pub(super) fn received(read: Result<usize, SslError>) -> io::Result<usize> {
    match read {
        Ok(len) => Ok(len),
        Err(error) if is_waiting(&error) => Err(ErrorKind::WouldBlock.into()),
        Err(error) if error.code() == ErrorCode::ZERO_RETURN => Ok(0),
        Err(error) => Err(io::Error::other(error)),
    }
}

fn is_waiting(error: &SslError) -> bool {
    matches!(error.code(), ErrorCode::WANT_READ | ErrorCode::WANT_WRITE)
}
