//! HTTP datagrams of UDP proxying ([RFC 9298 §5]): a context id, then the payload of a UDP datagram.
//!
//! [RFC 9298 §5]: https://www.rfc-editor.org/rfc/rfc9298#section-5

use crate::{CapsuleHeader, Varint};

/// The longest payload that a UDP datagram can have, in bytes: what its length field says, less its header (RFC 9298 §5).
pub const UDP_PAYLOAD_MAX: usize = 65_527;

/// The context id of unmodified UDP payloads (RFC 9298 §4).
pub const UDP_CONTEXT: u64 = 0;

/// Most bytes a DATAGRAM capsule has before its payload, as [`datagram_capsule_header`] writes it.
pub const DATAGRAM_CAPSULE_HEADER_MAX: usize = 1 + 2 * Varint::LEN_MAX;

/// Writes what precedes `payload_len` bytes of payload in a DATAGRAM capsule (RFC 9297 §3.5) whose HTTP datagram has this context.
/// Returns its length in bytes. `None` for a context or a length that there cannot be.
#[must_use]
#[inline]
pub fn datagram_capsule_header(
    buffer: &mut [u8; DATAGRAM_CAPSULE_HEADER_MAX],
    context: u64,
    payload_len: usize,
) -> Option<usize> {
    let kind = Varint::new(CapsuleHeader::DATAGRAM)?;
    let context = Varint::new(context)?;
    let value_len = payload_len.checked_add(context.as_bytes().len())?;
    let value_len = Varint::new(u64::try_from(value_len).ok()?)?;
    let mut len = 0_usize;
    for part in [kind, value_len, context] {
        let part = part.as_bytes();
        let end = len.checked_add(part.len())?;
        buffer.get_mut(len..end)?.copy_from_slice(part);
        len = end;
    }
    Some(len)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_datagram_capsule_is_a_capsule_with_a_context_and_the_payload(
            context in prop_oneof![Just(0), 0..=Varint::MAX],
            payload_len in 0..=UDP_PAYLOAD_MAX,
        ) {
            let mut buffer = [0xEE; DATAGRAM_CAPSULE_HEADER_MAX];
            let len = datagram_capsule_header(&mut buffer, context, payload_len).unwrap();
            let head = CapsuleHeader::parse(&buffer).unwrap();
            prop_assert_eq!(head.kind, CapsuleHeader::DATAGRAM);
            let (read, context_len) = Varint::read(&buffer[head.len..]).unwrap();
            prop_assert_eq!(read, context);
            prop_assert_eq!(head.len + context_len, len);
            prop_assert_eq!(head.value_len, (context_len + payload_len) as u64);
            prop_assert!(buffer[len..].iter().all(|&byte| byte == 0xEE));
        }
    }

    #[test]
    fn there_is_no_context_beyond_62_bits() {
        let mut buffer = [0; DATAGRAM_CAPSULE_HEADER_MAX];
        assert_eq!(datagram_capsule_header(&mut buffer, 1 << 62, 0), None);
        assert_eq!(
            datagram_capsule_header(&mut buffer, 0, usize::MAX),
            None,
            "no capsule is as long"
        );
    }
}
