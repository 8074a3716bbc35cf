//! How the program finds an entry: by a hash with a key, in a bucket of a few.

/// Entries of a bucket.
pub(super) const BUCKET: usize = 4;

/// The key of the hash, so that nobody can aim for a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Seed(pub u64);

/// Takes a word into a hash. One multiplication is too few: keys that differ in a port alone come together, and a third of a million found no room.
pub(super) fn mix(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let hash = (hash ^ hash >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    hash ^ hash >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_few_addresses_fill_the_buckets_as_chance_would() {
        let mut filled = vec![0_u32; 1 << 16];
        for flow in 0..200_000_u64 {
            let (address, port) = (flow / 50_000, 1024 + flow % 50_000);
            let hash = mix(mix(7, port.swap_bytes() >> 48), address << 56 | 0x0A);
            let [a, b, _, _, c, d, _, _] = hash.to_le_bytes();
            for bucket in [[a, b], [c, d]] {
                filled[usize::from(u16::from_le_bytes(bucket))] += 1;
            }
        }
        // 6.1 on average. By chance one bucket in 450 stays empty, which is 147 of them.
        let empty = filled.iter().filter(|&&it| it == 0).count();
        assert!(empty < 300, "{empty} buckets are empty");
        assert!(filled.iter().all(|&it| it < 24), "a bucket has too many");
    }
}
