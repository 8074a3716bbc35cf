//! Writes a message into the caller's buffer.
//!
//! The invariant: every byte up to the returned length has been written by this writer, padding as zero ([RFC 8489 §14]); nothing of
//! the buffer's earlier content can reach the wire. The first error sticks and is reported once, by
//! [`MessageWriter::finish`], so that call sites read as a list of attributes.
//!
//! Read [`MessageWriter::reserve`] first: all attributes go through it. The methods for single attributes are in the
//! sub-modules, grouped as the getters are.
//!
//! [RFC 8489 §14]: https://www.rfc-editor.org/rfc/rfc8489#section-14

mod extension;
mod stun;
mod turn;

use crate::data_indication::attribute_head;
use crate::header::{self, HEADER_LEN, padding_len};
use crate::integrity::{self, SHA1_LEN, SHA256_LEN};
use crate::message::ATTRIBUTE_HEADER_LEN;
use crate::{
    AttributeType, Class, IntegrityKey, Method, TransactionId, WriteError, address, fingerprint,
};
use core::net::SocketAddr;

/// Writes one STUN message; see the module for its rules.
#[derive(Debug)]
pub struct MessageWriter<'b> {
    buf: &'b mut [u8],
    /// Bytes written: HEADER_LEN <= len <= buf.len() unless there is an error.
    len: usize,
    transaction_id: TransactionId,
    stage: Stage,
    error: Option<WriteError>,
}

/// Which attributes may still follow (RFC 8489 §9, §14.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Stage {
    /// Anything.
    Body,
    /// MESSAGE-INTEGRITY-SHA256 or FINGERPRINT.
    AfterSha1,
    /// FINGERPRINT.
    AfterSha256,
    /// Nothing.
    Closed,
}

impl<'b> MessageWriter<'b> {
    /// Starts a message at the beginning of `buf`.
    #[must_use]
    pub fn new(
        buf: &'b mut [u8],
        class: Class,
        method: Method,
        transaction_id: TransactionId,
    ) -> Self {
        let error = match buf.first_chunk_mut() {
            Some(head) => {
                *head = header::header(class, method, 0, transaction_id);
                None
            }
            None => Some(WriteError::Overflow),
        };
        Self {
            buf,
            len: HEADER_LEN,
            transaction_id,
            stage: Stage::Body,
            error,
        }
    }

    /// Ends the message and returns its length in bytes.
    ///
    /// # Errors
    ///
    /// The first [`WriteError`] of any call.
    pub fn finish(mut self) -> Result<usize, WriteError> {
        self.set_length(self.len);
        match self.error {
            None => Ok(self.len),
            Some(error) => Err(error),
        }
    }

    /// Appends an attribute with this value, whatever its type.
    pub fn bytes(&mut self, kind: AttributeType, value: &[u8]) -> &mut Self {
        if let Some(area) = self.reserve(kind, value.len()) {
            area.copy_from_slice(value);
        }
        self
    }

    /// Appends an attribute without a value.
    pub fn flag(&mut self, kind: AttributeType) -> &mut Self {
        self.bytes(kind, &[])
    }

