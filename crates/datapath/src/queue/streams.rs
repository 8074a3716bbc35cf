//! What a turn wants to send to connections: runs in the order they were queued, for each connection.

use std::ops::Range;

use super::{NONE, Run, RunRecord, SendQueue, Source, Stamped, TRAILER_LEN_MAX, narrow, record};
use crate::handler::{Payload, Place};
use crate::queue::PREFIX_LEN_MAX;
use crate::stream::StreamId;

/// What a run is to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A message that must arrive.
    Control,
    /// Relayed data, which may be dropped when it has waited too long.
    Media,
    /// Bytes of a protocol below, sent as they are before anything else.
    Raw,
    /// Bytes of the connection that this one is joined with: all of them, in their order.
    Relayed,
}

#[derive(Clone, Copy, Debug)]
struct StreamRun {
    content: Content,
    record: RunRecord,
    next: u32,
}

/// The runs of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamTouched {
    pub(crate) stream: StreamId,
    /// Whether it is to be closed after that.
    pub(crate) close: bool,
    first: u32,
    last: u32,
}

/// The runs of all connections of a turn.
#[derive(Debug, Default)]
pub(super) struct StreamRuns {
    runs: Vec<StreamRun>,
    joins: Vec<(StreamId, StreamId)>,
    holds: Vec<(StreamId, bool)>,
    touched: Vec<StreamTouched>,
    /// For each connection index, its entry in `touched`.
    touched_by_stream: Vec<Stamped>,
}

impl StreamRuns {
    pub(super) fn is_empty(&self) -> bool {
        self.touched.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.joins.clear();
        self.holds.clear();
        self.touched.clear();
    }

    /// Forgets all stamps.
    pub(super) fn forget(&mut self) {
        self.touched_by_stream.fill(Stamped::default());
    }

    /// The entry of a connection, new or not.
    #[inline]
    fn touch(&mut self, stamp: u32, stream: StreamId) -> &mut StreamTouched {
        let index = stream.index();
        if index >= self.touched_by_stream.len() {
            self.touched_by_stream.resize(index + 1, Stamped::default());
        }
        let known = &mut self.touched_by_stream[index];
        let place = known.value as usize;
        let is_known = known.stamp == stamp
            && self
                .touched
                .get(place)
                .is_some_and(|touched| touched.stream == stream);
        if is_known {
            return &mut self.touched[place];
        }
        let place = self.touched.len();
        *known = Stamped {
            stamp,
            value: narrow(place),
        };
        self.touched.push(StreamTouched {
            stream,
            close: false,
            first: NONE,
            last: NONE,
        });
        &mut self.touched[place]
    }

    #[inline]
    fn push(&mut self, stamp: u32, stream: StreamId, content: Content, record: RunRecord) {
        let number = narrow(self.runs.len());
        self.runs.push(StreamRun {
            content,
            record,
            next: NONE,
        });
        let touched = self.touch(stamp, stream);
        let last = std::mem::replace(&mut touched.last, number);
        if last == NONE {
            touched.first = number;
        } else {
            self.runs[last as usize].next = number;
        }
    }
}

/// Bytes that a handler made, from which payload can be forwarded in the same turn.
#[derive(Clone, Copy, Debug)]
pub struct Staged {
    start: u32,
    len: u32,
}

impl Payload for Staged {
    #[inline]
    fn place(&self) -> Place {
        Place {
            source: Source::Arena,
            base: self.start,
            len: self.len as usize,
        }
    }
}

impl SendQueue {
    /// Copies `bytes` so that what is in them can be forwarded: what a connection holds beneath its encryption.
    pub fn stage(&mut self, bytes: &[u8]) -> Staged {
        let start = narrow(self.arena.len());
        self.arena.extend_from_slice(bytes);
        Staged {
            start,
            len: narrow(bytes.len()),
        }
    }

