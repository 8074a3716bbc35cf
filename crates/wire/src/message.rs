//! A received STUN message: one pass checks the structure and records where each attribute is.
//!
//! The invariants:
//!
//! - every offset a [`Message`] holds points at an attribute whose head and value lie within its bytes;
//! - an attribute behind MESSAGE-INTEGRITY (or MESSAGE-INTEGRITY-SHA256, or FINGERPRINT) has no offset, so no getter can
//!   return what the HMAC does not cover ([RFC 8489 §9]);
//! - of repeated attributes only the first has an offset ([RFC 8489 §14]). XOR-PEER-ADDRESS, XOR-RELAYED-ADDRESS,
//!   ADDRESS-ERROR-CODE and ALTERNATE-SERVER may repeat by rule and have iterators.
//!
//! Read [`Message::parse`] first, then the getters in the sub-modules.
//!
//! [RFC 8489 §9]: https://www.rfc-editor.org/rfc/rfc8489#section-9
//! [RFC 8489 §14]: https://www.rfc-editor.org/rfc/rfc8489#section-14

mod extension;
mod stun;
mod turn;

pub use extension::ChangeRequest;
pub use stun::UnknownAttributes;

use crate::attribute::{SLOT_COUNT, UNKNOWN, slot_of};
use crate::header::{HEADER_LEN, MAGIC_COOKIE, padding_len, split_message_type};
use crate::{
    AttributeType, Class, IntegrityError, IntegrityKey, Method, ParseError, TransactionId,
    fingerprint,
};
use core::fmt;
use core::ops::Range;

/// Bytes of an attribute before its value.
pub(crate) const ATTRIBUTE_HEADER_LEN: usize = 4;

/// A STUN message, borrowed from the datagram it came in.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    bytes: &'a [u8],
    /// Offset of each known attribute's first occurrence in units of four bytes; 0 = absent, because offset 0 is the header.
    offset_words: [u16; SLOT_COUNT],
    /// Where the attributes end that getters may see: HEADER_LEN <= body_end <= bytes.len().
    body_end: u32,
    has_unknown_required: bool,
}

/// One attribute, as [`Message::attributes`] yields it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Its type.
    pub kind: AttributeType,
    /// Its value without padding.
    pub value: &'a [u8],
}

impl<'a> Message<'a> {
    /// Reads a whole datagram as one STUN message: header, structure of all attributes, and FINGERPRINT if
    /// there is one (RFC 8489 §6.3).
    ///
    /// # Errors
    ///
    /// [`ParseError`]: the datagram is not a STUN message and is dropped without an answer.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let Some((&[k0, _, l0, l1, c0, c1, c2, c3, ..], _)) =
            bytes.split_first_chunk::<HEADER_LEN>()
        else {
            return Err(ParseError::Truncated);
        };
        if k0 & 0xC0 != 0 {
            return Err(ParseError::LeadingBits);
        }
        if u32::from_be_bytes([c0, c1, c2, c3]) != MAGIC_COOKIE {
            return Err(ParseError::MagicCookie);
        }
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        if length & 3 != 0 || bytes.len().wrapping_sub(HEADER_LEN) != length {
            return Err(ParseError::Length);
        }

