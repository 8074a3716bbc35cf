//! What a connection carries before it is closed: nothing, as with the originals, a TLS handshake, a STUN Binding, or both.
//!
//! The kernel completes the connections that wait for a server, so that `connect` succeeds whether the server lives or not. An answer says that it has
//! accepted the connection and served it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Stream};
use turnbuckle_wire::{Class, HEADER_LEN, Message, MessageWriter, Method, TransactionId};

use turnbuckle_client::certificates::{self, Signatures};

/// How long an answer may take: clients of relays give up after about as much.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What each connection carries.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    tls: Option<Arc<ClientConfig>>,
    binding: bool,
}

impl Exchange {
    /// Prepares a TLS handshake if `tls` says so, and a STUN Binding transaction if `binding` does.
    ///
    /// # Errors
    /// The cryptographic library offers no version of TLS.
    pub(super) fn new(tls: bool, binding: bool) -> anyhow::Result<Self> {
        let tls = match tls {
            true => Some(Arc::new(certificates::taking_any(Signatures::Taken)?)),
            false => None,
        };
        Ok(Self { tls, binding })
    }

    /// Carries it over a connection that stands.
    ///
    /// # Errors
    /// What the socket says; `EPROTO` for an answer that is none, `ETIMEDOUT` without one.
    pub(super) fn with(&self, socket: OwnedFd, target: SocketAddrV4) -> Result<OwnedFd, Errno> {
        if self.tls.is_none() && !self.binding {
            return Ok(socket);
        }
        let mut socket = TcpStream::from(socket);
        self.carry(&mut socket, target).map_err(errno)?;
        Ok(socket.into())
    }

    fn carry(&self, socket: &mut TcpStream, target: SocketAddrV4) -> io::Result<()> {
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_nodelay(true)?;
        let Some(config) = &self.tls else {
            return ask(socket);
        };
        let name = ServerName::from(IpAddr::from(*target.ip()));
        let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(socket)?;
        }
        match self.binding {
            true => ask(&mut Stream::new(&mut tls, socket)),
            false => Ok(()),
        }
    }
}

/// Asks for a Binding and reads the answer (RFC 8489 §3).
fn ask(stream: &mut (impl Read + Write)) -> io::Result<()> {
    let mut transaction = [0; 12];
    getrandom::fill(&mut transaction).map_err(io::Error::other)?;
    let transaction = TransactionId::new(transaction);
    let mut buffer = [0; ANSWER_LEN_MAX];
    let writer = MessageWriter::new(&mut buffer, Class::Request, Method::BINDING, transaction);
    let request = writer.finish().map_err(io::Error::other)?;
    stream.write_all(&buffer[..request])?;
    stream.flush()?;
    let (header, rest) = buffer.split_at_mut(HEADER_LEN);
    stream.read_exact(header)?;
    let rest_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let rest = rest.get_mut(..rest_len).ok_or(Errno::PROTO)?;
    stream.read_exact(rest)?;
    match Message::parse(&buffer[..HEADER_LEN + rest_len]) {
        Ok(answer)
            if answer.class() == Class::Success && answer.transaction_id() == transaction =>
        {
            Ok(())
        }
        _ => Err(Errno::PROTO.into()),
    }
}

/// Attributes of an answer to Binding are an address and the name of the software.
const ANSWER_LEN_MAX: usize = 1024;

fn errno(error: io::Error) -> Errno {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Errno::TIMEDOUT,
        ErrorKind::UnexpectedEof => Errno::CONNRESET,
        _ => Errno::from_io_error(&error).unwrap_or(Errno::PROTO),
    }
}
