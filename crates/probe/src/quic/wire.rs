//! Bytes of QUIC (RFC 9000 §16 to §19): integers, frames, transport parameters. What a probe sends may be wrong, so nothing is checked here.

/// Types of frames that are named.
pub(super) mod frame {
    pub(crate) const PING: u64 = 0x01;
    pub(crate) const RESET_STREAM: u64 = 0x04;
    pub(crate) const STOP_SENDING: u64 = 0x05;
    pub(crate) const CRYPTO: u64 = 0x06;
    pub(crate) const NEW_TOKEN: u64 = 0x07;
    pub(crate) const STREAM: u64 = 0x08;
    pub(crate) const MAX_STREAM_DATA: u64 = 0x11;
    pub(crate) const MAX_STREAMS: u64 = 0x12;
    pub(crate) const STREAMS_BLOCKED: u64 = 0x16;
    pub(crate) const NEW_CONNECTION_ID: u64 = 0x18;
    pub(crate) const RETIRE_CONNECTION_ID: u64 = 0x19;
    pub(crate) const PATH_CHALLENGE: u64 = 0x1a;
    pub(crate) const PATH_RESPONSE: u64 = 0x1b;
    pub(crate) const HANDSHAKE_DONE: u64 = 0x1e;
}

/// Bits of a STREAM frame's type: an offset, a length.
pub(super) const STREAM_OFFSET: u64 = 0x04;
pub(super) const STREAM_LENGTH: u64 = 0x02;

/// Appends a variable-length integer.
pub(super) fn put(bytes: &mut Vec<u8>, value: u64) {
    let whole = value.to_be_bytes();
    match value {
        0..0x40 => bytes.push(whole[7]),
        0x40..0x4000 => bytes.extend([whole[6] | 0x40, whole[7]]),
        0x4000..0x4000_0000 => {
            bytes.push(whole[4] | 0x80);
            bytes.extend(&whole[5..]);
        }
        _ => {
            bytes.push(whole[0] | 0xc0);
            bytes.extend(&whole[1..]);
        }
    }
}

/// Returns these integers, one after the other.
pub(super) fn integers(values: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        put(&mut bytes, value);
    }
    bytes
}

/// Returns a CRYPTO frame.
pub(super) fn crypto(offset: u64, message: &[u8]) -> Vec<u8> {
    let mut bytes = integers([frame::CRYPTO, offset, message.len() as u64]);
    bytes.extend(message);
    bytes
}

/// Returns a STREAM frame of one byte.
pub(super) fn stream(id: u64, offset: u64) -> Vec<u8> {
    let kind = frame::STREAM | STREAM_OFFSET | STREAM_LENGTH;
    let mut bytes = integers([kind, id, offset, 1]);
    bytes.push(0);
    bytes
}

/// Returns a NEW_CONNECTION_ID frame.
pub(super) fn new_connection_id(sequence: u64, retire_prior_to: u64, id: &[u8]) -> Vec<u8> {
    let mut bytes = integers([
        frame::NEW_CONNECTION_ID,
        sequence,
        retire_prior_to,
        id.len() as u64,
    ]);
    bytes.extend(id);
    bytes.extend([0x5a; 8]);
    bytes.extend(sequence.to_be_bytes());
    bytes
}

/// Reads from the front of bytes; `None` where they end too soon.
#[derive(Clone)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    /// Reads a variable-length integer.
    pub(super) fn integer(&mut self) -> Option<u64> {
        let first = self.byte()?;
        let rest = self.take((1 << (first >> 6)) - 1)?;
        let head = u64::from(first & 0x3f);
        Some(
            rest.iter()
                .fold(head, |value, &byte| value << 8 | u64::from(byte)),
        )
    }

    /// Reads bytes behind their length, a variable-length integer.
    pub(super) fn counted(&mut self) -> Option<&'a [u8]> {
        let len = self.integer()?;
        self.take(usize::try_from(len).ok()?)
    }
}

/// What a probe wants to know of a packet's frames.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// One that needs no acknowledgement.
    Silent,
    Crypto(u64, &'a [u8]),
    HandshakeDone,
    PathChallenge(&'a [u8]),
    PathResponse,
    RetireConnectionId,
    /// The connection is closed, with this code; `true`: one of the application.
    Close(u64, bool),
    /// Any other.
    Other,
}

/// Reads the next frame. `None` if it is none.
pub(super) fn read_frame<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let kind = reader.integer()?;
    let skip = |reader: &mut Reader<'a>, count: u64| -> Option<Frame<'a>> {
        for _ in 0..count {
            reader.integer()?;
        }
        Some(Frame::Other)
    };
    match kind {
        0x00 => Some(Frame::Silent),
        frame::PING => Some(Frame::Other),
        0x02 | 0x03 => {
            skip(reader, 2)?;
            let ranges = reader.integer()?;
            skip(reader, 1 + ranges.checked_mul(2)?)?;
            skip(reader, if kind == 0x03 { 3 } else { 0 })?;
            Some(Frame::Silent)
        }
        frame::RESET_STREAM => skip(reader, 3),
        frame::STOP_SENDING | frame::MAX_STREAM_DATA | 0x15 => skip(reader, 2),
        frame::CRYPTO => {
            let offset = reader.integer()?;
            Some(Frame::Crypto(offset, reader.counted()?))
        }
        frame::NEW_TOKEN | 0x31 => reader.counted().map(|_| Frame::Other),
        0x08..=0x0f => {
            reader.integer()?;
            if kind & STREAM_OFFSET != 0 {
                reader.integer()?;
            }
            if kind & STREAM_LENGTH != 0 {
                reader.counted()?;
            } else {
                reader.0 = &[];
            }
            Some(Frame::Other)
        }
        0x10 | frame::MAX_STREAMS | 0x13 | 0x14 | frame::STREAMS_BLOCKED | 0x17 => skip(reader, 1),
        frame::NEW_CONNECTION_ID => {
            skip(reader, 2)?;
            let len = reader.byte()?;
            reader.take(usize::from(len) + 16)?;
            Some(Frame::Other)
        }
        frame::RETIRE_CONNECTION_ID => {
            reader.integer()?;
            Some(Frame::RetireConnectionId)
        }
        frame::PATH_CHALLENGE => reader.take(8).map(Frame::PathChallenge),
        frame::PATH_RESPONSE => reader.take(8).map(|_| Frame::PathResponse),
        0x1c | 0x1d => {
            let code = reader.integer()?;
            if kind == 0x1c {
                reader.integer()?;
            }
            reader.counted()?;
            Some(Frame::Close(code, kind == 0x1d))
        }
        frame::HANDSHAKE_DONE => Some(Frame::HandshakeDone),
        0x30 => {
            reader.0 = &[];
            Some(Frame::Other)
        }
        _ => None,
    }
}

