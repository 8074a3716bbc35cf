//! Every attribute: what is written is read back, what the RFCs say to ignore is ignored, and wrong lengths are errors.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;
#[path = "support/values.rs"]
mod values;

use core::net::SocketAddr;
use support::{ID, RawMessage};
use turnbuckle_wire::{
    AccessToken, AddressErrorCode, AddressFamily, AttributeError, AttributeType, ChangeRequest,
    ChannelNumber, Class, ErrorCode, Icmp, Message, MessageWriter, Method, PasswordAlgorithm,
    PasswordAlgorithmEntry, WriteError, userhash,
};
use values::values_by_type;

const LENGTH: AttributeError = AttributeError::Length;
const VALUE: AttributeError = AttributeError::Value;

//= STUN-072
//= STUN-073
#[test]
fn round_trips_addresses_of_both_families() {
    for address in [
        "0.0.0.0:0",
        "255.255.255.255:65535",
        "192.0.2.7:4711",
        "[::]:0",
        "[2001:db8::7]:4711",
        "[::ffff:192.0.2.7]:4711",
    ] {
        let address: SocketAddr = address.parse().unwrap();
        let bytes = written(|writer| {
            writer
                .mapped_address(address)
                .xor_mapped_address(address)
                .xor_peer_address(address)
                .xor_relayed_address(address)
                .alternate_server(address)
                .response_origin(address)
                .other_address(address);
        });
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message.mapped_address(), Ok(Some(address)));
        assert_eq!(message.xor_mapped_address(), Ok(Some(address)));
        assert_eq!(message.xor_peer_address(), Ok(Some(address)));
        assert_eq!(message.xor_relayed_address(), Ok(Some(address)));
        assert!(message.xor_relayed_addresses().eq([Ok(address)]));
        assert_eq!(message.alternate_server(), Ok(Some(address)));
        assert!(message.alternate_servers().eq([Ok(address)]));
        assert_eq!(message.response_origin(), Ok(Some(address)));
        assert_eq!(message.other_address(), Ok(Some(address)));
        for found in message.attributes() {
            assert_eq!(found.value[0], 0, "the first eight bits are sent as zero");
        }
    }
}

//= STUN-072
#[test]
fn reads_the_address_length_its_family_has_and_ignores_the_first_byte() {
    for family in 0..=u8::MAX {
        for len in 0..=24 {
            let mut value = vec![0xAB; len];
            if let Some(place) = value.get_mut(1) {
                *place = family;
            }
            let bytes = single(AttributeType::MAPPED_ADDRESS, &value);
            let expected = match (family, len) {
                (_, 0..4) => Err(LENGTH),
                (1, 8) => Ok(Some("171.171.171.171:43947".parse().unwrap())),
                (2, 20) => Ok(Some(
                    "[abab:abab:abab:abab:abab:abab:abab:abab]:43947"
                        .parse()
                        .unwrap(),
                )),
                (1 | 2, _) => Err(LENGTH),
                (other, _) => Err(AttributeError::UnsupportedFamily(other)),
            };
            let message = Message::parse(&bytes).unwrap();
            assert_eq!(message.mapped_address(), expected);
        }
    }
}