    /// Appends an attribute of two bytes.
    pub fn u16(&mut self, kind: AttributeType, value: u16) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends an attribute of four bytes.
    pub fn u32(&mut self, kind: AttributeType, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends an attribute in the form of MAPPED-ADDRESS (RFC 8489 §14.1).
    pub fn address(&mut self, kind: AttributeType, address: SocketAddr) -> &mut Self {
        let (value, len) = address::encode(address);
        self.bytes(kind, value.get(..len).unwrap_or_default())
    }

    /// Appends an attribute in the form of XOR-MAPPED-ADDRESS (RFC 8489 §14.2).
    pub fn xor_address(&mut self, kind: AttributeType, address: SocketAddr) -> &mut Self {
        let (value, len) = address::encode_xor(address, self.transaction_id);
        self.bytes(kind, value.get(..len).unwrap_or_default())
    }

    /// Appends MESSAGE-INTEGRITY or MESSAGE-INTEGRITY-SHA256, by the kind of the key (RFC 8489 §14.5, §14.6). Only integrity
    /// and fingerprint may follow.
    pub fn integrity(&mut self, key: &IntegrityKey) -> &mut Self {
        let (kind, value_len) = match key {
            IntegrityKey::Sha1(_) => (AttributeType::MESSAGE_INTEGRITY, SHA1_LEN),
            IntegrityKey::Sha256(_) => (AttributeType::MESSAGE_INTEGRITY_SHA256, SHA256_LEN),
        };
        let before = self.buf.get(..self.len).unwrap_or_default();
        let attribute_len = value_len.saturating_add(ATTRIBUTE_HEADER_LEN);
        let Some((header, body)) = integrity::covered(before, attribute_len) else {
            return self.fail(WriteError::Overflow);
        };
        match key {
            IntegrityKey::Sha1(key) => {
                let mac = key.compute(&header, body);
                self.bytes(kind, &mac)
            }
            IntegrityKey::Sha256(key) => {
                let mac = key.compute(&header, body);
                self.bytes(kind, &mac)
            }
        }
    }

    /// Appends FINGERPRINT (RFC 8489 §14.7). Nothing may follow.
    pub fn fingerprint(&mut self) -> &mut Self {
        let before_len = self.len;
        // reserve first: the checksum covers a length field that counts the attribute itself
        if self.reserve(AttributeType::FINGERPRINT, 4).is_none() {
            return self;
        }
        self.set_length(self.len);
        if let Some((before, [_, _, _, _, value @ ..])) = self.buf.split_at_mut_checked(before_len)
            && let Some(value) = value.first_chunk_mut()
        {
            *value = fingerprint::compute(before).to_be_bytes();
        }
        self
    }

    /// Appends an attribute's head and padding and returns the place of its value, which the caller fills.
    fn reserve(&mut self, kind: AttributeType, value_len: usize) -> Option<&mut [u8]> {
        if self.error.is_some() {
            return None;
        }
        let Some(stage) = self.stage.after(kind) else {
            self.fail(WriteError::Order);
            return None;
        };
        let end = self.end_after(value_len);
        let Some((head, rest)) = end
            .and_then(|end| self.buf.get_mut(self.len..end))
            .and_then(<[u8]>::split_first_chunk_mut)
        else {
            self.error = Some(WriteError::Overflow);
            return None;
        };
        self.stage = stage;
        self.len = end?;
        *head = attribute_head(kind, u16::try_from(value_len).ok()?);
        let (value, padding) = rest.split_at_mut_checked(value_len)?;
        // guard: V-60-padding
        padding.fill(0);
        Some(value)
    }

    /// Returns where the message ends once an attribute of `value_len` is appended; `None` if a length field would overflow.
    fn end_after(&self, value_len: usize) -> Option<usize> {
        let end = self
            .len
            .checked_add(ATTRIBUTE_HEADER_LEN)?
            .checked_add(value_len)?
            .checked_add(padding_len(value_len))?;
        // guard: V-61-overflow
        u16::try_from(end.checked_sub(HEADER_LEN)?).ok()?;
        Some(end)
    }

    /// Writes the header's length field for a message that ends at `end`.
    fn set_length(&mut self, end: usize) {
        if let Some([_, _, l0, l1]) = self.buf.first_chunk_mut()
            && let Ok(length) = u16::try_from(end.saturating_sub(HEADER_LEN))
        {
            [*l0, *l1] = length.to_be_bytes();
        }
    }

    fn fail(&mut self, error: WriteError) -> &mut Self {
        self.error.get_or_insert(error);
        self
    }
}

impl Stage {
    /// Returns the stage after an attribute of this type, or `None` if it may not stand here.
    const fn after(self, kind: AttributeType) -> Option<Self> {
        match (kind, self) {
            (AttributeType::MESSAGE_INTEGRITY, Self::Body) => Some(Self::AfterSha1),
            (AttributeType::MESSAGE_INTEGRITY_SHA256, Self::Body | Self::AfterSha1) => {
                Some(Self::AfterSha256)
            }
            (AttributeType::FINGERPRINT, Self::Body | Self::AfterSha1 | Self::AfterSha256) => {
                Some(Self::Closed)
            }
            (AttributeType::MESSAGE_INTEGRITY | AttributeType::MESSAGE_INTEGRITY_SHA256, _) => None,
            (_, Self::Body) => Some(Self::Body),
            _ => None,
        }
    }
}
