//! What a data path passes to a handler: messages, bytes of connections, and where they lie until the flush.

use std::net::SocketAddr;
use std::ops::Range;

use crate::names::{EndpointId, StreamId, narrow};

/// Something received from which payload can be forwarded.
pub trait Payload {
    /// Returns where the received bytes lie.
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
    /// Returns a message of `bytes`, in datagrams of `segment` bytes each, which [`Memory::slot`](crate::Memory::slot) returns for the number
    /// `slot` until the flush. Meant for a simulation in place of a data path.
    pub const fn new(
        (endpoint, token): (EndpointId, u64),
        remote: SocketAddr,
        bytes: &'a [u8],
        segment: usize,
        slot: u32,
    ) -> Self {
        Self {
            endpoint,
            token,
            remote,
            bytes,
            segment,
            slot,
        }
    }

    /// Returns the datagrams of this message; at least one, and an empty one if the datagram was empty.
    #[inline]
    pub fn segments(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (bytes, segment) = (self.bytes, self.segment.max(1));
        (0..self.segment_count()).map(move |index| {
            let start = index * segment;
            &bytes[start..bytes.len().min(start + segment)]
        })
    }

    /// Returns how many datagrams this message holds, at least one.
    #[inline]
    pub fn segment_count(&self) -> usize {
        self.bytes.len().div_ceil(self.segment.max(1)).max(1)
    }
}

/// The decision about a connection that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is closed at once.
    Refused,
    /// It stays. Until `SendQueue::prove_stream` it waits in each turn until everybody else has been served, and shares a bounded time
    /// with others like it.
    Stranger,
    /// It stays and is served like all others.
    Trusted,
}

/// A connection just accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The number given with `Listen::token`.
    pub token: u64,
    /// Who connected.
    pub remote: SocketAddr,
}

/// How much a handler has consumed of what it was shown of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All but these ranges, which come again in this order in front of what comes next. What is forwarded may lie in them too.
    AllBut([Range<usize>; 2]),
    /// The connection ends, after what is queued for it.
    Close,
    /// The other side said in its own protocol that nothing more comes: as if it had ended the stream itself.
    Ended,
}

impl Taken {
    /// Everything.
    pub const ALL: Self = Self::AllBut([0..0, 0..0]);
}

/// Bytes of a connection that were kept, and then those that came now.
#[derive(Debug)]
pub struct StreamInput<'a> {
    /// The connection.
    pub stream: StreamId,
    /// How many bytes were kept before.
    pub kept_len: usize,
    /// Whether the connection was admitted as a stranger and has not proven itself.
    pub is_stranger: bool,
    bytes: &'a mut [u8],
    /// Where `bytes` begins in the arena.
    base: u32,
    awaited_len: usize,
    is_cut: bool,
}

impl<'a> StreamInput<'a> {
    /// Returns the view of `bytes` on `stream`, the first `kept_len` of which were kept. They begin at `base` in
    /// [`Memory::streams`](crate::Memory::streams) until the flush.
    pub const fn new(
        stream: StreamId,
        is_stranger: bool,
        kept_len: usize,
        bytes: &'a mut [u8],
        base: u32,
    ) -> Self {
        Self {
            stream,
            kept_len,
            is_stranger,
            bytes,
            base,
            awaited_len: 0,
            is_cut: false,
        }
    }

    /// Returns how many bytes have to be there before the handler wants to see any again.
    pub const fn awaited_len(&self) -> usize {
        self.awaited_len
    }

    /// Returns whether the handler asked to be shown what it keeps in the next turn, even if nothing new arrives.
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns the bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// Returns the bytes, to be decrypted in place. What was forwarded already must stay as it is.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Defers the next call until `len` bytes are there, kept ones included.
    pub fn await_len(&mut self, len: usize) {
        self.awaited_len = len;
    }

    /// Requests another call in the next turn with what is kept, even if nothing new arrives: this turn has done enough for the connection.
    pub fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Leaves out the first `len` bytes, as if they had not come; positions count from behind them.
    pub fn skip(&mut self, len: usize) {
        self.bytes = &mut std::mem::take(&mut self.bytes)[len..];
        self.base += narrow(len);
        self.kept_len = self.kept_len.saturating_sub(len);
    }

    pub(crate) fn base(&self) -> u32 {
        self.base
    }
}

/// Where a run's payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// In the arena of this queue.
    Arena,
    /// In a receive slot.
    Slot(u32),
    /// In the arena that connections are read into.
    Stream,
    /// In a buffer that the queue owns.
    Owned(u32),
}
