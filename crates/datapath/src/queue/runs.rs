//! Strided runs of received messages: what trains, and what goes to connections, are made of.

use std::net::SocketAddr;

use turnbuckle_sys::send::PIECES_MAX;

use crate::names::{EndpointId, narrow};
use crate::views::{Payload, Place, Source};

/// Longest prefix of `SendQueue::forward`, bytes.
pub const PREFIX_LEN_MAX: usize = 64;
/// Longest trailer of `SendQueue::forward`, bytes.
pub const TRAILER_LEN_MAX: u8 = 3;

/// Payload bytes of one send, IPv4's limit, which suits IPv6 too.
pub(crate) const TRAIN_BYTES_MAX: u32 = 65_507;
/// Segments of one send that some kernel allows (`UDP_MAX_SEGMENTS`).
pub(crate) const TRAIN_SEGMENTS_MAX: u16 = 128;
/// Prefix, payload and trailer of every datagram of the longest train fit one message.
const _: () = assert!(TRAIN_SEGMENTS_MAX as usize * 3 <= PIECES_MAX);

/// The end of a list of runs or trains.
pub(super) const NONE: u32 = u32::MAX;

/// Datagrams inside one received message that go the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Offset of the first payload.
    pub start: usize,
    /// Distance from one payload to the next.
    pub stride: usize,
    /// Bytes of each payload but the last.
    pub len: usize,
    /// Bytes of the last payload, at most `len`; the only one's when `count` is 1.
    pub last_len: usize,
    /// Number of payloads, at least one.
    pub count: usize,
}

impl Run {
    /// Returns a run of one payload.
    pub const fn single(start: usize, len: usize) -> Self {
        Self {
            start,
            stride: len,
            len,
            last_len: len,
            count: 1,
        }
    }
}

/// Gives access to received bytes until the flush. A data path has receive slots and an arena; a test or a simulation may replace it.
pub trait Memory<'a>: Copy {
    /// Returns the bytes of the datagrams that were received into this slot.
    fn slot(self, slot: u32) -> &'a [u8];

    /// Returns the bytes that were read from connections.
    fn streams(self) -> &'a [u8];
}

/// One datagram of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueuedDatagram<'a> {
    /// Where it leaves.
    pub endpoint: EndpointId,
    /// Where it goes.
    pub to: SocketAddr,
    /// Whether it must not be fragmented.
    pub dont_fragment: bool,
    /// What it is made of: prefix, payload, trailer.
    pub parts: [&'a [u8]; 3],
}

const ZEROS: [u8; TRAILER_LEN_MAX as usize] = [0; TRAILER_LEN_MAX as usize];

/// Returns prefix, payload and trailer of one message.
#[inline]
pub(super) fn parts<'a>(prefix: &'a [u8], payload: &'a [u8], trailer: u8) -> [&'a [u8]; 3] {
    [prefix, payload, &ZEROS[..usize::from(trailer)]]
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RunRecord {
    pub(crate) source: Source,
    pub(crate) start: u32,
    pub(crate) stride: u32,
    pub(crate) len: u32,
    pub(crate) last_len: u32,
    pub(crate) count: u32,
    /// Offset of the prefix in the arena.
    pub(super) prefix: u32,
    pub(super) prefix_len: u8,
    pub(crate) trailer: u8,
    pub(super) next: u32,
}

impl RunRecord {
    /// Returns start and length of payload number `index`.
    #[inline]
    pub(crate) fn payload(&self, index: u32) -> (usize, usize) {
        let start = self.start as usize + index as usize * self.stride as usize;
        let len = if index + 1 == self.count {
            self.last_len
        } else {
            self.len
        };
        (start, len as usize)
    }

    /// Returns whether the payloads are contiguous and nothing is inserted between them, so that they can be sent as one piece.
    #[inline]
    pub(crate) fn is_contiguous(&self) -> bool {
        self.stride == self.len && self.is_bare()
    }

    /// Returns whether each datagram is its payload alone, without prefix or trailer.
    #[inline]
    pub(crate) fn is_bare(&self) -> bool {
        self.prefix_len == 0 && self.trailer == 0
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamped {
    /// Turn in which `value` was written.
    pub(super) stamp: u32,
    pub(super) value: u32,
}

/// Checks a run against its message.
#[inline]
pub(super) fn record(
    payload: &impl Payload,
    run: Run,
    prefix: u32,
    prefix_len: u8,
    trailer: u8,
) -> RunRecord {
    let Run {
        start,
        stride,
        len,
        last_len,
        count,
    } = run;
    assert!(
        count >= 1 && (count == 1 || last_len <= len),
        "a train's last datagram may be shorter, never longer"
    );
    let last_end = start + (count - 1) * stride + last_len;
    let end = if count > 1 {
        last_end.max(start + (count - 2) * stride + len)
    } else {
        last_end
    };
    let Place {
        source,
        base,
        len: payload_len,
    } = payload.place();
    assert!(end <= payload_len, "run reaches beyond its message");
    RunRecord {
        source,
        start: base + narrow(start),
        stride: narrow(stride),
        len: narrow(if count == 1 { last_len } else { len }),
        last_len: narrow(last_len),
        count: narrow(count),
        prefix,
        prefix_len,
        trailer,
        next: NONE,
    }
}
