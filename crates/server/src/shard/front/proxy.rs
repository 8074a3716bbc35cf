//! Reads the headers of the PROXY protocol, versions 1 and 2.
//!
//! Invariant: the source address alone decides whether a header is expected, never the bytes received. Connections and datagrams from a configured
//! proxy must begin with a header. All others must not have one. So a client that is not a proxy cannot claim another address. Nor can a client
//! behind a proxy that adds no header. The protocol's specification requires this ("must not try to guess"). It also requires that each datagram
//! carries a header of its own.

use std::net::{IpAddr, SocketAddr};

use ppp::{v1, v2};
use turnbuckle_engine::AddressRange;

/// Longest header of version 2. It may hold certificates and other fields, which this server does not read.
pub(crate) const HEADER_LEN_MAX: usize = 4096;
/// Longest header of version 1.
const VERSION_1_LEN_MAX: usize = 107;
/// First bytes of a header of version 1. No HTTP request begins with them.
pub(crate) const SIGNATURE_V1: &[u8] = b"PROXY ";
/// First bytes of a header of version 2.
pub(crate) const SIGNATURE_V2: &[u8] = v2::PROTOCOL_PREFIX;

/// Holds the proxies that the server accepts headers from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proxies {
    /// Source addresses whose connections begin with a header.
    pub(crate) sources: Vec<AddressRange>,
    /// Source addresses whose datagrams begin with a header.
    pub(crate) datagram_sources: Vec<AddressRange>,
    /// Refuses connections that do not come from a proxy.
    pub(crate) only: bool,
}

impl Proxies {
    /// Returns whether a connection from `ip` comes from a proxy.
    pub(crate) fn may_speak_for_connection(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        // guard: proxy-source
        self.sources.iter().any(|range| range.contains(ip))
    }

    /// Returns whether a datagram from `ip` comes from a proxy.
    #[inline]
    pub(crate) fn may_speak_for_datagram(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        // guard: proxy-datagram-source
        self.datagram_sources.iter().any(|range| range.contains(ip))
    }
}

/// Holds what a complete header contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Length of the header in bytes.
    pub(crate) len: usize,
    /// The client's address. `None` if the proxy itself is the sender, or if the client has no IP address.
    pub(crate) source: Option<SocketAddr>,
}

/// The reason why no header was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoHeader {
    /// The header is not complete.
    Incomplete,
    /// There is no header, or it is malformed, too long, or has an address that no client can have.
    Invalid,
}

/// Returns the header that a connection begins with.
///
/// # Errors
///
/// The header is incomplete or invalid.
pub(crate) fn of_connection(bytes: &[u8]) -> Result<Header, NoHeader> {
    let header = if bytes.first() == SIGNATURE_V1.first() {
        let is_begun = bytes.starts_with(SIGNATURE_V1) || SIGNATURE_V1.starts_with(bytes);
        let line = bytes.split_inclusive(|byte| *byte == b'\n').next();
        match line.filter(|line| line.ends_with(b"\n")) {
            None if is_begun && bytes.len() < VERSION_1_LEN_MAX => Err(NoHeader::Incomplete),
            None => Err(NoHeader::Invalid),
            Some(line) => of_version_1(line),
        }
    } else {
        match v2::Header::try_from(bytes) {
            Ok(header) => of_version_2(&header, v2::Protocol::Stream),
            Err(v2::ParseError::Incomplete(_)) => Err(NoHeader::Incomplete),
            // guard: proxy-length
            Err(v2::ParseError::Partial(_, len)) if len + 16 <= HEADER_LEN_MAX => {
                Err(NoHeader::Incomplete)
            }
            Err(_) => Err(NoHeader::Invalid),
        }
    };
    header.and_then(|header| match header.len <= HEADER_LEN_MAX {
        true => Ok(header),
        false => Err(NoHeader::Invalid),
    })
}