//= STUN-074
//= STUN-081
//= STUN-082
//= STUN-084
#[test]
fn limits_text_by_bytes_and_by_characters() {
    let three_bytes = "\u{30DE}".as_bytes();
    let cases = [
        (b"a".repeat(127), true, true),
        (b"a".repeat(128), false, false),
        (three_bytes.repeat(127), true, true),
        (three_bytes.repeat(128), false, false),
        ("\u{1F600}".as_bytes().repeat(127), true, true),
        // not UTF-8, continuation bytes only: within the character limit, so the byte limits show
        (vec![0x80; 509], true, true),
        (vec![0x80; 510], true, false),
        (vec![0x80; 763], true, false),
        (vec![0x80; 764], false, false),
    ];
    for (text, reads, writes) in cases {
        for kind in [
            AttributeType::REALM,
            AttributeType::NONCE,
            AttributeType::SOFTWARE,
        ] {
            let bytes = single(kind, &text);
            let message = Message::parse(&bytes).unwrap();
            let value = match kind {
                AttributeType::REALM => message.realm(),
                AttributeType::NONCE => message.nonce(),
                _ => message.software(),
            };
            let expected = if reads {
                Ok(Some(&text[..]))
            } else {
                Err(LENGTH)
            };
            assert_eq!(value, expected, "{kind:?} {}", text.len());
        }
        let refused = if writes {
            None
        } else {
            Some(WriteError::Value)
        };
        assert_eq!(error_of(|writer| drop_ref(writer.realm(&text))), refused);
        assert_eq!(error_of(|writer| drop_ref(writer.nonce(&text))), refused);
    }
    for (len, reads, writes) in [(508, true, true), (509, true, false), (764, false, false)] {
        let name = b"u".repeat(len);
        let bytes = single(AttributeType::USERNAME, &name);
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message.username().is_ok(), reads);
        let error = error_of(|writer| drop_ref(writer.username(&name)));
        assert_eq!(error.is_none(), writes);
    }
}

//= STUN-075
#[test]
fn round_trips_userhash_and_refuses_other_lengths() {
    let hash = userhash(b"alice", b"example.org");
    let bytes = written(|writer| drop_ref(writer.userhash(&hash)));
    assert_eq!(Message::parse(&bytes).unwrap().userhash(), Ok(Some(hash)));
    for len in (0..40).filter(|&len| len != 32) {
        let bytes = single(AttributeType::USERHASH, &vec![0; len]);
        assert_eq!(Message::parse(&bytes).unwrap().userhash(), Err(LENGTH));
    }
}

//= STUN-080
//= STUN-026
#[test]
fn accepts_error_codes_of_300_to_699_and_ignores_reserved_bits() {
    for class in 0..=u8::MAX {
        for number in 0..=u8::MAX {
            let bytes = single(
                AttributeType::ERROR_CODE,
                &[0xFF, 0xFF, class, number, b'?'],
            );
            let message = Message::parse(&bytes).unwrap();
            let hundreds = class & 7;
            let expected = if (3..=6).contains(&hundreds) && number < 100 {
                Ok(Some(ErrorCode {
                    code: u16::from(hundreds) * 100 + u16::from(number),
                    reason: b"?",
                }))
            } else {
                Err(VALUE)
            };
            assert_eq!(message.error_code(), expected);
        }
    }
    for code in 0..=1000 {
        let error = error_of(|writer| drop_ref(writer.error_code(code, "")));
        assert_eq!(error.is_none(), (300..=699).contains(&code));
    }
    for len in 0..4 {
        let bytes = single(AttributeType::ERROR_CODE, &[0, 0, 4, 0][..len]);
        assert_eq!(Message::parse(&bytes).unwrap().error_code(), Err(LENGTH));
    }
    let long = "r".repeat(128);
    assert_eq!(
        error_of(|writer| drop_ref(writer.error_code(400, &long))),
        Some(WriteError::Value)
    );
    let bytes = written(|writer| drop_ref(writer.error_code(438, "Stale Nonce")));
    assert_eq!(bytes[20..28], [0, 9, 0, 15, 0, 0, 4, 38]);
}

//= TURN-112
#[test]
fn round_trips_address_error_codes() {
    let bytes = written(|writer| {
        writer
            .address_error_code(AddressFamily::V6, 440, "Address Family not Supported")
            .address_error_code(AddressFamily::V4, 508, "Insufficient Capacity");
    });
    let message = Message::parse(&bytes).unwrap();
    let expected = [
        (AddressFamily::V6, 440, "Address Family not Supported"),
        (AddressFamily::V4, 508, "Insufficient Capacity"),
    ];
    assert!(
        message
            .address_error_codes()
            .eq(expected.map(|(family, code, reason)| Ok(AddressErrorCode {
                family,
                code,
                reason: reason.as_bytes(),
            })))
    );
    assert_eq!(bytes[24..28], [2, 0, 4, 40]);
    // thirteen reserved bits are ignored, an unknown family is not
    let bytes = single(AttributeType::ADDRESS_ERROR_CODE, &[1, 0xFF, 0xFC, 40]);
    let message = Message::parse(&bytes).unwrap();
    assert_eq!(
        message.address_error_codes().next().unwrap().unwrap().code,
        440
    );
    let bytes = single(AttributeType::ADDRESS_ERROR_CODE, &[3, 0, 4, 40]);
    let message = Message::parse(&bytes).unwrap();
    assert_eq!(
        message.address_error_codes().next(),
        Some(Err(AttributeError::UnsupportedFamily(3)))
    );
}

