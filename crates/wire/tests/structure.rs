//! The structure of a message: header, attributes, and what counts behind integrity.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;
#[path = "support/values.rs"]
mod values;

use support::{ID, RawMessage};
use turnbuckle_wire::{
    AttributeType, Class, IntegrityError, IntegrityKey, KnownAttributeTypes, Message,
    MessageWriter, Method, ParseError, TransactionId, WriteError,
};
use values::values_by_type;

//= STUN-001
//= STUN-002
//= STUN-017
#[test]
fn refuses_leading_bits_and_a_wrong_cookie() {
    let good = RawMessage::request().0;
    assert!(Message::parse(&good).is_ok());
    for leading in 1..=3 {
        let mut bytes = good.clone();
        bytes[0] |= leading << 6;
        assert_eq!(Message::parse(&bytes).unwrap_err(), ParseError::LeadingBits);
    }
    for at in 4..8 {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        assert_eq!(Message::parse(&bytes).unwrap_err(), ParseError::MagicCookie);
    }
}

//= STUN-004
//= STUN-017
#[test]
fn refuses_a_length_that_is_not_the_datagrams_own() {
    let good = RawMessage::request()
        .attribute(AttributeType::LIFETIME, &[0, 0, 2, 88])
        .0;
    for length in 0..=u16::MAX {
        let mut bytes = good.clone();
        bytes[2..4].copy_from_slice(&length.to_be_bytes());
        let parsed = Message::parse(&bytes);
        if length == 8 {
            assert!(parsed.is_ok());
        } else {
            assert_eq!(parsed.unwrap_err(), ParseError::Length);
        }
    }
    let mut longer = good.clone();
    longer.push(0);
    assert_eq!(Message::parse(&longer).unwrap_err(), ParseError::Length);
    for end in 0..good.len() {
        let error = Message::parse(&good[..end]).unwrap_err();
        let expected = if end < 20 {
            ParseError::Truncated
        } else {
            ParseError::Length
        };
        assert_eq!(error, expected);
    }
}

//= STUN-003
#[test]
fn keeps_the_transaction_id_in_both_directions() {
    let mut buf = [0; 64];
    for byte in 0..=u8::MAX {
        let id = TransactionId::new([byte; 12]);
        let len = MessageWriter::new(&mut buf, Class::Error, Method::REFRESH, id)
            .finish()
            .unwrap();
        assert_eq!(Message::parse(&buf[..len]).unwrap().transaction_id(), id);
    }
}

//= STUN-069
//= V-61
#[test]
fn refuses_an_attribute_that_reaches_behind_the_message() {
    let good = RawMessage::request()
        .attribute(AttributeType::USERNAME, b"alice")
        .attribute(AttributeType::DATA, b"payload")
        .0;
    let second = 20 + 4 + 8;
    for len in 0..=u16::MAX {
        let mut bytes = good.clone();
        bytes[second + 2..second + 4].copy_from_slice(&len.to_be_bytes());
        // up to four bytes of value leave the rest to be read as a head, which is all padding here
        let parsed = Message::parse(&bytes);
        match len {
            5..=8 => assert_eq!(
                parsed.unwrap().data().map(<[u8]>::len),
                Some(usize::from(len))
            ),
            _ => assert_eq!(parsed.unwrap_err(), ParseError::AttributeLength),
        }
    }
}

//= STUN-018
//= STUN-033
//= STUN-067
#[test]
fn verifies_a_fingerprint_that_is_there_and_requires_none() {
    let plain = RawMessage::request().attribute(AttributeType::DATA, b"payload");
    assert!(!Message::parse(&plain.0).unwrap().has_fingerprint());
    let good = with_fingerprint(plain).0;
    assert!(Message::parse(&good).unwrap().has_fingerprint());
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        match (at, Message::parse(&bytes)) {
            // the head of the fingerprint itself: another type hides it, another length is refused before
            (32..36, _) => {}
            // type, transaction id, an attribute's type and value, the checksum
            (0..2 | 8..22 | 24..32 | 36.., parsed) => {
                assert_eq!(parsed.unwrap_err(), ParseError::FingerprintMismatch);
            }
            (_, parsed) => assert!(parsed.is_err(), "byte {at}"),
        }
    }
}

//= STUN-079
#[test]
fn refuses_a_fingerprint_that_is_not_last_or_not_four_bytes() {
    let followed = with_fingerprint(RawMessage::request()).attribute(AttributeType::SOFTWARE, b"x");
    assert_eq!(
        Message::parse(&followed.0).unwrap_err(),
        ParseError::FingerprintNotLast
    );
    for len in [0, 1, 3, 5, 8] {
        let message = RawMessage::request().attribute(AttributeType::FINGERPRINT, &[0; 8][..len]);
        assert_eq!(
            Message::parse(&message.0).unwrap_err(),
            ParseError::FingerprintLength
        );
    }
}

