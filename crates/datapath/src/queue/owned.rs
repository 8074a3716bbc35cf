//! Buffers that a handler fills and the queue then owns: for datagrams that are made in place and need not be copied.
//!
//! A buffer is lent, filled, queued, sent, and lent again. Memory is bounded: what grew beyond [`BUFFER_LEN_MAX`] and what is more than
//! [`SPARE_MAX`] buffers is given back to the system after the flush.

use std::net::SocketAddr;

use super::runs::{NONE, RunRecord};
use super::{SendQueue, Source, first_part};
use crate::names::{EndpointId, narrow};

/// Buffers kept for the next turn.
const SPARE_MAX: usize = 64;
/// Largest buffer that is kept, bytes: a train has at most 65,507, and its writer may reserve more.
const BUFFER_LEN_MAX: usize = 256 * 1024;

/// Buffers of this turn and of the next one.
#[derive(Debug, Default)]
pub(super) struct Owned {
    queued: Vec<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Owned {
    /// Returns the bytes of a queued buffer.
    #[inline]
    pub(super) fn bytes(&self, index: u32) -> &[u8] {
        &self.queued[index as usize]
    }

    fn keep(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && (1..=BUFFER_LEN_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Takes back all buffers, after a flush.
    pub(super) fn clear(&mut self) {
        while let Some(buffer) = self.queued.pop() {
            self.keep(buffer);
        }
    }
}

impl SendQueue {
    /// Lends an empty buffer for [`Self::send_owned`].
    pub fn take_buffer(&mut self) -> Vec<u8> {
        self.owned.spare.pop().unwrap_or_default()
    }

    /// Queues the datagrams in `bytes`, `segment` bytes in each and the rest in the last, without copying them. They form trains as forwarded
    /// ones do. An empty buffer is taken back and sends nothing.
    ///
    /// # Panics
    /// When `segment` is 0 and there are bytes.
    pub fn send_owned(
        &mut self,
        endpoint: EndpointId,
        to: SocketAddr,
        bytes: Vec<u8>,
        segment: usize,
    ) {
        if let Some(record) = self.own(bytes, segment) {
            self.join(endpoint, to, record);
        }
    }

    /// The same for datagrams that must not be fragmented: DF is set, or for IPv6 no fragment header is made. They are trains of their own.
    ///
    /// # Panics
    /// As [`Self::send_owned`].
    pub fn send_owned_unfragmented(
        &mut self,
        endpoint: EndpointId,
        to: SocketAddr,
        bytes: Vec<u8>,
        segment: usize,
    ) {
        let Some(mut rest) = self.own(bytes, segment) else {
            return;
        };
        let flow = self.flow_place(endpoint, to);
        let mut left = rest.count;
        while left > 0 {
            let room = self.room_when_empty(rest.len);
            let part = first_part(&mut rest, room);
            let number = self.push_train(endpoint, to, part, true);
            self.note_newest(flow, number);
            left -= part.count;
        }
    }

    /// Keeps a buffer until it is sent. `None` if there is nothing in it.
    fn own(&mut self, bytes: Vec<u8>, segment: usize) -> Option<RunRecord> {
        if bytes.is_empty() {
            self.owned.keep(bytes);
            return None;
        }
        let count = bytes.len().div_ceil(segment);
        let last_len = bytes.len() - (count - 1) * segment;
        let record = RunRecord {
            source: Source::Owned(narrow(self.owned.queued.len())),
            start: 0,
            stride: narrow(segment),
            len: narrow(if count == 1 { last_len } else { segment }),
            last_len: narrow(last_len),
            count: narrow(count),
            prefix: 0,
            prefix_len: 0,
            trailer: 0,
            next: NONE,
        };
        self.owned.queued.push(bytes);
        Some(record)
    }
}
