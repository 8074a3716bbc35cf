//! The servers that clients are redirected to, in turn.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::id::Transport;

/// Servers to send clients to, by the transport they come with. One that stands several times gets as many times the clients.
#[derive(Clone, Debug, Default)]
pub struct Redirection {
    /// For DTLS clients.
    pub dtls: Vec<Alternate>,
    /// For TCP clients.
    pub tcp: Vec<Alternate>,
    /// For TLS clients.
    pub tls: Vec<Alternate>,
    /// For UDP clients.
    pub udp: Vec<Alternate>,
    /// Listeners that serve whoever comes: a list may name them, as coturn's auxiliary servers.
    pub exempt: Vec<SocketAddr>,
}

/// A server to send clients to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternate {
    /// Where it is.
    pub address: SocketAddr,
    /// The name in its certificate, if that is another one than this server's: at most 255 ASCII characters.
    pub domain: Option<Box<str>>,
}

impl Redirection {
    pub(crate) fn of(&self, transport: Transport) -> &[Alternate] {
        match transport {
            Transport::Dtls => &self.dtls,
            // Who comes by QUIC asks for tunnels, which are not sent elsewhere.
            Transport::Quic => &[],
            Transport::Tcp => &self.tcp,
            // mutant: redirection-of-another-transport
            Transport::Tls => &self.tls,
            Transport::Udp => &self.udp,
        }
    }
}

/// Whose turn it is, over all engines, by [`Transport`].
#[derive(Debug, Default)]
pub(crate) struct Rotation([AtomicUsize; 4]);

impl Rotation {
    pub(crate) fn advance(&self, transport: Transport) -> usize {
        let turn = match transport {
            Transport::Dtls | Transport::Quic => &self.0[0],
            Transport::Tcp => &self.0[1],
            Transport::Tls => &self.0[2],
            Transport::Udp => &self.0[3],
        };
        // mutant: redirection-takes-no-turns
        turn.fetch_add(1, Relaxed)
    }
}
