//! Buffers that a handler fills and the queue then owns: for datagrams that are made in place and need not be copied.
//!
//! A buffer is lent, filled, queued, sent, and lent again. Memory is bounded: what grew beyond [`BUFFER_LEN_MAX`] and what is more than
//! [`SPARE_MAX`] buffers is given back to the system after the flush.

use super::runs::{NONE, RunRecord};
use crate::names::narrow;
use crate::views::Source;

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

    /// Lends an empty buffer.
    pub(super) fn lend(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps a buffer until it is sent: `segment` bytes in each datagram and the rest in the last. Returns `None`, and takes it back, if nothing
    /// is in it.
    pub(super) fn own(&mut self, bytes: Vec<u8>, segment: usize) -> Option<RunRecord> {
        if bytes.is_empty() {
            self.keep(bytes);
            return None;
        }
        let count = bytes.len().div_ceil(segment);
        let last_len = bytes.len() - (count - 1) * segment;
        let record = RunRecord {
            source: Source::Owned(narrow(self.queued.len())),
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
        self.queued.push(bytes);
        Some(record)
    }

    /// Takes back all buffers, after a flush.
    pub(super) fn clear(&mut self) {
        while let Some(buffer) = self.queued.pop() {
            self.keep(buffer);
        }
    }

    fn keep(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && (1..=BUFFER_LEN_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}
