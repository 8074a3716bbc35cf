//! Writes seeds for the wire targets into `corpus/`: one message per method and class with typical attributes, one value
//! per attribute type, ChannelData, and the messages named on the command line as files of hexadecimal digits.
//!
//! Run from `fuzz/`: `cargo run --bin seed [FILE...]`.

use std::fs;
use std::path::Path;
use turnbuckle_wire::{
    AddressFamily, ChannelData, ChannelNumber, Class, IntegrityKey, KnownAttributeTypes,
    MessageWriter, Method, PasswordAlgorithm, TransactionId,
};

fn main() -> std::io::Result<()> {
    let mut messages = typical_messages();
    for file in std::env::args().skip(1) {
        messages.push(unhex(&fs::read_to_string(file)?));
    }
    let mut attributes = messages.clone();
    for selector in 0..KnownAttributeTypes::ALL.len() {
        for len in [0, 1, 4, 5, 8, 20, 32] {
            let mut seed = vec![u8::try_from(selector).expect("fewer than 256 types")];
            seed.extend((1..=len).collect::<Vec<u8>>());
            attributes.push(seed);
        }
    }
    let mut datagrams = messages.clone();
    for (number, len) in [(0x4000, 0), (0x4FFF, 5), (0x4001, 200)] {
        let number = ChannelNumber::try_from(number).expect("in range");
        let mut datagram = ChannelData::header(number, len).to_vec();
        datagram.resize(4 + usize::from(len), 0xA5);
        datagrams.push(datagram);
    }
    datagrams.extend((0..=255).map(|first| vec![first, 0, 0, 0]));
    write_all("message_decode", &messages)?;
    write_all("message_round_trip", &messages)?;
    write_all("attribute_semantics", &attributes)?;
    write_all("demux", &datagrams)
}

fn typical_messages() -> Vec<Vec<u8>> {
    let peer4 = "192.0.2.7:4711".parse().expect("an address");
    let peer6 = "[2001:db8::7]:4711".parse().expect("an address");
    let key = IntegrityKey::sha1(b"key");
    let sha256 = IntegrityKey::sha256(b"key");
    let build = |class, method, attributes: &dyn Fn(&mut MessageWriter<'_>)| {
        let mut buf = [0; 1024];
        let id = TransactionId::new(*b"twelve bytes");
        let mut writer = MessageWriter::new(&mut buf, class, method, id);
        attributes(&mut writer);
        let len = writer.finish().expect("fits");
        buf[..len].to_vec()
    };
    vec![
        build(Class::Request, Method::BINDING, &|writer| {
            writer.fingerprint();
        }),
        build(Class::Success, Method::BINDING, &|writer| {
            writer.xor_mapped_address(peer6).software("turnbuckle");
        }),
        build(Class::Request, Method::ALLOCATE, &|writer| {
            writer
                .requested_transport(17)
                .even_port(true)
                .dont_fragment()
                .additional_address_family(AddressFamily::V6)
                .username(b"alice")
                .realm(b"example.org")
                .nonce(b"obMatJos2AAABnonce")
                .password_algorithms(&[PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5])
                .password_algorithm(PasswordAlgorithm::Sha256)
                .integrity(&sha256)
                .fingerprint();
        }),
        build(Class::Success, Method::ALLOCATE, &|writer| {
            writer
                .xor_relayed_address(peer4)
                .xor_relayed_address(peer6)
                .lifetime(600)
                .reservation_token(*b"12345678")
                .address_error_code(AddressFamily::V6, 440, "Address Family not Supported")
                .mobility_ticket(b"ticket")
                .integrity(&key)
                .integrity(&sha256)
                .fingerprint();
        }),
        build(Class::Error, Method::ALLOCATE, &|writer| {
            writer
                .error_code(401, "Unauthenticated")
                .realm(b"example.org")
                .nonce(b"obMatJos2AAABnonce")
                .third_party_authorization(b"turn.example.org");
        }),
        build(Class::Request, Method::CREATE_PERMISSION, &|writer| {
            writer
                .xor_peer_address(peer4)
                .xor_peer_address(peer6)
                .integrity(&key);
        }),
        build(Class::Request, Method::CHANNEL_BIND, &|writer| {
            let number = ChannelNumber::try_from(0x4001).expect("in range");
            writer
                .channel_number(number)
                .xor_peer_address(peer4)
                .integrity(&key);
        }),
        build(Class::Indication, Method::SEND, &|writer| {
            writer.xor_peer_address(peer4).data(b"payload");
        }),
    ]
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits"))
        .collect()
}

fn write_all(target: &str, seeds: &[Vec<u8>]) -> std::io::Result<()> {
    let folder = Path::new("corpus").join(target);
    fs::create_dir_all(&folder)?;
    for (index, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("seed-{index:03}")), seed)?;
    }
    Ok(())
}