        let mut message = Self {
            bytes,
            offset_words: [0; SLOT_COUNT],
            body_end: 0,
            has_unknown_required: false,
        };
        let mut cursor = Cursor {
            bytes,
            offset: HEADER_LEN,
        };
        let tail = loop {
            let Some(found) = cursor.next()? else {
                message.body_end = cursor.position();
                return Ok(message);
            };
            if ends_body(found.kind) {
                message.body_end = found.start;
                break found;
            }
            let slot = slot_of(found.kind);
            if slot != UNKNOWN {
                message.remember(slot, found.start);
            } else if found.kind.is_comprehension_required() {
                message.has_unknown_required = true;
            }
        };
        message.parse_tail(tail, cursor)?;
        Ok(message)
    }

    /// Parses the integrity attributes and FINGERPRINT, from the first of them to the end. Ignores any other attribute here
    /// (RFC 8489 §9).
    fn parse_tail(&mut self, first: Found, mut cursor: Cursor<'a>) -> Result<(), ParseError> {
        let mut found = first;
        let mut saw_sha256 = false;
        loop {
            match found.kind {
                AttributeType::FINGERPRINT => {
                    self.remember(slot_of(found.kind), found.start);
                    return self.check_fingerprint(found, &mut cursor);
                }
                AttributeType::MESSAGE_INTEGRITY if !saw_sha256 => {
                    self.remember(slot_of(found.kind), found.start);
                }
                AttributeType::MESSAGE_INTEGRITY_SHA256 => {
                    self.remember(slot_of(found.kind), found.start);
                    saw_sha256 = true;
                }
                // guard: V-23-trailer
                _ => {}
            }
            match cursor.next()? {
                Some(next) => found = next,
                None => return Ok(()),
            }
        }
    }

    fn check_fingerprint(&self, found: Found, cursor: &mut Cursor<'a>) -> Result<(), ParseError> {
        if cursor.next()?.is_some() {
            return Err(ParseError::FingerprintNotLast);
        }
        let start = found.start as usize;
        let Some((before, &[_, _, 0, 4, f0, f1, f2, f3])) = self.bytes.split_at_checked(start)
        else {
            return Err(ParseError::FingerprintLength);
        };
        if fingerprint::compute(before) == u32::from_be_bytes([f0, f1, f2, f3]) {
            Ok(())
        } else {
            Err(ParseError::FingerprintMismatch)
        }
    }

    /// Notes an attribute unless one of its type was noted before.
    #[inline]
    fn remember(&mut self, slot: u8, start: u32) {
        // guard: V-24-first
        if let Some(words) = self.offset_words.get_mut(usize::from(slot))
            && *words == 0
        {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "start is at most 20 + 65,532, a quarter of that fits"
            )]
            {
                *words = (start >> 2) as u16;
            }
        }
    }

    /// Returns the class.
    #[must_use]
    #[inline]
    pub fn class(&self) -> Class {
        split_message_type(self.message_type()).0
    }

    /// Returns the method.
    #[must_use]
    #[inline]
    pub fn method(&self) -> Method {
        split_message_type(self.message_type()).1
    }

    fn message_type(&self) -> u16 {
        self.bytes
            .first_chunk()
            .map_or(0, |&bytes| u16::from_be_bytes(bytes))
    }

    /// Returns the transaction id.
    #[must_use]
    #[inline]
    pub fn transaction_id(&self) -> TransactionId {
        let id = self.bytes.get(8..HEADER_LEN).and_then(<[u8]>::first_chunk);
        TransactionId::new(id.copied().unwrap_or_default())
    }

    /// Returns the whole message.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns whether the message carries FINGERPRINT; if it does, [`Message::parse`] has verified it.
    #[must_use]
    pub fn has_fingerprint(&self) -> bool {
        self.contains(AttributeType::FINGERPRINT)
    }

    /// Returns whether the message carries MESSAGE-INTEGRITY.
    #[must_use]
    pub fn has_integrity_sha1(&self) -> bool {
        self.contains(AttributeType::MESSAGE_INTEGRITY)
    }

    /// Returns whether the message carries MESSAGE-INTEGRITY-SHA256, of whatever length.
    #[must_use]
    pub fn has_integrity_sha256(&self) -> bool {
        self.contains(AttributeType::MESSAGE_INTEGRITY_SHA256)
    }

    /// Returns whether an attribute of a known type is present.
    #[must_use]
    pub fn contains(&self, kind: AttributeType) -> bool {
        self.raw(kind).is_some()
    }

    /// Returns the attributes before integrity and fingerprint, in order, repeated and unknown ones included.
    #[must_use]
    pub fn attributes(&self) -> Attributes<'a> {
        let end = self.body_end as usize;
        Attributes {
            bytes: self.bytes.get(..end).unwrap_or_default(),
            offset: HEADER_LEN,
        }
    }

    /// Returns whether the message carries a comprehension-required attribute this codec does not know.
    #[must_use]
    pub const fn has_unknown_required(&self) -> bool {
        self.has_unknown_required
    }

    /// Returns the comprehension-required types this codec does not know, in order, for UNKNOWN-ATTRIBUTES. A repeated
    /// type is repeated here. A type the codec knows and the server does not serve is found with [`Message::attributes`].
    pub fn unknown_required(&self) -> impl Iterator<Item = AttributeType> + use<'a> {
        let attributes = if self.has_unknown_required {
            self.attributes()
        } else {
            Attributes::default()
        };
        attributes
            .map(|attribute| attribute.kind)
            .filter(|kind| kind.is_comprehension_required() && !kind.is_known())
    }

    /// Returns the value of the first attribute of a type.
    #[must_use]
    #[inline]
    pub fn raw(&self, kind: AttributeType) -> Option<&'a [u8]> {
        if slot_of(kind) == UNKNOWN {
            return self.raw_of_unknown(kind);
        }
        self.bytes.get(self.raw_range(kind)?)
    }

    /// Returns the value of a type without a slot, by searching for it.
    #[cold]
    fn raw_of_unknown(&self, kind: AttributeType) -> Option<&'a [u8]> {
        self.attributes()
            .find(|attribute| attribute.kind == kind)
            .map(|attribute| attribute.value)
    }

    /// Returns where the value of the first attribute of a known type lies in the message.
    #[inline]
    fn raw_range(&self, kind: AttributeType) -> Option<Range<usize>> {
        let start = self.offset_of(kind)?;
        let head = self.bytes.get(start..)?.first_chunk()?;
        let &[_, _, l0, l1] = head;
        let value_start = start.checked_add(ATTRIBUTE_HEADER_LEN)?;
        let value_end = value_start.checked_add(u16::from_be_bytes([l0, l1]).into())?;
        Some(value_start..value_end)
    }

    #[inline]
    fn offset_of(&self, kind: AttributeType) -> Option<usize> {
        let words = *self.offset_words.get(usize::from(slot_of(kind)))?;
        (words != 0).then_some(usize::from(words) << 2)
    }

    /// Compares the integrity attribute of the key's kind with what the key gives, in constant time.
    ///
    /// # Errors
    ///
    /// [`IntegrityError::Missing`] without that attribute, [`IntegrityError::BadLength`] when it is not exactly 20 or
    /// 32 bytes (a truncated MESSAGE-INTEGRITY-SHA256 is refused), [`IntegrityError::Mismatch`] otherwise.
    pub fn check_integrity(&self, key: &IntegrityKey) -> Result<(), IntegrityError> {
        key.check(self)
    }

    /// Returns the bytes before MESSAGE-INTEGRITY, and its value.
    pub(crate) fn integrity_sha1(&self) -> Option<(&'a [u8], &'a [u8])> {
        self.with_bytes_before(AttributeType::MESSAGE_INTEGRITY)
    }

    /// Returns the bytes before MESSAGE-INTEGRITY-SHA256, and its value.
    pub(crate) fn integrity_sha256_raw(&self) -> Option<(&'a [u8], &'a [u8])> {
        self.with_bytes_before(AttributeType::MESSAGE_INTEGRITY_SHA256)
    }

    fn with_bytes_before(&self, kind: AttributeType) -> Option<(&'a [u8], &'a [u8])> {
        let before = self.bytes.get(..self.offset_of(kind)?)?;
        Some((before, self.raw(kind)?))
    }
}