//= STUN-083
#[test]
fn honours_lengths_and_padding_of_password_algorithm_parameters() {
    // an unknown algorithm with five bytes of parameters and three of padding between two known ones
    let list = [
        0, 2, 0, 0, 0x12, 0x34, 0, 5, 1, 2, 3, 4, 5, 0xEE, 0xEE, 0xEE, 0, 1, 0, 0,
    ];
    let bytes = single(AttributeType::PASSWORD_ALGORITHMS, &list);
    let message = Message::parse(&bytes).unwrap();
    let algorithms = message.password_algorithms().unwrap().unwrap();
    assert_eq!(algorithms.as_bytes(), list);
    let unknown = PasswordAlgorithm::Unknown(0x1234);
    assert!(algorithms.iter().eq([
        entry(PasswordAlgorithm::Sha256, &[]),
        entry(unknown, &[1, 2, 3, 4, 5]),
        entry(PasswordAlgorithm::Md5, &[]),
    ]));
    assert!(algorithms.contains(unknown));
    assert!(!algorithms.contains(PasswordAlgorithm::Unknown(7)));

    for (value, expected) in [
        (&list[..0], Ok(())),
        (&list[..3], Err(LENGTH)),
        (&list[..12], Err(LENGTH)),
        // the last entry's padding may be the attribute's own
        (&list[..13], Ok(())),
        (&list[..16], Ok(())),
        (&list[..18], Err(LENGTH)),
        (&[0, 1, 0, 4, 9, 9, 9, 9], Err(VALUE)),
    ] {
        let bytes = single(AttributeType::PASSWORD_ALGORITHMS, value);
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message.password_algorithms().map(|_| ()), expected);
    }
}

//= STUN-083
#[test]
fn round_trips_password_algorithms() {
    let algorithms = [PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5];
    let bytes = written(|writer| drop_ref(writer.password_algorithms(&algorithms)));
    assert_eq!(bytes[20..], [0x80, 2, 0, 8, 0, 2, 0, 0, 0, 1, 0, 0]);
    for parameters in [&[][..], &[1], &[1, 2, 3, 4]] {
        let single = entry(PasswordAlgorithm::Unknown(9), parameters);
        let bytes = written(|writer| drop_ref(writer.password_algorithm_entry(single)));
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message.password_algorithm_entry(), Ok(Some(single)));
    }
    for value in [&[][..], &[0, 1], &[0, 1, 0, 0, 0, 2, 0, 0], &[0, 9, 0, 1]] {
        let bytes = single(AttributeType::PASSWORD_ALGORITHM, value);
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message.password_algorithm(), Err(LENGTH));
    }
}

//= STUN-022
#[test]
fn round_trips_unknown_attributes() {
    let types = [0x7777, 0x0024, 0x0025].map(AttributeType::new);
    let bytes = written(|writer| drop_ref(writer.unknown_attributes(types.into_iter())));
    let message = Message::parse(&bytes).unwrap();
    let list = message.unknown_attributes().unwrap().unwrap();
    assert!(list.iter().eq(types));
    let odd = single(AttributeType::UNKNOWN_ATTRIBUTES, &[0, 1, 0]);
    let message = Message::parse(&odd).unwrap();
    assert_eq!(message.unknown_attributes(), Err(LENGTH));
}

