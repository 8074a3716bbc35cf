//! Keys and HMACs of the long-term credential mechanism ([RFC 8489 §9.2], [RFC 8489 §14.5], [RFC 8489 §14.6]).
//!
//! The invariant: an HMAC is compared in constant time, and a truncated MESSAGE-INTEGRITY-SHA256 never passes
//! [`Message::check_integrity`], because TURN does not allow truncation.
//!
//! Names and passwords are taken as bytes; whoever stores users applies OpaqueString (RFC 8265) first.
//!
//! [RFC 8489 §9.2]: https://www.rfc-editor.org/rfc/rfc8489#section-9.2
//! [RFC 8489 §14.5]: https://www.rfc-editor.org/rfc/rfc8489#section-14.5
//! [RFC 8489 §14.6]: https://www.rfc-editor.org/rfc/rfc8489#section-14.6

use crate::header::HEADER_LEN;
use crate::{AttributeError, IntegrityError, Message};
use core::fmt;
use hmac::{Hmac, KeyInit as _, Mac as _};
use md5::{Digest as _, Md5};
use sha1::Sha1;
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

/// Bytes in MESSAGE-INTEGRITY.
pub(crate) const SHA1_LEN: usize = 20;
/// Bytes in MESSAGE-INTEGRITY-SHA256 when not truncated.
pub(crate) const SHA256_LEN: usize = 32;
/// Block length of both hashes.
const BLOCK_LEN: usize = 64;

/// A key with its HMAC state computed, so that a check costs only the message's own blocks.
#[derive(Clone)]
pub enum IntegrityKey {
    /// Checks and writes MESSAGE-INTEGRITY.
    Sha1(Sha1Key),
    /// Checks and writes MESSAGE-INTEGRITY-SHA256.
    Sha256(Sha256Key),
}

/// HMAC-SHA1 state of a key.
#[derive(Clone)]
pub struct Sha1Key(Hmac<Sha1>);

/// HMAC-SHA256 state of a key.
#[derive(Clone)]
pub struct Sha256Key(Hmac<Sha256>);

impl IntegrityKey {
    /// Makes the key for MESSAGE-INTEGRITY from the 16 bytes of [`long_term_key_md5`], the 32 of [`long_term_key_sha256`], or
    /// a short-term password.
    #[must_use]
    pub fn sha1(key: &[u8]) -> Self {
        let block = key_block(key, |long| Sha1::digest(long).into());
        Self::Sha1(Sha1Key(Hmac::new(&block.into())))
    }

    /// Makes the key for MESSAGE-INTEGRITY-SHA256.
    #[must_use]
    pub fn sha256(key: &[u8]) -> Self {
        let block = key_block(key, |long| Sha256::digest(long).into());
        Self::Sha256(Sha256Key(Hmac::new(&block.into())))
    }
}

impl fmt::Debug for IntegrityKey {
    /// Names the hash; the key stays secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha1(_) => "IntegrityKey::Sha1",
            Self::Sha256(_) => "IntegrityKey::Sha256",
        })
    }
}

impl fmt::Debug for Sha1Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sha1Key")
    }
}

impl fmt::Debug for Sha256Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sha256Key")
    }
}

/// Returns the key block of RFC 2104 §2: a long key is replaced by its hash, a short one filled up with zeros.
fn key_block<const N: usize>(key: &[u8], hash: impl Fn(&[u8]) -> [u8; N]) -> [u8; BLOCK_LEN] {
    let mut block = [0; BLOCK_LEN];
    if let Some(head) = block.get_mut(..key.len()) {
        head.copy_from_slice(key);
    } else if let Some(head) = block.first_chunk_mut() {
        *head = hash(key);
    }
    block
}

impl Sha1Key {
    pub(crate) fn compute(&self, header: &[u8; HEADER_LEN], body: &[u8]) -> [u8; SHA1_LEN] {
        let mut mac = self.0.clone();
        mac.update(header);
        mac.update(body);
        mac.finalize().into_bytes().into()
    }
}

impl Sha256Key {
    pub(crate) fn compute(&self, header: &[u8; HEADER_LEN], body: &[u8]) -> [u8; SHA256_LEN] {
        let mut mac = self.0.clone();
        mac.update(header);
        mac.update(body);
        mac.finalize().into_bytes().into()
    }
}

