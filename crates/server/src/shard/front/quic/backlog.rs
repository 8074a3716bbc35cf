//! What a turn does not handle of what connections of QUIC receive.
//!
//! A client socket brings up to 64 buffers at once, each of which may hold dozens of packets of one bulk transfer. Handled in the turn that reads them,
//! they make it take tens of milliseconds, for which every call by TURN waits (docs/decisions/0068). So a turn has a share. What comes beyond
//! it waits here, behind which calls go on, and what there is no room for is lost: to QUIC that is a path without room, and its senders slow down.
//!
//! While there are calls by TURN the share is smaller, and nothing is handled when it comes: first the sockets are read and what calls have is sent.
//!
//! Invariant: datagrams leave in the order in which they came, and nothing is handled while something waits that came before.

use std::collections::VecDeque;

use turnbuckle_engine::ClientTuple;

/// Datagrams after which a turn handles no further ones: as many as leave of all connections in a turn.
pub(super) const DATAGRAMS_PER_TURN: usize = 256;
/// The same while there are allocations: some 100 us of deciphering, for which a call waits twice on its way.
pub(super) const DATAGRAMS_BESIDE_CALLS: usize = 64;
/// Bytes that may wait: what some ten turns handle.
pub(super) const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Buffers that are kept to be filled again: as many as one reading brings.
const SPARE_MAX: usize = 64;

/// Datagrams of one client back to back, each of `segment` bytes, the last perhaps shorter.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) client: ClientTuple,
    pub(super) bytes: Vec<u8>,
    pub(super) segment: usize,
}

/// The share of a turn, and what waits for the next one.
#[derive(Debug)]
pub(super) struct Backlog {
    /// Datagrams that this turn may still handle.
    share: usize,
    /// Nothing is handled when it comes.
    defers: bool,
    waiting: VecDeque<Batch>,
    /// Sum of what waits.
    bytes: usize,
    datagrams: usize,
    spare: Vec<Vec<u8>>,
}

impl Backlog {
    pub(super) fn new() -> Self {
        Self {
            share: DATAGRAMS_PER_TURN,
            defers: false,
            waiting: VecDeque::new(),
            bytes: 0,
            datagrams: 0,
            spare: Vec::new(),
        }
    }

    /// Returns whether nothing is handled when it comes in this turn, because there are calls.
    pub(super) const fn defers(&self) -> bool {
        self.defers
    }

    /// Gives the turn that begins its share, and returns it.
    pub(super) fn turn_started(&mut self, has_calls: bool) -> usize {
        self.defers = has_calls;
        self.share = match has_calls {
            true => DATAGRAMS_BESIDE_CALLS,
            false => DATAGRAMS_PER_TURN,
        };
        self.share
    }

    /// Returns how many datagrams wait.
    pub(super) fn len(&self) -> usize {
        self.datagrams
    }

    /// Takes as many of `datagrams` that have come now out of the share of the turn as may be handled at once, and returns their number.
    pub(super) fn admit(&mut self, datagrams: usize) -> usize {
        // guard: quic-calls-first
        if self.defers || !self.waiting.is_empty() {
            return 0;
        }
        // guard: quic-turn-share
        let admitted = datagrams.min(self.share);
        self.share = self.share.saturating_sub(admitted);
        admitted
    }

    /// Keeps datagrams for a later turn. Returns how many there is no room for.
    pub(super) fn put(&mut self, client: ClientTuple, bytes: &[u8], segment: usize) -> usize {
        let datagrams = bytes.len().div_ceil(segment);
        // guard: quic-backlog-room
        if self.bytes + bytes.len() > BYTES_MAX {
            return datagrams;
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.extend_from_slice(bytes);
        self.bytes += bytes.len();
        self.datagrams += datagrams;
        self.waiting.push_back(Batch {
            client,
            bytes: buffer,
            segment,
        });
        0
    }

    /// Takes out what has waited longest, while the turn has a share left. The last batch may exceed it.
    pub(super) fn next(&mut self) -> Option<Batch> {
        if self.share == 0 {
            return None;
        }
        let batch = self.waiting.pop_front()?;
        let datagrams = batch.bytes.len().div_ceil(batch.segment);
        self.share = self.share.saturating_sub(datagrams);
        self.bytes -= batch.bytes.len();
        self.datagrams -= datagrams;
        Some(batch)
    }

    /// Takes back the buffer of a batch that was handled.
    pub(super) fn recycle(&mut self, Batch { mut bytes, .. }: Batch) {
        if self.spare.len() < SPARE_MAX {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Drops what waits, and returns how many datagrams that is.
    pub(super) fn clear(&mut self) -> usize {
        self.waiting.clear();
        self.bytes = 0;
        std::mem::take(&mut self.datagrams)
    }
}
