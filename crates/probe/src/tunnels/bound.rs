//! A bound tunnel, whose client names peers in contexts that it registers and in datagrams (draft-ietf-masque-connect-udp-listen).

use std::io;
use std::net::SocketAddr;

use turnbuckle_client::blocking::{Http3, Tunnel};

/// The context in which each datagram has an address.
const UNCOMPRESSED: u64 = 2;
/// Contexts of one tunnel: a server need not keep more.
const CONTEXTS_MAX: u64 = 500;

/// What a bound tunnel is in.
pub(super) enum Carrier {
    /// A connection of HTTP/1.1.
    Http1(Tunnel),
    /// A stream of HTTP/3, of this number.
    Http3(Box<Http3>, u64),
}

/// A bound tunnel that is open.
pub(super) struct Bound {
    carrier: Carrier,
    /// The last context that was asked for.
    last: u64,
}

impl Bound {
    /// Returns one with an uncompressed context.
    pub(super) fn new(carrier: Carrier) -> io::Result<Self> {
        let mut bound = Self {
            carrier,
            last: UNCOMPRESSED,
        };
        match bound.ask(UNCOMPRESSED, None)? {
            true => Ok(bound),
            false => Err(io::Error::other("no uncompressed context is granted")),
        }
    }

    /// Returns whether there is room for another context.
    pub(super) fn has_room(&self) -> bool {
        self.last < 2 * CONTEXTS_MAX
    }

    /// Sends `text` to a peer, in the uncompressed context.
    pub(super) fn send(&mut self, peer: SocketAddr, text: &str) -> io::Result<()> {
        match &mut self.carrier {
            Carrier::Http1(tunnel) => tunnel.send_to(UNCOMPRESSED, peer, text.as_bytes()),
            Carrier::Http3(connection, stream) => {
                connection.send_to(*stream, UNCOMPRESSED, peer, text.as_bytes());
                Ok(())
            }
        }
    }

    /// Registers a context for a peer. Returns whether the server takes it. What was sent before has been dealt with by then.
    pub(super) fn register(&mut self, peer: SocketAddr) -> io::Result<bool> {
        self.last += 2;
        self.ask(self.last, Some(peer))
    }

    fn ask(&mut self, context: u64, peer: Option<SocketAddr>) -> io::Result<bool> {
        match &mut self.carrier {
            Carrier::Http1(tunnel) => tunnel.register(context, peer),
            Carrier::Http3(connection, stream) => connection.register(*stream, context, peer),
        }
    }
}
