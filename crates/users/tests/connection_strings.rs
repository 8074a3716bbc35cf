//! Replays the committed corpus of connection strings, and feeds what becomes of it to the same property.
//!
//! The property lives in `fuzz/src/` so that libFuzzer and this test assert the same things.

#[path = "../../../fuzz/src/connection_strings.rs"]
#[expect(unreachable_pub, reason = "public in the fuzz crate")]
mod properties;

use std::path::Path;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/connection_strings");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("a committed corpus")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort_unstable();
    let read = |path| std::fs::read(path).expect("a file");
    files.into_iter().map(read).collect()
}

#[test]
fn a_password_is_in_nothing_that_is_said_of_a_connection_string() {
    let corpus = corpus();
    assert!(corpus.len() >= 20, "{}", corpus.len());
    for text in &corpus {
        properties::connection_strings(text);
        // Cut anywhere, and with each byte replaced by those that mean something.
        for at in 0..text.len() {
            properties::connection_strings(&text[..at]);
            for byte in *b"=@:/?&%' \\\0\xff" {
                let mut other = text.clone();
                other[at] = byte;
                properties::connection_strings(&other);
            }
        }
        for behind in &corpus {
            properties::connection_strings(&[&text[..], behind].concat());
        }
    }
}
