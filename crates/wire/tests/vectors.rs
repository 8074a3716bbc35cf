//! The test vectors of RFC 5769 and RFC 8489 appendix B: read, verified, and written again.
//!
//! Two of the documents' habits need a word. RFC 5769 pads its first three messages with spaces, which RFC 8489 §14
//! no longer allows a sender to do; there the expectation is the printed message with its padding set to zero and
//! HMAC and CRC computed anew by code that shares nothing with the crate. The vector of RFC 8489 B.1 is printed with
//! a length field that counts the header and without PASSWORD-ALGORITHM; erratum 6268 gives the corrected one. Both are here.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use hmac::{Hmac, KeyInit as _, Mac as _};
use std::net::SocketAddr;
use turnbuckle_wire::{
    AttributeType, Class, IntegrityError, IntegrityKey, Message, MessageWriter, Method, ParseError,
    PasswordAlgorithm, long_term_key_md5, long_term_key_sha256, padding_len, userhash,
};

const SAMPLE_REQUEST: &str = "
    00010058 2112a442 b7e7a701 bc34d686 fa87dfae 80220010 5354554e 20746573
    7420636c 69656e74 00240004 6e0001ff 80290008 932ff9b1 51263b36 00060009
    6576746a 3a683676 59202020 00080014 9aeaa70c bfd8cb56 781ef2b5 b2d3f249
    c1b571a2 80280004 e57a3bcf
";

const SAMPLE_IPV4_RESPONSE: &str = "
    0101003c 2112a442 b7e7a701 bc34d686 fa87dfae 8022000b 74657374 20766563
    746f7220 00200008 0001a147 e112a643 00080014 2b91f599 fd9e90c3 8c7489f9
    2af9ba53 f06be7d7 80280004 c07d4c96
";

const SAMPLE_IPV6_RESPONSE: &str = "
    01010048 2112a442 b7e7a701 bc34d686 fa87dfae 8022000b 74657374 20766563
    746f7220 00200014 0002a147 0113a9fa a5d3f179 bc25f4b5 bed2b9d9 00080014
    a382954e 4be67bf1 1784c97c 8292c275 bfe3ed41 80280004 c8fb0b4c
";

const SAMPLE_LONG_TERM_REQUEST: &str = "
    00010060 2112a442 78ad3433 c6ad72c0 29da412e 00060012 e3839ee3 8388e383
    aae38383 e382afe3 82b90000 0015001c 662f2f34 39396b39 35346436 4f4c3334
    6f4c3946 53547679 36347341 0014000b 6578616d 706c652e 6f726700 00080014
    f6702465 6dd64a3e 02b8e071 2e85c9a2 8ca89666
";

const SAMPLE_SHA256_REQUEST_AS_PRINTED: &str = "
    0001009c 2112a442 78ad3433 c6ad72c0 29da412e 001e0020 4a3cf38f ef6992bd
    a952c678 0417da0f 24819415 569e60b2 05c46e41 407f1704 00150029 6f624d61
    744a6f73 32414141 43662f2f 3439396b 39353464 364f4c33 346f4c39 46535476
    79363473 41000000 0014000b 6578616d 706c652e 6f726700 001c0020 e4686c8f
    0edeb590 13e07090 010a93ef ccbccc54 4c0a45d9 f830aa6d 6f735a01
";

const SAMPLE_SHA256_REQUEST_OF_ERRATUM_6268: &str = "
    00010090 2112a442 78ad3433 c6ad72c0 29da412e 001e0020 4a3cf38f ef6992bd
    a952c678 0417da0f 24819415 569e60b2 05c46e41 407f1704 00150029 6f624d61
    744a6f73 32414141 43662f2f 3439396b 39353464 364f4c33 346f4c39 46535476
    79363473 41000000 0014000b 6578616d 706c652e 6f726700 001d0004 00020000
    001c0020 b5c7bf00 5b6c52a2 1c51c5e8 92f81924 136296cb 927c4314 9309278c
    c6518e65
";

const SHORT_TERM_PASSWORD: &[u8] = b"VOkJxbRl1RmTxUk/WvJxBt";
const USERNAME: &str = "\u{30DE}\u{30C8}\u{30EA}\u{30C3}\u{30AF}\u{30B9}";
const REALM: &[u8] = b"example.org";
const PASSWORD: &[u8] = b"TheMatrIX";
const PRIORITY: AttributeType = AttributeType::new(0x0024);
const ICE_CONTROLLED: AttributeType = AttributeType::new(0x8029);

