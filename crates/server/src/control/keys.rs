//! Holds the keys that authenticate what the relay issues: nonces, tickets, cookies, and what QUIC hands out.
//!
//! Invariant: one ring is made when the relay starts. A reload of users and a restart of a shard take their keys from it. So a nonce, a ticket or a
//! cookie is valid until it expires, and no reload ends it.
//!
//! Reservation tokens have no key. They are random names of entries in [`turnbuckle_engine::Commons`], which outlives shards too.

use turnbuckle_engine::{NonceKey, Random as _, TicketKey};

use crate::config::Config;
use crate::random::Randomness;
use crate::shard::front::dtls::CookieKey;

/// The keys of one server. All shards have the same ones, so that a client continues when the kernel moves it to another shard.
#[derive(Clone)]
pub(crate) struct KeyRing {
    /// Authenticates nonces (RFC 8489 §9.2).
    pub(crate) nonces: NonceKey,
    /// Authenticates and encrypts the contents of a mobility ticket (RFC 8016).
    pub(crate) tickets: TicketKey,
    /// Authenticates the cookies of DTLS (RFC 6347 §4.2.1).
    pub(crate) cookies: CookieKey,
    /// Authenticates connection ids, tokens and stateless resets of QUIC.
    pub(crate) quic: turnbuckle_quic::Keys,
    /// What the keys of cookies and of QUIC are made of.
    secrets: [[u8; 32]; 2],
}

/// Bytes of a ring ([`KeyRing::to_bytes`]).
const LEN: usize = 4 * 32;

impl KeyRing {
    /// Derives the key of nonces from another secret. The other keys stay, and where `config` has no secret that of nonces too.
    pub(crate) fn follow(&mut self, config: &Config) {
        if let Some(secret) = &config.authentication.requests.nonce_secret {
            self.nonces = NonceKey::from_secret(secret.expose());
        }
    }

    /// Derives the keys of nonces and tickets from the configured secret. Without a secret they are random, and those of cookies and QUIC always are.
    pub(crate) fn new(config: &Config) -> Self {
        let mut random = Randomness::of_system();
        let (nonces, tickets) = match &config.authentication.requests.nonce_secret {
            Some(secret) => (
                NonceKey::from_secret(secret.expose()),
                TicketKey::from_secret(secret.expose()),
            ),
            None => (
                NonceKey::random(&mut random),
                TicketKey::random(&mut random),
            ),
        };
        let mut secrets = [[0; 32]; 2];
        for secret in &mut secrets {
            random.fill(secret);
        }
        Self::of(nonces, tickets, secrets)
    }

    fn of(nonces: NonceKey, tickets: TicketKey, secrets: [[u8; 32]; 2]) -> Self {
        let [cookies, quic] = &secrets;
        Self {
            nonces,
            tickets,
            cookies: CookieKey::new(cookies),
            quic: turnbuckle_quic::Keys::new(quic),
            secrets,
        }
    }

    /// Returns what [`Self::from_bytes`] makes the same ring of in another process.
    pub(crate) fn to_bytes(&self) -> [u8; LEN] {
        let [cookies, quic] = self.secrets;
        let keys = [
            self.nonces.to_bytes(),
            self.tickets.to_bytes(),
            cookies,
            quic,
        ];
        let mut bytes = [0; LEN];
        bytes.copy_from_slice(keys.as_flattened());
        bytes
    }

    /// Returns the ring of another process; `None` if these are not its bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let ([nonces, tickets, cookies, quic], []) = bytes.as_chunks::<32>() else {
            return None;
        };
        let (nonces, tickets) = (
            NonceKey::from_bytes(*nonces),
            TicketKey::from_bytes(*tickets),
        );
        Some(Self::of(nonces, tickets, [*cookies, *quic]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configured::configured;
    use crate::translate;

    #[test]
    fn a_ring_is_the_same_in_a_process_that_is_handed_its_bytes() {
        let ring = KeyRing::new(&configured(&[]));
        let bytes = ring.to_bytes();
        let other = KeyRing::from_bytes(&bytes).unwrap();
        assert_eq!(other.to_bytes(), bytes);
        assert_eq!(other.nonces, ring.nonces);
        assert_eq!(other.tickets.to_bytes(), ring.tickets.to_bytes());
        assert!(KeyRing::from_bytes(&bytes[1..]).is_none());
        assert!(KeyRing::from_bytes(&[&bytes[..], &[0]].concat()).is_none());
    }

    #[test]
    fn whatever_is_made_from_one_ring_knows_the_nonces_of_the_others_and_no_other_ring_does() {
        let nonces = |options: &[&str]| {
            let config = configured(options);
            let keys = KeyRing::new(&config);
            let made = || translate::engine(&config, &keys).unwrap().auth.nonce_key;
            assert_eq!(made(), made());
            made().unwrap()
        };
        assert_ne!(nonces(&[]), nonces(&[]));
        let shared = ["--stateless-nonce-secret=of several servers"];
        assert_eq!(nonces(&shared), nonces(&shared));
    }
}
