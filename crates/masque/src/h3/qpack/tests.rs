//! Field sections, theirs and ours.

use proptest::prelude::*;

use super::*;
use crate::h3::code::{Code, Wrong};

const MAX: usize = 1000;

fn fields(section: &[u8]) -> Result<Vec<(String, String)>, DecodeError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let fields = decode(section, MAX)?;
    Ok(fields
        .iter()
        .map(|field| (text(&field.name), text(&field.value)))
        .collect())
}

fn one(section: &[u8]) -> Result<(String, String), DecodeError> {
    fields(section).map(|mut fields| fields.remove(0))
}

fn field(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

//= QPK-01
#[test]
fn the_example_of_rfc_9204_without_a_dynamic_table_is_decoded() {
    // RFC 9204 Appendix B.1: a literal with a name of the static table.
    let section = b"\x00\x00\x51\x0b/index.html";
    assert_eq!(fields(section).unwrap(), [field(":path", "/index.html")]);
}

#[test]
fn each_kind_of_field_line_is_decoded() {
    for (line, expected) in [
        (&[0xC0 | 15][..], field(":method", "CONNECT")),
        (&[0xC0 | 23], field(":scheme", "https")),
        (&[0xFF, 0], field(":status", "100")),
        (&[0xFF, 35], field("x-frame-options", "sameorigin")),
        // never to be indexed, and with a name of two bytes of index
        (b"\x7f\x45\x01a", field("authorization", "a")),
        (b"\x23abc\x02de", field("abc", "de")),
        // RFC 7541 §C.4.1: www.example.com in Huffman's code
        (
            b"\x50\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            field(":authority", "www.example.com"),
        ),
        // RFC 7541 §C.4.3: custom-key and custom-value
        (
            b"\x2f\x01\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf",
            field("custom-key", "custom-value"),
        ),
    ] {
        let section = [&[0, 0], line].concat();
        assert_eq!(one(&section), Ok(expected), "{line:02x?}");
    }
}

//= QPK-02
//= QPK-03
//= QPK-04
#[test]
fn what_refers_to_a_dynamic_table_or_ends_early_is_malformed() {
    for section in [
        &[][..],
        &[0],
        &[1, 0],              // requires an insertion
        &[0, 0x80],           // a base before the first entry
        &[0, 0, 0x80],        // indexed, dynamic
        &[0, 0, 0x10],        // indexed behind the base
        &[0, 0, 0x00],        // with a name behind the base
        &[0, 0, 0x40, 0],     // with a name of the dynamic table
        &[0, 0, 0xFF, 36],    // the first index that the static table does not have
        &[0, 0, 0x5F, 84, 0], // the same for a name
        &[0, 0, 0x51],
        &[0, 0, 0x51, 5, b'a'],
        &[0, 0, 0x21],
        &[0, 0, 0xFF],
        &[
            0, 0, 0xFF, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01,
        ],
        &[
            0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F,
        ],
        // Huffman's codes: a padding of eight bits, one of zeros, and the end-of-string symbol (RFC 7541 §5.2)
        &[0, 0, 0x51, 0x82, 0x1F, 0xFF],
        &[0, 0, 0x51, 0x81, 0x18],
        &[0, 0, 0x51, 0x84, 0xFF, 0xFF, 0xFF, 0xFF],
    ] {
        assert_eq!(
            fields(section),
            Err(DecodeError::Malformed),
            "{section:02x?}"
        );
    }
    assert_eq!(one(&[0, 0, 0x51, 0x81, 0x1F]), Ok(field(":path", "a")));
}

//= H3-17
//= V-87
#[test]
fn a_short_section_with_endless_fields_is_too_large() {
    let each = "content-security-policy".len()
        + "script-src 'none'; object-src 'none'; base-uri 'none'".len()
        + FIELD_OVERHEAD;
    let bomb = |count: usize| [&[0, 0][..], &[0xFF, 85 - 63].repeat(count)].concat();
    assert_eq!(fields(&bomb(MAX / each)).unwrap().len(), MAX / each);
    assert_eq!(fields(&bomb(MAX / each + 1)), Err(DecodeError::TooLarge));
    let empty = [&[0, 0][..], &[0x20, 0].repeat(MAX / FIELD_OVERHEAD + 1)].concat();
    assert_eq!(fields(&empty), Err(DecodeError::TooLarge));
}

#[test]
fn streams_of_instructions_may_say_what_changes_nothing() {
    let read = |side, bytes: &[u8]| {
        let mut instructions = Instructions::new(side);
        bytes.iter().try_fold(0, |count, &byte| {
            instructions.read(&[byte]).map(|more| count + more)
        })
    };
    assert_eq!(read(Side::Encoder, &[0x20, 0x20]), Ok(2));
    assert_eq!(read(Side::Decoder, &[0x44, 0x7F, 0x80, 0x01]), Ok(2));
    let wrong = |code, bytes: &[u8], side| {
        let done = read(side, bytes);
        let is_wrong = matches!(done, Err(Wrong::Connection(it, _)) if it == code);
        assert!(is_wrong, "{bytes:02x?}: {done:?}");
    };
    for bytes in [&[0x21][..], &[0x3F], &[0xC0], &[0x41], &[0x00]] {
        wrong(Code::QPACK_ENCODER_STREAM_ERROR, bytes, Side::Encoder);
    }
    for bytes in [&[0x80][..], &[0x01], &[0x00]] {
        wrong(Code::QPACK_DECODER_STREAM_ERROR, bytes, Side::Decoder);
    }
    let endless = [&[0x7F][..], &[0x80; 20]].concat();
    wrong(Code::QPACK_DECODER_STREAM_ERROR, &endless, Side::Decoder);
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded_again(
        names in prop::collection::vec("[a-z-]{1,40}|:status|proxy-status|te|authorization", 0..6),
        values in prop::collection::vec("[ -~]{0,60}|200|trailers|/", 6),
    ) {
        let expected: Vec<_> = names.iter().map(String::as_str).zip(values.iter().map(String::as_str)).collect();
        let section = encode(&expected);
        let decoded = decode(&section, 10_000).unwrap();
        let decoded: Vec<_> = decoded
            .iter()
            .map(|field| (std::str::from_utf8(&field.name).unwrap(), std::str::from_utf8(&field.value).unwrap()))
            .collect();
        prop_assert_eq!(decoded, expected);
    }

    #[test]
    fn any_bytes_are_decoded_or_not_and_never_to_more_than_allowed(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let section = [&[0, 0][..], &bytes].concat();
        if let Ok(fields) = decode(&section, MAX) {
            let size: usize = fields.iter().map(|field| field.name.len() + field.value.len() + FIELD_OVERHEAD).sum();
            prop_assert!(size <= MAX);
        }
    }
}