//= STUN-085
#[test]
fn limits_alternate_domain_to_255_ascii_characters() {
    let longest = "d".repeat(255);
    let bytes = written(|writer| drop_ref(writer.alternate_domain(&longest)));
    let message = Message::parse(&bytes).unwrap();
    assert_eq!(message.alternate_domain(), Ok(Some(longest.as_str())));
    let value = Some(WriteError::Value);
    assert_eq!(
        error_of(|writer| drop_ref(writer.alternate_domain(&"d".repeat(256)))),
        value
    );
    assert_eq!(
        error_of(|writer| drop_ref(writer.alternate_domain("m\u{FC}nchen.example"))),
        value
    );
    for (domain, expected) in [(&[b'd'; 256][..], LENGTH), (b"m\xC3\xBCnchen", VALUE)] {
        let bytes = single(AttributeType::ALTERNATE_DOMAIN, domain);
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message.alternate_domain(), Err(expected));
    }
}

//= TURN-108
//= TURN-109
//= TURN-110
//= TURN-111
#[test]
fn ignores_reserved_bits_of_turn_attributes_and_sends_them_as_zero() {
    let bytes = RawMessage::request()
        .attribute(AttributeType::CHANNEL_NUMBER, &[0x40, 0x01, 0xFF, 0xFF])
        .attribute(
            AttributeType::REQUESTED_ADDRESS_FAMILY,
            &[0x02, 0xFF, 0xFF, 0xFF],
        )
        .attribute(
            AttributeType::ADDITIONAL_ADDRESS_FAMILY,
            &[0x01, 0xFF, 0xFF, 0xFF],
        )
        .attribute(AttributeType::REQUESTED_TRANSPORT, &[17, 0xFF, 0xFF, 0xFF])
        .attribute(AttributeType::EVEN_PORT, &[0x7F])
        .attribute(AttributeType::CHANGE_REQUEST, &[0xFF, 0xFF, 0xFF, 0xFB])
        .attribute(AttributeType::ICMP, &[0xFF, 0xFF, 6, 4, 0, 0, 5, 0xDC])
        .0;
    let message = Message::parse(&bytes).unwrap();
    assert_eq!(message.channel_number(), Ok(Some(0x4001)));
    assert_eq!(
        message.requested_address_family(),
        Ok(Some(AddressFamily::V6))
    );
    assert_eq!(
        message.additional_address_family(),
        Ok(Some(AddressFamily::V4))
    );
    assert_eq!(message.requested_transport(), Ok(Some(17)));
    assert_eq!(message.even_port(), Ok(Some(false)));
    let change = ChangeRequest {
        change_ip: false,
        change_port: true,
    };
    assert_eq!(message.change_request(), Ok(Some(change)));
    let icmp = Icmp {
        kind: 3,
        code: 4,
        data: 1500,
    };
    assert_eq!(message.icmp(), Ok(Some(icmp)));

    let bytes = written(|writer| {
        writer
            .channel_number(ChannelNumber::try_from(0x4001).unwrap())
            .requested_address_family(AddressFamily::V6)
            .additional_address_family(AddressFamily::V4)
            .requested_transport(17)
            .even_port(true)
            .change_request(change)
            .icmp(icmp)
            .reservation_token(*b"12345678");
    });
    let message = Message::parse(&bytes).unwrap();
    let values: Vec<&[u8]> = message.attributes().map(|found| found.value).collect();
    let expected: [&[u8]; 8] = [
        &[0x40, 0x01, 0, 0],
        &[2, 0, 0, 0],
        &[1, 0, 0, 0],
        &[17, 0, 0, 0],
        &[0x80],
        &[0, 0, 0, 2],
        &[0, 0, 6, 4, 0, 0, 5, 0xDC],
        b"12345678",
    ];
    assert_eq!(values, expected);
    assert_eq!(message.even_port(), Ok(Some(true)));
    assert_eq!(message.reservation_token(), Ok(Some(*b"12345678")));
}

