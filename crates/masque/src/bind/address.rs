//! Addresses in registrations and in datagrams: an IP version, the address, and a port (§3.1, §4 of the draft).

use std::net::{IpAddr, SocketAddr};

use super::numbers::{VERSION_4, VERSION_6};

/// The longest form, in bytes.
pub(super) const LEN_MAX: usize = 1 + 16 + 2;

/// Returns the address that `bytes` begin with, and its length there in bytes. `None` if there is no such version, or the bytes end before it does.
pub(super) fn read(bytes: &[u8]) -> Option<(SocketAddr, usize)> {
    let (version, rest) = bytes.split_first()?;
    let (ip, rest): (IpAddr, &[u8]) = match *version {
        VERSION_4 => {
            let (octets, rest) = rest.split_first_chunk::<4>()?;
            ((*octets).into(), rest)
        }
        VERSION_6 => {
            let (octets, rest) = rest.split_first_chunk::<16>()?;
            ((*octets).into(), rest)
        }
        _ => return None,
    };
    let (port, rest) = rest.split_first_chunk()?;
    let address = SocketAddr::new(ip, u16::from_be_bytes(*port));
    Some((address, bytes.len() - rest.len()))
}

/// Adds an address to `bytes`.
pub(super) fn put(bytes: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => {
            bytes.push(VERSION_4);
            bytes.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes.push(VERSION_6);
            bytes.extend_from_slice(&ip.octets());
        }
    }
    bytes.extend_from_slice(&address.port().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_address_reads_back_as_written_and_no_part_of_it_does(ip: IpAddr, port: u16) {
            let address = SocketAddr::new(ip, port);
            let mut bytes = Vec::new();
            put(&mut bytes, address);
            prop_assert!(bytes.len() <= LEN_MAX);
            prop_assert_eq!(read(&bytes), Some((address, bytes.len())));
            for end in 0..bytes.len() {
                prop_assert_eq!(read(&bytes[..end]), None);
            }
        }

        #[test]
        fn other_versions_have_no_address(version: u8, rest: [u8; 20]) {
            let bytes = [&[version][..], &rest].concat();
            prop_assert_eq!(read(&bytes).is_some(), matches!(version, 4 | 6));
        }
    }
}
