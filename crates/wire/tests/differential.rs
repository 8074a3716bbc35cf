//! The codec against two independent public codecs, `stun-types` with `turn-types` and `stun-rs`.
//!
//! Three comparisons, all on generated messages with fixed seeds:
//!
//! - what we write, they read into their own typed values, and what they write from those is the same bytes again;
//! - what they write and sign, we read and verify;
//! - on damaged messages we and they accept and refuse the same, but for the exceptions listed at [`stun_types_differs`] and
//!   [`stun_rs_differs`], each with its reason.
//!
//! Known differences in single attributes, left out of the generator: `turn-types` gives the ICMP type eight bits and
//! its code eight, where RFC 8656 §18.13 draws seven and nine; it refuses IPv4 in ADDITIONAL-ADDRESS-FAMILY, which
//! here is the engine's answer (RFC 8656 §7.2). `stun-rs` processes names as OpaqueString and refuses an empty one, so names
//! are ASCII and not empty.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::net::SocketAddr;
use stun_types::attribute as theirs;
use stun_types::prelude::*;
use turn_types::attribute as turn;
use turnbuckle_wire::{
    AddressFamily, AttributeType, ChangeRequest, ChannelNumber, Class, Icmp, IntegrityKey, Message,
    MessageWriter, Method, ParseError, PasswordAlgorithm, TransactionId, long_term_key_md5,
};

/// Generated messages per test; `stun-rs` takes most of the time.
const CASES: u32 = 600;

/// One attribute with a value all three codecs can carry.
#[derive(Clone, Debug)]
enum Value {
    AdditionalAddressFamily,
    AddressErrorCode(AddressFamily, u16, String),
    AlternateServer(SocketAddr),
    ChangeRequest(bool, bool),
    ChannelNumber(u16),
    Data(Vec<u8>),
    DontFragment,
    ErrorCode(u16, String),
    EvenPort(bool),
    Icmp(u8, u16, u32),
    Lifetime(u32),
    MappedAddress(SocketAddr),
    MobilityTicket(Vec<u8>),
    Nonce(String),
    OtherAddress(SocketAddr),
    PasswordAlgorithm(bool),
    PasswordAlgorithms(Vec<bool>),
    Realm(String),
    RequestedAddressFamily(AddressFamily),
    RequestedTransport,
    ReservationToken([u8; 8]),
    ResponseOrigin(SocketAddr),
    ResponsePort(u16),
    Software(String),
    UnknownAttributes(Vec<u16>),
    Userhash([u8; 32]),
    Username(String),
    XorMappedAddress(SocketAddr),
    XorPeerAddress(SocketAddr),
    XorRelayedAddress(SocketAddr),
}

//= STUN-005
//= STUN-069
//= STUN-073
#[test]
fn stun_types_reads_what_we_write_and_writes_the_same() {
    check(any_message(), |(class, method, id, values)| {
        let bytes = write(*class, *method, *id, values, None);
        let ours = Message::parse(&bytes).unwrap();
        let their = stun_types::message::Message::from_bytes(&bytes).unwrap();
        assert_eq!(their.method().value(), method.number());
        assert_eq!(their.class(), their_class(*class));
        assert_eq!(their.transaction_id(), their_id(*id));
        let listed = their
            .iter_attributes()
            .map(|(_, raw)| (raw.get_type().value(), raw.value.to_vec()));
        let attributes = ours
            .attributes()
            .map(|found| (found.kind.number(), found.value.to_vec()));
        assert!(listed.eq(attributes));

        macro_rules! same {
            ($($attribute:ty),* $(,)?) => {$(
                let kind = <$attribute>::TYPE;
                if let Some(raw) = ours.raw(AttributeType::new(kind.value())) {
                    let typed = their.attribute::<$attribute>().unwrap();
                    assert_eq!(&typed.to_raw().value[..], raw, "{typed:?}");
                }
            )*};
        }
        same!(
            theirs::AlternateServer,
            theirs::ErrorCode,
            theirs::Nonce,
            theirs::PasswordAlgorithm,
            theirs::PasswordAlgorithms,
            theirs::Realm,
            theirs::Software,
            theirs::UnknownAttributes,
            theirs::Userhash,
            theirs::Username,
            theirs::XorMappedAddress,
            turn::AdditionalAddressFamily,
            turn::AddressErrorCode,
            turn::ChannelNumber,
            turn::Data<'_>,
            turn::DontFragment,
            turn::EvenPort,
            turn::Lifetime,
            turn::RequestedAddressFamily,
            turn::RequestedTransport,
            turn::ReservationToken,
            turn::XorPeerAddress,
            turn::XorRelayedAddress,
        );
        // values, not only bytes, where a mask is involved
        let their_id = their_id(*id);
        if let Some(address) = ours.xor_mapped_address().unwrap() {
            let typed = their.attribute::<theirs::XorMappedAddress>().unwrap();
            assert_eq!(typed.addr(their_id), address);
        }
        if let Some(address) = ours.xor_peer_address().unwrap() {
            let typed = their.attribute::<turn::XorPeerAddress>().unwrap();
            assert_eq!(typed.addr(their_id), address);
        }
    });
}