//= STUN-034
//= V-23
#[test]
fn hides_every_attribute_behind_message_integrity() {
    let key = IntegrityKey::sha1(b"key");
    let signed = signed_request(&key);
    let unknown = [
        AttributeType::new(0x7777),
        AttributeType::new(0x0024),
        AttributeType::new(0xC001),
    ];
    let known = values_by_type();
    let appended = known
        .iter()
        .map(|(kind, value, _)| (*kind, value.as_slice()))
        .chain(unknown.map(|kind| (kind, &b"x"[..])));
    for (kind, value) in appended {
        let forged = RawMessage(signed.clone()).attribute(kind, value);
        for bytes in [forged.0.clone(), with_fingerprint(forged).0] {
            let message = Message::parse(&bytes).unwrap();
            assert_eq!(message.raw(kind), None, "{kind:?}");
            assert!(message.attributes().all(|found| found.kind != kind));
            assert!(!message.has_unknown_required());
            assert_eq!(message.unknown_required().count(), 0);
            assert_eq!(message.check_integrity(&key), Ok(()), "{kind:?}");
        }
    }
}

//= STUN-034
//= STUN-035
#[test]
fn reads_integrity_sha256_behind_integrity_but_not_the_other_way_round() {
    let sha1 = IntegrityKey::sha1(b"key");
    let sha256 = IntegrityKey::sha256(b"key");
    let mut buf = [0; 256];
    let mut writer = MessageWriter::new(&mut buf, Class::Request, Method::REFRESH, ID);
    writer
        .lifetime(7)
        .integrity(&sha1)
        .integrity(&sha256)
        .fingerprint();
    let len = writer.finish().unwrap();
    let message = Message::parse(&buf[..len]).unwrap();
    assert_eq!(message.check_integrity(&sha1), Ok(()));
    assert_eq!(message.check_integrity(&sha256), Ok(()));
    assert_eq!(message.lifetime(), Ok(Some(7)));

    let mut writer = MessageWriter::new(&mut buf, Class::Request, Method::REFRESH, ID);
    writer.lifetime(7).integrity(&sha256);
    let len = writer.finish().unwrap();
    for kind in KnownAttributeTypes::ALL {
        if *kind == AttributeType::FINGERPRINT || *kind == AttributeType::LIFETIME {
            continue;
        }
        let forged = RawMessage(buf[..len].to_vec()).attribute(*kind, &[0; 20]);
        let forged = with_fingerprint(forged);
        let message = Message::parse(&forged.0).unwrap();
        assert_eq!(message.check_integrity(&sha256), Ok(()));
        if *kind != AttributeType::MESSAGE_INTEGRITY_SHA256 {
            assert_eq!(message.raw(*kind), None, "{kind:?}");
        }
        assert_eq!(message.check_integrity(&sha1), Err(IntegrityError::Missing));
    }
}

//= STUN-071
//= V-24
#[test]
fn takes_the_first_of_repeated_attributes() {
    for (kind, first, second) in values_by_type() {
        for (head, tail) in [(&first, &second), (&second, &first)] {
            let bytes = RawMessage::request()
                .attribute(kind, head)
                .attribute(AttributeType::new(0xC001), b"between")
                .attribute(kind, tail)
                .0;
            let message = Message::parse(&bytes).unwrap();
            assert_eq!(message.raw(kind), Some(head.as_slice()), "{kind:?}");
        }
    }
    let key = IntegrityKey::sha1(b"key");
    let twice = RawMessage(signed_request(&key))
        .attribute(AttributeType::MESSAGE_INTEGRITY, &[0; 20])
        .0;
    let message = Message::parse(&twice).unwrap();
    assert_eq!(message.check_integrity(&key), Ok(()));
}

