//! A client's end of a DTLS session: OpenSSL over a UDP socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use openssl::ssl::{SslContext, SslStream, SslVersion};

use super::received::{Received, is_transient};
use super::tls::{self, FLIGHT_WAIT};

/// Bytes of a datagram, so that none is fragmented.
const MTU: u32 = 1200;
/// Longest message of a record.
const RECORD_LEN_MAX: usize = 16_384;

/// A UDP socket that OpenSSL reads and writes, a datagram at a time, and that remembers what it sent last.
#[derive(Debug)]
struct Datagrams {
    socket: UdpSocket,
    sent: Vec<u8>,
    /// Datagrams that it still receives, after which reads find nothing.
    reads_left: usize,
    /// Stands in front of each datagram.
    prefix: Vec<u8>,
}

impl Read for Datagrams {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.reads_left == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let received = self.socket.recv(buffer);
        self.reads_left -= usize::from(received.is_ok());
        received.map_err(|error| match is_transient(&error) {
            true => ErrorKind::WouldBlock.into(),
            false => error,
        })
    }
}

impl Write for Datagrams {
    fn write(&mut self, datagram: &[u8]) -> io::Result<usize> {
        self.sent = datagram.to_vec();
        self.socket.send(&[&self.prefix, datagram].concat())?;
        Ok(datagram.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A DTLS session with a server.
#[derive(Debug)]
pub struct DtlsSession(SslStream<Datagrams>);

impl DtlsSession {
    /// Returns a session that has sent nothing yet, on a socket that is connected to the server.
    ///
    /// # Errors
    /// OpenSSL has no memory.
    pub fn begin(context: &SslContext, socket: UdpSocket) -> io::Result<Self> {
        socket.set_read_timeout(Some(FLIGHT_WAIT))?;
        let mut ssl = tls::client(context)?;
        ssl.set_mtu(MTU)?;
        let datagrams = Datagrams {
            socket,
            sent: Vec::new(),
            reads_left: usize::MAX,
            prefix: Vec::new(),
        };
        let stream = SslStream::new(ssl, datagrams).map_err(io::Error::other)?;
        Ok(Self(stream))
    }

    /// Completes the handshake.
    ///
    /// # Errors
    /// OpenSSL's error if the server refuses; `TimedOut` if the handshake takes longer than `wait`.
    pub fn shake_hands(&mut self, wait: Duration) -> io::Result<()> {
        tls::shake_hands(&mut self.0, wait)
    }

    /// Puts this in front of each datagram from now on, as a proxy does.
    pub fn put_first(&mut self, prefix: &[u8]) {
        self.0.get_mut().prefix = prefix.to_vec();
    }

    /// Sends a message in a record of its own.
    ///
    /// # Errors
    /// The session has ended.
    pub fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.write_all(message)
    }

    /// Sends a datagram past the session.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn send_raw(&self, datagram: &[u8]) -> io::Result<()> {
        self.0.get_ref().socket.send(datagram).map(|_| ())
    }

    /// Reads the next message.
    ///
    /// # Errors
    /// The session has failed.
    pub fn receive(&mut self, wait: Duration) -> io::Result<Received> {
        let deadline = Instant::now() + wait;
        let mut room = vec![0; RECORD_LEN_MAX];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Received::Nothing);
            }
            self.0.get_ref().socket.set_read_timeout(Some(left))?;
            match tls::received(self.0.ssl_read(&mut room)) {
                Ok(0) => return Ok(Received::End),
                Ok(len) => {
                    room.truncate(len);
                    return Ok(Received::Message(room));
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends the first ClientHello and receives nothing. Returns the datagram.
    pub fn send_client_hello(&mut self) -> Vec<u8> {
        self.0.get_mut().reads_left = 0;
        let _ = self.0.do_handshake();
        self.last_sent().to_vec()
    }

    /// Sends both ClientHellos, and receives the answer to the first alone.
    ///
    /// # Errors
    /// `TimedOut` if no cookie comes in `wait`.
    pub fn say_second_hello(&mut self, wait: Duration) -> io::Result<()> {
        self.send_client_hello();
        self.0.get_mut().reads_left = 1;
        let deadline = Instant::now() + wait;
        while self.0.get_ref().reads_left == 1 {
            let _ = self.0.do_handshake();
            if Instant::now() >= deadline {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// Returns the datagram sent last.
    pub fn last_sent(&self) -> &[u8] {
        &self.0.get_ref().sent
    }

    /// Ends the session with an alert to the server.
    pub fn say_goodbye(&mut self) {
        let _ = self.0.shutdown();
    }

    /// Returns the certificate that the server showed, in DER form; `None` before it has.
    pub fn shown(&self) -> Option<Vec<u8>> {
        self.0.ssl().peer_certificate()?.to_der().ok()
    }

    /// Returns the version that was agreed on; `None` before it is.
    pub fn version(&self) -> Option<SslVersion> {
        self.0.ssl().version2()
    }
}