//= STUN-069
//= STUN-070
#[test]
fn stun_rs_reads_what_we_write_and_writes_the_same() {
    let decoder = stun_rs::MessageDecoderBuilder::default().build();
    let encoder = stun_rs::MessageEncoderBuilder::default().build();
    check(any_message(), |(class, method, id, values)| {
        let bytes = write(*class, *method, *id, values, None);
        let (message, len) = decoder.decode(&bytes).unwrap();
        assert_eq!(len, bytes.len());
        assert_eq!(message.method().as_u16(), method.number());
        assert_eq!(message.transaction_id().as_bytes(), id.as_bytes());
        let mut again = vec![0xEE; bytes.len()];
        let again_len = encoder.encode(&mut again, &message).unwrap();
        assert_eq!(again[..again_len], bytes, "{values:?}");
    });
}

//= STUN-076
//= STUN-077
#[test]
fn others_accept_our_integrity_and_fingerprint() {
    use stun_rs::attributes::stun::{Fingerprint, MessageIntegrity, MessageIntegritySha256};
    check(any_message(), |(class, method, id, values)| {
        let password = b"The swallow";
        for key in [IntegrityKey::sha1(password), IntegrityKey::sha256(password)] {
            let bytes = write(*class, *method, *id, values, Some(&key));
            let their = stun_types::message::Message::from_bytes(&bytes).unwrap();
            let credentials =
                stun_types::message::ShortTermCredentials::new("The swallow".to_owned());
            let algorithm = their.validate_integrity(&credentials.into()).unwrap();
            let is_sha256 = matches!(key, IntegrityKey::Sha256(_));
            assert_eq!(
                algorithm == stun_types::message::IntegrityAlgorithm::Sha256,
                is_sha256
            );

            let context = stun_rs::DecoderContextBuilder::default()
                .with_key(stun_rs::HMACKey::new_short_term("The swallow").unwrap())
                .with_validation()
                .build();
            let decoder = stun_rs::MessageDecoderBuilder::default()
                .with_context(context)
                .build();
            let (message, _) = decoder.decode(&bytes).unwrap();
            assert!(message.get::<Fingerprint>().is_some());
            assert_eq!(message.get::<MessageIntegrity>().is_some(), !is_sha256);
            assert_eq!(message.get::<MessageIntegritySha256>().is_some(), is_sha256);
        }
    });
}

