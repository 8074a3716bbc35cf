//! Replays the corpus of the fuzz target `connection_ids`, and feeds random bytes to the same property.

use std::fs;
use std::path::Path;

use proptest::prelude::*;

#[path = "../../../fuzz/src/connection_ids.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate")]
mod property;

#[test]
fn replays_the_corpus() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/connection_ids");
    let mut replayed = 0;
    for entry in fs::read_dir(&folder).expect("a committed corpus") {
        property::connection_ids(&fs::read(entry.unwrap().path()).unwrap());
        replayed += 1;
    }
    assert!(replayed >= 20, "only {replayed} inputs");
}

proptest! {
    #[test]
    fn whose_a_datagram_is_is_read_alike_by_a_slow_reader(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        property::connection_ids(&bytes);
    }
}
