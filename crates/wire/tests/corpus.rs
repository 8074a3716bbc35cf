//! Replays the committed fuzz corpora, and feeds random bytes to the same properties.
//!
//! The properties live in `fuzz/src/wire/` so that libFuzzer and this test assert the same things.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../../fuzz/src/wire/mod.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate")]
mod properties;
mod support;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::fs;
use std::path::Path;
use support::RawMessage;
use turnbuckle_wire::{AttributeType, KnownAttributeTypes};

type Property = fn(&[u8]);

//= V-61
#[test]
fn replays_the_corpus_of_every_wire_target() {
    let targets: [(&str, Property); 4] = [
        ("message_decode", properties::message_decode),
        ("message_round_trip", properties::message_round_trip),
        ("attribute_semantics", properties::attribute_semantics),
        ("demux", properties::demux),
    ];
    for (target, property) in targets {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../fuzz/corpus")
            .join(target);
        let mut replayed = 0;
        for entry in fs::read_dir(&folder).expect("a committed corpus") {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            property(&fs::read(path).unwrap());
            replayed += 1;
        }
        assert!(replayed >= 20, "{target} has only {replayed} inputs");
    }
}

/// The length fields of every message that matters: the header's, each attribute's, and those inside values.
//= V-61
#[test]
fn survives_every_extreme_length_at_every_truncation_point() {
    let tail = |message: &RawMessage, behind: usize| message.0.len() - behind;
    let token = RawMessage::request()
        .attribute(AttributeType::LIFETIME, &[0, 0, 2, 88])
        .attribute(AttributeType::ACCESS_TOKEN, &[0, 2, 7, 7, 9, 9, 9]);
    let algorithms = RawMessage::request().attribute(
        AttributeType::PASSWORD_ALGORITHMS,
        &[0x12, 0x34, 0, 3, 1, 2, 3, 0, 0, 2, 0, 0],
    );
    let signed = RawMessage::request()
        .attribute(AttributeType::USERNAME, b"alice")
        .attribute(AttributeType::MESSAGE_INTEGRITY, &[0; 20])
        .attribute(AttributeType::FINGERPRINT, &[0; 4]);
    let cases = [
        (vec![2, 22, 30, tail(&token, 8)], &token),
        (vec![2, 22, 26, tail(&algorithms, 2)], &algorithms),
        (vec![2, 22, 34, tail(&signed, 6)], &signed),
    ];
    let mut tried = 0;
    for (fields, message) in cases {
        for field in fields {
            for len in [0, 1, 3, 4, 0xFFFC, 0xFFFD, 0xFFFE, 0xFFFF_u16] {
                let mut bytes = message.0.clone();
                bytes[field..field + 2].copy_from_slice(&len.to_be_bytes());
                for end in 0..=bytes.len() {
                    let cut = &bytes[..end];
                    properties::message_decode(cut);
                    properties::message_round_trip(cut);
                    properties::attribute_semantics(cut);
                    properties::demux(cut);
                    tried += 1;
                }
            }
        }
    }
    for len in [0, 1, 3, 4, 0xFFFC, 0xFFFD, 0xFFFE, 0xFFFF_u16] {
        let [l0, l1] = len.to_be_bytes();
        let mut datagram = vec![0x40, 0x01, l0, l1];
        datagram.resize(70_000, 0xA5);
        let ends = [0, 1, 2, 3, 4, 5, 7, 8, 65_538, 65_539, 65_540, 70_000];
        for end in ends {
            properties::demux(&datagram[..end]);
            tried += 1;
        }
    }
    assert!(tried > 4000, "{tried}");
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn agrees_with_the_reference_on_random_bytes(bytes in any_bytes()) {
        properties::message_decode(&bytes);
        properties::demux(&bytes);
    }

    #[test]
    fn agrees_with_the_reference_on_random_attributes(bytes in any_message()) {
        properties::message_decode(&bytes);
        properties::message_round_trip(&bytes);
    }

    #[test]
    fn agrees_with_the_reference_on_damaged_messages(
        mut bytes in any_message(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for (index, value) in damage {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        properties::message_decode(&bytes);
        properties::attribute_semantics(&bytes);
    }

    #[test]
    fn reads_back_what_random_writer_calls_wrote(bytes in any_bytes()) {
        properties::message_round_trip(&bytes);
    }

    #[test]
    fn reads_and_rewrites_random_values(selector: u8, value in any_bytes()) {
        let mut bytes = vec![selector];
        bytes.extend(value);
        properties::attribute_semantics(&bytes);
    }
}

/// Returns a configuration of the same cases every time; variety is the fuzzer's work.
fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 500,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(8489),
        ..ProptestConfig::default()
    }
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..300)
}

/// Generates messages of well-framed attributes, half of them of known types.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(KnownAttributeTypes::ALL);
    let kind = prop_oneof![known, any::<u16>().prop_map(AttributeType::new)];
    let attribute = (kind, prop::collection::vec(any::<u8>(), 0..40));
    prop::collection::vec(attribute, 0..8).prop_map(|attributes| {
        attributes
            .into_iter()
            .fold(RawMessage::request(), |message, (kind, value)| {
                message.attribute(kind, &value)
            })
            .0
    })
}
