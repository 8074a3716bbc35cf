//! A client's end of a stream, whose bytes are cut into messages by their length fields.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use openssl::ssl::SslStream;
use rustls::{ClientConnection, StreamOwned};
use socket2::{Domain, Socket, Type};

use super::message::first_message;
use super::received::{Received, is_transient};
use super::tls;

/// How long a connection may take, and a write.
const CONNECT_WAIT: Duration = Duration::from_secs(2);
const WRITE_WAIT: Duration = Duration::from_secs(5);

/// What carries bytes both ways.
pub trait Carrier {
    /// Reads what comes next, as far as there is room; nothing at the end.
    ///
    /// # Errors
    /// The connection has failed, or nothing comes in `wait`.
    fn read_within(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<usize>;

    /// Writes all of it.
    ///
    /// # Errors
    /// The connection has failed.
    fn write_out(&mut self, bytes: &[u8]) -> io::Result<()>;
}

impl Carrier for TcpStream {
    fn read_within(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<usize> {
        self.set_read_timeout(Some(wait))?;
        self.read(buffer)
    }

    fn write_out(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }
}

impl Carrier for SslStream<TcpStream> {
    fn read_within(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<usize> {
        self.get_ref().set_read_timeout(Some(wait))?;
        tls::received(self.ssl_read(buffer))
    }

    fn write_out(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }
}

impl Carrier for StreamOwned<ClientConnection, TcpStream> {
    fn read_within(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<usize> {
        self.sock.set_read_timeout(Some(wait))?;
        self.read(buffer)
    }

    fn write_out(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)?;
        self.flush()
    }
}

/// A connection to a server.
pub struct Stream {
    carrier: Box<dyn Carrier>,
    /// What came and is no whole message yet.
    unread: Vec<u8>,
}

impl Stream {
    /// Returns a stream of messages over a connection that stands.
    pub fn new(carrier: impl Carrier + 'static) -> Self {
        Self {
            carrier: Box::new(carrier),
            unread: Vec::new(),
        }
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.carrier.write_out(bytes)
    }

    /// Reads the next whole message.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn receive(&mut self, wait: Duration) -> io::Result<Received> {
        let deadline = Instant::now() + wait;
        let mut buffer = [0; 65536];
        loop {
            if let Some(message) = first_message(&mut self.unread) {
                return Ok(Received::Message(message));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Received::Nothing);
            }
            match self.carrier.read_within(&mut buffer, left) {
                Ok(0) => return Ok(Received::End),
                Ok(len) => self
                    .unread
                    .extend_from_slice(buffer.get(..len).unwrap_or_default()),
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads what comes until the server closes the connection, or resets it; `None` if it does not in `wait`.
    pub fn read_to_end(&mut self, wait: Duration) -> Option<Vec<u8>> {
        let deadline = Instant::now() + wait;
        let mut bytes = std::mem::take(&mut self.unread);
        let mut buffer = [0; 4096];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            match self.carrier.read_within(&mut buffer, left) {
                Ok(0) => return Some(bytes),
                Ok(len) => bytes.extend_from_slice(buffer.get(..len).unwrap_or_default()),
                Err(error) if is_transient(&error) => {}
                // Closed with bytes of ours unread.
                Err(_) => return Some(bytes),
            }
        }
    }

    /// Returns the bytes that were read and belong to no message returned so far.
    pub fn into_unread(self) -> Vec<u8> {
        self.unread
    }
}

/// Connects by TCP.
///
/// # Errors
/// What the system says: nobody listens, no route, no answer in two seconds.
pub fn tcp(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, CONNECT_WAIT)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_WAIT))?;
    Ok(stream)
}

/// Connects by TCP from an address of this host.
///
/// # Errors
/// What the system says: no such address, nobody listens, no answer in `wait`.
pub fn tcp_from(
    source: Option<IpAddr>,
    server: SocketAddr,
    wait: Duration,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    if let Some(source) = source {
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect_timeout(&server.into(), wait)?;
    let stream = TcpStream::from(socket);
    stream.set_write_timeout(Some(wait))?;
    Ok(stream)
}