//= STUN-071
#[test]
fn yields_every_address_that_may_repeat() {
    let bytes = RawMessage::request()
        .attribute(
            AttributeType::XOR_PEER_ADDRESS,
            &[0, 1, 0x21, 0x12, 0x21, 0x12, 0xA4, 0x43],
        )
        .attribute(AttributeType::LIFETIME, &[0, 0, 0, 1])
        .attribute(AttributeType::XOR_PEER_ADDRESS, &[0, 9, 0, 0])
        .attribute(
            AttributeType::XOR_PEER_ADDRESS,
            &[0, 1, 0x21, 0x13, 0x21, 0x12, 0xA4, 0x40],
        )
        .0;
    let message = Message::parse(&bytes).unwrap();
    let peers: Vec<_> = message.xor_peer_addresses().collect();
    assert_eq!(peers.len(), 3);
    assert_eq!(peers[0], Ok("0.0.0.1:0".parse().unwrap()));
    assert!(peers[1].is_err());
    assert_eq!(peers[2], Ok("0.0.0.2:1".parse().unwrap()));
    assert_eq!(message.xor_peer_address(), Ok(peers[0].ok()));
}

//= STUN-019
//= STUN-021
//= STUN-022
//= STUN-031
#[test]
fn lists_unknown_required_types_and_ignores_unknown_optional_ones() {
    let bytes = RawMessage::request()
        .attribute(AttributeType::new(0xC001), b"optional")
        .attribute(AttributeType::new(0x7FFF), b"required")
        .attribute(AttributeType::LIFETIME, &[0, 0, 0, 1])
        .attribute(AttributeType::new(0x0025), b"")
        .0;
    let message = Message::parse(&bytes).unwrap();
    assert!(message.has_unknown_required());
    assert!(
        message
            .unknown_required()
            .eq([AttributeType::new(0x7FFF), AttributeType::new(0x0025)])
    );
    assert_eq!(
        message.raw(AttributeType::new(0xC001)),
        Some(&b"optional"[..])
    );

    let optional = RawMessage::request()
        .attribute(AttributeType::new(0xFFFF), b"x")
        .0;
    let message = Message::parse(&optional).unwrap();
    assert!(!message.has_unknown_required());
    assert_eq!(message.unknown_required().count(), 0);
}

#[test]
fn knows_exactly_the_registry() {
    let known = (0..=u16::MAX)
        .map(AttributeType::new)
        .filter(|kind| kind.is_known());
    assert!(known.eq(KnownAttributeTypes::ALL.iter().copied()));
    for kind in KnownAttributeTypes::ALL {
        assert!(kind.name().is_some());
        assert_eq!(kind.is_comprehension_required(), kind.number() < 0x8000);
    }
}

//= STUN-077
//= STUN-078
#[test]
fn reads_truncated_sha256_as_a_value_and_never_accepts_it() {
    let key = IntegrityKey::sha256(b"key");
    let mut buf = [0; 128];
    let mut writer = MessageWriter::new(&mut buf, Class::Request, Method::REFRESH, ID);
    writer.integrity(&key);
    assert_eq!(writer.finish(), Ok(56));
    let full = &buf[24..56];
    for len in 0..=40 {
        let mut value = full.to_vec();
        value.resize(len, 0);
        let bytes = RawMessage::new(Class::Request, Method::REFRESH)
            .attribute(AttributeType::MESSAGE_INTEGRITY_SHA256, &value)
            .0;
        let message = Message::parse(&bytes).unwrap();
        let readable = (16..=32).contains(&len) && len % 4 == 0;
        let parsed = message.integrity_sha256();
        assert_eq!(parsed.is_ok(), readable, "length {len}");
        if let Ok(Some(value)) = parsed {
            assert_eq!(value.is_truncated(), len < 32);
        }
        let checked = message.check_integrity(&key);
        if len == 32 {
            assert_eq!(checked, Ok(()));
        } else {
            assert_eq!(checked, Err(IntegrityError::BadLength));
        }
    }
}

//= STUN-076
//= STUN-052
#[test]
fn refuses_a_message_changed_in_any_byte_before_integrity() {
    for key in [IntegrityKey::sha1(b"key"), IntegrityKey::sha256(b"key")] {
        let good = signed_request(&key);
        for at in (0..good.len()).filter(|at| !(2..8).contains(at)) {
            let mut bytes = good.clone();
            bytes[at] ^= 0x20;
            if let Ok(message) = Message::parse(&bytes) {
                assert!(message.check_integrity(&key).is_err(), "byte {at}");
            }
        }
    }
}

#[test]
fn keeps_short_and_long_integrity_keys_apart() {
    let keys: Vec<IntegrityKey> = (1..200)
        .flat_map(|len| {
            let key = vec![0x5A; len];
            [IntegrityKey::sha1(&key), IntegrityKey::sha256(&key)]
        })
        .collect();
    for (index, key) in keys.iter().enumerate() {
        let bytes = signed_request(key);
        let message = Message::parse(&bytes).unwrap();
        for (other_index, other) in keys.iter().enumerate() {
            let passes = message.check_integrity(other).is_ok();
            assert_eq!(passes, index == other_index);
        }
    }
}

