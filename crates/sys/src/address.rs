//! Socket addresses in the kernel's form. No unsafe: the bytes are written and read field by field.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Bytes of a `sockaddr_in6`, the larger of the two forms.
const LEN_MAX: usize = size_of::<libc::sockaddr_in6>();
/// Bytes of a `sockaddr_in`.
const LEN_V4: usize = size_of::<libc::sockaddr_in>();
const LEN_V4_U32: u32 = 16;
const _: () = assert!(LEN_V4_U32 as usize == LEN_V4);
const _: () = assert!(RawAddress::CAPACITY as usize == LEN_MAX);
const FAMILY_V4: [u8; 2] = family(libc::AF_INET);
const FAMILY_V6: [u8; 2] = family(libc::AF_INET6);

/// Returns the 16-bit field at the start of both forms.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "families are small numbers"
)]
const fn family(family: libc::c_int) -> [u8; 2] {
    (family as libc::sa_family_t).to_ne_bytes()
}

/// A `sockaddr_in` or `sockaddr_in6` as the kernel reads and writes it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct RawAddress {
    bytes: [u8; LEN_MAX],
    len: u32,
}

impl RawAddress {
    /// Room for the kernel to write an address of either family.
    pub(crate) const EMPTY: Self = Self {
        bytes: [0; LEN_MAX],
        len: 0,
    };
    /// Bytes that the kernel may write.
    pub(crate) const CAPACITY: u32 = 28;

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn set_len(&mut self, len: u32) {
        self.len = len;
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    #[inline]
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }

    /// Returns the address in Rust's form; `None` for a family that is neither IPv4 nor IPv6.
    #[inline]
    pub fn decode(&self) -> Option<SocketAddr> {
        let b = &self.bytes;
        let family = [b[0], b[1]];
        let port = u16::from_be_bytes([b[2], b[3]]);
        if family == FAMILY_V4 && self.len as usize >= LEN_V4 {
            let ip = Ipv4Addr::new(b[4], b[5], b[6], b[7]);
            return Some(SocketAddr::V4(SocketAddrV4::new(ip, port)));
        }
        if family == FAMILY_V6 && self.len as usize >= LEN_MAX {
            let mut ip = [0; 16];
            ip.copy_from_slice(&b[8..24]);
            let flow = u32::from_be_bytes([b[4], b[5], b[6], b[7]]);
            let scope = u32::from_ne_bytes([b[24], b[25], b[26], b[27]]);
            return Some(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(ip),
                port,
                flow,
                scope,
            )));
        }
        None
    }
}

impl From<SocketAddr> for RawAddress {
    #[inline]
    fn from(address: SocketAddr) -> Self {
        let mut bytes = [0; LEN_MAX];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let len = match address {
            SocketAddr::V4(v4) => {
                bytes[..2].copy_from_slice(&FAMILY_V4);
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                LEN_V4_U32
            }
            SocketAddr::V6(v6) => {
                bytes[..2].copy_from_slice(&FAMILY_V6);
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                Self::CAPACITY
            }
        };
        Self { bytes, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_survive_the_kernels_form() {
        for text in [
            "192.0.2.7:65535",
            "[2001:db8::1]:3478",
            "[fe80::1%3]:1",
            "0.0.0.0:0",
        ] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddress::from(address).decode(), Some(address));
        }
    }

    #[test]
    fn an_unknown_family_or_a_short_form_is_no_address() {
        assert_eq!(RawAddress::EMPTY.decode(), None);
        let mut short = RawAddress::from(SocketAddr::from(([192, 0, 2, 1], 1)));
        short.set_len(4);
        assert_eq!(short.decode(), None);
    }
}
