//! What is said on a stream: see `crates/load/src/quic/exchange.rs`, whose words these are.

use std::sync::Arc;

use anyhow::{bail, ensure};
use quinn::{Connection, RecvStream, SendStream};

/// Bytes after which the payload repeats.
const PERIOD: usize = 65_521;

/// The block that payloads are pieces of.
pub(crate) fn block() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let byte = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[0]
    };
    (0..PERIOD).map(byte).collect()
}

/// The bytes of a transfer.
#[derive(Clone)]
pub(crate) struct Payload<'a> {
    block: &'a [u8],
    left: u64,
}

impl<'a> Payload<'a> {
    pub(crate) fn new(block: &'a [u8], len: u64) -> Self {
        Self { block, left: len }
    }

    fn pieces(self) -> impl Iterator<Item = &'a [u8]> {
        let mut left = self.left;
        std::iter::from_fn(move || {
            let len = self.block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            left -= len as u64;
            (len > 0).then(|| &self.block[..len])
        })
    }

    pub(crate) fn hash(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        self.clone().pieces().for_each(|piece| hasher.update(piece));
        hasher.finalize()
    }

    async fn send(self, to: &mut SendStream) -> anyhow::Result<()> {
        for piece in self.pieces() {
            to.write_all(piece).await?;
        }
        Ok(to.finish()?)
    }
}

/// Takes a stream to its end. Its first `head_len` bytes, the length of the rest and its CRC-32.
async fn take(from: &mut RecvStream, head_len: usize) -> anyhow::Result<(Vec<u8>, u64, u32)> {
    let (mut head, mut count, mut hasher) = (Vec::new(), 0, crc32fast::Hasher::new());
    while let Some(chunk) = from.read_chunk(usize::MAX, true).await? {
        let mut bytes = &chunk.bytes[..];
        if head.len() < head_len {
            let (first, rest) = bytes.split_at(bytes.len().min(head_len - head.len()));
            head.extend_from_slice(first);
            bytes = rest;
        }
        count += bytes.len() as u64;
        hasher.update(bytes);
    }
    ensure!(head.len() == head_len, "{} bytes in place of a head of {head_len}", head.len());
    Ok((head, count, hasher.finalize()))
}

/// Answers one stream.
pub(crate) async fn answer(mut sending: SendStream, mut receiving: RecvStream, block: Arc<[u8]>) -> anyhow::Result<()> {
    let (head, count, hash) = take(&mut receiving, 8).await?;
    let wanted = u64::from_be_bytes(head.try_into().map_err(|_| anyhow::anyhow!("no request"))?);
    sending.write_all(&count.to_be_bytes()).await?;
    sending.write_all(&hash.to_be_bytes()).await?;
    Payload::new(&block, wanted).send(&mut sending).await
}

/// Moves one transfer, and compares what arrived.
pub(crate) async fn ask(connection: &Connection, is_up: bool, payload: Payload<'_>, expected: (u64, u32)) -> anyhow::Result<()> {
    let nothing = (0, crc32fast::hash(&[]));
    let (sent, wanted) = if is_up { (expected, nothing) } else { (nothing, expected) };
    let (mut sending, mut receiving) = connection.open_bi().await?;
    sending.write_all(&wanted.0.to_be_bytes()).await?;
    let send = async {
        if is_up {
            return payload.send(&mut sending).await;
        }
        Ok(sending.finish()?)
    };
    let (sending, answer) = tokio::join!(send, take(&mut receiving, 12));
    sending?;
    let (head, count, hash) = answer?;
    let mut expected_head = sent.0.to_be_bytes().to_vec();
    expected_head.extend_from_slice(&sent.1.to_be_bytes());
    if head != expected_head || (count, hash) != wanted {
        bail!("other bytes arrived than were sent");
    }
    Ok(())
}
