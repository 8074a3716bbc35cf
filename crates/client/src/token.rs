//! A token as an authorization server would have given it (RFC 7635 §6.2), made by whoever knows the key it shares with the server.

use openssl::symm::{Cipher, encrypt_aead};
use turnbuckle_wire::AccessToken;

/// Bytes of a key for HMAC-SHA1.
const MAC_KEY_LEN: usize = 20;
const NONCE_LEN: usize = 12;
const TAG_LEN: usize = 16;
/// Bytes of a key of AES-256.
const KEY_LEN: usize = 32;
/// Seconds that a token is good.
const LIFETIME_S: u32 = 86_400;

/// The key that an authorization server and a TURN server share.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SharedKey([u8; KEY_LEN]);

impl SharedKey {
    /// Returns a key for AES-256-GCM. Longer input is truncated and shorter input padded with zeros, as servers do.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut key = [0; KEY_LEN];
        for (to, from) in key.iter_mut().zip(bytes) {
            *to = *from;
        }
        Self(key)
    }
}

/// A token, and the key that it grants.
#[derive(Clone)]
pub(crate) struct Token {
    nonce: [u8; NONCE_LEN],
    sealed: Vec<u8>,
    pub(crate) mac_key: [u8; MAC_KEY_LEN],
}

impl std::fmt::Debug for Token {
    /// Leaves the key out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl Token {
    /// Returns a token for the server of this name, good from `unix_s` (seconds since 1970) on. `None` if the library cannot seal it.
    pub(crate) fn new(
        key: &SharedKey,
        server_name: &[u8],
        unix_s: u64,
        mac_key: [u8; MAC_KEY_LEN],
        nonce: [u8; NONCE_LEN],
    ) -> Option<Self> {
        let mut content = Vec::new();
        content.extend_from_slice(&u16::try_from(MAC_KEY_LEN).ok()?.to_be_bytes());
        content.extend_from_slice(&mac_key);
        // 48 bits of seconds and 16 of fractions.
        content.extend_from_slice(&(unix_s << 16).to_be_bytes());
        content.extend_from_slice(&LIFETIME_S.to_be_bytes());
        let cipher = Cipher::aes_256_gcm();
        let mut tag = [0; TAG_LEN];
        let sealed = encrypt_aead(
            cipher,
            &key.0,
            Some(&nonce),
            server_name,
            &content,
            &mut tag,
        );
        let mut sealed = sealed.ok()?;
        sealed.extend_from_slice(&tag);
        Some(Self {
            nonce,
            sealed,
            mac_key,
        })
    }

    /// Returns the ACCESS-TOKEN attribute.
    pub(crate) fn attribute(&self) -> AccessToken<'_> {
        AccessToken {
            nonce: &self.nonce,
            encrypted_block: &self.sealed,
        }
    }
}
