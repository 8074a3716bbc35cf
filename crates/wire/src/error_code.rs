//! ERROR-CODE and ADDRESS-ERROR-CODE ([RFC 8489 §14.8], [RFC 8656 §18.12]).
//!
//! [RFC 8489 §14.8]: https://www.rfc-editor.org/rfc/rfc8489#section-14.8
//! [RFC 8656 §18.12]: https://www.rfc-editor.org/rfc/rfc8656#section-18.12

use crate::{AddressFamily, AttributeError, text};

/// Why a request failed (RFC 8489 §14.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ErrorCode<'a> {
    /// 300..=699.
    pub code: u16,
    /// The reason phrase, for people; fewer than 128 characters of what should be UTF-8.
    pub reason: &'a [u8],
}

/// Why one address family could not be allocated while the other was (RFC 8656 §18.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressErrorCode<'a> {
    /// The family that failed.
    pub family: AddressFamily,
    /// 440 or 508; any code of 300..=699 is read.
    pub code: u16,
    /// The reason phrase.
    pub reason: &'a [u8],
}

impl<'a> ErrorCode<'a> {
    pub(crate) fn parse(value: &'a [u8]) -> Result<Self, AttributeError> {
        split(value).map(|(_, code, reason)| Self { code, reason })
    }
}

impl<'a> AddressErrorCode<'a> {
    pub(crate) fn parse(value: &'a [u8]) -> Result<Self, AttributeError> {
        let (first, code, reason) = split(value)?;
        Ok(Self {
            family: AddressFamily::try_from(first)?,
            code,
            reason,
        })
    }
}

/// Splits the value of either attribute into its first byte, code and reason.
fn split(value: &[u8]) -> Result<(u8, u16, &[u8]), AttributeError> {
    let Some((&[first, _reserved, class, number], reason)) = value.split_first_chunk() else {
        return Err(AttributeError::Length);
    };
    let class = class & 0x07;
    if !(3..=6).contains(&class) || number > 99 {
        return Err(AttributeError::Value);
    }
    let code = u16::from(class)
        .saturating_mul(100)
        .saturating_add(u16::from(number));
    Ok((first, code, text::checked(reason)?))
}

/// Returns class and number of a code, or `None` outside 300..=699.
pub(crate) fn class_and_number(code: u16) -> Option<[u8; 2]> {
    if !(300..=699).contains(&code) {
        return None;
    }
    Some([
        u8::try_from(code / 100).ok()?,
        u8::try_from(code % 100).ok()?,
    ])
}
