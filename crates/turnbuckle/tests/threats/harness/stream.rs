//! A client's end of a stream: bytes cut into messages by their own account (RFC 8489 §6.2.2, RFC 8656 §12.5).

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, socket};
use turnbuckle_wire::padding_len;

use super::client::is_no_news;

/// Nothing is lost on the way, so what does not come for so long does not come.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Something that carries bytes both ways.
pub(crate) trait Carrier: Read + Write {}

impl<T: Read + Write> Carrier for T {}

/// A connection to the relay.
pub(crate) struct StreamLink {
    carrier: Box<dyn Carrier>,
    unread: Vec<u8>,
}

impl StreamLink {
    /// Connects by TCP.
    pub(crate) fn tcp(server: SocketAddr) -> Self {
        Self::new(Box::new(connect(server)))
    }

    pub(crate) fn new(carrier: Box<dyn Carrier>) -> Self {
        Self {
            carrier,
            unread: Vec::new(),
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.carrier
            .write_all(bytes)
            .and_then(|()| self.carrier.flush())
            .expect("the relay takes it");
    }

    /// The next whole message; `None` if it does not come in a while.
    pub(crate) fn read_message(&mut self) -> Option<Vec<u8>> {
        let mut buffer = [0; 65536];
        loop {
            if let &[first, _, high, low, ..] = &self.unread[..] {
                let len = usize::from(u16::from_be_bytes([high, low]));
                let header_len = if first < 0x40 { 20 } else { 4 };
                let whole = header_len + len + padding_len(len);
                if self.unread.len() >= whole {
                    return Some(self.unread.drain(..whole).collect());
                }
            }
            match self.carrier.read(&mut buffer) {
                Ok(0) => panic!("the relay closed the connection"),
                Ok(len) => self.unread.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_no_news(&error) => return None,
                Err(error) => panic!("client socket: {error}"),
            }
        }
    }

    /// What was read and is no part of a message that was asked for.
    pub(crate) fn into_unread(self) -> Vec<u8> {
        self.unread
    }

    /// Reads what comes until the relay closes the connection.
    pub(crate) fn read_to_close(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.unread);
        let mut buffer = [0; 4096];
        loop {
            match self.carrier.read(&mut buffer) {
                Ok(0) => return bytes,
                Ok(len) => bytes.extend_from_slice(&buffer[..len]),
                Err(error) if is_no_news(&error) => {}
                // Closed with bytes of ours unread: a reset.
                Err(_) => return bytes,
            }
        }
    }
}

/// A TCP connection that does not wait for ever.
pub(crate) fn connect(server: SocketAddr) -> TcpStream {
    settled(TcpStream::connect(server).expect("the relay listens"))
}

/// The same from an address of this host.
pub(crate) fn connect_from(ip: IpAddr, server: SocketAddr) -> TcpStream {
    let (IpAddr::V4(ip), SocketAddr::V4(server)) = (ip, server) else {
        panic!("IPv4 only")
    };
    let (family, kind) = (AddressFamily::Inet, SockType::Stream);
    let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    let from = SockaddrIn::from(std::net::SocketAddrV4::new(ip, 0));
    bind(socket.as_raw_fd(), &from).expect("an address of this host");
    nix::sys::socket::connect(socket.as_raw_fd(), &SockaddrIn::from(server))
        .expect("the relay listens");
    settled(TcpStream::from(socket))
}

fn settled(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).expect("an option");
    stream
        .set_read_timeout(Some(READ_TIMEOUT))
        .expect("a timeout");
    stream
}
