//! Answers, and messages that the codec's writer refuses to write.

use std::net::SocketAddr;

use turnbuckle_client::blocking::append;
use turnbuckle_wire::{AttributeType, Class, Message, padding_len};

/// A response, owned.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Answer(pub(crate) Vec<u8>);

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} code {}", self.message(), self.code())
    }
}

impl Answer {
    pub(crate) fn message(&self) -> Message<'_> {
        Message::parse(&self.0).expect("the relay answers in STUN")
    }

    /// Returns the error code; 200 for success.
    pub(crate) fn code(&self) -> u16 {
        let message = self.message();
        match message.class() {
            Class::Success => 200,
            Class::Error => {
                message
                    .error_code()
                    .expect("well formed")
                    .expect("present")
                    .code
            }
            Class::Request | Class::Indication => panic!("not a response: {message:?}"),
        }
    }

    /// Fails unless the code is `expected`.
    #[track_caller]
    pub(crate) fn expect(self, expected: u16) -> Self {
        assert_eq!(self.code(), expected, "{self:?}");
        self
    }

    pub(crate) fn nonce(&self) -> Vec<u8> {
        self.message()
            .nonce()
            .expect("well formed")
            .expect("a NONCE")
            .to_vec()
    }

    pub(crate) fn lifetime(&self) -> u32 {
        self.message()
            .lifetime()
            .expect("well formed")
            .expect("a LIFETIME")
    }

    /// Returns the answer with transaction id, NONCE and integrity blanked: all that may differ between two answers that say the same.
    pub(crate) fn skeleton(&self) -> Vec<(u16, Vec<u8>)> {
        let blank = [
            AttributeType::NONCE,
            AttributeType::MESSAGE_INTEGRITY,
            AttributeType::MESSAGE_INTEGRITY_SHA256,
            AttributeType::FINGERPRINT,
        ];
        let mut parts = vec![(0, self.0[..8].to_vec())];
        let mut rest = &self.0[20..];
        while let [k0, k1, l0, l1, tail @ ..] = rest {
            let kind = u16::from_be_bytes([*k0, *k1]);
            let len = usize::from(u16::from_be_bytes([*l0, *l1]));
            let padded = len + padding_len(len);
            let value = if blank.iter().any(|blank| blank.number() == kind) {
                vec![0; padded]
            } else {
                tail[..padded].to_vec()
            };
            parts.push((kind, value));
            rest = &tail[padded..];
        }
        parts
    }
}

/// Appends a FINGERPRINT that is right for the message as it stands (RFC 8489 §14.7).
pub(crate) fn replace_fingerprint(message: &mut Vec<u8>) {
    append(message, AttributeType::FINGERPRINT, &[0; 4]);
    let covered = message.len() - 8;
    let crc = crc32(&message[..covered]) ^ 0x5354_554E;
    message[covered + 4..].copy_from_slice(&crc.to_be_bytes());
}

/// Returns the CRC of RFC 8489 §14.7, bit by bit: independent of the codec's.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// Returns the value of XOR-PEER-ADDRESS for an IPv4 address (RFC 8489 §14.2).
pub(crate) fn xor_address(address: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(address) = address else {
        panic!("IPv4 only")
    };
    let cookie = turnbuckle_wire::MAGIC_COOKIE.to_be_bytes();
    let port = address.port().to_be_bytes();
    let ip = address.ip().octets();
    let masked = port
        .iter()
        .chain(&ip)
        .zip(cookie[..2].iter().chain(&cookie))
        .map(|(a, b)| a ^ b);
    [0, 1].into_iter().chain(masked).collect()
}
