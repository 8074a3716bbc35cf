//! Messages that a turn sends to connections, and changes of their state.

use std::ops::Range;

use super::SendQueue;
use super::runs::{Memory, NONE, PREFIX_LEN_MAX, Run, RunRecord, TRAILER_LEN_MAX, parts, record};
use super::streams::{Content, StreamChange, StreamMessage, StreamTouched};
use crate::names::{StreamId, narrow};
use crate::views::{Payload, Place, Source};

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
    /// Copies `bytes`, for example decrypted ones, so that payload in them can be forwarded.
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

    /// Queues a copy of `bytes` to a connection without passing it to [`Handler::seal`](crate::StreamHandler::seal), before everything
    /// that is sealed from now on. Meant for messages of the sealing protocol itself, such as alerts.
    pub fn stream_raw(&mut self, stream: StreamId, bytes: &[u8]) {
        self.push_bytes(stream, Content::Raw, bytes);
    }

    /// Joins two connections: from now on what is read from one is to be sent on the other with
    /// [`stream_relay`](Self::stream_relay), neither is read while something waits for the other, and they end together.
    pub fn join_streams(&mut self, first: StreamId, second: StreamId) {
        self.streams.touch(self.stamp, second);
        self.change_stream(first, StreamChange::Join(second));
    }

    /// Pauses reading from a connection, even while the one that it is joined with has room, until this is called again with `false`.
    pub fn hold_back_stream(&mut self, stream: StreamId, is_held_back: bool) {
        self.change_stream(stream, StreamChange::HoldBack(is_held_back));
    }

    /// Marks a connection that was admitted as a stranger as proven: from now on it is served like all others.
    pub fn prove_stream(&mut self, stream: StreamId) {
        self.change_stream(stream, StreamChange::Prove);
    }

    /// Passes what is sent on it to [`StreamHandler::seal`](crate::StreamHandler::seal) from now on, also on a data path that adopts it.
    pub fn seal_stream(&mut self, stream: StreamId) {
        self.change_stream(stream, StreamChange::Seal);
    }

    fn change_stream(&mut self, stream: StreamId, change: StreamChange) {
        self.streams.touch(self.stamp, stream);
        self.streams.changes.push((stream, change));
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

    /// Closes a connection once everything queued for it before the flush has been sent.
    pub fn close_stream(&mut self, stream: StreamId) {
        self.streams.touch(self.stamp, stream).close = true;
    }

    /// Makes the flush visit a connection.
    pub(crate) fn touch_stream(&mut self, stream: StreamId) {
        self.streams.touch(self.stamp, stream);
    }

    /// Returns the changes of connections' states that take effect before anything is sent, in the order in which they were requested.
    pub fn stream_changes(&self) -> &[(StreamId, StreamChange)] {
        &self.streams.changes
    }

    /// Returns the connections with something to do, in the order in which they were first named.
    pub fn touched_streams(&self) -> &[StreamTouched] {
        &self.streams.touched
    }

    /// Returns the messages for a connection in the order they were queued.
    #[inline]
    pub fn stream_messages<'a, M: Memory<'a>>(
        &'a self,
        touched: &StreamTouched,
        memory: M,
    ) -> impl Iterator<Item = StreamMessage<'a>> + Clone + use<'a, M> {
        let first = self.streams.runs.get(touched.first as usize);
        let runs = std::iter::successors(first, |run| self.streams.runs.get(run.next as usize));
        runs.flat_map(move |run| {
            let (content, run) = (run.content, &run.record);
            let bytes = self.source(memory, run.source);
            let prefix = self.prefix(run);
            (0..run.count).map(move |index| {
                let (start, len) = run.payload(index);
                StreamMessage {
                    content,
                    parts: parts(prefix, &bytes[start..start + len], run.trailer),
                }
            })
        })
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
