//! Where trains go.

use std::net::SocketAddr;

/// Takes the datagrams that an endpoint sends.
pub trait Outlet {
    /// Lends an empty buffer, into which a train is written. It comes back by [`Self::send`].
    fn buffer(&mut self) -> Vec<u8>;

    /// Sends `bytes` to `to`, as datagrams of `segment` bytes, of which the last may be shorter. Empty `bytes` are a buffer that was not needed.
    fn send(&mut self, to: SocketAddr, bytes: Vec<u8>, segment: usize);
}

/// A datagram that answers without a connection.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}