    /// Queues `run.count` messages of relayed data to a connection, each `prefix`, one payload of `message`, and `trailer` zero
    /// bytes, as with [`forward`](Self::forward). When the other side reads more slowly than they come, the oldest that wait are
    /// dropped.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    #[inline]
    pub fn stream_forward(
        &mut self,
        stream: StreamId,
        message: &impl Payload,
        run: Run,
        prefix: &[u8],
        trailer: u8,
    ) {
        assert!(
            prefix.len() <= PREFIX_LEN_MAX && trailer <= TRAILER_LEN_MAX,
            "prefix or trailer too long"
        );
        let (prefix, prefix_len) = self.store_prefix(prefix);
        let record = record(message, run, prefix, prefix_len, trailer);
        self.streams
            .push(self.stamp, stream, Content::Media, record);
    }

    /// Queues a copy of `bytes`, one message, to a connection. It arrives, or the connection is closed.
    pub fn stream_reply(&mut self, stream: StreamId, bytes: &[u8]) {
        self.push_bytes(stream, Content::Control, bytes);
    }

    /// Queues a copy of `bytes` to a connection, past [`Handler::seal`](crate::Handler::seal) and before everything
    /// that is sealed from now on: what the protocol that seals has to say itself.
    pub fn stream_raw(&mut self, stream: StreamId, bytes: &[u8]) {
        self.push_bytes(stream, Content::Raw, bytes);
    }

    /// Joins two connections: from now on what is read from one is to be sent on the other with
    /// [`stream_relay`](Self::stream_relay), neither is read while something waits for the other, and they end together.
    pub fn join_streams(&mut self, first: StreamId, second: StreamId) {
        self.streams.touch(self.stamp, first);
        self.streams.touch(self.stamp, second);
        self.streams.joins.push((first, second));
    }

    /// Reads nothing from a joined connection, whatever room there is, until this is called again with `false`.
    pub fn hold_back_stream(&mut self, stream: StreamId, is_held_back: bool) {
        self.streams.touch(self.stamp, stream);
        self.streams.holds.push((stream, is_held_back));
    }

    /// Queues `range` of `message`, which came on the connection that `stream` is joined with. Nothing of it is dropped as long as
    /// both connections are there.
    ///
    /// # Panics
    /// `range` is not in `message`.
    #[inline]
    pub fn stream_relay(&mut self, stream: StreamId, message: &impl Payload, range: Range<usize>) {
        let run = Run::single(range.start, range.len());
        let record = record(message, run, 0, 0, 0);
        self.streams
            .push(self.stamp, stream, Content::Relayed, record);
    }

    /// Closes a connection after what is queued for it, now and until the flush.
    pub fn close_stream(&mut self, stream: StreamId) {
        self.streams.touch(self.stamp, stream).close = true;
    }

    /// Has a connection looked at by the flush.
    pub(crate) fn touch_stream(&mut self, stream: StreamId) {
        self.streams.touch(self.stamp, stream);
    }

    /// Connections that are to be joined.
    pub(crate) fn joins(&self) -> &[(StreamId, StreamId)] {
        &self.streams.joins
    }

    /// Connections that are to be read no more, or again.
    pub(crate) fn holds(&self) -> &[(StreamId, bool)] {
        &self.streams.holds
    }

    /// Connections with something to do, in the order they were first named.
    pub(crate) fn touched_streams(&self) -> &[StreamTouched] {
        &self.streams.touched
    }

    /// The runs of a connection in sending order.
    #[inline]
    pub(crate) fn stream_runs<'a>(
        &'a self,
        touched: &StreamTouched,
    ) -> impl Iterator<Item = (Content, &'a RunRecord)> + Clone + use<'a> {
        let first = self.streams.runs.get(touched.first as usize);
        std::iter::successors(first, |run| self.streams.runs.get(run.next as usize))
            .map(|run| (run.content, &run.record))
    }

    fn push_bytes(&mut self, stream: StreamId, content: Content, bytes: &[u8]) {
        let start = narrow(self.arena.len());
        self.arena.extend_from_slice(bytes);
        let len = narrow(bytes.len());
        let record = RunRecord {
            source: Source::Arena,
            start,
            stride: len,
            len,
            last_len: len,
            count: 1,
            prefix: 0,
            prefix_len: 0,
            trailer: 0,
            next: NONE,
        };
        self.streams.push(self.stamp, stream, content, record);
    }
}
