//! Randomness from the operating system and nowhere else (V-20).

use turnbuckle_engine::{BufferedRandom, Random};

/// `getrandom(2)`, some hundred bytes at a time, so that a transaction id costs no system call.
pub(crate) struct OsRandom(BufferedRandom<fn(&mut [u8])>);

impl OsRandom {
    pub(crate) fn new() -> Self {
        Self(BufferedRandom::new(fill))
    }
}

impl Random for OsRandom {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }
}

/// # Panics
///
/// When the kernel gives no randomness. Going on with something predictable would break every nonce and port that
/// follows, so the shard ends instead.
fn fill(bytes: &mut [u8]) {
    // guard: V-20-source
    if let Err(error) = getrandom::fill(bytes) {
        panic!("the kernel gives no random bytes: {error}");
    }
}
