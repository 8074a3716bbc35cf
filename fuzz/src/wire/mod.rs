//! Properties of `turnbuckle-wire`.
//!
//! The decoder is compared with [`reference::Reference`], a second decoder that is slow and obvious.

mod reference;
mod rewrite;
mod script;

use reference::{Reference, crc32};
use rewrite::read_and_rewrite;
use script::run_script;
use turnbuckle_wire::{
    AttributeType, ChannelData, ChannelNumber, Class, Demux, IntegrityError, IntegrityKey,
    KnownAttributeTypes, Message, MessageWriter, Method, TransactionId, WriteError, classify,
    padding_len,
};

const ID: TransactionId = TransactionId::new([0x5A; 12]);

/// Checks target 1: whatever the bytes, the decoder agrees with the reference, on the bytes and on their repaired form.
pub fn message_decode(bytes: &[u8]) {
    decode_like_reference(bytes);
    decode_like_reference(&repaired(bytes));
}

/// Checks target 2: a message that parses can be written again, and a script of writer calls reads back as written.
pub fn message_round_trip(bytes: &[u8]) {
    for bytes in [bytes, &repaired(bytes)] {
        if let Ok(message) = Message::parse(bytes) {
            rewrite(&message);
        }
    }
    run_script(bytes);
}

/// Checks target 3: no attribute value makes a getter panic, and every value a getter returns can be written and read again.
pub fn attribute_semantics(bytes: &[u8]) {
    for bytes in [bytes, &repaired(bytes)] {
        if let Ok(message) = Message::parse(bytes) {
            read_everything(&message);
        }
    }
    let Some((&selector, value)) = bytes.split_first() else {
        return;
    };
    let known = KnownAttributeTypes::ALL;
    let kind = known[usize::from(selector) % known.len()];
    let mut buf = vec![0xEE; value.len() + 64];
    let mut writer = MessageWriter::new(&mut buf, Class::Request, Method::ALLOCATE, ID);
    writer.bytes(kind, value);
    match writer.finish() {
        Ok(len) => {
            if let Ok(message) = Message::parse(&buf[..len]) {
                assert_eq!(message.raw(kind), Some(value));
                read_everything(&message);
                read_and_rewrite(&message);
            } else {
                // nothing but a wrong checksum or its length can be refused here
                assert_eq!(kind, AttributeType::FINGERPRINT);
            }
        }
        Err(error) => assert!(error == WriteError::Overflow && value.len() > 65_528),
    }
}

/// Checks target 5: the first byte decides, and no datagram is accepted by the parser of another protocol.
pub fn demux(bytes: &[u8]) {
    let protocol = bytes.first().map(|&first| classify(first));
    if let Ok(message) = Message::parse(bytes) {
        // methods from 0x100 upward have the first bytes of ZRTP and DTLS: legal STUN that never passes the demultiplexer
        let is_reachable = message.method().number() < 0x100;
        assert_eq!(protocol == Some(Demux::Stun), is_reachable);
        assert!(bytes[0] < 0x40);
    }
    let Ok(channel_data) = ChannelData::parse_datagram(bytes) else {
        let claimed = bytes
            .get(2..4)
            .map_or(0, |len| usize::from(len[0]) << 8 | usize::from(len[1]));
        assert!(bytes.len() < 4 + claimed);
        return;
    };
    let number = ChannelNumber::try_from(channel_data.number);
    assert_eq!(number.is_ok(), protocol == Some(Demux::ChannelData));
    let end = ChannelData::HEADER_LEN + channel_data.data.len();
    assert_eq!(&bytes[ChannelData::HEADER_LEN..end], channel_data.data);
    if let Ok(number) = number {
        let len = u16::try_from(channel_data.data.len()).expect("a 16-bit length field");
        assert_eq!(ChannelData::header(number, len), bytes[..4]);
    }
}

/// Returns the same bytes with a good header, and with a good checksum if they end in FINGERPRINT: a fuzzer does not guess a CRC.
fn repaired(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.truncate((20 + 65_532).min(bytes.len() & !3));
    if bytes.len() < 20 {
        return bytes;
    }
    bytes[0] &= 0x3F;
    let length = u16::try_from(bytes.len() - 20).expect("truncated above");
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes[4..8].copy_from_slice(&0x2112_A442_u32.to_be_bytes());
    let end = bytes.len();
    if end >= 28 && bytes[end - 8..end - 4] == [0x80, 0x28, 0, 4] {
        let crc = crc32(&bytes[..end - 8]) ^ 0x5354_554E;
        bytes[end - 4..].copy_from_slice(&crc.to_be_bytes());
    }
    bytes
}

