//! The transport of messages to a server: a datagram socket or a connection, with or without encryption.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::dtls;
use super::received::{Received, is_transient};
use super::stream::{Stream, tcp};
use super::tls::Contexts;
use crate::transport::Transport;

/// How long a handshake of DTLS may take.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);

/// A UDP socket of a client.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    server: SocketAddr,
    /// Stands in front of each datagram, as a proxy puts it there.
    pub prefix: Vec<u8>,
}

impl Datagrams {
    /// Returns a client of `server`. A socket that is not connected also receives datagrams from others, and reports them as an error.
    pub fn new(socket: UdpSocket, server: SocketAddr) -> Self {
        Self {
            socket,
            server,
            prefix: Vec::new(),
        }
    }

    /// Returns the socket.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = match self.prefix.is_empty() {
            true => self.socket.send_to(bytes, self.server),
            false => {
                let datagram = [&self.prefix, bytes].concat();
                self.socket.send_to(&datagram, self.server)
            }
        };
        sent.map(|_| ())
    }

    fn receive(&self, wait: Duration) -> io::Result<Received> {
        let deadline = Instant::now() + wait;
        let mut buffer = [0; 65536];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Received::Nothing);
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.recv_from(&mut buffer) {
                Ok((_, from)) if from != self.server => {
                    let text = format!("{from} speaks to a client of {}", self.server);
                    return Err(io::Error::new(ErrorKind::InvalidData, text));
                }
                Ok((len, _)) => {
                    let bytes = buffer.get(..len).unwrap_or_default();
                    return Ok(Received::Message(bytes.to_vec()));
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// An open transport to a server.
pub enum Link {
    /// Each message a datagram.
    Udp(Datagrams),
    /// One message behind the other, over TCP or TLS.
    Stream(Stream),
    /// Each message a record.
    Dtls(Box<dtls::DtlsSession>),
}

impl Link {
    /// Opens one, handshake included.
    ///
    /// # Errors
    /// The error of the system, or the server's refusal of a handshake.
    pub fn open(contexts: &Contexts, transport: Transport, server: SocketAddr) -> io::Result<Self> {
        match transport {
            Transport::Udp => Ok(Self::Udp(Datagrams::new(udp(None, server)?, server))),
            Transport::Tcp => tcp(server).map(Stream::new).map(Self::Stream),
            Transport::Tls => {
                let stream = contexts.shake_hands(tcp(server)?)?;
                Ok(Self::Stream(Stream::new(stream)))
            }
            Transport::Dtls => Ok(Self::Dtls(Box::new(dtls_from(contexts, None, server)?))),
        }
    }

    /// Sends bytes as they are: as one datagram, or behind those sent before.
    ///
    /// # Errors
    /// The error of the system; the session has ended.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Udp(datagrams) => datagrams.send(bytes),
            Self::Stream(stream) => stream.send(bytes),
            Self::Dtls(session) => session.send(bytes),
        }
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// The connection, or the session, has failed.
    pub fn receive(&mut self, wait: Duration) -> io::Result<Received> {
        match self {
            Self::Udp(datagrams) => datagrams.receive(wait),
            Self::Stream(stream) => stream.receive(wait),
            Self::Dtls(session) => session.receive(wait),
        }
    }

    /// Returns whether messages form a stream, on which nothing is lost.
    pub fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// Returns whether the server has closed the connection or the session, or does within `wait`. Anything else that arrives is discarded.
    pub fn is_closed(&mut self, wait: Duration) -> bool {
        if let Self::Stream(stream) = self {
            return stream.read_to_end(wait).is_some();
        }
        let deadline = Instant::now() + wait;
        loop {
            match self.receive(deadline.saturating_duration_since(Instant::now())) {
                Ok(Received::Message(_)) => {}
                Ok(Received::Nothing) => return false,
                Ok(Received::End) | Err(_) => return true,
            }
        }
    }
}

/// Opens a UDP socket on a port of its own, which receives from the server alone; at an address of this host if that is given.
///
/// # Errors
/// The error of the system: no such address, no route.
pub fn udp(source: Option<IpAddr>, server: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(source.unwrap_or_else(|| any.ip()), 0))?;
    socket.connect(server)?;
    Ok(socket)
}

/// Opens a DTLS session, from an address of this host if that is given, handshake included.
///
/// # Errors
/// The error of the system, or the server's refusal.
pub fn dtls_from(
    contexts: &Contexts,
    source: Option<IpAddr>,
    server: SocketAddr,
) -> io::Result<dtls::DtlsSession> {
    let mut session = dtls::DtlsSession::begin(contexts.dtls(), udp(source, server)?)?;
    session.shake_hands(HANDSHAKE_WAIT)?;
    Ok(session)
}
