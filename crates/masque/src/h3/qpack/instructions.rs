//! What QPACK's two streams may say where the dynamic table has no room (RFC 9204 §4.3, §4.4).

use super::integer;
use crate::h3::code::{Code, Wrong};

/// The longest instruction that is allowed, in bytes: a number of a stream.
const LEN_MAX: usize = 10;

/// Whose stream it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::h3) enum Side {
    /// The client's encoder.
    Encoder,
    /// The client's decoder.
    Decoder,
}

/// The instructions of one stream.
#[derive(Debug)]
pub(in crate::h3) struct Instructions {
    side: Side,
    /// The beginning of an instruction.
    kept: Vec<u8>,
}

impl Instructions {
    pub(in crate::h3) const fn new(side: Side) -> Self {
        Self {
            side,
            kept: Vec::new(),
        }
    }

    /// Reads what has come. Returns how many instructions these were, each of which changes nothing.
    pub(in crate::h3) fn read(&mut self, bytes: &[u8]) -> Result<u32, Wrong> {
        let mut count = 0;
        for &byte in bytes {
            self.kept.push(byte);
            let [first, ..] = self.kept[..] else {
                continue;
            };
            let mut rest = &self.kept[..];
            let whole = match (self.side, first) {
                // A capacity of 0 is the only one that there may be.
                (Side::Encoder, 0x20..0x40) => match integer(&mut rest, 5) {
                    Some((0, _)) => true,
                    _ => return Err(self.wrong()),
                },
                (Side::Decoder, 0x40..0x80) => integer(&mut rest, 6).is_some(),
                // Insertions, acknowledgements of sections and of insertions: there is nothing that they can be about.
                _ => return Err(self.wrong()),
            };
            if whole {
                self.kept.clear();
                count += 1;
            } else if self.kept.len() >= LEN_MAX {
                return Err(self.wrong());
            }
        }
        Ok(count)
    }

    const fn wrong(&self) -> Wrong {
        match self.side {
            Side::Encoder => Wrong::Connection(
                Code::QPACK_ENCODER_STREAM_ERROR,
                "there is no dynamic table",
            ),
            Side::Decoder => Wrong::Connection(
                Code::QPACK_DECODER_STREAM_ERROR,
                "there is no dynamic table",
            ),
        }
    }
}