fn decode_like_reference(bytes: &[u8]) {
    let parsed = Message::parse(bytes);
    let reference = Reference::decode(bytes);
    assert_eq!(parsed.is_ok(), reference.is_some(), "{parsed:?}");
    let (Ok(message), Some(reference)) = (parsed, reference) else {
        return;
    };
    assert_eq!(message.as_bytes(), bytes);
    assert_eq!(message.transaction_id().as_bytes()[..], bytes[8..20]);
    assert_eq!(message.has_fingerprint(), reference.fingerprint);
    assert_eq!(message.has_integrity_sha1(), reference.sha1.is_some());
    assert_eq!(message.has_integrity_sha256(), reference.sha256.is_some());
    let attributes = message.attributes().map(|found| (found.kind, found.value));
    assert!(attributes.eq(reference.body.iter().copied()));
    let known = KnownAttributeTypes::ALL.iter().copied();
    let present = reference.body.iter().map(|(kind, _)| *kind);
    for kind in known.chain(present.clone()) {
        if kind != AttributeType::FINGERPRINT {
            assert_eq!(message.raw(kind), reference.first(kind), "{kind:?}");
        }
    }
    let unknown = present.filter(|kind| kind.number() < 0x8000 && !kind.is_known());
    assert!(message.unknown_required().eq(unknown.clone()));
    assert_eq!(message.has_unknown_required(), unknown.count() > 0);
    let data = reference.first(AttributeType::DATA);
    assert_eq!(message.data_range().map(|range| &bytes[range]), data);
}

/// Writes the attributes of a message one by one: everything getters see must come out the same.
fn rewrite(message: &Message<'_>) {
    let mut buf = vec![0xEE; message.as_bytes().len()];
    let id = message.transaction_id();
    let mut writer = MessageWriter::new(&mut buf, message.class(), message.method(), id);
    for attribute in message.attributes() {
        writer.bytes(attribute.kind, attribute.value);
    }
    for kind in [
        AttributeType::MESSAGE_INTEGRITY,
        AttributeType::MESSAGE_INTEGRITY_SHA256,
    ] {
        if let Some(value) = message.raw(kind) {
            writer.bytes(kind, value);
        }
    }
    if message.has_fingerprint() {
        writer.fingerprint();
    }
    // never longer than the original: it leaves out what stands behind integrity
    let len = writer.finish().expect("the original had room for it");
    let again = Message::parse(&buf[..len]).expect("our own message parses");
    assert_eq!(again.class(), message.class());
    assert_eq!(again.method(), message.method());
    assert_eq!(again.transaction_id(), id);
    assert!(again.attributes().eq(message.attributes()));
    assert_eq!(again.has_fingerprint(), message.has_fingerprint());
    for kind in KnownAttributeTypes::ALL {
        if *kind != AttributeType::FINGERPRINT {
            assert_eq!(again.raw(*kind), message.raw(*kind));
        }
    }
    for found in again.attributes() {
        let end = found.value.as_ptr_range().end as usize - buf.as_ptr() as usize;
        let padding = &buf[end..end + padding_len(found.value.len())];
        assert!(padding.iter().all(|&byte| byte == 0));
    }
}

/// Calls every getter. Lists are walked to their end.
fn read_everything(message: &Message<'_>) {
    let _ = (message.class(), message.method(), message.transaction_id());
    let _ = format!("{message:?}");
    let _ = (message.username(), message.userhash(), message.realm());
    let _ = (message.nonce(), message.software(), message.error_code());
    let _ = (message.alternate_server(), message.alternate_domain());
    let _ = (message.mapped_address(), message.xor_mapped_address());
    let _ = (message.integrity_sha256(), message.password_algorithm());
    if let Ok(Some(algorithms)) = message.password_algorithms() {
        let listed: usize = algorithms
            .iter()
            .map(|entry| 4 + entry.parameters.len().next_multiple_of(4))
            .sum();
        assert_eq!(listed, algorithms.as_bytes().len().next_multiple_of(4));
    }
    if let Ok(Some(types)) = message.unknown_attributes() {
        let raw = message.raw(AttributeType::UNKNOWN_ATTRIBUTES);
        assert_eq!(Some(types.iter().count() * 2), raw.map(<[u8]>::len));
    }
    let first_of_list = message.xor_peer_addresses().next().transpose();
    assert_eq!(message.xor_peer_address(), first_of_list);
    let first_of_list = message.xor_relayed_addresses().next().transpose();
    assert_eq!(message.xor_relayed_address(), first_of_list);
    let first_of_list = message.alternate_servers().next().transpose();
    assert_eq!(message.alternate_server(), first_of_list);
    for code in message.address_error_codes().flatten() {
        assert!((300..=699).contains(&code.code));
    }
    let _ = (message.channel_number(), message.lifetime(), message.data());
    let _ = (message.requested_address_family(), message.even_port());
    let _ = message.additional_address_family();
    let _ = (message.requested_transport(), message.dont_fragment());
    let _ = (message.reservation_token(), message.icmp());
    let _ = (message.connection_id(), message.change_request());
    let _ = (message.response_origin(), message.other_address());
    let _ = (message.response_port(), message.padding());
    let _ = (message.third_party_authorization(), message.access_token());
    let _ = (message.mobility_ticket(), message.origin());
    let sha1 = message.check_integrity(&IntegrityKey::sha1(b"key"));
    let sha256 = message.check_integrity(&IntegrityKey::sha256(b"key"));
    let missing = Err(IntegrityError::Missing);
    assert_eq!(sha1 == missing, !message.has_integrity_sha1());
    assert_eq!(sha256 == missing, !message.has_integrity_sha256());
}
