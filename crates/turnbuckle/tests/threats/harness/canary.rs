//! A socket where nothing may arrive.

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn6, bind, setsockopt, socket, sockopt,
};
use std::os::fd::AsRawFd as _;

/// Listens on one port of every address of the namespace, both families, and remembers what it heard.
///
/// The probes say in their payload what they are, so that a failure names the way the relay was abused.
pub(crate) struct Canary {
    socket: UdpSocket,
    port: u16,
}

impl Canary {
    /// Listens on every address, at `port` or, for 0, at one the kernel picks.
    pub(crate) fn everywhere(port: u16) -> Self {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket =
            socket(AddressFamily::Inet6, SockType::Datagram, flags, None).expect("a socket");
        setsockopt(&socket, sockopt::Ipv6V6Only, &false).expect("dual stack");
        let any = SockaddrIn6::from(std::net::SocketAddrV6::new(
            Ipv6Addr::UNSPECIFIED,
            port,
            0,
            0,
        ));
        bind(socket.as_raw_fd(), &any).expect("a port");
        Self::on(UdpSocket::from(socket))
    }

    /// Listens on one address, at its port or, for 0, at one the kernel picks.
    pub(crate) fn at(address: SocketAddr) -> Self {
        let socket = UdpSocket::bind(address).expect("an address of this host");
        socket.set_nonblocking(true).expect("fcntl");
        Self::on(socket)
    }

    fn on(socket: UdpSocket) -> Self {
        let port = socket.local_addr().expect("bound").port();
        Self { socket, port }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns what arrived since the last call, as text.
    pub(crate) fn hits(&self) -> Vec<String> {
        let mut hits = Vec::new();
        let mut buffer = [0; 2048];
        while let Ok((len, _)) = self.socket.recv_from(&mut buffer) {
            hits.push(String::from_utf8_lossy(&buffer[..len]).into_owned());
        }
        hits
    }

    /// Fails if anything arrived. The caller has made sure that the relay is through with what it was sent, see
    /// [`super::Client::settle`].
    pub(crate) fn assert_silent(&self) {
        let hits = self.hits();
        assert!(
            hits.is_empty(),
            "the canary heard {} datagrams: {hits:#?}",
            hits.len()
        );
    }
}
