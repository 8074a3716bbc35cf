//! The runs of connections, in the order they were queued for each.

use super::runs::{NONE, RunRecord, Stamped};
use crate::names::{StreamId, narrow};

/// What a run is to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A message that must arrive.
    Control,
    /// Relayed data, which may be dropped when it has waited too long.
    Media,
    /// Bytes of a lower protocol such as TLS, sent unchanged before anything else.
    Raw,
    /// Bytes received on the connection that this one is joined with. None of them is dropped, and their order is kept.
    Relayed,
}

/// One message for a connection.
#[derive(Clone, Copy, Debug)]
pub struct StreamMessage<'a> {
    /// What it is.
    pub content: Content,
    /// What it is made of: prefix, payload, trailer.
    pub parts: [&'a [u8]; 3],
}

impl StreamMessage<'_> {
    /// Returns its length.
    #[expect(
        clippy::len_without_is_empty,
        reason = "bytes that a write has to take"
    )]
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    /// Returns how many messages this counts as: none for raw bytes and for those of a joined connection.
    pub(crate) fn counted(&self) -> u32 {
        u32::from(!matches!(self.content, Content::Raw | Content::Relayed))
    }
}

/// A change of a connection's state, besides sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamChange {
    /// Reading from it is paused or resumed.
    HoldBack(bool),
    /// It is joined with this connection.
    Join(StreamId),
    /// It has proven itself and is no longer a stranger.
    Prove,
    /// Its outgoing bytes are sealed from now on.
    Seal,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StreamRun {
    pub(super) content: Content,
    pub(super) record: RunRecord,
    pub(super) next: u32,
}

/// A connection with something to send, or with a change of state.
#[derive(Clone, Copy, Debug)]
pub struct StreamTouched {
    /// The connection.
    pub stream: StreamId,
    /// Whether it is to be closed after that.
    pub close: bool,
    pub(super) first: u32,
    last: u32,
}

/// The runs of all connections of a turn.
#[derive(Debug, Default)]
pub(super) struct StreamRuns {
    pub(super) runs: Vec<StreamRun>,
    pub(super) changes: Vec<(StreamId, StreamChange)>,
    pub(super) touched: Vec<StreamTouched>,
    /// For each connection index, its entry in `touched`.
    touched_by_stream: Vec<Stamped>,
}

impl StreamRuns {
    pub(super) fn is_empty(&self) -> bool {
        self.touched.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.changes.clear();
        self.touched.clear();
    }

    /// Forgets all stamps.
    pub(super) fn forget(&mut self) {
        self.touched_by_stream.fill(Stamped::default());
    }

    /// Returns the entry of a connection, and creates it if there is none.
    #[inline]
    pub(super) fn touch(&mut self, stamp: u32, stream: StreamId) -> &mut StreamTouched {
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
    pub(super) fn push(
        &mut self,
        stamp: u32,
        stream: StreamId,
        content: Content,
        record: RunRecord,
    ) {
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
