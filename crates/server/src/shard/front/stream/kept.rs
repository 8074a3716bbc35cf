//! The beginning of a message that came in the records of a TLS connection before the rest of it.
//!
//! Who sends records of one byte has each of them deciphered, which cannot be helped. What came before is not copied for each of
//! them: it is put in front of what comes when that makes the message whole, and not before.

/// What is kept of a message.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    bytes: Vec<u8>,
    /// How many bytes the message has, 0 where that is not known yet.
    whole_len: usize,
}

impl Kept {
    /// Returns whether what is kept and `plain`, which came after it, are to be looked at: they make a whole message, or the length of it is not
    /// known yet. If not, `plain` is kept too, and empty then.
    pub(crate) fn completes(&mut self, plain: &mut Vec<u8>) -> bool {
        // guard: V-46-sealed
        if self.bytes.len() + plain.len() >= self.whole_len {
            return true;
        }
        self.bytes.append(plain);
        false
    }

    /// Puts what is kept in front of `plain`, and keeps nothing then.
    pub(crate) fn put_before(&mut self, plain: &mut Vec<u8>) {
        if !self.bytes.is_empty() {
            plain.splice(0..0, self.bytes.drain(..));
        }
        self.whole_len = 0;
    }

    /// Keeps the beginning of a message of `whole_len` bytes, if they are known.
    pub(crate) fn keep(&mut self, rest: &[u8], whole_len: Option<usize>) {
        self.bytes.extend_from_slice(rest);
        self.whole_len = whole_len.unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::front::stream::frame::Frame;

    /// Returns a channel message with `len` bytes of data.
    fn channel_data(len: u16) -> Vec<u8> {
        let mut message = vec![0x40, 0x00];
        message.extend_from_slice(&len.to_be_bytes());
        message.resize(4 + usize::from(len), 7);
        message
    }

    /// Gives `bytes` in pieces of `piece` bytes, as records bring them, and returns the messages and the bytes that were moved for them.
    fn messages(bytes: &[u8], piece: usize) -> (Vec<Vec<u8>>, usize) {
        let mut kept = Kept::default();
        let mut found = Vec::new();
        let mut moved = 0;
        for piece in bytes.chunks(piece) {
            let mut plain = piece.to_vec();
            if !kept.completes(&mut plain) {
                assert!(plain.is_empty());
                moved += piece.len();
                continue;
            }
            kept.put_before(&mut plain);
            moved += plain.len();
            let mut rest = &plain[..];
            while let Some(len) = Frame::announced_len(rest).filter(|&len| len <= rest.len()) {
                found.push(rest[..len].to_vec());
                rest = &rest[len..];
            }
            kept.keep(rest, Frame::announced_len(rest));
            moved += rest.len();
        }
        (found, moved)
    }

    #[test]
    fn a_message_in_records_of_one_byte_is_moved_a_few_times_whatever_its_length() {
        for len in [4, 100, 1_000, 16_000, 64_000] {
            let stream = [channel_data(len), channel_data(len)].concat();
            let (found, moved) = messages(&stream, 1);
            assert_eq!(found.concat(), stream);
            assert!(
                moved <= 3 * stream.len() + 40,
                "{moved} for {}",
                stream.len()
            );
        }
    }

    #[test]
    fn messages_are_the_same_however_their_bytes_come() {
        let stream: Vec<u8> = [0, 4, 8, 400, 1_200, 0, 60_000, 12]
            .into_iter()
            .flat_map(channel_data)
            .collect();
        for piece in [1, 2, 3, 5, 7, 64, 1_000, 16_384, 100_000] {
            let (found, _) = messages(&stream, piece);
            assert_eq!(found.len(), 8, "{piece}");
            assert_eq!(found.concat(), stream, "{piece}");
        }
    }
}
