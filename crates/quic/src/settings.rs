//! What an endpoint is set to.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::keys::Keys;

/// What an endpoint is set to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The keys of the server.
    pub keys: Keys,
    /// The number of the shard, which connection ids carry.
    pub shard: u8,
    /// Randomness of this endpoint. It must be another one at each start.
    pub seed: [u8; 32],
    /// Reads the calendar by which address tokens expire.
    pub wall_clock: WallClock,
    /// Sizes of packets.
    pub path: Path,
    /// Limits of memory and time.
    pub limits: Limits,
}

/// Reads the calendar.
#[derive(Clone)]
pub struct WallClock(pub Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallClock")
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self(Arc::new(SystemTime::now))
    }
}

/// Sizes of packets, bytes of UDP payload.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// What connections begin with: at least 1,200. With less than 1,280 or so a datagram that carries another QUIC connection's Initial does not fit.
    pub mtu_initial: u16,
    /// Up to what larger packets are tried (RFC 9000 §14.3); `None` for no trial. A host that tries them must forbid fragments.
    pub mtu_max: Option<u16>,
    /// Datagrams of one train.
    pub train_datagrams: usize,
    /// Datagrams of all connections after which [`Endpoint::transmit`](crate::Endpoint::transmit) leaves the rest to its next call. What a host sends
    /// only when a call has returned, it sends the sooner the fewer they are: the other side works on the first while the next are made.
    pub turn_datagrams: usize,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            mtu_initial: 1350,
            mtu_max: Some(1452),
            train_datagrams: 32,
            turn_datagrams: 256,
        }
    }
}

/// Limits of memory and time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Datagrams that wait because they have proven nothing.
    pub waiting: usize,
    /// Bytes of them.
    pub waiting_bytes: usize,
    /// Connections.
    pub connections: usize,
    /// Time until a handshake must be done.
    pub handshake: Duration,
    /// Time after which a connection on which nothing comes ends.
    pub idle: Duration,
    /// Bidirectional streams that the other side may have open.
    pub streams: u32,
    /// Bytes of one stream that may wait to be read.
    pub stream_window: u32,
    /// Bytes of all streams of a connection that may wait to be read.
    pub window: u32,
    /// Bytes of a connection that may wait to be acknowledged.
    pub send_window: u32,
    /// Bytes of DATAGRAM frames that may wait, each way.
    pub datagrams: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiting: 1_024,
            waiting_bytes: 1 << 20,
            connections: 16_384,
            handshake: Duration::from_secs(10),
            idle: Duration::from_secs(30),
            streams: 128,
            stream_window: 64 * 1024,
            window: 256 * 1024,
            send_window: 256 * 1024,
            datagrams: 128 * 1024,
        }
    }
}