/// Removes the extension `kind` from a ClientHello (RFC 8446 §4.1.2). Returns it unchanged if it is none.
pub(super) fn without_extension(hello: &[u8], kind: u16) -> Vec<u8> {
    shortened(hello, kind).unwrap_or_else(|| hello.to_vec())
}

fn shortened(hello: &[u8], kind: u16) -> Option<Vec<u8>> {
    let mut reader = Reader(hello);
    // Type and length, version, random.
    reader.take(4 + 2 + 32)?;
    let len = reader.byte()?;
    reader.take(len.into())?;
    let two = |reader: &mut Reader<'_>| -> Option<usize> {
        let bytes = reader.take(2)?;
        Some(usize::from(u16::from_be_bytes([bytes[0], bytes[1]])))
    };
    let suites_len = two(&mut reader)?;
    reader.take(suites_len)?;
    let methods_len = reader.byte()?;
    reader.take(methods_len.into())?;
    let before_len = hello.len() - reader.0.len();
    let all_len = two(&mut reader)?;
    let mut extensions = Reader(reader.take(all_len)?);
    let mut kept: Vec<u8> = Vec::new();
    while !extensions.0.is_empty() {
        let whole = extensions.0;
        let this = two(&mut extensions)?;
        let len = two(&mut extensions)?;
        extensions.take(len)?;
        if this != usize::from(kind) {
            kept.extend(&whole[..4 + len]);
        }
    }
    let mut shorter = hello[..before_len].to_vec();
    shorter.extend(u16::try_from(kept.len()).ok()?.to_be_bytes());
    shorter.extend(kept);
    let body_len = u32::try_from(shorter.len() - 4).ok()?.to_be_bytes();
    shorter[1..4].copy_from_slice(&body_len[1..]);
    Some(shorter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_they_were_written() {
        for value in [
            0,
            63,
            64,
            0x3fff,
            0x4000,
            0x3fff_ffff,
            0x4000_0000,
            (1 << 62) - 1,
        ] {
            let bytes = integers([value]);
            assert_eq!(Reader(&bytes).integer(), Some(value), "{bytes:02x?}");
            assert_eq!(Reader(&bytes[..bytes.len() - 1]).integer(), None);
        }
    }

    #[test]
    fn frames_are_read_to_their_end() {
        let close = [integers([0x1c, 0x0a, 0x06, 2]), b"no".to_vec()].concat();
        let frames = [
            crypto(7, b"hello"),
            vec![0],
            integers([0x03, 9, 1, 1, 0, 2, 3, 1, 2, 3]),
            stream(3, 1 << 40),
            new_connection_id(1, 0, &[1; 8]),
            integers([frame::RETIRE_CONNECTION_ID, 5]),
            close,
        ]
        .concat();
        let mut reader = Reader(&frames);
        let read: Vec<_> = std::iter::from_fn(|| read_frame(&mut reader)).collect();
        assert_eq!(
            read,
            [
                Frame::Crypto(7, b"hello"),
                Frame::Silent,
                Frame::Silent,
                Frame::Other,
                Frame::Other,
                Frame::RetireConnectionId,
                Frame::Close(0x0a, false),
            ]
        );
        assert!(reader.0.is_empty());
        for len in 0..frames.len() {
            let mut reader = Reader(&frames[..len]);
            while read_frame(&mut reader).is_some() {}
        }
    }

    #[test]
    fn an_extension_is_taken_out_of_a_hello_and_the_rest_stays() {
        let extensions = [0, 16, 0, 2, 1, 2, 0, 57, 0, 3, 7, 7, 7, 0, 43, 0, 1, 9];
        let body = [
            &[3, 3][..],
            &[5; 32],
            &[2, 8, 8],
            &[0, 2, 0x13, 1],
            &[1, 0],
            &[0, 18],
            &extensions,
        ]
        .concat();
        let len = u8::try_from(body.len()).unwrap();
        let hello = [&[1, 0, 0, len][..], &body].concat();
        let shorter = without_extension(&hello, 57);
        assert_eq!(shorter.len(), hello.len() - 7);
        assert_eq!(usize::from(shorter[3]), shorter.len() - 4);
        assert_eq!(
            shorter[shorter.len() - 13..],
            [0, 11, 0, 16, 0, 2, 1, 2, 0, 43, 0, 1, 9]
        );
        assert_eq!(without_extension(&hello, 99), hello);
        assert_eq!(without_extension(b"short", 57), b"short");
    }
}
