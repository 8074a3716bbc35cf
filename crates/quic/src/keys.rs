//! The secrets that all shards of a server share, so that each can read what another one has issued.

use std::fmt;

use aws_lc_rs::{hkdf, hmac};

use crate::cid::Ids;

/// Keys of connection ids, of stateless resets and of address tokens, all made from one secret.
#[derive(Clone)]
pub struct Keys {
    cid: [u8; 16],
    reset: hmac::Key,
    token: [u8; 32],
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

impl Keys {
    /// Makes the keys of `secret`: the same secret has the same keys, also on another machine and after a start.
    pub fn new(secret: &[u8; 32]) -> Self {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let derived = |label: &str| -> [u8; 32] {
            let tag = hmac::sign(&secret, label.as_bytes());
            std::array::from_fn(|index| tag.as_ref()[index])
        };
        let cid = derived("turnbuckle quic connection id");
        Self {
            cid: std::array::from_fn(|index| cid[index]),
            reset: hmac::Key::new(
                hmac::HMAC_SHA256,
                &derived("turnbuckle quic stateless reset"),
            ),
            // guard: V-81-key
            token: derived("turnbuckle quic token"),
        }
    }

    /// Makes keys that nobody else has.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)?;
        Ok(Self::new(&secret))
    }

    /// Returns what reads connection ids.
    pub fn ids(&self) -> Ids {
        Ids::new(self.cid)
    }

    pub(crate) fn reset(&self) -> hmac::Key {
        self.reset.clone()
    }

    pub(crate) fn token(&self) -> hkdf::Prk {
        hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&self.token)
    }
}
