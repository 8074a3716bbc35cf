//! Messages that are none: headers, lengths and values that are wrong.

use rand::Rng as _;
use turnbuckle_wire::{AttributeType, Class, Method};

use super::{Act, Check, Context, NO_ANSWER, Outcome, SUCCESS, answer_to, is_one_of, wrong};
use turnbuckle_client::UDP;
use turnbuckle_client::blocking::{append, plain};

const SILENCE: &[u16] = &[NO_ANSWER];
/// What is no message is dropped; a server that reads it more kindly may say what is wrong with it.
const DROPPED: &[u16] = &[NO_ANSWER, 400];
const BAD: &[u16] = &[400];
/// Requests of the check that changes bytes at random.
const MUTANTS: usize = 200;
/// Bytes changed in each of those at most.
const CHANGES_MAX: usize = 10;

#[rustfmt::skip]
pub(super) const CHECKS: [Check; 26] = [
    // Headers.
    Check::new("an empty datagram", "RFC 8489 §5", SILENCE, Act::Bytes(Vec::new)),
    Check::new("a header that ends after 19 bytes", "RFC 8489 §5", SILENCE, Act::Bytes(|| cut(binding(), 19))),
    Check::new("another magic cookie", "RFC 8489 §6.3", SILENCE, Act::Spoiled(|request| changed(request, 4, 0xff))),
    Check::new("first two bits that are not zero", "RFC 8489 §6.3", SILENCE, Act::Bytes(|| changed(binding(), 0, 0xc0))),
    Check::new("a length that is no multiple of four", "RFC 8489 §5", DROPPED, Act::Spoiled(|request| with_length(request, -2))),
    Check::new("a length beyond the datagram", "RFC 8489 §5", DROPPED, Act::Spoiled(|request| with_length(request, 4))),
    Check::new("a length far beyond the datagram", "RFC 8489 §5", DROPPED, Act::Spoiled(|mut request| {
        request.splice(2..4, [0xff, 0xfc]);
        request
    })),
    // What is behind the message may count as another packet's beginning; the message must not have been carried out wrongly.
    Check::new("bytes behind the message", "RFC 8489 §5", &[NO_ANSWER, 400, SUCCESS], Act::Spoiled(|mut request| {
        request.extend_from_slice(&[0; 4]);
        request
    })),
    // Attributes.
    Check::new("an attribute that ends behind the message", "RFC 8489 §14", DROPPED, Act::Bytes(|| {
        let mut request = plain(Class::Request, Method::BINDING, |writer| { writer.bytes(AttributeType::new(0x8000), b"four"); });
        request.splice(22..24, [0x00, 0xff]);
        request
    })),
    Check::new("half an attribute header", "RFC 8489 §14", DROPPED, Act::Bytes(|| {
        let mut request = plain(Class::Request, Method::BINDING, |writer| { writer.flag(AttributeType::new(0x8000)); });
        request.truncate(22);
        with_length(request, -2)
    })),
    Check::new("FINGERPRINT of other bytes", "RFC 8489 §6.3", DROPPED, Act::Bytes(|| {
        let mut request = plain(Class::Request, Method::BINDING, |writer| { writer.fingerprint(); });
        let last = request.len() - 1;
        request = changed(request, last, 0x01);
        request
    })),
    Check::new("FINGERPRINT that is not last", "RFC 8489 §14.7", &[NO_ANSWER, 400, SUCCESS], Act::Bytes(|| {
        let mut request = plain(Class::Request, Method::BINDING, |writer| { writer.fingerprint(); });
        append(&mut request, AttributeType::SOFTWARE, b"late");
        request
    })),
    Check::new("USERNAME of 600 bytes", "RFC 8489 §14.3", &[NO_ANSWER, 400, 401], Act::Bytes(|| {
        plain(Class::Request, Method::ALLOCATE, |writer| {
            writer.requested_transport(UDP).bytes(AttributeType::USERNAME, &[b'u'; 600]);
        })
    })),
    Check::new("XOR-PEER-ADDRESS of no family", "RFC 8656 §10.2", &[400, 443], Act::Holder(Method::CREATE_PERMISSION, |writer, _| {
        writer.bytes(AttributeType::XOR_PEER_ADDRESS, &[0, 9, 1, 2, 3, 4, 5, 6]);
    })),
    Check::new("XOR-PEER-ADDRESS of seven bytes", "RFC 8656 §10.2", BAD, Act::Holder(Method::CREATE_PERMISSION, |writer, _| {
        writer.bytes(AttributeType::XOR_PEER_ADDRESS, &[0, 1, 1, 2, 3, 4, 5]);
    })),
    Check::new("XOR-PEER-ADDRESS without a value", "RFC 8656 §10.2", BAD, Act::Holder(Method::CREATE_PERMISSION, |writer, _| {
        writer.flag(AttributeType::XOR_PEER_ADDRESS);
    })),
    Check::new("CHANNEL-NUMBER of one byte", "RFC 8656 §12.2", BAD, Act::HolderWithPeer(Method::CHANNEL_BIND, |writer, peer| {
        writer.bytes(AttributeType::CHANNEL_NUMBER, &[0x40]).xor_peer_address(peer);
    })),
    Check::new("REQUESTED-TRANSPORT without a value", "RFC 8656 §7.2", BAD, Act::Allocate(|writer| {
        writer.flag(AttributeType::REQUESTED_TRANSPORT);
    })),
    Check::new("REQUESTED-TRANSPORT of one byte", "RFC 8656 §7.2", BAD, Act::Allocate(|writer| {
        writer.bytes(AttributeType::REQUESTED_TRANSPORT, &[UDP]);
    })),
    Check::new("LIFETIME of three bytes", "RFC 8489 §6.3", BAD, Act::Holder(Method::REFRESH, |writer, _| {
        writer.bytes(AttributeType::LIFETIME, &[0, 0, 0]);
    })),
    Check::new("EVEN-PORT of no bytes", "RFC 8489 §6.3", BAD, Act::Allocate(|writer| {
        writer.requested_transport(UDP).flag(AttributeType::EVEN_PORT);
    })),
    Check::new("RESERVATION-TOKEN of seven bytes", "RFC 8489 §6.3", &[400, 508], Act::Allocate(|writer| {
        writer.requested_transport(UDP).bytes(AttributeType::RESERVATION_TOKEN, &[7; 7]);
    })),
    // ChannelData.
    Check::new("ChannelData of two bytes", "RFC 8656 §12.4", SILENCE, Act::Spoiled(|_| vec![0x40, 0])),
    Check::new("ChannelData whose length lies", "RFC 8656 §12.4", SILENCE, Act::Spoiled(|_| vec![0x40, 0, 0xff, 0xff, 1, 2, 3, 4])),
    Check::new("a first byte that belongs to no protocol", "RFC 7983 §7", SILENCE, Act::Spoiled(|_| vec![0xff; 32])),
    Check::new("requests with bytes changed at random", "RFC 8489 §6.3", &[], Act::Dialog(mutants)),
];