//= STUN-076
//= STUN-077
//= STUN-079
#[test]
fn we_accept_the_integrity_and_fingerprint_of_others() {
    use stun_types::message::{
        IntegrityAlgorithm, LongTermKeyCredentials, MessageIntegrityCredentials, MessageWriteVec,
    };
    check(any_name_and_data(), |(name, data)| {
        let md5_key = long_term_key_md5(name.as_bytes(), b"example.org", b"secret");
        let credentials: MessageIntegrityCredentials = LongTermKeyCredentials::new(
            name.clone(),
            "secret".to_owned(),
            "example.org".to_owned(),
        )
        .into();
        for (algorithm, key) in [
            (IntegrityAlgorithm::Sha1, IntegrityKey::sha1(&md5_key)),
            (
                IntegrityAlgorithm::Sha256,
                IntegrityKey::sha256(&turnbuckle_wire::long_term_key_sha256(
                    name.as_bytes(),
                    b"example.org",
                    b"secret",
                )),
            ),
        ] {
            let method = stun_types::message::Method::new(Method::ALLOCATE.number());
            let mut builder =
                stun_types::message::Message::builder_request(method, MessageWriteVec::new());
            builder
                .add_attribute(&theirs::Username::new(name).unwrap())
                .unwrap();
            builder.add_attribute(&turn::Data::new(data)).unwrap();
            builder
                .add_message_integrity(&credentials, algorithm)
                .unwrap();
            builder.add_fingerprint().unwrap();
            let bytes = builder.finish();
            let message = Message::parse(&bytes).unwrap();
            assert_eq!(message.username(), Ok(Some(name.as_bytes())));
            assert_eq!(message.data(), Some(&data[..]));
            assert!(message.has_fingerprint());
            assert_eq!(message.check_integrity(&key), Ok(()));
        }

        use stun_rs::attributes::stun::{
            Fingerprint, MessageIntegrity, MessageIntegritySha256, UserName,
        };
        let username = UserName::new(name).unwrap();
        let their_key = stun_rs::HMACKey::new_short_term("secret").unwrap();
        let message = stun_rs::StunMessageBuilder::new(
            stun_rs::methods::BINDING,
            stun_rs::MessageClass::Request,
        )
        .with_attribute(username)
        .with_attribute(stun_rs::attributes::turn::Data::new(data))
        .with_attribute(MessageIntegrity::new(their_key.clone()))
        .with_attribute(MessageIntegritySha256::new(their_key))
        .with_attribute(Fingerprint::default())
        .build();
        let mut buf = [0; 1024];
        let encoder = stun_rs::MessageEncoderBuilder::default().build();
        let len = encoder.encode(&mut buf, &message).unwrap();
        let message = Message::parse(&buf[..len]).unwrap();
        assert_eq!(message.username(), Ok(Some(name.as_bytes())));
        assert_eq!(message.data(), Some(&data[..]));
        assert!(message.has_fingerprint());
        for key in [
            IntegrityKey::sha1(b"secret"),
            IntegrityKey::sha256(b"secret"),
        ] {
            assert_eq!(message.check_integrity(&key), Ok(()));
        }
    });
}

//= STUN-017
//= V-61
#[test]
fn accepts_and_refuses_what_others_do_but_for_listed_exceptions() {
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let cut = prop::option::of(any::<prop::sample::Index>());
    let decoder = stun_rs::MessageDecoderBuilder::default().build();
    let (mut accepted, mut refused) = (0, 0);
    check(
        (any_message(), any::<bool>(), damage, cut),
        |((class, method, id, values), signed, damage, cut)| {
            let key = IntegrityKey::sha1(b"key");
            let mut bytes = write(*class, *method, *id, values, signed.then_some(&key));
            for (index, value) in damage {
                let at = index.index(bytes.len());
                bytes[at] = *value;
            }
            if let Some(index) = cut {
                bytes.truncate(index.index(bytes.len()));
            }
            let ours = Message::parse(&bytes);
            *if ours.is_ok() {
                &mut accepted
            } else {
                &mut refused
            } += 1;

            let stun_types = stun_types::message::Message::from_bytes(&bytes);
            if ours.is_ok() != stun_types.is_ok() {
                assert!(
                    stun_types_differs(&bytes, &ours),
                    "{ours:?} {stun_types:?} {bytes:02x?}"
                );
            }
            let stun_rs = decoder.decode(&bytes);
            if ours.is_ok() != stun_rs.is_ok() {
                assert!(
                    stun_rs_differs(&ours, stun_rs.as_ref().err()),
                    "{ours:?} {stun_rs:?} {bytes:02x?}"
                );
            }
        },
    );
    assert!(
        accepted > CASES / 20 && refused > CASES / 20,
        "{accepted} {refused}"
    );
}

/// Returns whether `stun-types` may disagree about a whole message.
fn stun_types_differs(bytes: &[u8], ours: &Result<Message<'_>, ParseError>) -> bool {
    match ours {
        // It takes the length field for a lower bound and reads attributes up to the end of the buffer.
        Err(ParseError::Length) => {
            let claimed = usize::from(u16::from_be_bytes([bytes[2], bytes[3]])) + 20;
            claimed < bytes.len()
        }
        // It stops at an attribute that may not stand behind integrity, and neither reads nor checks what follows;
        // RFC 8489 §9 says to ignore that attribute, not the fingerprint behind it.
        Err(
            ParseError::AttributeLength
            | ParseError::FingerprintMismatch
            | ParseError::FingerprintLength
            | ParseError::FingerprintNotLast,
        ) => has_ordinary_attribute_behind_integrity(bytes),
        _ => false,
    }
}

