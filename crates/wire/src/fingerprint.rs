//! FINGERPRINT: a CRC-32 that distinguishes STUN from other protocols ([RFC 8489 §14.7]).
//!
//! The checksum is `crc32fast`'s, with its `std` feature: without it the crate cannot detect carry-less
//! multiplication and falls back to tables, which costs several times as much on a 140-byte message.
//!
//! [RFC 8489 §14.7]: https://www.rfc-editor.org/rfc/rfc8489#section-14.7

/// Keeps the CRC of a STUN message apart from one that another protocol may put in the same place ("STUN").
const MASK: u32 = 0x5354_554E;

/// Computes the fingerprint of everything before the attribute; the header's length field must already count it.
#[inline]
pub(crate) fn compute(before: &[u8]) -> u32 {
    crc32fast::hash(before) ^ MASK
}
