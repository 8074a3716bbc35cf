//! What is said on a stream. The client opens it and sends eight bytes, how many bytes it wants (big-endian), then as many bytes as it likes, and
//! the end. The server answers with how many bytes have come (eight bytes) and their CRC-32 (four), then the bytes that were wanted, and the end.

use turnbuckle_quic::{Bytes, Connection, StreamError, StreamId, StreamState};

use super::payload::Payload;

/// The name of this protocol in the handshake.
pub(super) const ALPN: &[u8] = b"turnbuckle-perf";
/// Bytes of a request before its payload.
const REQUEST_LEN: usize = 8;
/// Bytes of an answer before its payload.
const ANSWER_LEN: usize = 12;
/// Most bytes that one stream may carry each way.
pub(super) const TRANSFER_MAX: u64 = 1 << 40;
/// The code with which a stream is abandoned whose request is no request.
pub(super) const WRONG_REQUEST: u32 = 1;

/// Sends a head and a payload.
#[derive(Debug)]
pub(super) struct Sending {
    head: Bytes,
    payload: Payload,
    is_finished: bool,
}

impl Sending {
    fn new(head: Vec<u8>, payload: Payload) -> Self {
        Self {
            head: head.into(),
            payload,
            is_finished: false,
        }
    }

    /// Returns a request for `wanted` bytes that carries `payload`.
    pub(super) fn request(wanted: u64, payload: Payload) -> Self {
        Self::new(wanted.to_be_bytes().to_vec(), payload)
    }

    /// Writes as much as the stream takes, and the end after the last byte. Returns whether all is written.
    ///
    /// # Errors
    /// The other side wants no more.
    pub(super) fn write(
        &mut self,
        connection: &mut Connection<'_>,
        stream: StreamId,
    ) -> Result<bool, StreamError> {
        while !self.head.is_empty() {
            if connection.write(stream, &mut self.head)? == 0 {
                return Ok(false);
            }
        }
        loop {
            let mut piece = self.payload.piece();
            if piece.is_empty() {
                break;
            }
            let written = connection.write(stream, &mut piece)?;
            if written == 0 {
                return Ok(false);
            }
            self.payload.advance(written);
        }
        if !self.is_finished {
            self.is_finished = true;
            connection.finish(stream)?;
        }
        Ok(true)
    }
}

/// Receives a head and a payload.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    head: Vec<u8>,
    bytes: u64,
    hasher: crc32fast::Hasher,
}

impl Receiving {
    /// Takes what has come, behind a head of `head_len` bytes. Returns whether that was the end.
    fn read(
        &mut self,
        connection: &mut Connection<'_>,
        stream: StreamId,
        head_len: usize,
    ) -> Result<bool, StreamError> {
        let state = connection.read(stream, |mut bytes| {
            let missing = head_len - self.head.len();
            if missing > 0 {
                let (head, rest) = bytes.split_at(missing.min(bytes.len()));
                self.head.extend_from_slice(head);
                bytes = rest;
            }
            self.bytes += bytes.len() as u64;
            self.hasher.update(bytes);
        })?;
        Ok(state == StreamState::Finished)
    }

    fn hash(&self) -> u32 {
        self.hasher.clone().finalize()
    }

    /// Reads a request. Once it has ended, returns the answer, with payload from `block`; `None` in its place if it is no request.
    ///
    /// # Errors
    /// The client abandoned it.
    pub(super) fn request(
        &mut self,
        connection: &mut Connection<'_>,
        stream: StreamId,
        block: &Bytes,
    ) -> Result<Option<Option<Sending>>, StreamError> {
        if !self.read(connection, stream, REQUEST_LEN)? {
            return Ok(None);
        }
        let wanted = <[u8; REQUEST_LEN]>::try_from(&self.head[..])
            .map(u64::from_be_bytes)
            .ok()
            .filter(|&wanted| wanted <= TRANSFER_MAX);
        Ok(Some(wanted.map(|wanted| {
            let mut head = self.bytes.to_be_bytes().to_vec();
            head.extend_from_slice(&self.hash().to_be_bytes());
            Sending::new(head, Payload::new(block, wanted))
        })))
    }

    /// Reads an answer. Returns whether it has ended.
    ///
    /// # Errors
    /// The server abandoned it.
    pub(super) fn answer(
        &mut self,
        connection: &mut Connection<'_>,
        stream: StreamId,
    ) -> Result<bool, StreamError> {
        self.read(connection, stream, ANSWER_LEN)
    }

    /// Compares a whole answer with what was sent and what was wanted.
    ///
    /// # Errors
    /// What differs, in words.
    pub(super) fn compare(&self, sent: (u64, u32), wanted: (u64, u32)) -> Result<(), String> {
        let Ok(head) = <[u8; ANSWER_LEN]>::try_from(&self.head[..]) else {
            return Err(format!("an answer of {} bytes", self.head.len()));
        };
        let [count @ .., h0, h1, h2, h3] = head;
        let at_server = (
            u64::from_be_bytes(count),
            u32::from_be_bytes([h0, h1, h2, h3]),
        );
        let here = (self.bytes, self.hash());
        for (what, expected, (bytes, hash)) in [("sent", sent, at_server), ("wanted", wanted, here)]
        {
            if expected.0 != bytes {
                return Err(format!("{bytes} bytes arrived of {} {what}", expected.0));
            }
            if expected.1 != hash {
                return Err(format!(
                    "other bytes arrived than {what}: CRC-32 {hash:08x} in place of {:08x}",
                    expected.1
                ));
            }
        }
        Ok(())
    }

    /// Returns how many bytes of payload have come.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(head: &[u8], bytes: u64) -> Receiving {
        Receiving {
            head: head.to_vec(),
            bytes,
            hasher: crc32fast::Hasher::new(),
        }
    }

    #[test]
    fn a_transfer_counts_only_if_lengths_and_hashes_are_right() {
        let none = (0, crc32fast::hash(&[]));
        let right = answer(&[0, 0, 0, 0, 0, 0, 0, 5, 0xde, 0xad, 0xbe, 0xef], 0);
        assert_eq!(right.compare((5, 0xdead_beef), none), Ok(()));
        for (sent, wanted, word) in [
            ((6, 0xdead_beef), none, "5 bytes arrived of 6 sent"),
            ((5, 0xdead_bee0), none, "deadbeef in place of deadbee0"),
            ((5, 0xdead_beef), (1, 0), "0 bytes arrived of 1 wanted"),
            ((5, 0xdead_beef), (0, 1), "than wanted"),
        ] {
            let error = right.compare(sent, wanted).expect_err("it differs");
            assert!(error.contains(word), "{error}");
        }
        assert!(answer(&[0; 3], 0).compare(none, none).is_err());
    }
}
