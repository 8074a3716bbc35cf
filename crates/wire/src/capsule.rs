//! Capsules ([RFC 9297 §3.2]): what follows the answer to a request whose protocol uses the Capsule Protocol.
//!
//! [RFC 9297 §3.2]: https://www.rfc-editor.org/rfc/rfc9297#section-3.2

use crate::Varint;

/// The head of a capsule: what stands before its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapsuleHeader {
    /// The capsule's type.
    pub kind: u64,
    /// The length of its value, in bytes.
    pub value_len: u64,
    /// The length of the head itself, in bytes.
    pub len: usize,
}

impl CapsuleHeader {
    /// The type of DATAGRAM capsules (RFC 9297 §3.5).
    pub const DATAGRAM: u64 = 0;
    /// The longest head, in bytes.
    pub const LEN_MAX: usize = 2 * Varint::LEN_MAX;

    /// Reads the head that `bytes` begin with. `None` if they end before it does.
    #[must_use]
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (kind, kind_len) = Varint::read(bytes)?;
        let (value_len, len_len) = Varint::read(bytes.get(kind_len..)?)?;
        Some(Self {
            kind,
            value_len,
            len: kind_len.checked_add(len_len)?,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn a_head_reads_back_as_written_and_no_part_of_it_is_one(
            kind in 0..=Varint::MAX,
            value_len in 0..=Varint::MAX,
            bits in (0_u32..62, 0_u32..62),
        ) {
            let (kind, value_len) = (kind >> bits.0, value_len >> bits.1);
            let mut bytes: Vec<u8> = Varint::new(kind).unwrap().as_bytes().to_vec();
            bytes.extend_from_slice(Varint::new(value_len).unwrap().as_bytes());
            let len = bytes.len();
            prop_assert_eq!(
                CapsuleHeader::parse(&bytes),
                Some(CapsuleHeader { kind, value_len, len })
            );
            for end in 0..len {
                prop_assert_eq!(CapsuleHeader::parse(&bytes[..end]), None);
            }
        }
    }
}
