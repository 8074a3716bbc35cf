//! Limits of text attributes ([RFC 8489 §14.3], §14.8 to §14.10, §14.14).
//!
//! Text is fewer than 128 characters of UTF-8, at most 509 bytes when written and accepted up to 763 bytes when read. The bytes
//! themselves stay opaque: names and realms are compared, never displayed, and comparing needs no decoding.
//!
//! [RFC 8489 §14.3]: https://www.rfc-editor.org/rfc/rfc8489#section-14.3

use crate::AttributeError;

/// Longest text accepted when reading, in bytes.
pub(crate) const READ_LEN_MAX: usize = 763;
/// Longest text written, in bytes.
pub(crate) const WRITE_LEN_MAX: usize = 509;
/// Longest USERNAME written, in bytes: "fewer than 509" (RFC 8489 §14.3).
pub(crate) const USERNAME_WRITE_LEN_MAX: usize = 508;
/// Longest ALTERNATE-DOMAIN, in bytes (RFC 8489 §14.16).
pub(crate) const DOMAIN_LEN_MAX: usize = 255;
/// Most characters in a text other than USERNAME.
const CHARACTERS_MAX: usize = 127;

/// Returns whether `text` has fewer than 128 characters. Bytes that are not UTF-8 count as one each.
pub(crate) fn is_short(text: &[u8]) -> bool {
    text.len() <= CHARACTERS_MAX
        || text
            .iter()
            .filter(|&&byte| byte & 0xC0 != 0x80)
            .nth(CHARACTERS_MAX)
            .is_none()
}

/// Checks a REALM, NONCE, SOFTWARE or reason phrase that was received.
pub(crate) fn checked(text: &[u8]) -> Result<&[u8], AttributeError> {
    if text.len() <= READ_LEN_MAX && is_short(text) {
        Ok(text)
    } else {
        Err(AttributeError::Length)
    }
}