/// Returns whether `stun-rs` may disagree about a whole message.
fn stun_rs_differs(
    ours: &Result<Message<'_>, ParseError>,
    theirs: Option<&stun_rs::error::StunDecodeError>,
) -> bool {
    match ours {
        // It reads as much as the length field says and leaves the rest of the buffer to its caller.
        Err(ParseError::Length) => true,
        // It checks a fingerprint only when asked to, and not its place or its length.
        Err(
            ParseError::FingerprintMismatch
            | ParseError::FingerprintLength
            | ParseError::FingerprintNotLast,
        ) => true,
        // It decodes every value at once, so that one bad value refuses the message; here the caller asks and gets 400.
        Ok(_) => theirs.is_some_and(|error| match &error.0 {
            stun_rs::error::StunErrorLevel::Attribute(error) => error.attr_type.is_some(),
            stun_rs::error::StunErrorLevel::Message(_) => false,
        }),
        Err(_) => false,
    }
}

/// Walks as far as the structure holds.
fn has_ordinary_attribute_behind_integrity(bytes: &[u8]) -> bool {
    let mut at = 20;
    let mut seen: Vec<u16> = Vec::new();
    while at + 4 <= bytes.len() {
        let kind = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let is_closing = matches!(kind, 0x0008 | 0x001C | 0x8028);
        if !seen.is_empty() && (!is_closing || seen.contains(&kind)) {
            return true;
        }
        if is_closing {
            seen.push(kind);
        }
        let len = usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
        at += 4 + len.next_multiple_of(4);
    }
    false
}

