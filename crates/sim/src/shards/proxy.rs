//! The headers with which a proxy says who its client is (the PROXY protocol).

use std::net::{IpAddr, SocketAddr};

/// The first bytes of a header of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, and a connection or datagram of somebody else's.
const PROXIED: u8 = 0x21;

/// Returns the header in front of a connection, of version 1.
pub(super) fn of_connection(client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    let family = if client.is_ipv4() { 4 } else { 6 };
    let (from, to) = (client.ip(), server.ip());
    let (from_port, to_port) = (client.port(), server.port());
    format!("PROXY TCP{family} {from} {to} {from_port} {to_port}\r\n").into_bytes()
}

/// Returns a datagram with its header in front, of version 2.
pub(super) fn datagram(client: SocketAddr, server: SocketAddr, message: &[u8]) -> Vec<u8> {
    let octets = |ip| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut addresses = octets(client.ip());
    addresses.extend(octets(server.ip()));
    addresses.extend(client.port().to_be_bytes());
    addresses.extend(server.port().to_be_bytes());
    let family = if client.is_ipv4() { 0x12 } else { 0x22 };
    let mut bytes = SIGNATURE.to_vec();
    bytes.extend([PROXIED, family]);
    bytes.extend(u16::try_from(addresses.len()).unwrap_or(0).to_be_bytes());
    bytes.extend(addresses);
    bytes.extend(message);
    bytes
}
