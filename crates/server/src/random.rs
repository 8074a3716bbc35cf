//! Randomness from the operating system and nowhere else (V-20).

use turnbuckle_engine::{BufferedRandom, Random};

/// What random bytes are drawn from. A seeded one is for the simulator alone.
pub type Source = Box<dyn FnMut(&mut [u8]) + Send>;

/// Some hundred bytes of a source at a time, so that a transaction id costs no system call.
pub(crate) struct Randomness(BufferedRandom<Source>);

impl Randomness {
    /// Draws from `getrandom(2)`.
    pub(crate) fn of_system() -> Self {
        Self::from_source(Box::new(fill))
    }

    pub(crate) fn from_source(source: Source) -> Self {
        Self(BufferedRandom::new(source))
    }
}

impl Random for Randomness {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill(bytes);
    }
}

/// Fills `bytes` by `getrandom(2)`.
///
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
