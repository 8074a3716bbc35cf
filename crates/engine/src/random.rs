//! The one source of randomness: nonces, reservation tokens, relayed ports, table seeds, transaction ids.
//!
//! The engine takes all of it through [`Random`], so that a simulation can seed it and production cannot (V-20).
//! [`BufferedRandom`] is for production: it asks the operating system for a few hundred bytes at a time.

use turnbuckle_wire::TransactionId;

/// A source of random bytes.
///
/// Production implements it with the operating system's generator and nothing else (V-20); the simulator seeds it.
pub trait Random {
    /// Overwrites all of `bytes`.
    fn fill(&mut self, bytes: &mut [u8]);
}

impl<R: Random + ?Sized> Random for &mut R {
    fn fill(&mut self, bytes: &mut [u8]) {
        (**self).fill(bytes);
    }
}

/// Returns a random number of all 64 bits.
pub(crate) fn random_u64(random: &mut impl Random) -> u64 {
    let mut bytes = [0; 8];
    random.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

/// Returns a fresh transaction id.
pub(crate) fn transaction_id(random: &mut impl Random) -> TransactionId {
    let mut bytes = [0; 12];
    random.fill(&mut bytes);
    TransactionId::new(bytes)
}

/// Bytes that [`BufferedRandom`] asks its source for at a time: 42 transaction ids.
pub const RANDOM_BUFFER_LEN: usize = 512;

/// Serves small draws from a buffer, so that a transaction id costs no system call.
///
/// A returned byte is erased from the buffer in the same call. So an attacker who later reads this memory learns nothing about
/// nonces and ports already chosen. A draw of at least the buffer's size goes straight to the source.
pub struct BufferedRandom<F> {
    source: F,
    buffer: [u8; RANDOM_BUFFER_LEN],
    /// `buffer[used..]` is unused randomness, `buffer[..used]` is zero; `used <= RANDOM_BUFFER_LEN`.
    used: usize,
}

impl<F: FnMut(&mut [u8])> BufferedRandom<F> {
    /// Draws from `source`, which overwrites all of the slice it is given with fresh random bytes.
    ///
    /// A source that cannot deliver must not return: the caller goes on to use the bytes as secrets.
    pub fn new(source: F) -> Self {
        Self {
            source,
            buffer: [0; RANDOM_BUFFER_LEN],
            used: RANDOM_BUFFER_LEN,
        }
    }
}

impl<F: FnMut(&mut [u8])> Random for BufferedRandom<F> {
    fn fill(&mut self, bytes: &mut [u8]) {
        if bytes.len() >= RANDOM_BUFFER_LEN {
            (self.source)(bytes);
            return;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            if self.used >= RANDOM_BUFFER_LEN {
                (self.source)(&mut self.buffer);
                self.used = 0;
            }
            let available = self.buffer.get_mut(self.used..).unwrap_or_default();
            let count = available.len().min(rest.len());
            let (taken, _) = available.split_at_mut(count);
            let (filled, unfilled) = rest.split_at_mut(count);
            filled.copy_from_slice(taken);
            taken.fill(0);
            self.used += count;
            rest = unfilled;
        }
    }
}

/// Randomness for tests.
#[cfg(test)]
pub(crate) mod seeded {
    use super::Random;

    /// splitmix64 from a seed.
    #[derive(Clone, Debug)]
    pub(crate) struct Seeded(pub(crate) u64);

    impl Seeded {
        pub(crate) fn u64(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        pub(crate) fn u128(&mut self) -> u128 {
            u128::from(self.u64()) << 64 | u128::from(self.u64())
        }

        /// Returns a number below `bound`.
        pub(crate) fn below(&mut self, bound: u64) -> u64 {
            self.u64() % bound
        }
    }

    impl Random for Seeded {
        fn fill(&mut self, bytes: &mut [u8]) {
            for chunk in bytes.chunks_mut(8) {
                let number = self.u64().to_le_bytes();
                chunk.copy_from_slice(&number[..chunk.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts upwards, so that repeated and skipped bytes show.
    fn counting(calls: &mut u32) -> impl FnMut(&mut [u8]) {
        let mut next = 1_u64;
        move |bytes| {
            *calls += 1;
            for byte in bytes {
                // Never zero, so that erased bytes differ from unused ones.
                *byte = u8::try_from(next % 255).unwrap() + 1;
                next += 1;
            }
        }
    }

    #[test]
    fn serves_small_draws_from_few_calls() {
        let mut calls = 0;
        {
            let mut random = BufferedRandom::new(counting(&mut calls));
            for _ in 0..420 {
                random.fill(&mut [0; 12]);
            }
        }
        assert_eq!(calls, 10, "420 transaction ids of 12 bytes are 5,040 bytes");
    }

    #[test]
    fn hands_out_every_byte_once_and_in_order() {
        let (mut calls, mut expected_calls) = (0, 0);
        let mut random = BufferedRandom::new(counting(&mut calls));
        let mut drawn = Vec::new();
        for len in (0..50).cycle().take(400) {
            let mut bytes = vec![0; len];
            random.fill(&mut bytes);
            drawn.extend_from_slice(&bytes);
        }
        let mut expected = vec![0; drawn.len()];
        counting(&mut expected_calls)(&mut expected);
        assert_eq!(drawn, expected);
    }

    #[test]
    fn erases_what_it_handed_out() {
        //= V-20
        let mut calls = 0;
        let mut random = BufferedRandom::new(counting(&mut calls));
        random.fill(&mut [0; 100]);
        assert!(random.buffer.iter().take(100).all(|&byte| byte == 0));
        assert!(random.buffer.iter().skip(100).all(|&byte| byte != 0));
    }

    #[test]
    fn passes_large_draws_to_the_source() {
        let mut calls = 0;
        let mut bytes = vec![0; 4 * RANDOM_BUFFER_LEN];
        {
            let mut random = BufferedRandom::new(counting(&mut calls));
            random.fill(&mut bytes);
        }
        assert_eq!(calls, 1);
        assert!(bytes.iter().all(|&byte| byte != 0));
    }
}