//= STUN-033
//= STUN-070
//= STUN-076
//= STUN-079
#[test]
fn reads_the_sample_request_of_rfc_5769() {
    let bytes = unhex(SAMPLE_REQUEST);
    let message = Message::parse(&bytes).unwrap();
    assert_eq!(message.class(), Class::Request);
    assert_eq!(message.method(), Method::BINDING);
    assert_eq!(
        message.transaction_id().as_bytes()[..],
        unhex("b7e7a701bc34d686fa87dfae")
    );
    assert_eq!(message.software(), Ok(Some(&b"STUN test client"[..])));
    assert_eq!(message.username(), Ok(Some(&b"evtj:h6vY"[..])));
    assert_eq!(message.raw(PRIORITY), Some(&[0x6e, 0x00, 0x01, 0xff][..]));
    // PRIORITY belongs to ICE agents; for a relay it is unknown and comprehension-required
    assert!(message.unknown_required().eq([PRIORITY]));
    assert!(message.has_fingerprint());
    let key = IntegrityKey::sha1(SHORT_TERM_PASSWORD);
    assert_eq!(message.check_integrity(&key), Ok(()));
    let other = IntegrityKey::sha1(b"VOkJxbRl1RmTxUk/WvJxBT");
    assert_eq!(
        message.check_integrity(&other),
        Err(IntegrityError::Mismatch)
    );
}

//= STUN-073
#[test]
fn reads_the_sample_responses_of_rfc_5769() {
    for (vector, address) in RESPONSES {
        let bytes = unhex(vector);
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message.class(), Class::Success);
        assert_eq!(message.method(), Method::BINDING);
        assert_eq!(message.software(), Ok(Some(&b"test vector"[..])));
        let address: SocketAddr = address.parse().unwrap();
        assert_eq!(message.xor_mapped_address(), Ok(Some(address)));
        assert!(message.has_fingerprint());
        let key = IntegrityKey::sha1(SHORT_TERM_PASSWORD);
        assert_eq!(message.check_integrity(&key), Ok(()));
    }
}

//= STUN-076
#[test]
fn reads_and_rewrites_the_long_term_request_of_rfc_5769() {
    let bytes = unhex(SAMPLE_LONG_TERM_REQUEST);
    let nonce = b"f//499k954d6OL34oL9FSTvy64sA";
    let message = Message::parse(&bytes).unwrap();
    assert_eq!(message.username(), Ok(Some(USERNAME.as_bytes())));
    assert_eq!(message.realm(), Ok(Some(REALM)));
    assert_eq!(message.nonce(), Ok(Some(&nonce[..])));
    assert!(!message.has_fingerprint());
    let key = IntegrityKey::sha1(&long_term_key_md5(USERNAME.as_bytes(), REALM, PASSWORD));
    assert_eq!(message.check_integrity(&key), Ok(()));

    let written = write(&message, |writer| {
        writer
            .username(USERNAME.as_bytes())
            .nonce(nonce)
            .realm(REALM)
            .integrity(&key);
    });
    assert_eq!(written, bytes);
}

//= STUN-070
#[test]
fn rewrites_the_space_padded_vectors_of_rfc_5769_with_zero_padding() {
    let key = IntegrityKey::sha1(SHORT_TERM_PASSWORD);

    let bytes = unhex(SAMPLE_REQUEST);
    let message = Message::parse(&bytes).unwrap();
    let written = write(&message, |writer| {
        writer
            .software("STUN test client")
            .bytes(PRIORITY, &[0x6e, 0x00, 0x01, 0xff])
            .bytes(ICE_CONTROLLED, &unhex("932ff9b151263b36"))
            .username(b"evtj:h6vY")
            .integrity(&key)
            .fingerprint();
    });
    assert_eq!(written, zero_padded(bytes));

    for (vector, address) in RESPONSES {
        let bytes = unhex(vector);
        let message = Message::parse(&bytes).unwrap();
        let written = write(&message, |writer| {
            writer
                .software("test vector")
                .xor_mapped_address(address.parse().unwrap())
                .integrity(&key)
                .fingerprint();
        });
        assert_eq!(written, zero_padded(bytes));
    }
}

