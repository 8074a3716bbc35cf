//! Where trains go.

use std::net::SocketAddr;

/// The number that a host gives a socket of its own. What is said to a client leaves by the socket to which its first datagram came, and what
/// answers a single datagram leaves by the one to which that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Via(pub u32);

/// Takes the datagrams that an endpoint sends.
pub trait Outlet {
    /// Lends an empty buffer, into which a train is written. It comes back by [`Self::send`].
    fn buffer(&mut self) -> Vec<u8>;

    /// Sends `bytes` by the socket `via` to `to`, as datagrams of `segment` bytes, of which the last may be shorter. Empty `bytes` are a buffer
    /// that was not needed.
    fn send(&mut self, via: Via, to: SocketAddr, bytes: Vec<u8>, segment: usize);
}

/// A datagram that answers without a connection.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}
