//! Variable-length integers ([RFC 9000 §16]): the two highest bits of the first byte say how many bytes there are.
//!
//! [RFC 9000 §16]: https://www.rfc-editor.org/rfc/rfc9000#section-16

/// A variable-length integer in its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Varint {
    bytes: [u8; Self::LEN_MAX],
    len: usize,
}

impl Varint {
    /// The longest form, in bytes.
    pub const LEN_MAX: usize = 8;
    /// The largest value.
    pub const MAX: u64 = (1 << 62) - 1;

    /// Returns the shortest form of `value`; `None` above [`Self::MAX`].
    #[must_use]
    #[inline]
    pub fn new(value: u64) -> Option<Self> {
        let mut bytes = [0; Self::LEN_MAX];
        let len = match value {
            0..0x40 => {
                *bytes.first_chunk_mut()? = u8::try_from(value).ok()?.to_be_bytes();
                1
            }
            0x40..0x4000 => {
                let word = u16::try_from(value).ok()? | 1 << 14;
                *bytes.first_chunk_mut()? = word.to_be_bytes();
                2
            }
            0x4000..0x4000_0000 => {
                let word = u32::try_from(value).ok()? | 2 << 30;
                *bytes.first_chunk_mut()? = word.to_be_bytes();
                4
            }
            0x4000_0000..=Self::MAX => {
                bytes = (value | 3 << 62).to_be_bytes();
                8
            }
            _ => return None,
        };
        Some(Self { bytes, len })
    }

    /// Returns the bytes.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Returns the integer that `bytes` begin with, in whatever form, and the length of that form in bytes. `None` if `bytes` end
    /// before it.
    #[must_use]
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<(u64, usize)> {
        let first = *bytes.first()?;
        Some(match Self::announced_len(first) {
            1 => (u64::from(first), 1),
            2 => {
                let word = u16::from_be_bytes(*bytes.first_chunk()?);
                (u64::from(word & 0x3FFF), 2)
            }
            4 => {
                let word = u32::from_be_bytes(*bytes.first_chunk()?);
                (u64::from(word & 0x3FFF_FFFF), 4)
            }
            _ => {
                let word = u64::from_be_bytes(*bytes.first_chunk()?);
                (word & Self::MAX, 8)
            }
        })
    }

    /// Returns the length of the integer that begins with this byte, in bytes.
    #[must_use]
    #[inline]
    pub const fn announced_len(first: u8) -> usize {
        1 << (first >> 6)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// The examples of RFC 9000 §A.1.
    #[test]
    fn reads_and_writes_the_examples_of_the_rfc() {
        let examples: [(&[u8], u64); 4] = [
            (
                &[0xC2, 0x19, 0x7C, 0x5E, 0xFF, 0x14, 0xE8, 0x8C],
                151_288_809_941_952_652,
            ),
            (&[0x9D, 0x7F, 0x3E, 0x7D], 494_878_333),
            (&[0x7B, 0xBD], 15_293),
            (&[0x25], 37),
        ];
        for (bytes, value) in examples {
            assert_eq!(Varint::read(bytes), Some((value, bytes.len())));
            assert_eq!(Varint::new(value).unwrap().as_bytes(), bytes);
        }
        // A longer form than needed has the same value.
        assert_eq!(Varint::read(&[0x40, 0x25]), Some((37, 2)));
    }

    #[test]
    fn the_bounds_of_each_form_are_written_in_it() {
        let bounds = [
            (0, 1),
            (63, 1),
            (64, 2),
            (16_383, 2),
            (16_384, 4),
            ((1 << 30) - 1, 4),
            (1 << 30, 8),
            (Varint::MAX, 8),
        ];
        for (value, len) in bounds {
            assert_eq!(Varint::new(value).unwrap().as_bytes().len(), len, "{value}");
        }
        assert_eq!(Varint::new(Varint::MAX + 1), None);
        assert_eq!(Varint::new(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again_and_no_part_of_it_is(value in 0..=Varint::MAX, bits in 0_u32..62) {
            let value = value >> bits;
            let varint = Varint::new(value).unwrap();
            let bytes = varint.as_bytes();
            prop_assert_eq!(Varint::read(bytes), Some((value, bytes.len())));
            prop_assert_eq!(Varint::announced_len(bytes[0]), bytes.len());
            for end in 0..bytes.len() {
                prop_assert_eq!(Varint::read(&bytes[..end]), None);
            }
            let followed: Vec<u8> = bytes.iter().copied().chain([0xFF; 3]).collect();
            prop_assert_eq!(Varint::read(&followed), Some((value, bytes.len())));
        }
    }
}