/// Runs a check on generated inputs, the same ones every time.
fn check<S: Strategy>(strategy: S, mut property: impl FnMut(&S::Value)) {
    let config = Config {
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    for _ in 0..CASES {
        let tree = strategy.new_tree(&mut runner).unwrap();
        property(&tree.current());
    }
}

fn write(
    class: Class,
    method: Method,
    id: TransactionId,
    values: &[Value],
    key: Option<&IntegrityKey>,
) -> Vec<u8> {
    let mut buf = vec![0xEE; 8192];
    let mut writer = MessageWriter::new(&mut buf, class, method, id);
    for value in values {
        write_value(&mut writer, value);
    }
    if let Some(key) = key {
        writer.integrity(key).fingerprint();
    }
    let len = writer.finish().unwrap();
    buf.truncate(len);
    buf
}

fn write_value(writer: &mut MessageWriter<'_>, value: &Value) {
    let algorithm = |sha256: &bool| {
        if *sha256 {
            PasswordAlgorithm::Sha256
        } else {
            PasswordAlgorithm::Md5
        }
    };
    match value {
        Value::AdditionalAddressFamily => writer.additional_address_family(AddressFamily::V6),
        Value::AddressErrorCode(family, code, reason) => {
            writer.address_error_code(*family, *code, reason)
        }
        Value::AlternateServer(address) => writer.alternate_server(*address),
        Value::ChangeRequest(change_ip, change_port) => writer.change_request(ChangeRequest {
            change_ip: *change_ip,
            change_port: *change_port,
        }),
        Value::ChannelNumber(number) => {
            writer.channel_number(ChannelNumber::try_from(*number).unwrap())
        }
        Value::Data(data) => writer.data(data),
        Value::DontFragment => writer.dont_fragment(),
        Value::ErrorCode(code, reason) => writer.error_code(*code, reason),
        Value::EvenPort(reserve) => writer.even_port(*reserve),
        Value::Icmp(kind, code, data) => writer.icmp(Icmp {
            kind: *kind,
            code: *code,
            data: *data,
        }),
        Value::Lifetime(seconds) => writer.lifetime(*seconds),
        Value::MappedAddress(address) => writer.mapped_address(*address),
        Value::MobilityTicket(ticket) => writer.mobility_ticket(ticket),
        Value::Nonce(nonce) => writer.nonce(nonce.as_bytes()),
        Value::OtherAddress(address) => writer.other_address(*address),
        Value::PasswordAlgorithm(sha256) => writer.password_algorithm(algorithm(sha256)),
        Value::PasswordAlgorithms(list) => {
            let list: Vec<_> = list.iter().map(algorithm).collect();
            writer.password_algorithms(&list)
        }
        Value::Realm(realm) => writer.realm(realm.as_bytes()),
        Value::RequestedAddressFamily(family) => writer.requested_address_family(*family),
        Value::RequestedTransport => writer.requested_transport(17),
        Value::ReservationToken(token) => writer.reservation_token(*token),
        Value::ResponseOrigin(address) => writer.response_origin(*address),
        Value::ResponsePort(port) => writer.response_port(*port),
        Value::Software(software) => writer.software(software),
        Value::UnknownAttributes(types) => {
            writer.unknown_attributes(types.iter().copied().map(AttributeType::new))
        }
        Value::Userhash(hash) => writer.userhash(hash),
        Value::Username(name) => writer.username(name.as_bytes()),
        Value::XorMappedAddress(address) => writer.xor_mapped_address(*address),
        Value::XorPeerAddress(address) => writer.xor_peer_address(*address),
        Value::XorRelayedAddress(address) => writer.xor_relayed_address(*address),
    };
}

fn any_message() -> impl Strategy<Value = (Class, Method, TransactionId, Vec<Value>)> {
    let class = prop::sample::select(vec![
        Class::Request,
        Class::Indication,
        Class::Success,
        Class::Error,
    ]);
    let method = (0..=0xFFF_u16).prop_map(|number| Method::new(number).unwrap());
    let id = any::<[u8; 12]>().prop_map(TransactionId::new);
    (class, method, id, prop::collection::vec(any_value(), 0..8))
}

fn any_name_and_data() -> impl Strategy<Value = (String, Vec<u8>)> {
    (
        "[a-z0-9:]{1,100}",
        prop::collection::vec(any::<u8>(), 0..200),
    )
}

fn any_value() -> impl Strategy<Value = Value> {
    let family = || prop::sample::select(vec![AddressFamily::V4, AddressFamily::V6]);
    let code = || 300..=699_u16;
    let text = || "[a-zA-Z0-9]{1,127}";
    let bytes = || prop::collection::vec(any::<u8>(), 0..100);
    prop_oneof![
        Just(Value::AdditionalAddressFamily),
        (family(), code(), text()).prop_map(|(f, c, r)| Value::AddressErrorCode(f, c, r)),
        any_address().prop_map(Value::AlternateServer),
        any::<(bool, bool)>().prop_map(|(ip, port)| Value::ChangeRequest(ip, port)),
        (0x4000..=0x4FFF_u16).prop_map(Value::ChannelNumber),
        bytes().prop_map(Value::Data),
        Just(Value::DontFragment),
        (code(), text()).prop_map(|(c, r)| Value::ErrorCode(c, r)),
        any::<bool>().prop_map(Value::EvenPort),
        (0..=127_u8, 0..=511_u16, any::<u32>()).prop_map(|(k, c, d)| Value::Icmp(k, c, d)),
        any::<u32>().prop_map(Value::Lifetime),
        any_address().prop_map(Value::MappedAddress),
        bytes().prop_map(Value::MobilityTicket),
        text().prop_map(Value::Nonce),
        any_address().prop_map(Value::OtherAddress),
        any::<bool>().prop_map(Value::PasswordAlgorithm),
        prop::collection::vec(any::<bool>(), 1..4).prop_map(Value::PasswordAlgorithms),
        text().prop_map(Value::Realm),
        family().prop_map(Value::RequestedAddressFamily),
        Just(Value::RequestedTransport),
        any::<[u8; 8]>().prop_map(Value::ReservationToken),
        any_address().prop_map(Value::ResponseOrigin),
        any::<u16>().prop_map(Value::ResponsePort),
        text().prop_map(Value::Software),
        prop::collection::btree_set(0x4000..0x8000_u16, 0..5)
            .prop_map(|types| Value::UnknownAttributes(types.into_iter().collect())),
        any::<[u8; 32]>().prop_map(Value::Userhash),
        text().prop_map(Value::Username),
        any_address().prop_map(Value::XorMappedAddress),
        any_address().prop_map(Value::XorPeerAddress),
        any_address().prop_map(Value::XorRelayedAddress),
    ]
}

fn any_address() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        any::<([u8; 4], u16)>().prop_map(SocketAddr::from),
        any::<([u8; 16], u16)>().prop_map(SocketAddr::from),
    ]
}

fn their_class(class: Class) -> stun_types::message::MessageClass {
    use stun_types::message::MessageClass;
    match class {
        Class::Request => MessageClass::Request,
        Class::Indication => MessageClass::Indication,
        Class::Success => MessageClass::Success,
        Class::Error => MessageClass::Error,
    }
}

fn their_id(id: TransactionId) -> stun_types::message::TransactionId {
    let value = id
        .as_bytes()
        .iter()
        .fold(0_u128, |value, &byte| value << 8 | u128::from(byte));
    value.into()
}