#[test]
fn prints_no_secret_and_no_value() {
    let key = IntegrityKey::sha1(b"hunter2");
    assert_eq!(format!("{key:?}"), "IntegrityKey::Sha1");
    let bytes = RawMessage::request()
        .attribute(AttributeType::USERNAME, b"alice")
        .0;
    let printed = format!("{:?}", Message::parse(&bytes).unwrap());
    assert!(printed.contains("USERNAME"));
    assert!(printed.contains("Allocate Request"));
    assert!(!printed.contains("alice"));
}

//= STUN-034
//= STUN-079
#[test]
fn writes_nothing_where_nobody_would_read_it() {
    let key = IntegrityKey::sha1(b"key");
    let sha256 = IntegrityKey::sha256(b"key");
    let refused: [fn(&mut MessageWriter<'_>, &IntegrityKey, &IntegrityKey); 5] = [
        |writer, sha1, _| {
            writer.integrity(sha1).lifetime(1);
        },
        |writer, sha1, _| {
            writer.integrity(sha1).integrity(sha1);
        },
        |writer, sha1, sha256| {
            writer.integrity(sha256).integrity(sha1);
        },
        |writer, sha1, _| {
            writer.fingerprint().integrity(sha1);
        },
        |writer, _, _| {
            writer.fingerprint().fingerprint();
        },
    ];
    for calls in refused {
        let mut buf = [0; 256];
        let mut writer = MessageWriter::new(&mut buf, Class::Request, Method::REFRESH, ID);
        calls(&mut writer, &key, &sha256);
        assert_eq!(writer.finish(), Err(WriteError::Order));
    }
}

//= V-60
//= V-61
//= STUN-070
#[test]
fn writes_every_byte_and_reports_every_buffer_that_is_too_small() {
    let key = IntegrityKey::sha1(b"key");
    let write = |buf: &mut [u8]| {
        let mut writer = MessageWriter::new(buf, Class::Error, Method::ALLOCATE, ID);
        writer
            .error_code(420, "Unknown Attribute")
            .unknown_attributes([AttributeType::new(0x7777)].into_iter())
            .even_port(true)
            .software("x")
            .integrity(&key)
            .fingerprint();
        writer.finish()
    };
    let (mut zeros, mut ones) = ([0; 256], [0xFF; 256]);
    let len = write(&mut zeros).unwrap();
    assert_eq!(write(&mut ones), Ok(len));
    assert_eq!(zeros[..len], ones[..len]);
    assert!(ones[len..].iter().all(|&byte| byte == 0xFF));
    for short in 0..len {
        assert_eq!(write(&mut zeros[..short]), Err(WriteError::Overflow));
    }
}

//= V-61
#[test]
fn refuses_to_write_more_than_a_length_field_can_say() {
    let mut buf = vec![0; 80_000];
    let mut writer = MessageWriter::new(&mut buf, Class::Indication, Method::SEND, ID);
    writer.data(&[0; 65_528]);
    assert_eq!(writer.finish(), Ok(20 + 65_532));
    let parsed = Message::parse(&buf[..20 + 65_532]).unwrap();
    assert_eq!(parsed.data_range(), Some(24..24 + 65_528));

    for len in [65_529, 65_532, 65_535, 65_536, 70_000] {
        let mut writer = MessageWriter::new(&mut buf, Class::Indication, Method::SEND, ID);
        writer.data(&vec![0; len]);
        assert_eq!(writer.finish(), Err(WriteError::Overflow), "{len}");
    }
}

/// Appends FINGERPRINT with the right value.
fn with_fingerprint(message: RawMessage) -> RawMessage {
    let mut message = message.attribute(AttributeType::FINGERPRINT, &[0; 4]);
    let end = message.0.len() - 8;
    let crc = crc32fast::hash(&message.0[..end]) ^ 0x5354_554E;
    message.0[end + 4..].copy_from_slice(&crc.to_be_bytes());
    message
}

/// Makes an Allocate request with one attribute before integrity, of a type nobody knows: whatever known type a test
/// appends behind, the message does not have it yet.
fn signed_request(key: &IntegrityKey) -> Vec<u8> {
    let mut buf = [0; 128];
    let mut writer = MessageWriter::new(&mut buf, Class::Request, Method::ALLOCATE, ID);
    writer
        .bytes(AttributeType::new(0xC0DE), b"covered")
        .integrity(key);
    let len = writer.finish().unwrap();
    buf[..len].to_vec()
}