//= TURN-028
#[test]
fn tells_an_unsupported_family_from_a_malformed_attribute() {
    for family in (0..=u8::MAX).filter(|family| ![1, 2].contains(family)) {
        let unsupported = AttributeError::UnsupportedFamily(family);
        let value = [family, 0, 0, 0];
        let bytes = single(AttributeType::REQUESTED_ADDRESS_FAMILY, &value);
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message.requested_address_family(), Err(unsupported));
        let bytes = single(AttributeType::ADDITIONAL_ADDRESS_FAMILY, &value);
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message.additional_address_family(), Err(unsupported));
    }
}

#[test]
fn reads_the_additional_family_under_coturns_number_where_the_rfcs_is_missing() {
    let coturns = AttributeType::COTURN_ADDITIONAL_ADDRESS_FAMILY;
    let bytes = single(coturns, &[2, 0, 0, 0]);
    let message = Message::parse(&bytes).unwrap();
    assert!(message.has_additional_address_family());
    assert_eq!(
        message.additional_address_family(),
        Ok(Some(AddressFamily::V6))
    );
    let bytes = written(|writer| {
        writer
            .bytes(coturns, &[2, 0, 0, 0])
            .additional_address_family(AddressFamily::V4);
    });
    assert_eq!(
        Message::parse(&bytes).unwrap().additional_address_family(),
        Ok(Some(AddressFamily::V4))
    );
}

//= TURN-113
#[test]
fn round_trips_icmp_at_the_limits_of_its_fields() {
    for (kind, code, fits) in [
        (0, 0, true),
        (127, 511, true),
        (128, 0, false),
        (0, 512, false),
    ] {
        let icmp = Icmp {
            kind,
            code,
            data: u32::MAX,
        };
        let error = error_of(|writer| drop_ref(writer.icmp(icmp)));
        assert_eq!(error.is_none(), fits);
        if fits {
            let bytes = written(|writer| drop_ref(writer.icmp(icmp)));
            assert_eq!(Message::parse(&bytes).unwrap().icmp(), Ok(Some(icmp)));
        }
    }
}

//= TURN-073
#[test]
fn finds_data_in_place() {
    for payload in [&b""[..], b"a", b"ab", b"abc", b"abcd"] {
        let bytes = written(|writer| drop_ref(writer.lifetime(1).data(payload).dont_fragment()));
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message.data(), Some(payload));
        assert_eq!(&bytes[message.data_range().unwrap()], payload);
        assert_eq!(message.dont_fragment(), Ok(true));
    }
    let none = written(|_| {});
    let message = Message::parse(&none).unwrap();
    assert_eq!((message.data(), message.data_range()), (None, None));
    assert_eq!(message.dont_fragment(), Ok(false));
    let wrong = single(AttributeType::DONT_FRAGMENT, b"x");
    assert_eq!(Message::parse(&wrong).unwrap().dont_fragment(), Err(LENGTH));
}

//= OAU-12
//= MOB-01
//= TCP-14
#[test]
fn round_trips_the_extensions() {
    let token = AccessToken {
        nonce: b"nonce",
        encrypted_block: b"ciphertext",
    };
    let bytes = written(|writer| {
        writer
            .response_port(4711)
            .padding(5)
            .third_party_authorization(b"turn.example.org")
            .access_token(token)
            .mobility_ticket(b"")
            .origin(b"https://example.org")
            .connection_id(0xDEAD_BEEF);
    });
    let message = Message::parse(&bytes).unwrap();
    assert_eq!(message.response_port(), Ok(Some(4711)));
    assert_eq!(message.padding(), Some(&[0; 5][..]));
    assert_eq!(
        message.third_party_authorization(),
        Some(&b"turn.example.org"[..])
    );
    assert_eq!(message.access_token(), Ok(Some(token)));
    assert_eq!(
        format!("{token:?}"),
        "AccessToken { nonce_len: 5, encrypted_block_len: 10 }"
    );
    assert_eq!(message.mobility_ticket(), Some(&b""[..]));
    assert_eq!(message.origin(), Some(&b"https://example.org"[..]));
    assert_eq!(message.connection_id(), Ok(Some(0xDEAD_BEEF)));

    for value in [&[][..], &[0], &[0, 1], &[0, 9, 1]] {
        let bytes = single(AttributeType::ACCESS_TOKEN, value);
        assert_eq!(Message::parse(&bytes).unwrap().access_token(), Err(LENGTH));
    }
    let four = single(AttributeType::RESPONSE_PORT, &[0x12, 0x67, 0xFF, 0xFF]);
    assert_eq!(
        Message::parse(&four).unwrap().response_port(),
        Ok(Some(4711))
    );
}

