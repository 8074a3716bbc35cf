//! PASSWORD-ALGORITHM and PASSWORD-ALGORITHMS ([RFC 8489 §14.11], §14.12, [RFC 8489 §18.5]).
//!
//! The invariant: a [`PasswordAlgorithms`] has been walked once to its end, so iterating it cannot fail.
//!
//! [RFC 8489 §14.11]: https://www.rfc-editor.org/rfc/rfc8489#section-14.11
//! [RFC 8489 §18.5]: https://www.rfc-editor.org/rfc/rfc8489#section-18.5

use crate::{AttributeError, padding_len};

/// How the long-term key is derived from the password (RFC 8489 §18.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PasswordAlgorithm {
    /// 0x0001, for clients of RFC 5389.
    Md5,
    /// 0x0002.
    Sha256,
    /// A number this codec has no name for.
    Unknown(u16),
}

impl PasswordAlgorithm {
    /// Returns the algorithm's number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Md5 => 0x0001,
            Self::Sha256 => 0x0002,
            Self::Unknown(number) => number,
        }
    }
}

impl From<u16> for PasswordAlgorithm {
    fn from(number: u16) -> Self {
        match number {
            0x0001 => Self::Md5,
            0x0002 => Self::Sha256,
            other => Self::Unknown(other),
        }
    }
}

/// One algorithm with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PasswordAlgorithmEntry<'a> {
    /// The algorithm.
    pub algorithm: PasswordAlgorithm,
    /// Its parameters without padding; empty for both algorithms of RFC 8489.
    pub parameters: &'a [u8],
}

/// The list of PASSWORD-ALGORITHMS, in the order of preference its sender chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PasswordAlgorithms<'a>(&'a [u8]);

impl<'a> PasswordAlgorithms<'a> {
    pub(crate) fn parse(value: &'a [u8]) -> Result<Self, AttributeError> {
        let mut rest = value;
        while !rest.is_empty() {
            (_, rest) = split_entry(rest)?;
        }
        Ok(Self(value))
    }

    /// Returns the value as it stands in the message, to be compared with a list that was sent (RFC 8489 §9.2.4).
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Returns the entries in order.
    pub fn iter(&self) -> impl Iterator<Item = PasswordAlgorithmEntry<'a>> + use<'a> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let (entry, tail) = split_entry(rest).ok()?;
            rest = tail;
            Some(entry)
        })
    }

    /// Returns whether the list names `algorithm`.
    #[must_use]
    pub fn contains(&self, algorithm: PasswordAlgorithm) -> bool {
        self.iter().any(|entry| entry.algorithm == algorithm)
    }
}

/// Reads the single entry of PASSWORD-ALGORITHM.
pub(crate) fn parse_single(value: &[u8]) -> Result<PasswordAlgorithmEntry<'_>, AttributeError> {
    let (entry, rest) = split_entry(value)?;
    if rest.is_empty() {
        Ok(entry)
    } else {
        Err(AttributeError::Length)
    }
}

/// Takes the first entry. The last entry may leave its padding to the attribute's own.
fn split_entry(bytes: &[u8]) -> Result<(PasswordAlgorithmEntry<'_>, &[u8]), AttributeError> {
    let Some((&[a0, a1, l0, l1], rest)) = bytes.split_first_chunk() else {
        return Err(AttributeError::Length);
    };
    let len = usize::from(u16::from_be_bytes([l0, l1]));
    let Some((parameters, rest)) = rest.split_at_checked(len) else {
        return Err(AttributeError::Length);
    };
    let algorithm = PasswordAlgorithm::from(u16::from_be_bytes([a0, a1]));
    // RFC 8489 §18.5.1: both known algorithms have no parameters
    if !parameters.is_empty() && !matches!(algorithm, PasswordAlgorithm::Unknown(_)) {
        return Err(AttributeError::Value);
    }
    let tail = rest.get(padding_len(len)..).unwrap_or_default();
    Ok((
        PasswordAlgorithmEntry {
            algorithm,
            parameters,
        },
        tail,
    ))
}
