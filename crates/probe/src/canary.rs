//! Sockets that should receive nothing, on every address of this host.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, UdpSocket};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// What arrives before it is looked at: the first of it is enough.
const BUFFER_BYTES: usize = 4 << 20;

/// How many ports it hears datagrams at: the one that it is told, and those behind.
pub(crate) const PORTS: u16 = 3;

/// Listens by UDP and TCP.
pub(crate) struct Canary {
    udp: Vec<UdpSocket>,
    tcp: TcpListener,
    port: u16,
}

impl Canary {
    /// Listens on a port of every address, and for datagrams on those behind it too.
    pub(crate) fn everywhere(port: u16) -> io::Result<Self> {
        let bound = |port, kind, protocol| {
            let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
            let socket = Socket::new(Domain::IPV6, kind, Some(protocol))?;
            socket.set_only_v6(false)?;
            socket.set_nonblocking(true)?;
            socket.bind(&SockAddr::from(address))?;
            io::Result::Ok(socket)
        };
        let udp = (port..=port.saturating_add(PORTS - 1)).map(|port| {
            let udp = bound(port, Type::DGRAM, Protocol::UDP)?;
            udp.set_recv_buffer_size(BUFFER_BYTES)?;
            Ok(udp.into())
        });
        let udp = udp.collect::<io::Result<_>>()?;
        let tcp = bound(port, Type::STREAM, Protocol::TCP)?;
        tcp.listen(1024)?;
        Ok(Self {
            udp,
            tcp: tcp.into(),
            port,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns what arrived since the last call: the text of datagrams, and the sources of connections.
    pub(crate) fn hits(&self) -> Vec<String> {
        let mut hits = Vec::new();
        let mut buffer = [0; 2048];
        for udp in &self.udp {
            while let Ok((len, _)) = udp.recv_from(&mut buffer) {
                let bytes = buffer.get(..len).unwrap_or_default();
                hits.push(String::from_utf8_lossy(bytes).into_owned());
            }
        }
        while let Ok((_, from)) = self.tcp.accept() {
            hits.push(format!("a connection from {from}"));
        }
        hits
    }
}
