//! How the program finds an entry: by a hash with a key, in a bucket of a few.

/// Entries of a bucket.
pub(super) const BUCKET: usize = 4;

/// The key of the hash, so that nobody can aim for a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Seed(pub u64);

pub(super) fn mix(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash ^ hash >> 32
}