/// Returns the header that a datagram begins with. Datagrams have headers of version 2 only.
///
/// # Errors
///
/// The datagram does not begin with a valid header.
pub(crate) fn of_datagram(bytes: &[u8]) -> Result<Header, NoHeader> {
    let header = v2::Header::try_from(bytes).map_err(|_| NoHeader::Invalid)?;
    of_version_2(&header, v2::Protocol::Datagram)
}

fn of_version_1(line: &[u8]) -> Result<Header, NoHeader> {
    let header = v1::Header::try_from(line).map_err(|_| NoHeader::Invalid)?;
    let source = match &header.addresses {
        v1::Addresses::Tcp4(ip) => Some(client((ip.source_address, ip.source_port))?),
        v1::Addresses::Tcp6(ip) => Some(client((ip.source_address, ip.source_port))?),
        v1::Addresses::Unknown => None,
    };
    Ok(Header {
        len: line.len(),
        source,
    })
}

fn of_version_2(header: &v2::Header<'_>, carrier: v2::Protocol) -> Result<Header, NoHeader> {
    let is_local = header.command == v2::Command::Local;
    let source = match &header.addresses {
        _ if is_local => None,
        v2::Addresses::Unspecified => None,
        _ if header.protocol != carrier => return Err(NoHeader::Invalid),
        v2::Addresses::IPv4(ip) => Some(client((ip.source_address, ip.source_port))?),
        v2::Addresses::IPv6(ip) => Some(client((ip.source_address, ip.source_port))?),
        v2::Addresses::Unix(_) => None,
    };
    Ok(Header {
        len: header.header.len(),
        source,
    })
}

