//! What is known of a connection and of its streams: how they ended, what cannot be sent, figures.

use std::fmt;
use std::time::Duration;

/// Why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Nothing came for too long.
    Idle,
    /// The handshake took too long.
    HandshakeLate,
    /// The other side has forgotten the connection (RFC 9000 §10.3).
    Reset,
    /// The other side closed it, with this code of its application.
    Remote(u64),
    /// This side closed it.
    Local,
    /// The protocol was violated, or the handshake failed.
    Failed(String),
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => f.write_str("nothing came for too long"),
            Self::HandshakeLate => f.write_str("the handshake took too long"),
            Self::Reset => f.write_str("the other side knows no such connection"),
            Self::Remote(code) => write!(f, "closed by the other side with code {code}"),
            Self::Local => f.write_str("closed"),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

/// Why a stream cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The other side abandoned what it was sending, with this code.
    Reset(u64),
    /// The other side wants no more, with this code.
    Stopped(u64),
    /// There is no such stream.
    Unknown,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(code) => write!(f, "reset with code {code}"),
            Self::Stopped(code) => write!(f, "stopped with code {code}"),
            Self::Unknown => f.write_str("no such stream"),
        }
    }
}

impl std::error::Error for StreamError {}

/// How far a stream was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// More may come.
    Open,
    /// That was its end.
    Finished,
}

/// Why a DATAGRAM frame cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendDatagramError {
    /// The other side takes none.
    Unsupported,
    /// It is larger than a packet takes.
    TooLarge,
    /// Too many bytes are waiting.
    Blocked,
}

/// Why no connection can be begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// What a connection has seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    /// Packets sent on the present path.
    pub sent: u64,
    /// Packets of it that are held for lost.
    pub lost: u64,
    /// Times that loss made the sender slow down.
    pub congestion_events: u64,
    /// ACK frames sent.
    pub acks_sent: u64,
    /// ACK frames received.
    pub acks_received: u64,
    /// Datagrams handed out for sending.
    pub datagrams_out: u64,
    /// Datagrams that were authentic.
    pub datagrams_in: u64,
    /// Largest datagram that the path is known to carry, bytes.
    pub mtu: u16,
    /// Round-trip time.
    pub rtt: Duration,
    /// Bytes that may be on their way.
    pub window: u64,
}
