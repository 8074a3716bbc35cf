//! What reading a message costs, beside the public codecs that can read the same one.
//!
//! The message is a 140-byte Refresh request with USERNAME, REALM, NONCE, LIFETIME, MESSAGE-INTEGRITY and FINGERPRINT. The
//! bar: with the fingerprint checked, this crate takes at most half of the time of the fastest public codec in
//! the same run. `rtc-stun` copies into a reused message and checks nothing; `stun-types` checks the fingerprint.
//! Ratios within one run are what counts; absolute numbers belong to the machine.

#![expect(clippy::unwrap_used, reason = "a bench may stop")]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use turnbuckle_wire::{
    ChannelData, ChannelNumber, Class, IntegrityKey, Message, MessageWriter, Method, TransactionId,
    long_term_key_md5, long_term_key_sha256,
};

const USERNAME: &[u8] = b"1732230000:alice@example.org";
const REALM: &[u8] = b"example.org";
const NONCE: &[u8] = b"obMatJos2AAAAv7uGfRqPCdQKOzQ";

/// Returns the Refresh request, 140 bytes with SHA-1.
fn refresh_request(key: &IntegrityKey) -> Vec<u8> {
    let mut buf = [0; 256];
    let id = TransactionId::new(*b"\x01\x23\x45\x67\x89\xab\xcd\xef\xfe\xdc\xba\x98");
    let mut writer = MessageWriter::new(&mut buf, Class::Request, Method::REFRESH, id);
    writer
        .username(USERNAME)
        .realm(REALM)
        .nonce(NONCE)
        .lifetime(600)
        .integrity(key)
        .fingerprint();
    let len = writer.finish().unwrap();
    buf[..len].to_vec()
}

fn sha1_key() -> IntegrityKey {
    IntegrityKey::sha1(&long_term_key_md5(USERNAME, REALM, b"secret"))
}

fn parse(c: &mut Criterion) {
    let request = refresh_request(&sha1_key());
    assert_eq!(request.len(), 140);
    let mut group = c.benchmark_group("parse_refresh_140_bytes");
    group.throughput(Throughput::Elements(1));

    group.bench_function("turnbuckle", |b| {
        b.iter(|| {
            Message::parse(black_box(&request))
                .unwrap()
                .has_fingerprint()
        });
    });
    group.bench_function("turnbuckle_and_read_four_attributes", |b| {
        b.iter(|| {
            let message = Message::parse(black_box(&request)).unwrap();
            black_box((
                message.username().unwrap(),
                message.realm().unwrap(),
                message.nonce().unwrap(),
                message.lifetime().unwrap(),
            ));
        });
    });
    // everything but the checksum, to see what FINGERPRINT costs
    let mut plain = request[..132].to_vec();
    plain[2..4].copy_from_slice(&112u16.to_be_bytes());
    group.bench_function("turnbuckle_without_fingerprint", |b| {
        b.iter(|| Message::parse(black_box(&plain)).unwrap().has_fingerprint());
    });
    group.bench_function("crc32_alone", |b| {
        b.iter(|| crc32fast::hash(black_box(&request[..132])));
    });
    group.bench_function("stun_types", |b| {
        b.iter(|| stun_types::message::Message::from_bytes(black_box(&request)).unwrap());
    });
    let mut reused = rtc_stun::message::Message::new();
    group.bench_function("rtc_stun_reused", |b| {
        b.iter(|| reused.unmarshal_binary(black_box(&request)).unwrap());
    });
    let decoder = stun_rs::MessageDecoderBuilder::default().build();
    group.bench_function("stun_rs", |b| {
        b.iter(|| decoder.decode(black_box(&request)).unwrap());
    });
    group.finish();
}

fn integrity(c: &mut Criterion) {
    let mut group = c.benchmark_group("check_integrity");
    let sha256_key = IntegrityKey::sha256(&long_term_key_sha256(USERNAME, REALM, b"secret"));
    for (name, key) in [("sha1", sha1_key()), ("sha256", sha256_key)] {
        let request = refresh_request(&key);
        let message = Message::parse(&request).unwrap();
        group.bench_function(name, |b| {
            b.iter(|| {
                black_box(&message)
                    .check_integrity(black_box(&key))
                    .unwrap()
            });
        });
    }
    group.finish();
}

fn channel_data(c: &mut Criterion) {
    let number = ChannelNumber::try_from(0x4001).unwrap();
    let mut datagram = ChannelData::header(number, 1200).to_vec();
    datagram.resize(1204, 0xA5);
    c.bench_function("parse_channel_data", |b| {
        b.iter(|| ChannelData::parse_datagram(black_box(&datagram)).unwrap());
    });
}

fn write(c: &mut Criterion) {
    let key = sha1_key();
    let id = TransactionId::new([7; 12]);
    c.bench_function("write_refresh_success", |b| {
        let mut buf = [0; 256];
        b.iter(|| {
            let mut writer = MessageWriter::new(&mut buf, Class::Success, Method::REFRESH, id);
            writer.lifetime(600).integrity(&key).fingerprint();
            writer.finish().unwrap()
        });
    });
}

criterion_group!(benches, parse, integrity, channel_data, write);
criterion_main!(benches);
