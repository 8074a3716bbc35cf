//! Well-formed values for every attribute type.

use turnbuckle_wire::{AttributeType, KnownAttributeTypes};

/// Returns two different values a type can have, the first of them well-formed; integrity and fingerprint are left out.
pub(crate) fn values_by_type() -> Vec<(AttributeType, Vec<u8>, Vec<u8>)> {
    KnownAttributeTypes::ALL
        .iter()
        .filter(|&&kind| {
            !matches!(
                kind,
                AttributeType::MESSAGE_INTEGRITY
                    | AttributeType::MESSAGE_INTEGRITY_SHA256
                    | AttributeType::FINGERPRINT
            )
        })
        .map(|&kind| (kind, value_of(kind, 1), value_of(kind, 2)))
        .collect()
}

/// Returns a well-formed value that differs with `variant` (1 or 2) where the type allows it.
fn value_of(kind: AttributeType, variant: u8) -> Vec<u8> {
    match kind {
        AttributeType::MAPPED_ADDRESS
        | AttributeType::XOR_MAPPED_ADDRESS
        | AttributeType::XOR_PEER_ADDRESS
        | AttributeType::XOR_RELAYED_ADDRESS
        | AttributeType::ALTERNATE_SERVER
        | AttributeType::RESPONSE_ORIGIN
        | AttributeType::OTHER_ADDRESS => vec![0, 1, 0x12, variant, 192, 0, 2, variant],
        AttributeType::ERROR_CODE => vec![0, 0, 4, variant, b'x'],
        AttributeType::ADDRESS_ERROR_CODE => vec![0, variant, 4, 40, b'x'],
        AttributeType::CHANGE_REQUEST => vec![0, 0, 0, variant << 1],
        AttributeType::UNKNOWN_ATTRIBUTES => vec![0x7F, variant],
        AttributeType::CHANNEL_NUMBER => vec![0x40, variant, 0, 0],
        AttributeType::REQUESTED_ADDRESS_FAMILY | AttributeType::ADDITIONAL_ADDRESS_FAMILY => {
            vec![variant, 0, 0, 0]
        }
        AttributeType::EVEN_PORT => vec![variant << 7],
        AttributeType::REQUESTED_TRANSPORT => vec![variant, 0, 0, 0],
        AttributeType::LIFETIME | AttributeType::CONNECTION_ID => vec![0, 0, 2, variant],
        AttributeType::DONT_FRAGMENT => vec![],
        AttributeType::PASSWORD_ALGORITHM | AttributeType::PASSWORD_ALGORITHMS => {
            vec![0, variant, 0, 0]
        }
        AttributeType::USERHASH => vec![variant; 32],
        AttributeType::RESERVATION_TOKEN | AttributeType::ICMP => {
            vec![0, 0, 0, 0, 0, 0, 0, variant]
        }
        AttributeType::RESPONSE_PORT => vec![0x12, variant],
        AttributeType::ACCESS_TOKEN => vec![0, 1, variant, 7],
        _ => vec![b'a', variant],
    }
}
