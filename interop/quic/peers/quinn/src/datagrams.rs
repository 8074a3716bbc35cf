//! DATAGRAM frames (RFC 9221) that the server sends back: see `crates/load/src/quic/datagrams.rs`, whose figures these are.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::BytesMut;
use clap::Args;
use quinn::Connection;
use serde_json::json;

use crate::cpu_ns;

/// Bytes of the number with which each begins.
const NUMBER_LEN: usize = 8;
/// Bytes of memory that datagrams are written to, one after the other.
const BLOCK_LEN: usize = 64 * 1024;
/// Time without any after which those that are missing are lost.
const LOST_AFTER: Duration = Duration::from_millis(500);

#[derive(Args)]
pub(crate) struct Exchange {
    /// Bytes of datagrams that the server is to send back
    #[arg(long, value_delimiter = ',')]
    pub(crate) datagrams: Vec<u16>,
    /// Datagrams of each run
    #[arg(long, default_value_t = 100_000)]
    count: usize,
    /// Datagrams that are under way at a time
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
}

/// Sends back what comes, until the connection ends.
pub(crate) async fn answer(connection: Connection) {
    while let Ok(payload) = connection.read_datagram().await {
        if connection.send_datagram(payload).is_err() {
            return;
        }
    }
}

/// Sends all datagrams of a run, and says how many came back.
pub(crate) async fn ask(connection: &Connection, exchange: &Exchange, size: u16, block: &[u8]) -> anyhow::Result<serde_json::Value> {
    let filling = usize::from(size).checked_sub(NUMBER_LEN).and_then(|len| block.get(..len)).context("no such size")?;
    let (began, cpu_before_ns) = (Instant::now(), cpu_ns());
    let (mut sent, mut settled) = (0, 0);
    // Neither memory nor a clock for each datagram, as in ours.
    let mut room = BytesMut::new();
    let mut is_back = vec![false; exchange.count];
    let mut look = tokio::time::interval(LOST_AFTER);
    let mut come_since_look = true;
    while settled < exchange.count {
        while sent < exchange.count && sent < settled + exchange.in_flight {
            let number = (sent as u64).to_be_bytes();
            if room.capacity() < number.len() + filling.len() {
                room.reserve(BLOCK_LEN);
            }
            room.extend_from_slice(&number);
            room.extend_from_slice(filling);
            connection.send_datagram(room.split().freeze())?;
            sent += 1;
        }
        tokio::select! {
            biased;
            payload = connection.read_datagram() => {
                let payload = payload?;
                let number = payload.first_chunk().map(|&number| u64::from_be_bytes(number) as usize);
                let number = number.filter(|&number| number < sent && payload[NUMBER_LEN..] == *filling);
                let number = number.context("another datagram came back than was sent")?;
                ensure!(!std::mem::replace(&mut is_back[number], true), "a datagram came back twice");
                come_since_look = true;
                settled = (settled + 1).min(sent);
            }
            _ = look.tick() => {
                if !std::mem::take(&mut come_since_look) {
                    settled = sent;
                }
            }
        }
    }
    let back = is_back.iter().filter(|&&is_back| is_back).count();
    ensure!(back > 0, "no datagram came back");
    Ok(json!({
        "event": "datagrams",
        "bytes": size,
        "sent": sent,
        "lost": sent - back,
        "per_second": back as f64 / began.elapsed().as_secs_f64(),
        "cpu_ns_per_datagram": (cpu_ns() - cpu_before_ns) as f64 / back as f64,
    }))
}