/// Returns the address in the canonical form that the engine uses, if a client can have it.
fn client(address: impl Into<SocketAddr>) -> Result<SocketAddr, NoHeader> {
    let address: SocketAddr = address.into();
    let ip = address.ip().to_canonical();
    let is_broadcast = ip == IpAddr::from([255; 4]);
    if ip.is_unspecified() || ip.is_multicast() || is_broadcast || address.port() == 0 {
        return Err(NoHeader::Invalid);
    }
    Ok(SocketAddr::new(ip, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn version_2(command: u8, family: u8, addresses: &[u8], extra: usize) -> Vec<u8> {
        let mut bytes = SIGNATURE_V2.to_vec();
        bytes.extend([0x20 | command, family]);
        let len = u16::try_from(addresses.len() + extra).unwrap();
        bytes.extend(len.to_be_bytes());
        bytes.extend(addresses);
        bytes.resize(bytes.len() + extra, 0xEE);
        bytes
    }

    const V4: [u8; 12] = [198, 51, 100, 7, 192, 0, 2, 1, 0x12, 0x34, 0x0D, 0x96];

    fn v6(source: [u8; 16]) -> Vec<u8> {
        [&source[..], &[1; 16], &[0x12, 0x34, 0x0D, 0x96]].concat()
    }

    fn source(text: &str) -> Option<SocketAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn both_versions_say_who_the_client_is() {
        let headers: [(Vec<u8>, Option<SocketAddr>); 9] = [
            (
                b"PROXY TCP4 198.51.100.7 192.0.2.1 4660 3478\r\n".to_vec(),
                source("198.51.100.7:4660"),
            ),
            (
                b"PROXY TCP6 2001:db8::7 2001:db8::1 4660 3478\r\n".to_vec(),
                source("[2001:db8::7]:4660"),
            ),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN what ever it says\r\n".to_vec(), None),
            (version_2(1, 0x11, &V4, 0), source("198.51.100.7:4660")),
            (version_2(1, 0x11, &V4, 400), source("198.51.100.7:4660")),
            // A proxy's own connection, to see whether the server is there.
            (version_2(0, 0x11, &V4, 0), None),
            (version_2(1, 0x00, &[], 0), None),
            (version_2(1, 0x31, &[b'/'; 216], 0), None),
        ];
        for (bytes, source) in headers {
            let len = bytes.len();
            let with_more = [&bytes[..], b"\x00\x01\x00\x00"].concat();
            assert_eq!(of_connection(&with_more), Ok(Header { len, source }));
            for cut in 0..len {
                assert_eq!(of_connection(&bytes[..cut]), Err(NoHeader::Incomplete));
            }
        }
    }

    #[test]
    fn an_ipv4_client_is_one_in_ipv6_clothes_too() {
        let mapped: IpAddr = "::ffff:198.51.100.7".parse().unwrap();
        let IpAddr::V6(mapped) = mapped else {
            panic!("IPv6")
        };
        let header = of_connection(&version_2(1, 0x21, &v6(mapped.octets()), 0));
        assert_eq!(header.unwrap().source, source("198.51.100.7:4660"));
    }

    #[test]
    fn what_is_no_header_or_too_long_or_names_no_client_is_refused() {
        let port_0 = [198, 51, 100, 7, 192, 0, 2, 1, 0, 0, 0x0D, 0x96];
        let multicast = [224, 0, 0, 1, 192, 0, 2, 1, 0x12, 0x34, 0x0D, 0x96];
        let wrong: [Vec<u8>; 19] = [
            b"\x00\x01\x00\x00".to_vec(),
            b"\x16\x03\x01".to_vec(),
            b"POST / HTTP/1.1\r\n".to_vec(),
            b"PROXY TCP4 198.51.100.7\r\n".to_vec(),
            b"PROXY TCP4 198.51.100.7 192.0.2.1 99999 3478\r\n".to_vec(),
            b"PROXY TCP4 2001:db8::7 192.0.2.1 4660 3478\r\n".to_vec(),
            b"PROXY TCP4 0.0.0.0 192.0.2.1 4660 3478\r\n".to_vec(),
            b"PROXY TCP4 255.255.255.255 192.0.2.1 4660 3478\r\n".to_vec(),
            b"PROXY TCP6 ff02::1 2001:db8::1 4660 3478\r\n".to_vec(),
            b"PROXY TCP4 198.51.100.7 192.0.2.1 4660 3478\n".to_vec(),
            b"PROXY UDP4 198.51.100.7 192.0.2.1 4660 3478\r\n".to_vec(),
            [b"PROXY TCP4 ", &[b'1'; 120][..]].concat(),
            version_2(1, 0x11, &port_0, 0),
            version_2(1, 0x11, &multicast, 0),
            // Of a datagram, on a connection.
            version_2(1, 0x12, &V4, 0),
            version_2(2, 0x11, &V4, 0),
            version_2(1, 0x11, &V4[..8], 0),
            version_2(1, 0x41, &V4, 0),
            version_2(1, 0x11, &V4, 5000),
        ];
        for bytes in wrong {
            assert_eq!(of_connection(&bytes), Err(NoHeader::Invalid), "{bytes:?}");
        }
        // One that is too long is refused as soon as that is certain.
        let mut long = version_2(1, 0x11, &V4, 60_000);
        long.truncate(HEADER_LEN_MAX);
        assert_eq!(of_connection(&long), Err(NoHeader::Invalid));
    }

    #[test]
    fn a_datagram_takes_a_whole_header_of_version_2_for_datagrams() {
        let good = version_2(1, 0x12, &V4, 0);
        let header = Header {
            len: good.len(),
            source: source("198.51.100.7:4660"),
        };
        assert_eq!(of_datagram(&[&good[..], b"payload"].concat()), Ok(header));
        for cut in 0..good.len() {
            assert_eq!(of_datagram(&good[..cut]), Err(NoHeader::Invalid));
        }
        for wrong in [
            version_2(1, 0x11, &V4, 0),
            b"PROXY TCP4 198.51.100.7 192.0.2.1 4660 3478\r\n".to_vec(),
        ] {
            assert_eq!(of_datagram(&wrong), Err(NoHeader::Invalid));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..300), v1 in any::<bool>()) {
            let prefix = if v1 { SIGNATURE_V1 } else { SIGNATURE_V2 };
            let _ = of_connection(&bytes);
            let _ = of_datagram(&bytes);
            let begun = [prefix, &bytes].concat();
            for found in [of_connection(&begun), of_datagram(&begun)].into_iter().flatten() {
                prop_assert!(found.len <= begun.len());
            }
        }
    }
}