fn binding() -> Vec<u8> {
    plain(Class::Request, Method::BINDING, |_| {})
}

fn cut(mut bytes: Vec<u8>, len: usize) -> Vec<u8> {
    bytes.truncate(len);
    bytes
}

/// Changes one byte.
fn changed(mut bytes: Vec<u8>, at: usize, flip: u8) -> Vec<u8> {
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= flip;
    }
    bytes
}

/// Makes the length field `excess` too long.
fn with_length(mut bytes: Vec<u8>, excess: i32) -> Vec<u8> {
    let body = i32::try_from(bytes.len()).unwrap_or(0) - 20;
    let field = u16::try_from(body + excess).unwrap_or(u16::MAX);
    if let Some(place) = bytes.get_mut(2..4) {
        place.copy_from_slice(&field.to_be_bytes());
    }
    bytes
}

/// Sends requests on an allocation, each with some bytes changed, and checks that server and allocation go on, whatever comes back.
fn mutants(context: &Context) -> Outcome {
    let mut session = context.allocated()?;
    let peer = context.any_peer();
    for _ in 0..MUTANTS {
        let mut request = session.signed(Method::CREATE_PERMISSION, |writer| {
            writer.xor_peer_address(peer);
        });
        {
            let mut random = context.random.borrow_mut();
            for _ in 0..random.random_range(1..=CHANGES_MAX) {
                let at = random.random_range(0..request.len());
                if let Some(byte) = request.get_mut(at) {
                    *byte = random.random();
                }
            }
        }
        session.send(&request);
    }
    answer_to(&mut session, &[])?;
    let Some(answer) = session.refresh(600) else {
        return wrong("no answer to an honest Refresh afterwards");
    };
    is_one_of(answer.code(), &[SUCCESS])
}