//= STUN-069
//= V-61
#[test]
fn refuses_every_other_length_of_a_fixed_size_attribute() {
    for len in 0..=24 {
        let value = vec![0; len];
        let error_of_length = |kind, expected_len: &[usize]| {
            let bytes = single(kind, &value);
            let message = Message::parse(&bytes).unwrap();
            let error = match kind {
                AttributeType::LIFETIME => message.lifetime().err(),
                AttributeType::CONNECTION_ID => message.connection_id().err(),
                AttributeType::CHANNEL_NUMBER => message.channel_number().err(),
                AttributeType::REQUESTED_TRANSPORT => message.requested_transport().err(),
                AttributeType::EVEN_PORT => message.even_port().err(),
                AttributeType::RESERVATION_TOKEN => message.reservation_token().err(),
                AttributeType::ICMP => message.icmp().err(),
                AttributeType::CHANGE_REQUEST => message.change_request().err(),
                AttributeType::RESPONSE_PORT => message.response_port().err(),
                _ => panic!("no getter named for {kind:?}"),
            };
            let expected = (!expected_len.contains(&len)).then_some(LENGTH);
            assert_eq!(error, expected, "{kind:?} {len}");
        };
        error_of_length(AttributeType::LIFETIME, &[4]);
        error_of_length(AttributeType::CONNECTION_ID, &[4]);
        error_of_length(AttributeType::CHANNEL_NUMBER, &[4]);
        error_of_length(AttributeType::REQUESTED_TRANSPORT, &[4]);
        error_of_length(AttributeType::EVEN_PORT, &[1]);
        error_of_length(AttributeType::RESERVATION_TOKEN, &[8]);
        error_of_length(AttributeType::ICMP, &[8]);
        error_of_length(AttributeType::CHANGE_REQUEST, &[4]);
        error_of_length(AttributeType::RESPONSE_PORT, &[2, 4]);
    }
}

#[test]
fn reads_absent_attributes_as_absent() {
    let bytes = written(|_| {});
    let message = Message::parse(&bytes).unwrap();
    for (kind, _, _) in values_by_type() {
        assert!(!message.contains(kind));
    }
    assert_eq!(message.username(), Ok(None));
    assert_eq!(message.xor_peer_address(), Ok(None));
    assert_eq!(message.password_algorithms(), Ok(None));
    assert_eq!(message.integrity_sha256(), Ok(None));
    assert_eq!(message.xor_peer_addresses().count(), 0);
}

fn entry(algorithm: PasswordAlgorithm, parameters: &[u8]) -> PasswordAlgorithmEntry<'_> {
    PasswordAlgorithmEntry {
        algorithm,
        parameters,
    }
}

/// Makes a request with one attribute.
fn single(kind: AttributeType, value: &[u8]) -> Vec<u8> {
    RawMessage::request().attribute(kind, value).0
}

/// Returns what the crate's writer makes of `attributes`.
fn written(attributes: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
    let mut buf = [0xEE; 2048];
    let mut writer = MessageWriter::new(&mut buf, Class::Request, Method::ALLOCATE, ID);
    attributes(&mut writer);
    let len = writer.finish().unwrap();
    buf[..len].to_vec()
}

fn error_of(attributes: impl FnOnce(&mut MessageWriter<'_>)) -> Option<WriteError> {
    let mut buf = [0xEE; 2048];
    let mut writer = MessageWriter::new(&mut buf, Class::Request, Method::ALLOCATE, ID);
    attributes(&mut writer);
    writer.finish().err()
}

/// Ends a chain of writer calls in an expression closure.
fn drop_ref(_writer: &mut MessageWriter<'_>) {}
