//! The outer structure of ACCESS-TOKEN ([RFC 7635 §6.2]).
//!
//! [RFC 7635 §6.2]: https://www.rfc-editor.org/rfc/rfc7635#section-6.2

use crate::AttributeError;

/// A self-contained access token: what a server needs to decrypt it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct AccessToken<'a> {
    /// The nonce of the authenticated encryption.
    pub nonce: &'a [u8],
    /// Ciphertext and tag: key, timestamp and lifetime.
    pub encrypted_block: &'a [u8],
}

impl<'a> AccessToken<'a> {
    pub(crate) fn parse(value: &'a [u8]) -> Result<Self, AttributeError> {
        let Some((&[l0, l1], rest)) = value.split_first_chunk() else {
            return Err(AttributeError::Length);
        };
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let Some((nonce, encrypted_block)) = rest.split_at_checked(len) else {
            return Err(AttributeError::Length);
        };
        Ok(Self {
            nonce,
            encrypted_block,
        })
    }
}

impl core::fmt::Debug for AccessToken<'_> {
    /// Prints lengths only, because a token is a credential.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AccessToken")
            .field("nonce_len", &self.nonce.len())
            .field("encrypted_block_len", &self.encrypted_block.len())
            .finish()
    }
}