impl fmt::Debug for Message<'_> {
    /// Writes class, method, transaction id and the types present. Values are left out: they hold names and payload.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {:?} {:?} ",
            self.method(),
            self.class(),
            self.transaction_id()
        )?;
        f.debug_list()
            .entries(self.attributes().map(|attribute| attribute.kind))
            .finish()
    }
}

/// Returns whether an attribute ends what getters may see: behind it only integrity and fingerprint count.
#[inline]
const fn ends_body(kind: AttributeType) -> bool {
    matches!(
        kind,
        AttributeType::MESSAGE_INTEGRITY
            | AttributeType::MESSAGE_INTEGRITY_SHA256
            | AttributeType::FINGERPRINT
    )
}

/// An attribute's type and the offset of its head.
#[derive(Clone, Copy)]
struct Found {
    kind: AttributeType,
    start: u32,
}

/// Walks the attributes of a message whose length is a multiple of four.
struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl Cursor<'_> {
    #[inline]
    fn next(&mut self) -> Result<Option<Found>, ParseError> {
        // guard: V-61-attribute.header
        let rest = self
            .bytes
            .get(self.offset..)
            .ok_or(ParseError::AttributeLength)?;
        let Some((&[k0, k1, l0, l1], rest)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        // guard: V-61-attribute.value
        if len > rest.len() {
            return Err(ParseError::AttributeLength);
        }
        let start = self.position();
        // Both ends are multiples of four, so the padding is inside when the value is. At most 20 + 65,532 + 8.
        self.offset = self
            .offset
            .wrapping_add(ATTRIBUTE_HEADER_LEN)
            .wrapping_add(len)
            .wrapping_add(padding_len(len));
        Ok(Some(Found {
            kind: AttributeType::new(u16::from_be_bytes([k0, k1])),
            start,
        }))
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "offsets are at most 20 + 65,532"
    )]
    fn position(&self) -> u32 {
        self.offset as u32
    }
}

/// Iterator of [`Message::attributes`].
#[derive(Clone, Debug, Default)]
pub struct Attributes<'a> {
    /// Up to the end of the attributes that count.
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        let (&[k0, k1, l0, l1], rest) = self.bytes.get(self.offset..)?.split_first_chunk()?;
        let len = usize::from(u16::from_be_bytes([l0, l1]));
        let value = rest.get(..len)?;
        self.offset = self
            .offset
            .checked_add(ATTRIBUTE_HEADER_LEN)?
            .checked_add(len)?
            .checked_add(padding_len(len))?;
        Some(Attribute {
            kind: AttributeType::new(u16::from_be_bytes([k0, k1])),
            value,
        })
    }
}

/// Returns the value as an array; the attribute has this length and no other.
fn array<const N: usize>(value: &[u8]) -> Result<[u8; N], crate::AttributeError> {
    value.try_into().map_err(|_| crate::AttributeError::Length)
}
