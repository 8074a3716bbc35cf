//! What is said on a stream: see `crates/load/src/quic/exchange.rs`, whose words these are.

use std::sync::Arc;

use anyhow::ensure;
use exchange::{Payload, head};
use quinn::{Connection, RecvStream, SendStream};

/// Sends a payload and the end. In the middle of it `change` is made.
async fn send(payload: Payload<'_>, to: &mut SendStream, change: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut change = Some(change);
    let half = payload.pieces().count() / 2;
    for (index, piece) in payload.pieces().enumerate() {
        to.write_all(piece).await?;
        if index >= half && let Some(change) = change.take() {
            change()?;
        }
    }
    Ok(to.finish()?)
}

/// Takes a stream to its end. Its first `head_len` bytes, the length of the rest and its CRC-32. When the first bytes have come, `change` is made.
async fn take(from: &mut RecvStream, head_len: usize, change: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<(Vec<u8>, u64, u32)> {
    let mut change = Some(change);
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
        if let Some(change) = change.take() {
            change()?;
        }
    }
    ensure!(head.len() == head_len, "{} bytes in place of a head of {head_len}", head.len());
    Ok((head, count, hasher.finalize()))
}

fn nothing() -> anyhow::Result<()> {
    Ok(())
}

/// Answers one stream.
pub(crate) async fn answer(mut sending: SendStream, mut receiving: RecvStream, block: Arc<[u8]>) -> anyhow::Result<()> {
    let (asked, count, hash) = take(&mut receiving, 8, nothing).await?;
    let wanted = u64::from_be_bytes(asked.try_into().map_err(|_| anyhow::anyhow!("no request"))?);
    sending.write_all(&head((count, hash))).await?;
    send(Payload::new(&block, wanted), &mut sending, nothing).await
}

/// Moves one transfer, makes a change in its middle, and compares what arrived.
pub(crate) async fn ask(
    connection: &Connection,
    is_up: bool,
    payload: Payload<'_>,
    checked: (u64, u32),
    change: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let none = Payload::new(&[], 0);
    let (sent, expected, wanted) = if is_up { (payload, checked, none.checked()) } else { (none, none.checked(), checked) };
    let (mut sending, mut receiving) = connection.open_bi().await?;
    sending.write_all(&wanted.0.to_be_bytes()).await?;
    let when = |is_now: bool| {
        let change = &change;
        move || if is_now { change() } else { Ok(()) }
    };
    let (sending, answer) = tokio::join!(send(sent, &mut sending, when(is_up)), take(&mut receiving, 12, when(!is_up)));
    sending?;
    let (answered, count, hash) = answer?;
    ensure!(answered == head(expected) && (count, hash) == wanted, "other bytes arrived than were sent");
    Ok(())
}
