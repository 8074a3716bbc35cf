//! A client's end of a stream, for tests that panic when it does not do as it should.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use turnbuckle_client::blocking::{Carrier, Received, Stream, tcp_from};

/// Nothing is lost on the way, so what does not come for so long does not come.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The longest that a relay may bear with a connection; its own deadlines are shorter.
const OPEN_MAX: Duration = Duration::from_secs(600);

/// A connection to the relay.
pub(crate) struct StreamLink(pub(super) Stream);

impl StreamLink {
    /// Connects by TCP.
    pub(crate) fn tcp(server: SocketAddr) -> Self {
        Self::new(connect(server))
    }

    pub(crate) fn new(carrier: impl Carrier + 'static) -> Self {
        Self(Stream::new(carrier))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.send(bytes).expect("the relay takes it");
    }

    /// Returns the next whole message; `None` if it does not come in a while.
    pub(crate) fn read_message(&mut self) -> Option<Vec<u8>> {
        match self.0.receive(TIMEOUT) {
            Ok(Received::Message(message)) => Some(message),
            Ok(Received::Nothing) => None,
            Ok(Received::End) => panic!("the relay closed the connection"),
            Err(error) => panic!("client socket: {error}"),
        }
    }

    /// Returns what was read and is no part of a message that was asked for.
    pub(crate) fn into_unread(self) -> Vec<u8> {
        self.0.into_unread()
    }

    /// Reads what comes until the relay closes the connection.
    #[track_caller]
    pub(crate) fn read_to_close(&mut self) -> Vec<u8> {
        let read = self.0.read_to_end(OPEN_MAX);
        read.expect("the relay closes the connection")
    }
}

/// Opens a TCP connection that does not wait for ever.
pub(crate) fn connect(server: SocketAddr) -> TcpStream {
    settled(tcp_from(None, server, TIMEOUT))
}

/// Connects as [`connect`] does, from an address of this host.
pub(crate) fn connect_from(ip: IpAddr, server: SocketAddr) -> TcpStream {
    settled(tcp_from(Some(ip), server, TIMEOUT))
}

fn settled(connected: std::io::Result<TcpStream>) -> TcpStream {
    let stream = connected.expect("the relay listens");
    stream.set_nodelay(true).expect("an option");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
}
