//! What a data path calls, and what it passes.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use crate::datapath::Sockets;
use crate::endpoint::EndpointId;
use crate::queue::{SendQueue, Source};
use crate::stream::{Accepted, StreamEnd, StreamId, StreamInput, Taken};

/// The protocol on top of a data path. Monomorphised: no virtual call per message.
pub trait Handler {
    /// A turn begins, after the wait. The place to read the clock.
    fn turn_started(&mut self) {}

    /// One message arrived: a datagram, or a GRO buffer of equal datagrams from one sender.
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue);

    /// A message arrived at the endpoint of this token of which there is nothing to show: the kernel cut it off, or named no sender.
    fn truncated(&mut self, token: u64) {
        let _ = token;
    }

    /// ICMP reported that a datagram sent from a relay endpoint did not arrive.
    fn icmp(&mut self, endpoint: EndpointId, token: u64, error: IcmpError, tx: &mut SendQueue) {
        let _ = (endpoint, token, error, tx);
    }

    /// Datagrams queued on `endpoint` could not be sent, after every fall-back.
    fn send_failed(&mut self, endpoint: EndpointId, datagrams: u32, cause: SendFailure) {
        let _ = (endpoint, datagrams, cause);
    }

    /// A connection arrived. Returns whether it may stay; without an answer of the handler's own none may.
    fn accepted(&mut self, stream: StreamId, accepted: &Accepted, tx: &mut SendQueue) -> bool {
        let _ = (stream, accepted, tx);
        false
    }

    /// Whether a connection has proven nothing yet, so that it waits until everybody else has been served, and shares a bounded time with others
    /// like it.
    fn is_stranger(&self, stream: StreamId) -> bool {
        let _ = stream;
        false
    }

    /// Whether a connection that has something to read is to be read in this turn. If not, it is asked for again in the next.
    fn may_read(&mut self, stream: StreamId) -> bool {
        let _ = stream;
        true
    }

    /// Bytes came on a connection.
    fn stream_received(&mut self, input: &mut StreamInput<'_>, tx: &mut SendQueue) -> Taken {
        let _ = (input, tx);
        Taken::ALL
    }

    /// Whether what is sent on a connection passes [`seal`](Self::seal).
    fn is_sealed(&self, stream: StreamId) -> bool {
        let _ = stream;
        false
    }

    /// Appends to `sealed` what is to be sent in place of `plain`, one message.
    ///
    /// # Errors
    /// Anything: the connection is closed then.
    fn seal(&mut self, stream: StreamId, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        let _ = stream;
        sealed.extend_from_slice(plain);
        Ok(())
    }

    /// Messages queued for a connection could not be sent, or had to make room for newer ones
    /// ([`SendFailure::BufferFull`]).
    fn stream_failed(&mut self, stream: StreamId, messages: u32, cause: SendFailure) {
        let _ = (stream, messages, cause);
    }

    /// A connection that [`Sockets::connect`] began is there, and is not read before it is joined with another one; or it
    /// could not be had, and its name means nothing any more.
    fn connected(&mut self, stream: StreamId, result: io::Result<()>, tx: &mut SendQueue) {
        let _ = (stream, result, tx);
    }

    /// The other side of a joined connection has ended what it sends; what this side sends goes on.
    fn stream_ended(&mut self, stream: StreamId) {
        let _ = stream;
    }

    /// Appends to `sealed` what ends this side of a sealed connection.
    fn farewell(&mut self, stream: StreamId, sealed: &mut Vec<u8>) {
        let _ = (stream, sealed);
    }

    /// A connection that was accepted or made is gone; its name means nothing any more.
    fn stream_closed(&mut self, stream: StreamId, end: StreamEnd) {
        let _ = (stream, end);
    }

    /// All messages of the turn were shown; sockets may be opened and closed, and what is queued here leaves with the rest.
    fn turn_ended(&mut self, tx: &mut SendQueue, sockets: &mut Sockets<'_>) {
        let _ = (tx, sockets);
    }

    /// Something an operator should see once.
    fn warning(&mut self, warning: Warning) {
        let _ = warning;
    }
}

/// Something received from which payload can be forwarded.
pub trait Payload {
    /// Where it lies.
    #[doc(hidden)]
    fn place(&self) -> Place;
}

/// Where received bytes lie.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub(crate) source: Source,
    /// Where they begin there.
    pub(crate) base: u32,
    pub(crate) len: usize,
}

