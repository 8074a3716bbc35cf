//! What can be wrong with bytes: one small `Copy` enum per family of operations, no strings.
//!
//! [`ParseError`] and [`ChannelDataError`] mean "not a message": the datagram is dropped without an answer.
//! [`AttributeError`] means "a message that breaks a rule": a request gets 400, or 440 for
//! [`AttributeError::UnsupportedFamily`]. [`IntegrityError`] is about keys. [`WriteError`] is our own mistake.

use core::fmt;

/// Why bytes are not a STUN message. The receiver discards them silently (RFC 8489 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParseError {
    /// Fewer than the 20 bytes of a header.
    Truncated,
    /// The two leading bits are not zero.
    LeadingBits,
    /// Bytes 4 to 7 are not the magic cookie.
    MagicCookie,
    /// The length field is not a multiple of four, or does not agree with the datagram's length.
    Length,
    /// An attribute reaches behind the end of the message.
    AttributeLength,
    /// FINGERPRINT is not the last attribute.
    FingerprintNotLast,
    /// FINGERPRINT does not hold four bytes.
    FingerprintLength,
    /// FINGERPRINT does not match the message.
    FingerprintMismatch,
}

impl ParseError {
    /// All variants, in order of declaration.
    pub const ALL: [Self; 8] = [
        Self::Truncated,
        Self::LeadingBits,
        Self::MagicCookie,
        Self::Length,
        Self::AttributeLength,
        Self::FingerprintNotLast,
        Self::FingerprintLength,
        Self::FingerprintMismatch,
    ];

    /// Returns a fixed name in lower case, usable as a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::LeadingBits => "leading_bits",
            Self::MagicCookie => "magic_cookie",
            Self::Length => "length",
            Self::AttributeLength => "attribute_length",
            Self::FingerprintNotLast => "fingerprint_not_last",
            Self::FingerprintLength => "fingerprint_length",
            Self::FingerprintMismatch => "fingerprint_mismatch",
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "shorter than a STUN header",
            Self::LeadingBits => "leading bits are not zero",
            Self::MagicCookie => "magic cookie is missing",
            Self::Length => "length field does not fit the datagram",
            Self::AttributeLength => "attribute reaches behind the message",
            Self::FingerprintNotLast => "attribute behind FINGERPRINT",
            Self::FingerprintLength => "FINGERPRINT is not four bytes",
            Self::FingerprintMismatch => "FINGERPRINT does not match",
        })
    }
}

impl core::error::Error for ParseError {}

/// Why a datagram is not a ChannelData message. The receiver discards it silently (RFC 8656 §12.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChannelDataError {
    /// Fewer than the four bytes of a header.
    TruncatedHeader,
    /// Fewer bytes of payload than the header claims.
    TruncatedData,
}

impl fmt::Display for ChannelDataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TruncatedHeader => "shorter than a ChannelData header",
            Self::TruncatedData => "shorter than the claimed payload",
        })
    }
}

impl core::error::Error for ChannelDataError {}

/// Why the value of an attribute that is present cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttributeError {
    /// The value's length is not one the attribute can have.
    Length,
    /// An address family other than 0x01 and 0x02; TURN answers 440 (RFC 8656 §7.2).
    UnsupportedFamily(u8),
    /// The length is right and the content is outside what the attribute allows.
    Value,
}

impl fmt::Display for AttributeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("attribute has a wrong length"),
            Self::UnsupportedFamily(family) => write!(f, "address family 0x{family:02x}"),
            Self::Value => f.write_str("attribute has a value that is not allowed"),
        }
    }
}

impl core::error::Error for AttributeError {}

/// Why a message cannot be trusted under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntegrityError {
    /// The message carries no integrity attribute of the key's kind.
    Missing,
    /// The attribute has a length that is not accepted; for SHA-256 anything but the full 32 bytes.
    BadLength,
    /// The HMAC differs.
    Mismatch,
}

impl fmt::Display for IntegrityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "no integrity attribute for this key",
            Self::BadLength => "integrity attribute has a wrong length",
            Self::Mismatch => "integrity does not match",
        })
    }
}

impl core::error::Error for IntegrityError {}

/// Why a message could not be written. The first error sticks; later calls do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteError {
    /// The buffer, or the 16-bit length field, is too small.
    Overflow,
    /// An attribute behind MESSAGE-INTEGRITY or FINGERPRINT where nobody would read it (RFC 8489 §9, §14.7).
    Order,
    /// A value the attribute cannot carry, such as an error code outside 300..=699 or text that is too long.
    Value,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Overflow => "message does not fit",
            Self::Order => "attribute behind integrity or fingerprint",
            Self::Value => "value cannot be encoded",
        })
    }
}

impl core::error::Error for WriteError {}
