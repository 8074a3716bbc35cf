//! The bytes of a transfer: the same ones for each length, so that either side can tell what must arrive.

use turnbuckle_quic::Bytes;

/// Bytes after which they repeat. A prime, so that no packet or buffer size is in step with it.
const PERIOD: usize = 65_521;

/// What is left to send of a transfer. Nothing of it is copied: all pieces lie in one block.
#[derive(Clone, Debug)]
pub(super) struct Payload {
    block: Bytes,
    at: u64,
    len: u64,
}

impl Payload {
    pub(super) fn new(block: &Bytes, len: u64) -> Self {
        Self {
            block: block.clone(),
            at: 0,
            len,
        }
    }

    /// Makes the block that payloads are pieces of.
    pub(super) fn block() -> Bytes {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let byte = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()[0]
        };
        (0..PERIOD).map(byte).collect()
    }

    /// Returns the next piece; an empty one at the end.
    pub(super) fn piece(&self) -> Bytes {
        let period = self.block.len() as u64;
        let start = usize::try_from(self.at % period).unwrap_or(0);
        let left = usize::try_from(self.len - self.at).unwrap_or(usize::MAX);
        let end = self.block.len().min(start.saturating_add(left));
        self.block.slice(start..end)
    }

    pub(super) fn advance(&mut self, sent: usize) {
        self.at += sent as u64;
    }

    /// Returns the CRC-32 of all of it.
    pub(super) fn hash(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        let mut rest = Self {
            at: 0,
            ..self.clone()
        };
        loop {
            let piece = rest.piece();
            if piece.is_empty() {
                return hasher.finalize();
            }
            hasher.update(&piece);
            rest.advance(piece.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_up_the_whole_whatever_is_taken_at_a_time() {
        let block = Payload::block();
        let whole: Vec<u8> = block.iter().copied().cycle().take(200_000).collect();
        for most in [1, 1200, 70_000] {
            let mut payload = Payload::new(&block, 200_000);
            let mut sent = Vec::new();
            loop {
                let piece = payload.piece();
                if piece.is_empty() {
                    break;
                }
                let taken = piece.len().min(most);
                sent.extend_from_slice(&piece[..taken]);
                payload.advance(taken);
            }
            assert_eq!(sent, whole, "{most}");
        }
        assert_eq!(
            Payload::new(&block, 200_000).hash(),
            crc32fast::hash(&whole)
        );
        assert_eq!(Payload::new(&block, 0).hash(), crc32fast::hash(&[]));
    }
}