impl Payload for Received<'_> {
    #[inline]
    fn place(&self) -> Place {
        Place {
            source: Source::Slot(self.slot),
            base: 0,
            len: self.bytes.len(),
        }
    }
}

impl Payload for StreamInput<'_> {
    #[inline]
    fn place(&self) -> Place {
        Place {
            source: Source::Stream,
            base: self.base(),
            len: self.bytes().len(),
        }
    }
}

/// One received message.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Where it arrived.
    pub endpoint: EndpointId,
    /// The number given with [`Bind::token`](crate::Bind).
    pub token: u64,
    /// Who sent it.
    pub remote: SocketAddr,
    /// One datagram, or several back to back.
    pub bytes: &'a [u8],
    /// Bytes of each datagram; the last one may be shorter. Equal to `bytes.len()` for a single datagram.
    pub segment: usize,
    pub(crate) slot: u32,
}

impl<'a> Received<'a> {
    /// The datagrams of this message; at least one, and an empty one if the datagram was empty.
    #[inline]
    pub fn segments(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (bytes, segment) = (self.bytes, self.segment.max(1));
        (0..self.segment_count()).map(move |index| {
            let start = index * segment;
            &bytes[start..bytes.len().min(start + segment)]
        })
    }

    /// How many datagrams this message holds, at least one.
    #[inline]
    pub fn segment_count(&self) -> usize {
        self.bytes.len().div_ceil(self.segment.max(1)).max(1)
    }
}

/// An ICMP or ICMPv6 error about a datagram sent earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Destination of that datagram.
    pub peer: SocketAddr,
    /// ICMP type.
    pub kind: u8,
    /// ICMP code.
    pub code: u8,
    /// Next-hop MTU for "fragmentation needed" and "packet too big", else 0.
    pub mtu: u32,
    /// Whether it is ICMPv6.
    pub v6: bool,
}

/// Why datagrams could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendFailure {
    /// The socket's send buffer or the device queue was full.
    BufferFull,
    /// The endpoint was closed, or never existed.
    Closed,
    /// Larger than UDP or the path allows for a datagram that must not be fragmented.
    MessageTooLong,
    /// A local firewall or a missing right.
    NotPermitted,
    /// Anything else.
    Other,
    /// No route, or a pending ICMP error that came again.
    Unreachable,
}

impl SendFailure {
    /// All causes, in the order of [`index`](Self::index).
    pub const ALL: [Self; 6] = [
        Self::BufferFull,
        Self::Closed,
        Self::MessageTooLong,
        Self::NotPermitted,
        Self::Other,
        Self::Unreachable,
    ];

    /// Position in [`ALL`](Self::ALL).
    pub const fn index(self) -> usize {
        self as usize
    }

    /// A short name, fit for a metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BufferFull => "buffer_full",
            Self::Closed => "closed",
            Self::MessageTooLong => "message_too_long",
            Self::NotPermitted => "not_permitted",
            Self::Other => "other",
            Self::Unreachable => "unreachable",
        }
    }
}

impl fmt::Display for SendFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A kernel feature that turned out missing and is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// GRO is not available on a socket; datagrams arrive one per message.
    GroUnavailable {
        /// The socket.
        local: SocketAddr,
        /// The error number.
        errno: i32,
    },
    /// GSO failed on a socket where the datagrams alone went through; it sends them one by one from now on.
    GsoDisabled {
        /// The socket.
        local: SocketAddr,
        /// The error number.
        errno: i32,
    },
    /// `recvmmsg` is not available in this process.
    RecvmmsgUnavailable {
        /// The error number.
        errno: i32,
    },
    /// `sendmmsg` is not available in this process.
    SendmmsgUnavailable {
        /// The error number.
        errno: i32,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = |errno: i32| io::Error::from_raw_os_error(errno);
        match *self {
            Self::GroUnavailable { local, errno } => {
                write!(
                    f,
                    "UDP GRO is not available on {local}, receiving single datagrams: {}",
                    reason(errno)
                )
            }
            Self::GsoDisabled { local, errno } => {
                write!(
                    f,
                    "UDP GSO failed on {local} and is off for this socket: {}",
                    reason(errno)
                )
            }
            Self::RecvmmsgUnavailable { errno } => {
                write!(
                    f,
                    "recvmmsg is not available, receiving one message per call: {}",
                    reason(errno)
                )
            }
            Self::SendmmsgUnavailable { errno } => {
                write!(
                    f,
                    "sendmmsg is not available, sending one message per call: {}",
                    reason(errno)
                )
            }
        }
    }
}