/// Returns what an HMAC covers: the header, its length field set as if the message ended with the integrity attribute,
/// and the attributes before. `None` if `before` is shorter than a header.
pub(crate) fn covered(before: &[u8], attribute_len: usize) -> Option<([u8; HEADER_LEN], &[u8])> {
    let (header, body) = before.split_first_chunk::<HEADER_LEN>()?;
    let mut header = *header;
    let length = u16::try_from(body.len().checked_add(attribute_len)?).ok()?;
    let [_, _, l0, l1, ..] = &mut header;
    [*l0, *l1] = length.to_be_bytes();
    Some((header, body))
}

/// The value of a received MESSAGE-INTEGRITY-SHA256: 16 to 32 bytes, a multiple of four (RFC 8489 §14.6).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IntegritySha256<'a>(&'a [u8]);

impl<'a> IntegritySha256<'a> {
    pub(crate) fn parse(value: &'a [u8]) -> Result<Self, AttributeError> {
        match value.len() {
            16 | 20 | 24 | 28 | SHA256_LEN => Ok(Self(value)),
            _ => Err(AttributeError::Length),
        }
    }

    /// Returns whether the sender left out the end of the HMAC. Such a value cannot be checked here.
    #[must_use]
    pub const fn is_truncated(&self) -> bool {
        self.0.len() < SHA256_LEN
    }
}

impl fmt::Debug for IntegritySha256<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IntegritySha256({} bytes)", self.0.len())
    }
}

impl IntegrityKey {
    /// Compares the integrity attribute of the key's kind with what the key gives, in constant time.
    pub(crate) fn check(&self, message: &Message<'_>) -> Result<(), IntegrityError> {
        let equal = match self {
            Self::Sha1(key) => {
                let (before, value) = message.integrity_sha1().ok_or(IntegrityError::Missing)?;
                let value: &[u8; SHA1_LEN] =
                    value.try_into().map_err(|_| IntegrityError::BadLength)?;
                let (header, body) =
                    covered(before, SHA1_LEN.saturating_add(4)).ok_or(IntegrityError::BadLength)?;
                // guard: V-25-whole.sha1
                key.compute(&header, body).ct_eq(value)
            }
            Self::Sha256(key) => {
                let (before, value) = message
                    .integrity_sha256_raw()
                    .ok_or(IntegrityError::Missing)?;
                let value: &[u8; SHA256_LEN] =
                    value.try_into().map_err(|_| IntegrityError::BadLength)?;
                let (header, body) = covered(before, SHA256_LEN.saturating_add(4))
                    .ok_or(IntegrityError::BadLength)?;
                // guard: V-25-whole.sha256
                key.compute(&header, body).ct_eq(value)
            }
        };
        if equal.into() {
            Ok(())
        } else {
            Err(IntegrityError::Mismatch)
        }
    }
}

/// Returns the long-term key of RFC 5389 clients: MD5 of `username:realm:password` (RFC 8489 §9.2.2).
#[must_use]
pub fn long_term_key_md5(username: &[u8], realm: &[u8], password: &[u8]) -> [u8; 16] {
    digest_joined(Md5::new(), &[username, realm, password]).into()
}

/// Returns the long-term key of SHA-256 clients: SHA-256 of `username:realm:password` (RFC 8489 §18.5.1.2).
#[must_use]
pub fn long_term_key_sha256(username: &[u8], realm: &[u8], password: &[u8]) -> [u8; 32] {
    digest_joined(Sha256::new(), &[username, realm, password]).into()
}

/// Returns the value of USERHASH: SHA-256 of `username:realm` (RFC 8489 §14.4).
#[must_use]
pub fn userhash(username: &[u8], realm: &[u8]) -> [u8; 32] {
    digest_joined(Sha256::new(), &[username, realm]).into()
}

/// Hashes `parts` with a colon between each two.
fn digest_joined<D: md5::Digest>(mut digest: D, parts: &[&[u8]]) -> md5::digest::Output<D> {
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            digest.update(b":");
        }
        digest.update(part);
    }
    digest.finalize()
}
