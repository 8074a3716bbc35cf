//! The head of a Data indication, so that relayed payload need not be copied ([RFC 8656 §11.3]).
//!
//! The invariant: header, payload and [`crate::padding_len`] zero bytes laid end to end are the same bytes that
//! [`crate::MessageWriter`] would have written.
//!
//! [RFC 8656 §11.3]: https://www.rfc-editor.org/rfc/rfc8656#section-11.3

use crate::header::{self, HEADER_LEN};
use crate::{AttributeType, Class, Method, TransactionId, address, padding_len};
use core::net::SocketAddr;

/// Most bytes a Data indication has before its payload: with an IPv6 peer.
pub const DATA_INDICATION_HEADER_MAX: usize = 48;

/// Writes what precedes `data_len` bytes of payload in a Data indication from `peer`: STUN header, XOR-PEER-ADDRESS and
/// the head of DATA. Returns its length, 36 for IPv4 and 48 for IPv6; the payload follows, then
/// [`padding_len`] zero bytes. `None` when the message would outgrow its 16-bit length field, which no payload that fits
/// beside the header into one UDP datagram does.
#[must_use]
#[inline]
pub fn data_indication_header(
    buf: &mut [u8; DATA_INDICATION_HEADER_MAX],
    transaction_id: TransactionId,
    peer: SocketAddr,
    data_len: u16,
) -> Option<usize> {
    let (value, value_len) = address::encode_xor(peer, transaction_id);
    let data_padded = usize::from(data_len).checked_add(padding_len(data_len.into()))?;
    // two attribute heads of four bytes; the largest sum is 8 + 20 + 65,536
    let length = value_len.checked_add(8)?.checked_add(data_padded)?;
    let header = header::header(
        Class::Indication,
        Method::DATA,
        u16::try_from(length).ok()?,
        transaction_id,
    );
    let (head, rest) = buf.split_first_chunk_mut::<HEADER_LEN>()?;
    *head = header;
    let (peer_head, rest) = rest.split_first_chunk_mut::<4>()?;
    *peer_head = attribute_head(
        AttributeType::XOR_PEER_ADDRESS,
        u16::try_from(value_len).ok()?,
    );
    rest.get_mut(..value_len)?
        .copy_from_slice(value.get(..value_len)?);
    *rest.get_mut(value_len..)?.first_chunk_mut::<4>()? =
        attribute_head(AttributeType::DATA, data_len);
    HEADER_LEN.checked_add(value_len)?.checked_add(8)
}

pub(crate) const fn attribute_head(kind: AttributeType, len: u16) -> [u8; 4] {
    let [k0, k1] = kind.number().to_be_bytes();
    let [l0, l1] = len.to_be_bytes();
    [k0, k1, l0, l1]
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::MessageWriter;
    use std::vec;
    use std::vec::Vec;

    //= TURN-073
    //= STUN-070
    #[test]
    fn writes_the_same_bytes_as_the_message_writer() {
        let transaction_id = TransactionId::new(*b"abcdefghijkl");
        for peer in ["192.0.2.7:4711", "[2001:db8::7]:4711"] {
            let peer: SocketAddr = peer.parse().unwrap();
            for len in [0u16, 1, 2, 3, 4, 5, 160, 1200, 65_000] {
                let payload = vec![0xA5; len.into()];
                let mut expected = vec![0xFF; 70_000];
                let mut writer = MessageWriter::new(
                    &mut expected,
                    Class::Indication,
                    Method::DATA,
                    transaction_id,
                );
                writer.xor_peer_address(peer).data(&payload);
                let expected_len = writer.finish().unwrap();

                let mut head = [0xFF; DATA_INDICATION_HEADER_MAX];
                let head_len =
                    data_indication_header(&mut head, transaction_id, peer, len).unwrap();
                assert_eq!(head_len, if peer.is_ipv4() { 36 } else { 48 });
                let mut message = Vec::from(&head[..head_len]);
                message.extend_from_slice(&payload);
                message.resize(message.len() + padding_len(payload.len()), 0);
                assert_eq!(message, expected[..expected_len]);
            }
        }
    }

    //= V-61
    #[test]
    fn refuses_payload_that_overflows_the_length_field() {
        let mut head = [0; DATA_INDICATION_HEADER_MAX];
        let id = TransactionId::new([0; 12]);
        let v4 = "192.0.2.7:4711".parse().unwrap();
        let v6 = "[2001:db8::7]:4711".parse().unwrap();
        for (peer, len, written) in [
            (v4, 65_516, Some(36)),
            (v4, 65_517, None),
            (v6, 65_504, Some(48)),
            (v6, 65_505, None),
            (v6, u16::MAX, None),
        ] {
            assert_eq!(data_indication_header(&mut head, id, peer, len), written);
        }
    }
}
