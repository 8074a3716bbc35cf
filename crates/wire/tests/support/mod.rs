//! A message builder that obeys no rule, for messages the crate's own writer refuses to write.

use turnbuckle_wire::{AttributeType, Class, MessageWriter, Method, TransactionId, padding_len};

/// The transaction id of all messages built here.
pub(crate) const ID: TransactionId =
    TransactionId::new(*b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb");

/// Bytes of a message, attribute by attribute; the length field follows.
pub(crate) struct RawMessage(pub(crate) Vec<u8>);

impl RawMessage {
    /// Makes a message without attributes.
    pub(crate) fn new(class: Class, method: Method) -> Self {
        let mut buf = [0; 20];
        let writer = MessageWriter::new(&mut buf, class, method, ID);
        assert_eq!(writer.finish(), Ok(20));
        Self(buf.to_vec())
    }

    /// Makes an Allocate request without attributes.
    pub(crate) fn request() -> Self {
        Self::new(Class::Request, Method::ALLOCATE)
    }

    /// Appends an attribute, padded with `0xFF` because a reader ignores padding.
    pub(crate) fn attribute(mut self, kind: AttributeType, value: &[u8]) -> Self {
        self.0.extend_from_slice(&kind.number().to_be_bytes());
        let len = u16::try_from(value.len()).unwrap();
        self.0.extend_from_slice(&len.to_be_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len() + padding_len(value.len()), 0xFF);
        self.set_length();
        self
    }

    fn set_length(&mut self) {
        let length = u16::try_from(self.0.len() - 20).unwrap();
        self.0[2..4].copy_from_slice(&length.to_be_bytes());
    }
}
