//! Frames in a stream (RFC 9114 §7.1): where each begins and ends, whatever pieces the stream comes in.

use turnbuckle_wire::Varint;

/// Types of frames (RFC 9114 §7.2).
pub(super) mod kind {
    pub(in crate::h3) const DATA: u64 = 0x00;
    pub(in crate::h3) const HEADERS: u64 = 0x01;
    pub(in crate::h3) const CANCEL_PUSH: u64 = 0x03;
    pub(in crate::h3) const SETTINGS: u64 = 0x04;
    pub(in crate::h3) const PUSH_PROMISE: u64 = 0x05;
    pub(in crate::h3) const GOAWAY: u64 = 0x07;
    pub(in crate::h3) const MAX_PUSH_ID: u64 = 0x0d;
    /// Those of HTTP/2 that have no meaning here (RFC 9114 §7.2.8).
    pub(in crate::h3) const RESERVED: [u64; 4] = [0x02, 0x06, 0x08, 0x09];
}

/// How far a stream of frames has been read.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The beginning of a head.
    head: Vec<u8>,
    /// The frame that has begun, and how many bytes of its payload are to come.
    open: Option<(u64, u64)>,
}

/// What a stream goes on with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// A frame of this type and length, bytes, begins.
    Begins(u64, u64),
    /// A part of the payload of a frame of this type, and whether it is the last. A frame without payload has one empty part.
    Payload(u64, &'a [u8], bool),
}

impl Frames {
    /// Takes what `bytes` begin with. `None` when nothing of them is left.
    pub(super) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Piece<'a>> {
        if let Some((kind, left)) = self.open {
            if left > 0 && bytes.is_empty() {
                return None;
            }
            let len = usize::try_from(left).unwrap_or(usize::MAX);
            let (part, rest) = bytes.split_at(len.min(bytes.len()));
            *bytes = rest;
            let left = left - part.len() as u64;
            self.open = (left > 0).then_some((kind, left));
            return Some(Piece::Payload(kind, part, left == 0));
        }
        while let Some((&byte, rest)) = bytes.split_first() {
            *bytes = rest;
            self.head.push(byte);
            let Some((kind, kind_len)) = Varint::read(&self.head) else {
                continue;
            };
            if let Some((len, _)) = Varint::read(&self.head[kind_len..]) {
                self.head.clear();
                self.open = Some((kind, len));
                return Some(Piece::Begins(kind, len));
            }
        }
        None
    }

    /// Returns whether the stream may end here: no frame has begun and is not whole.
    pub(super) fn may_end(&self) -> bool {
        self.head.is_empty() && self.open.is_none()
    }
}

/// Appends the head of a frame.
pub(super) fn put_head(to: &mut Vec<u8>, kind: u64, len: usize) {
    for number in [kind, len as u64] {
        if let Some(number) = Varint::new(number) {
            to.extend_from_slice(number.as_bytes());
        }
    }
}

/// Returns a frame.
pub(super) fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(payload.len() + 2 * Varint::LEN_MAX);
    put_head(&mut frame, kind, payload.len());
    frame.extend_from_slice(payload);
    frame
}
