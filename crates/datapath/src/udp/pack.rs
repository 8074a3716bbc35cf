//! Turning trains into messages of one batch.
//!
//! Payload goes to the kernel from where it was received. One exception, for speed: the pieces of a small datagram (a
//! header and 120 bytes, say) are first copied together, because the kernel takes some 35 ns per piece to find and copy
//! it, and copying so few bytes here takes a fifth of that; see [`STAGED_LEN_MAX`].

use turnbuckle_sys::receive::Slots;
use turnbuckle_sys::send::{Batch, Scratch};

use crate::names::narrow;
use crate::queue::{Memory, RunRecord, SendQueue, Train};

/// Longest datagram whose pieces are copied together, bytes. Chosen with the `namespaces` bench, `--program add` with `--size`
/// from 60 to 1,200.
const STAGED_LEN_MAX: u32 = 512;
/// Bytes that one batch may copy together; what does not fit is sent in pieces.
const STAGING_LEN: usize = 256 * 1024;
const ZEROS: [u8; 3] = [0; 3];

/// Where received bytes lie until the flush.
#[derive(Clone, Copy)]
pub(crate) struct Buffers<'a> {
    /// Those of datagrams.
    pub(crate) slots: &'a Slots,
    /// Those of connections.
    pub(crate) streams: &'a [u8],
}

impl<'a> Memory<'a> for Buffers<'a> {
    #[inline]
    fn slot(self, slot: u32) -> &'a [u8] {
        self.slots.bytes(slot as usize)
    }

    #[inline]
    fn streams(self) -> &'a [u8] {
        self.streams
    }
}

/// Where a message of a batch came from: `count` datagrams of a train. More than one means a `UDP_SEGMENT` send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) train: u32,
    pub(crate) count: u32,
}

/// The arrays that batches are packed in, kept from batch to batch.
pub(crate) struct Outbox {
    scratch: Scratch,
    origins: Vec<Origin>,
    staging: Box<[u8]>,
}

impl Outbox {
    pub(crate) fn with_capacity(messages: usize) -> Self {
        Self {
            scratch: Scratch::with_capacity(messages),
            origins: Vec::with_capacity(messages),
            staging: vec![0; STAGING_LEN].into(),
        }
    }

    /// Returns the bytes of a run's only datagram, copied together if it has a prefix or a trailer; `None` if it is too long for that.
    #[inline]
    pub(crate) fn contiguous<'a>(
        &'a mut self,
        queue: &'a SendQueue,
        buffers: Buffers<'a>,
        run: &RunRecord,
    ) -> Option<&'a [u8]> {
        let (start, len) = run.payload(0);
        let payload = &queue.source(buffers, run.source)[start..start + len];
        if run.is_bare() {
            return Some(payload);
        }
        let prefix = queue.prefix(run);
        let whole_len = prefix.len() + len + usize::from(run.trailer);
        if whole_len > STAGED_LEN_MAX as usize {
            return None;
        }
        let area = &mut self.staging[..whole_len];
        put_datagram(area, prefix, payload, run.trailer);
        Some(area)
    }

    /// Starts an empty batch of datagrams that lie in `queue` and `buffers`.
    pub(crate) fn pack<'a>(&'a mut self, queue: &'a SendQueue, buffers: Buffers<'a>) -> Packer<'a> {
        self.origins.clear();
        Packer {
            queue,
            buffers,
            batch: self.scratch.batch(),
            origins: &mut self.origins,
            staging: &mut self.staging,
        }
    }
}

/// A batch being packed, and then sent.
pub(crate) struct Packer<'a> {
    queue: &'a SendQueue,
    buffers: Buffers<'a>,
    pub(crate) batch: Batch<'a, 'a>,
    origins: &'a mut Vec<Origin>,
    /// What is left of the staging area.
    staging: &'a mut [u8],
}

impl<'a> Packer<'a> {
    /// Returns the origin of each message of the batch.
    pub(crate) fn origins(&self) -> &[Origin] {
        self.origins
    }

