//! A bound tunnel, whose client names peers in contexts that it registers and in datagrams (draft-ietf-masque-connect-udp-listen).

use std::io;
use std::net::SocketAddr;

use turnbuckle_client::blocking::Tunnel;

/// The context in which each datagram has an address.
const UNCOMPRESSED: u64 = 2;
/// Contexts of one tunnel: a server need not keep more.
const CONTEXTS_MAX: u64 = 500;

/// A bound tunnel that is open.
pub(super) struct Bound {
    tunnel: Tunnel,
    /// The last context that was asked for.
    last: u64,
}

impl Bound {
    /// Returns one with an uncompressed context.
    pub(super) fn new(mut tunnel: Tunnel) -> io::Result<Self> {
        match tunnel.register(UNCOMPRESSED, None)? {
            true => Ok(Self {
                tunnel,
                last: UNCOMPRESSED,
            }),
            false => Err(io::Error::other("no uncompressed context is granted")),
        }
    }

    /// Returns whether there is room for another context.
    pub(super) fn has_room(&self) -> bool {
        self.last < 2 * CONTEXTS_MAX
    }

    /// Names a peer in both ways: sends `text` to it, and registers it. Returns whether the server takes that.
    pub(super) fn name(&mut self, peer: SocketAddr, text: &str) -> io::Result<bool> {
        self.tunnel.send_to(UNCOMPRESSED, peer, text.as_bytes())?;
        self.last += 2;
        self.tunnel.register(self.last, Some(peer))
    }
}
