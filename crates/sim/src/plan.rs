//! The address plan: who lives where in the simulated Internet.
//!
//! The addresses are ordinary public ones, because the documentation ranges are special-purpose
//! and the peer policy refuses them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The server's listeners.
pub const LISTENERS: [SocketAddr; 2] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(45, 10, 0, 1)), 3478),
    SocketAddr::new(
        IpAddr::V6(Ipv6Addr::new(0x2a01, 0x10, 0, 0, 0, 0, 0, 1)),
        3478,
    ),
];

/// The relay addresses as peers see them.
pub const RELAY_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(45, 10, 0, 2));
/// See [`RELAY_V4`].
pub const RELAY_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2a01, 0x10, 0, 0, 0, 0, 0, 2));
/// The address behind [`RELAY_V4`] when a one-to-one NAT stands before the server.
pub const RELAY_V4_INSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

/// Who answers at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One of the server's listeners.
    Listener,
    /// A relay address of the server.
    Relay,
    /// The client with this number.
    Client(usize),
    /// The peer with this number.
    Peer(usize),
    /// The proxy of the client with this number.
    Proxy(usize),
    /// Nobody: forged, forbidden or unused.
    Nowhere,
}

/// Returns the address of client `number` behind the NAT mapping `port`.
#[must_use]
pub fn client(number: usize, v6: bool, port: u16) -> SocketAddr {
    host(60, 0x60, number, v6, port)
}

/// Returns the address of peer `number`.
#[must_use]
pub fn peer(number: usize, v6: bool, port: u16) -> SocketAddr {
    host(80, 0x80, number, v6, port)
}

/// Returns the address of the proxy of client `number`.
#[must_use]
pub fn proxy(number: usize, v6: bool, port: u16) -> SocketAddr {
    host(70, 0x70, number, v6, port)
}

/// Returns an address that belongs to nobody who listens.
#[must_use]
pub fn stranger(number: usize, v6: bool, port: u16) -> SocketAddr {
    host(90, 0x90, number, v6, port)
}

/// Finds who answers at `address`.
#[must_use]
pub fn place(address: SocketAddr) -> Place {
    if LISTENERS.contains(&address) {
        return Place::Listener;
    }
    if [RELAY_V4, RELAY_V6].contains(&address.ip()) {
        return Place::Relay;
    }
    let (network, number) = match address.ip() {
        IpAddr::V4(ip) => {
            let [network, zero, number, last] = ip.octets();
            if zero != 0 || last != 1 {
                return Place::Nowhere;
            }
            (u16::from(network), usize::from(number))
        }
        IpAddr::V6(ip) => {
            let segments = ip.segments();
            if segments[0] != 0x2a01 || segments[3..] != [0, 0, 0, 0, 1] {
                return Place::Nowhere;
            }
            (
                // The plan writes the IPv4 network's decimal digits as hexadecimal ones.
                segments[1] / 16 * 10 + segments[1] % 16,
                usize::from(segments[2]),
            )
        }
    };
    match network {
        60 => Place::Client(number),
        70 => Place::Proxy(number),
        80 => Place::Peer(number),
        _ => Place::Nowhere,
    }
}

/// Peers that no client may reach, each for a reason of its own (V-01 to V-11).
pub const FORBIDDEN: [&str; 25] = [
    "0.0.0.0",
    "0.1.2.3",
    "10.1.2.3",
    "100.64.0.1",
    "127.0.0.1",
    "127.255.0.9",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.8",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.251",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:80.0.1.1",
    "fc00::1",
    "fe80::1",
    "ff02::1",
    "2002:7f00:1::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
];

/// Returns whether a datagram to `ip` would break invariant I1.
///
/// Written without a look at the engine's policy: the plan has few inhabitants, and whatever is
/// not one of them must not be sent to.
#[must_use]
pub fn may_be_peer(ip: IpAddr) -> bool {
    match place(SocketAddr::new(ip, 9)) {
        Place::Peer(_) | Place::Client(_) | Place::Relay => true,
        Place::Listener | Place::Proxy(_) | Place::Nowhere => is_stranger(ip),
    }
}

fn is_stranger(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[0] == 90,
        IpAddr::V6(ip) => ip.segments()[..2] == [0x2a01, 0x90],
    }
}

fn host(v4: u8, v6_network: u16, number: usize, v6: bool, port: u16) -> SocketAddr {
    let number = u8::try_from(number).unwrap_or(u8::MAX);
    let ip = if v6 {
        IpAddr::V6(Ipv6Addr::new(
            0x2a01,
            v6_network,
            u16::from(number),
            0,
            0,
            0,
            0,
            1,
        ))
    } else {
        IpAddr::V4(Ipv4Addr::new(v4, 0, number, 1))
    };
    SocketAddr::new(ip, port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_inhabitant_is_found_at_its_address() {
        for v6 in [false, true] {
            assert_eq!(place(client(7, v6, 1)), Place::Client(7));
            assert_eq!(place(peer(200, v6, 1)), Place::Peer(200));
            assert_eq!(place(proxy(3, v6, 1)), Place::Proxy(3));
            assert_eq!(place(stranger(1, v6, 1)), Place::Nowhere);
            assert!(may_be_peer(stranger(1, v6, 1).ip()));
        }
        assert_eq!(place(LISTENERS[1]), Place::Listener);
        assert_eq!(place(SocketAddr::new(RELAY_V6, 50_000)), Place::Relay);
    }

    #[test]
    fn no_forbidden_address_is_an_inhabitant() {
        for text in FORBIDDEN {
            let ip: IpAddr = text.parse().unwrap();
            assert!(!may_be_peer(ip), "{text}");
        }
    }
}