    /// Adds a train as one `UDP_SEGMENT` message.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a train's datagrams are at most 65,507 bytes"
    )]
    pub(crate) fn train(&mut self, number: u32, train: &'a Train) {
        self.batch
            .message(&train.address, Some(train.wire_len as u16));
        self.origins.push(Origin {
            train: number,
            count: train.datagrams,
        });
        let (queue, buffers) = (self.queue, self.buffers);
        if train.wire_len <= STAGED_LEN_MAX
            && !queue.runs(train).all(RunRecord::is_contiguous)
            && let Some(area) = self.stage(train.bytes)
        {
            let mut rest = &mut *area;
            for run in queue.runs(train) {
                let (bytes, prefix) = (queue.source(buffers, run.source), queue.prefix(run));
                for index in 0..run.count {
                    let (start, len) = run.payload(index);
                    rest = put_datagram(rest, prefix, &bytes[start..start + len], run.trailer);
                }
            }
            self.batch.piece(area);
            return;
        }
        for run in queue.runs(train) {
            let bytes = queue.source(buffers, run.source);
            if run.is_contiguous() {
                let (last, last_len) = run.payload(run.count - 1);
                self.batch
                    .piece(&bytes[run.start as usize..last + last_len]);
            } else {
                let prefix = queue.prefix(run);
                for index in 0..run.count {
                    let (start, len) = run.payload(index);
                    self.pieces(prefix, &bytes[start..start + len], run.trailer);
                }
            }
        }
    }

    /// Adds a train as one message per datagram.
    #[inline]
    pub(crate) fn singles(&mut self, number: u32, train: &'a Train) {
        for run in self.queue.runs(train) {
            self.run_singly(number, train, run);
        }
    }

    /// Adds one run of a train as one message per datagram.
    #[inline]
    pub(crate) fn run_singly(&mut self, number: u32, train: &'a Train, run: &RunRecord) {
        let bytes = self.queue.source(self.buffers, run.source);
        let prefix = self.queue.prefix(run);
        for index in 0..run.count {
            let (start, len) = run.payload(index);
            let payload = &bytes[start..start + len];
            self.batch.message(&train.address, None);
            self.origins.push(Origin {
                train: number,
                count: 1,
            });
            if train.wire_len <= STAGED_LEN_MAX
                && !run.is_bare()
                && let Some(area) = self.stage(narrow(prefix.len() + len) + u32::from(run.trailer))
            {
                put_datagram(area, prefix, payload, run.trailer);
                self.batch.piece(area);
            } else {
                self.pieces(prefix, payload, run.trailer);
            }
        }
    }

    /// Takes `len` bytes of the staging area.
    #[inline]
    fn stage(&mut self, len: u32) -> Option<&'a mut [u8]> {
        if self.staging.len() < len as usize {
            return None;
        }
        let (area, rest) = std::mem::take(&mut self.staging).split_at_mut(len as usize);
        self.staging = rest;
        Some(area)
    }

    /// Adds the pieces of one datagram; an empty datagram has none.
    #[inline]
    fn pieces(&mut self, prefix: &'a [u8], payload: &'a [u8], trailer: u8) {
        if !prefix.is_empty() {
            self.batch.piece(prefix);
        }
        if !payload.is_empty() {
            self.batch.piece(payload);
        }
        if trailer > 0 {
            self.batch.piece(&ZEROS[..usize::from(trailer)]);
        }
    }
}

/// Writes one datagram to the start of `area` and returns what is left of it.
#[inline]
fn put_datagram<'a>(
    area: &'a mut [u8],
    prefix: &[u8],
    payload: &[u8],
    trailer: u8,
) -> &'a mut [u8] {
    let area = put(area, prefix);
    let area = put(area, payload);
    put(area, &ZEROS[..usize::from(trailer)])
}

#[inline]
fn put<'a>(area: &'a mut [u8], bytes: &[u8]) -> &'a mut [u8] {
    let (here, rest) = area.split_at_mut(bytes.len());
    here.copy_from_slice(bytes);
    rest
}
