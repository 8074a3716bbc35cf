//! The one source of randomness: nonces, reservation tokens, relayed ports, table seeds, transaction ids.

/// A source of random bytes.
///
/// Production implements it with the operating system's generator and nothing else (V-20); the simulator seeds it.
pub trait Random {
    /// Overwrites all of `bytes`.
    fn fill(&mut self, bytes: &mut [u8]);
}

/// A random number of all 64 bits.
pub(crate) fn random_u64(random: &mut impl Random) -> u64 {
    let mut bytes = [0; 8];
    random.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}
