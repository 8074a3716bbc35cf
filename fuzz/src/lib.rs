//! What the fuzz targets assert.
//!
//! Each property is a plain function from bytes to nothing that panics when the property does not hold. The
//! libFuzzer targets in `fuzz_targets/` call one each; the main workspace includes the same files in its tests, replays the
//! committed corpora and feeds random bytes, on stable Rust.

pub mod connection_ids;
pub mod connection_strings;
pub mod http3;
pub mod wire;
