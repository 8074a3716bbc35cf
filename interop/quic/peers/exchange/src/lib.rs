//! What the peers in Rust have in common: payloads and their hashes as in `crates/load/src/quic/payload.rs`, and clients of TLS.
#![forbid(unsafe_code)]

#[cfg(feature = "tls")]
mod tls;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

#[cfg(feature = "tls")]
pub use tls::{Client, Suite};

/// The name of the exchange in the handshake.
pub const ALPN: &[u8] = b"turnbuckle-perf";

/// What a client is to move, as its command line says.
#[derive(clap::Args)]
pub struct Task {
    /// Address of the server
    pub server: SocketAddr,
    /// Bytes to send, in MiB
    #[arg(long, value_delimiter = ',')]
    up: Vec<u64>,
    /// Bytes to ask for, in MiB
    #[arg(long, value_delimiter = ',')]
    down: Vec<u64>,
    #[arg(long, default_value_t = 1)]
    runs: u16,
    /// Seconds that a run may take
    #[arg(long, default_value_t = 30)]
    timeout: u64,
}

impl Task {
    /// Returns whether bytes go up, and how many, for each run.
    pub fn transfers(&self) -> impl Iterator<Item = (bool, u64)> {
        let up = self.up.iter().map(|mib| (true, mib << 20));
        let all = up.chain(self.down.iter().map(|mib| (false, mib << 20)));
        all.flat_map(|transfer| std::iter::repeat_n(transfer, self.runs.into()))
    }

    /// Returns the time that a run may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

/// Room for what has come that a client's socket asks for, bytes: a window's worth, though the client is not scheduled for a while. A path that loses
/// nothing is to lose nothing. After a client has moved it matters most: the server may send one datagram to the new address until it hears from there
/// (RFC 9000 §8.1), and a client that only receives says nothing more when that one is lost.
const RECEIVE_BUFFER_LEN: usize = 8 << 20;

/// Returns a socket towards a server, bound to any port, with room for bursts as far as the system allows it.
///
/// # Errors
/// No port is left, or what `setsockopt` returns.
pub fn socket(server: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    // Without the privilege the system's bound holds.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_LEN).is_err() {
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_LEN)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Bytes after which the payload repeats.
const PERIOD: usize = 65_521;

/// Returns the block that payloads are pieces of.
pub fn block() -> Vec<u8> {
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
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    block: &'a [u8],
    len: u64,
}

impl<'a> Payload<'a> {
    pub fn new(block: &'a [u8], len: u64) -> Self {
        Self { block, len }
    }

    pub fn pieces(self) -> impl Iterator<Item = &'a [u8]> {
        let mut left = self.len;
        std::iter::from_fn(move || {
            let len = self.block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            left -= len as u64;
            (len > 0).then(|| &self.block[..len])
        })
    }

    /// Returns the length and the CRC-32.
    pub fn checked(self) -> (u64, u32) {
        let mut hasher = crc32fast::Hasher::new();
        self.pieces().for_each(|piece| hasher.update(piece));
        (self.len, hasher.finalize())
    }
}

/// Returns what an answer begins with, if this has come.
pub fn head((len, hash): (u64, u32)) -> Vec<u8> {
    [&len.to_be_bytes()[..], &hash.to_be_bytes()].concat()
}