//= STUN-075
//= STUN-077
//= STUN-083
#[test]
fn reads_and_rewrites_the_corrected_request_of_rfc_8489_appendix_b() {
    let bytes = unhex(SAMPLE_SHA256_REQUEST_OF_ERRATUM_6268);
    let nonce = b"obMatJos2AAACf//499k954d6OL34oL9FSTvy64sA";
    let hash = userhash(USERNAME.as_bytes(), REALM);
    let message = Message::parse(&bytes).unwrap();
    assert_eq!(message.userhash(), Ok(Some(hash)));
    assert_eq!(message.nonce(), Ok(Some(&nonce[..])));
    assert_eq!(message.realm(), Ok(Some(REALM)));
    assert_eq!(
        message.password_algorithm(),
        Ok(Some(PasswordAlgorithm::Sha256))
    );
    let key = long_term_key_sha256(USERNAME.as_bytes(), REALM, PASSWORD);
    let sha256 = IntegrityKey::sha256(&key);
    assert_eq!(message.check_integrity(&sha256), Ok(()));
    assert_eq!(
        message.check_integrity(&IntegrityKey::sha1(&key)),
        Err(IntegrityError::Missing)
    );

    let written = write(&message, |writer| {
        writer
            .userhash(&hash)
            .nonce(nonce)
            .realm(REALM)
            .password_algorithm(PasswordAlgorithm::Sha256)
            .integrity(&sha256);
    });
    assert_eq!(written, bytes);
}

//= STUN-004
//= STUN-077
#[test]
fn refuses_the_request_of_rfc_8489_appendix_b_as_printed_for_its_length_alone() {
    let mut bytes = unhex(SAMPLE_SHA256_REQUEST_AS_PRINTED);
    assert_eq!(Message::parse(&bytes).unwrap_err(), ParseError::Length);

    // the printed HMAC is right for the printed header, so everything but the length field agrees with us
    let key = long_term_key_sha256(USERNAME.as_bytes(), REALM, PASSWORD);
    let (covered, attribute) = bytes.split_at(bytes.len() - 36);
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
    mac.update(covered);
    assert_eq!(mac.finalize().into_bytes()[..], attribute[4..]);

    let length = u16::try_from(bytes.len() - 20).unwrap();
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    let message = Message::parse(&bytes).unwrap();
    assert_eq!(
        message.userhash(),
        Ok(Some(userhash(USERNAME.as_bytes(), REALM)))
    );
    assert_eq!(
        message.check_integrity(&IntegrityKey::sha256(&key)),
        Err(IntegrityError::Mismatch)
    );
}

const RESPONSES: [(&str, &str); 2] = [
    (SAMPLE_IPV4_RESPONSE, "192.0.2.1:32853"),
    (
        SAMPLE_IPV6_RESPONSE,
        "[2001:db8:1234:5678:11:2233:4455:6677]:32853",
    ),
];

fn unhex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

/// Writes a message with the header of `like`.
fn write(like: &Message<'_>, attributes: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
    let mut buf = [0xEE; 512];
    let (class, method) = (like.class(), like.method());
    let mut writer = MessageWriter::new(&mut buf, class, method, like.transaction_id());
    attributes(&mut writer);
    let len = writer.finish().unwrap();
    buf[..len].to_vec()
}

/// Sets the padding of a short-term message of RFC 5769 to zero, and MESSAGE-INTEGRITY and FINGERPRINT to match.
fn zero_padded(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut offset = 20;
    while offset < bytes.len() {
        let len = usize::from(u16::from_be_bytes([bytes[offset + 2], bytes[offset + 3]]));
        let end = offset + 4 + len;
        let next = end + padding_len(len);
        bytes[end..next].fill(0);
        offset = next;
    }
    let total = bytes.len();
    let integrity_at = total - 8 - 24;
    let mut covered = bytes[..integrity_at].to_vec();
    covered[2..4].copy_from_slice(&u16::try_from(total - 20 - 8).unwrap().to_be_bytes());
    let mut mac = Hmac::<sha1::Sha1>::new_from_slice(SHORT_TERM_PASSWORD).unwrap();
    mac.update(&covered);
    bytes[integrity_at + 4..integrity_at + 24].copy_from_slice(&mac.finalize().into_bytes());
    let crc = crc32(&bytes[..total - 8]) ^ 0x5354_554E;
    bytes[total - 4..].copy_from_slice(&crc.to_be_bytes());
    bytes
}

/// Computes CRC-32 of ITU V.42, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}
