//! Transport addresses inside attributes, plain and xored ([RFC 8489 §14.1], [RFC 8489 §14.2]).
//!
//! The invariant: an address is read exactly as written; nothing here knows that some addresses mean others.
//!
//! [RFC 8489 §14.1]: https://www.rfc-editor.org/rfc/rfc8489#section-14.1
//! [RFC 8489 §14.2]: https://www.rfc-editor.org/rfc/rfc8489#section-14.2

use crate::header::MAGIC_COOKIE;
use crate::{AttributeError, TransactionId};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// An address family as numbered by STUN (RFC 8489 §14.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressFamily {
    /// IPv4, 0x01.
    V4,
    /// IPv6, 0x02.
    V6,
}

impl AddressFamily {
    /// Returns the family's number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => 0x01,
            Self::V6 => 0x02,
        }
    }

    /// Returns the family of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl TryFrom<u8> for AddressFamily {
    type Error = AttributeError;

    fn try_from(number: u8) -> Result<Self, AttributeError> {
        match number {
            0x01 => Ok(Self::V4),
            0x02 => Ok(Self::V6),
            other => Err(AttributeError::UnsupportedFamily(other)),
        }
    }
}

/// Longest value of an address attribute: four bytes and an IPv6 address.
pub(crate) const VALUE_LEN_MAX: usize = 20;

const PORT_MASK: u16 = (MAGIC_COOKIE >> 16) as u16;

/// Returns what IPv6 addresses are xored with: the cookie followed by the transaction id.
fn mask_v6(transaction_id: TransactionId) -> u128 {
    let [t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11] = *transaction_id.as_bytes();
    let [c0, c1, c2, c3] = MAGIC_COOKIE.to_be_bytes();
    u128::from_be_bytes([
        c0, c1, c2, c3, t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11,
    ])
}

fn xored(address: SocketAddr, transaction_id: TransactionId) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) => IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() ^ MAGIC_COOKIE)),
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() ^ mask_v6(transaction_id))),
    };
    SocketAddr::new(ip, address.port() ^ PORT_MASK)
}

/// Reads a MAPPED-ADDRESS value.
pub(crate) fn parse(value: &[u8]) -> Result<SocketAddr, AttributeError> {
    let Some((&[_ignored, family, p0, p1], address)) = value.split_first_chunk() else {
        return Err(AttributeError::Length);
    };
    let ip = match AddressFamily::try_from(family)? {
        AddressFamily::V4 => {
            let octets: [u8; 4] = address.try_into().map_err(|_| AttributeError::Length)?;
            IpAddr::from(octets)
        }
        AddressFamily::V6 => {
            let octets: [u8; 16] = address.try_into().map_err(|_| AttributeError::Length)?;
            IpAddr::from(octets)
        }
    };
    Ok(SocketAddr::new(ip, u16::from_be_bytes([p0, p1])))
}

/// Reads an XOR-MAPPED-ADDRESS value.
pub(crate) fn parse_xor(
    value: &[u8],
    transaction_id: TransactionId,
) -> Result<SocketAddr, AttributeError> {
    parse(value).map(|address| xored(address, transaction_id))
}

/// Returns the value of a MAPPED-ADDRESS: a buffer and how much of it is used.
pub(crate) fn encode(address: SocketAddr) -> ([u8; VALUE_LEN_MAX], usize) {
    let mut value = [0; VALUE_LEN_MAX];
    let [_zero, family, p0, p1, octets @ ..] = &mut value;
    *family = AddressFamily::of(address.ip()).number();
    [*p0, *p1] = address.port().to_be_bytes();
    let len = match address.ip() {
        IpAddr::V4(ip) => {
            let [a, b, c, d, ..] = octets;
            [*a, *b, *c, *d] = ip.octets();
            8
        }
        IpAddr::V6(ip) => {
            *octets = ip.octets();
            20
        }
    };
    (value, len)
}

/// Returns the value of an XOR-MAPPED-ADDRESS: a buffer and how much of it is used.
pub(crate) fn encode_xor(
    address: SocketAddr,
    transaction_id: TransactionId,
) -> ([u8; VALUE_LEN_MAX], usize) {
    encode(xored(address, transaction_id))
}
