//! Replays the corpora of the fuzz targets `field_section` and `http3_streams`, and feeds random bytes to the same properties.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::fs;
use std::path::Path;

use proptest::prelude::*;

#[path = "../../../fuzz/src/http3.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate")]
mod properties;

fn replay(name: &str, property: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut replayed = 0;
    for entry in fs::read_dir(folder.join(name)).unwrap() {
        property(&fs::read(entry.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed >= 15, "only {replayed} inputs");
}

#[test]
fn replays_the_corpora() {
    replay("field_section", properties::field_section);
    replay("http3_streams", properties::http3_streams);
}

proptest! {
    #[test]
    fn what_is_decoded_is_the_same_after_it_was_encoded(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        properties::field_section(&[&[0, 0][..], &bytes].concat());
    }

    //= V-87
    #[test]
    fn a_connection_is_the_same_whatever_pieces_its_bytes_come_in(
        script in prop::collection::vec((any::<u8>(), prop::collection::vec(prop_oneof![0_u8..4, any::<u8>()], 0..40)), 0..12),
    ) {
        let request = &[0_u8, 2, 1, 0x0F][..];
        let steps = script.iter().flat_map(|(what, bytes)| {
            [&[*what, u8::try_from(bytes.len()).unwrap()][..], bytes].concat()
        });
        let script: Vec<u8> = request.iter().copied().chain(steps).collect();
        properties::http3_streams(&script);
    }
}
