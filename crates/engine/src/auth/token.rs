//! Third-party authorization (RFC 7635): self-contained tokens of an authorization server that shares a key with this one.
//!
//! A token is `nonce length (2) | nonce (12) | sealed`, and sealed is AES-GCM, with the server's name as associated data, over
//!
//! ```text
//! key length (2) | mac_key (20) | timestamp (8) | lifetime (4)
//! ```
//!
//! Nothing of a token is looked at before it is known to be authentic, and only the one length that HMAC-SHA1 leads to is taken, so
//! that there is nothing to allocate and no length to believe (V-31).

use core::fmt;
use std::collections::BTreeMap;
use std::sync::Arc;

use aes_gcm::aead::{AeadInOut as _, KeyInit as _};
use aes_gcm::{Aes128Gcm, Aes256Gcm, Nonce, Tag};
use turnbuckle_wire::AccessToken;

use crate::credential::CredentialError;

/// The difference between clocks that is tolerated, in seconds (RFC 7635 §7).
const DELTA_S: u64 = 5;
/// Bytes of a key for HMAC-SHA1 (RFC 7635 §6.2).
pub(crate) const MAC_KEY_LEN: usize = 20;
const CONTENT_LEN: usize = 2 + MAC_KEY_LEN + 8 + 4;
const TAG_LEN: usize = 16;

/// The cipher that an authorization server seals tokens with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM, which every server has to know (RFC 7635 §4.1.1).
    Aes256Gcm,
}

impl TokenCipher {
    const fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm => 32,
        }
    }
}

/// The authorization servers that share a key with this server, and the name they have for it.
#[derive(Clone)]
pub struct ThirdParties {
    server_name: Box<str>,
    /// By name.
    keys: Arc<BTreeMap<Box<str>, SharedKey>>,
}

#[derive(Clone)]
struct SharedKey {
    cipher: TokenCipher,
    /// The cipher's key, in as many of these bytes as it takes.
    key: [u8; 32],
    /// When the key itself expires, in seconds since 1970.
    until_unix_s: Option<u64>,
    /// The realm of who shows a token under it; `None` for the one of the request.
    realm: Option<Box<str>>,
}

/// The rights that a token grants.
#[derive(Clone, Copy)]
pub(super) struct Grant<'k> {
    pub(super) mac_key: [u8; MAC_KEY_LEN],
    /// When the grant expires, in seconds since 1970.
    pub(super) until_unix_s: u64,
    /// The token's own lifetime, which is shorter than what it is good for by the difference that clocks may have.
    pub(super) lifetime_s: u64,
    /// The realm of the grant, if the key names one.
    pub(super) realm: Option<&'k str>,
}

impl ThirdParties {
    /// Returns the configuration of a server that tokens name as `server_name`, without keys: every token is refused.
    ///
    /// # Errors
    ///
    /// The name is empty or longer than 255 bytes.
    pub fn new(server_name: &str) -> Result<Self, CredentialError> {
        match server_name.len() {
            0 => Err(CredentialError::Empty),
            256.. => Err(CredentialError::TooLong),
            _ => Ok(Self {
                server_name: server_name.into(),
                keys: Arc::default(),
            }),
        }
    }

    /// Returns the name in THIRD-PARTY-AUTHORIZATION.
    pub fn server_name(&self) -> &str {
        &self.server_name
    }

    /// Adds a key by its `kid`, which clients send as USERNAME. A key that is too long for the cipher is truncated, and one that is
    /// too short is filled with zeros, as coturn does. `until_unix_s` is when the key expires. `realm`, in its prepared form, is
    /// the realm of clients that present a token under this key, if that is not the realm of the request.
    ///
    /// # Errors
    ///
    /// The name or the key is empty, or the name is taken.
    pub fn add_key(
        &mut self,
        name: &str,
        cipher: TokenCipher,
        key: &[u8],
        until_unix_s: Option<u64>,
        realm: Option<&str>,
    ) -> Result<(), CredentialError> {
        if name.is_empty() || key.is_empty() {
            return Err(CredentialError::Empty);
        }
        let keys = Arc::make_mut(&mut self.keys);
        if keys.contains_key(name) {
            return Err(CredentialError::Duplicate);
        }
        let mut bytes = [0; 32];
        for (to, from) in bytes.iter_mut().zip(key).take(cipher.key_len()) {
            *to = *from;
        }
        let key = SharedKey {
            cipher,
            key: bytes,
            until_unix_s,
            realm: realm.map(Into::into),
        };
        keys.insert(name.into(), key);
        Ok(())
    }

    /// Opens `token` with the key of the name `name`. Returns what it grants.
    pub(super) fn open(
        &self,
        name: &str,
        token: AccessToken<'_>,
        unix_s: u64,
    ) -> Option<Grant<'_>> {
        let shared = self.keys.get(name)?;
        // mutant: token-key-without-end
        if shared
            .until_unix_s
            .is_some_and(|until| until.saturating_add(DELTA_S) <= unix_s)
        {
            return None;
        }
        let nonce = Nonce::from(<[u8; 12]>::try_from(token.nonce).ok()?);
        let block: &[u8; CONTENT_LEN + TAG_LEN] = token.encrypted_block.try_into().ok()?;
        let (content, tag) = block.split_first_chunk::<CONTENT_LEN>()?;
        let mut content = *content;
        let tag = Tag::from(<[u8; TAG_LEN]>::try_from(tag).ok()?);
        let name = self.server_name.as_bytes();
        match shared.cipher {
            TokenCipher::Aes128Gcm => {
                let key: [u8; 16] = *shared.key.first_chunk()?;
                Aes128Gcm::new(&key.into()).decrypt_inout_detached(
                    &nonce,
                    name,
                    content.as_mut_slice().into(),
                    &tag,
                )
            }
            TokenCipher::Aes256Gcm => Aes256Gcm::new(&shared.key.into()).decrypt_inout_detached(
                &nonce,
                name,
                content.as_mut_slice().into(),
                &tag,
            ),
        }
        .ok()?;
        grant(&content, unix_s, shared.realm.as_deref())
    }
}

/// Reads what was sealed.
fn grant<'k>(
    content: &[u8; CONTENT_LEN],
    unix_s: u64,
    realm: Option<&'k str>,
) -> Option<Grant<'k>> {
    let (key_len, rest) = content.split_first_chunk()?;
    let (mac_key, rest) = rest.split_first_chunk::<MAC_KEY_LEN>()?;
    let (timestamp, lifetime) = rest.split_first_chunk()?;
    // mutant: token-key-of-any-length
    if usize::from(u16::from_be_bytes(*key_len)) != MAC_KEY_LEN {
        return None;
    }
    let issued_s = u64::from_be_bytes(*timestamp) >> 16;
    let lifetime_s = u64::from(u32::from_be_bytes(lifetime.try_into().ok()?));
    // RFC 7635 §7: lifetime + delta > abs(now - timestamp); §9 makes the difference the longest lifetime
    // guard: V-31-time
    let left_s = (lifetime_s + DELTA_S).checked_sub(unix_s.abs_diff(issued_s))?;
    (left_s > 0).then_some(Grant {
        mac_key: *mac_key,
        // mutant: token-longer-than-granted
        until_unix_s: unix_s + left_s,
        lifetime_s,
        realm,
    })
}

impl fmt::Debug for ThirdParties {
    /// Leaves the keys out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThirdParties")
            .field("server_name", &self.server_name)
            .field("keys", &self.keys.len())
            .finish()
    }
}
