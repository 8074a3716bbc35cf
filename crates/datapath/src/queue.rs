//! The datagrams that a turn sends: strided runs of received messages, joined into trains.
//!
//! A *run* is some datagrams of one received message that go the same way; a *train* is what one `UDP_SEGMENT` send
//! carries: runs of one flow (endpoint, destination) whose datagrams have one size on the wire, the last may be shorter.
//!
//! Invariant: only the newest train of a flow is ever added to, and trains of an endpoint are sent in the order they were
//! begun. So the order within a flow never changes. The flow table only finds the newest train fast: when an entry
//! is overwritten, the train takes no more runs but keeps its place in the order.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, SocketAddr};

use turnbuckle_sys::address::RawAddress;

use self::owned::Owned;
pub use self::runs::{Memory, PREFIX_LEN_MAX, QueuedDatagram, Run, TRAILER_LEN_MAX};
use self::runs::{NONE, Stamped, TRAIN_BYTES_MAX, parts, record};
pub(crate) use self::runs::{RunRecord, TRAIN_SEGMENTS_MAX};
use self::streams::StreamRuns;
pub use self::streams::{Content, StreamChange, StreamMessage, StreamTouched};
use crate::names::{EndpointId, narrow};
use crate::views::{Payload, Source};

mod lent;
mod owned;
mod runs;
mod streams;
pub(crate) mod to_streams;

/// Entries of the flow table: more than the flows of a full turn of single datagrams.
const FLOWS: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Train {
    pub(crate) endpoint: EndpointId,
    pub(crate) to: SocketAddr,
    pub(crate) address: RawAddress,
    /// Bytes of each datagram but the last.
    pub(crate) wire_len: u32,
    pub(crate) datagrams: u32,
    /// Bytes of all datagrams, `<= TRAIN_BYTES_MAX` when there is more than one.
    pub(crate) bytes: u32,
    /// Nothing may follow: the last datagram is shorter, or this is a reply.
    closed: bool,
    pub(crate) dont_fragment: bool,
    first_run: u32,
    last_run: u32,
    next: u32,
}

/// The trains of one endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touched {
    pub(crate) endpoint: EndpointId,
    first: u32,
    last: u32,
}

/// What the next run is likely to need again.
#[derive(Debug)]
struct Recent {
    /// Train of the flow that was forwarded last, or `NONE`.
    train: u32,
    /// Prefix that was stored last: its place in the arena.
    prefix: (u32, u8),
}

/// Collects what one turn sends. Filled by a [`Handler`](crate::Handler), emptied by the data path.
#[derive(Debug)]
pub struct SendQueue {
    runs: Vec<RunRecord>,
    trains: Vec<Train>,
    touched: Vec<Touched>,
    /// Prefixes and replies.
    arena: Vec<u8>,
    /// For each endpoint index, its entry in `touched`.
    touched_by_endpoint: Vec<Stamped>,
    /// Newest train of a flow, at the flow's hash value.
    flows: Box<[Stamped]>,
    seed: u64,
    stamp: u32,
    recent: Recent,
    segments_max: u32,
    streams: StreamRuns,
    owned: Owned,
}

impl SendQueue {
    /// Returns an empty queue whose trains have up to `segments_max` datagrams.
    pub fn new(segments_max: u16) -> Self {
        Self {
            runs: Vec::with_capacity(1024),
            trains: Vec::with_capacity(512),
            touched: Vec::with_capacity(256),
            arena: Vec::with_capacity(16 * 1024),
            touched_by_endpoint: Vec::new(),
            flows: vec![Stamped::default(); FLOWS].into(),
            seed: RandomState::new().hash_one(0) | 1,
            stamp: 1,
            recent: Recent {
                train: NONE,
                prefix: (0, 0),
            },
            segments_max: u32::from(segments_max.clamp(1, TRAIN_SEGMENTS_MAX)),
            streams: StreamRuns::default(),
            owned: Owned::default(),
        }
    }

    /// Queues `run.count` datagrams from `endpoint` to `to`. Each is `prefix`, one payload of `message`, and `trailer`
    /// zero bytes. The payload is not copied: the queue refers to where it lies.
    ///
    /// # Panics
    /// When the run does not lie within the message, its last payload is longer than the others, or `prefix` or `trailer`
    /// is longer than [`PREFIX_LEN_MAX`] or [`TRAILER_LEN_MAX`].
    #[inline]
    pub fn forward(
        &mut self,
        endpoint: EndpointId,
        to: SocketAddr,
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
        self.join(endpoint, to, record);
    }

    /// Queues one datagram, a part of `message`, that must not be fragmented: DF is set, or for IPv6 no fragment header is
    /// made. Meant for rare datagrams: the socket is switched for it and back, with a system call each.
    ///
    /// # Panics
    /// When `run` does not lie within the message or has more than one payload.
    pub fn forward_unfragmented(
        &mut self,
        endpoint: EndpointId,
        to: SocketAddr,
        message: &impl Payload,
        run: Run,
    ) {
        assert!(run.count == 1, "one datagram at a time");
        let record = record(message, run, 0, 0, 0);
        let number = self.push_train(endpoint, to, record, true);
        let flow = self.flow_place(endpoint, to);
        self.note_newest(flow, number);
    }

    /// Queues datagrams that were not received but made here: a copy of `bytes`, `segment` of them in each and the rest in the
    /// last; one empty datagram when there are none. They form trains as forwarded ones do.
    ///
    /// # Panics
    /// When `segment` is 0.
    pub fn send(&mut self, endpoint: EndpointId, to: SocketAddr, bytes: &[u8], segment: usize) {
        let start = narrow(self.arena.len());
        self.arena.extend_from_slice(bytes);
        let count = bytes.len().div_ceil(segment).max(1);
        let last_len = bytes.len() - (count - 1) * segment;
        let record = RunRecord {
            source: Source::Arena,
            start,
            stride: narrow(segment),
            len: narrow(if count == 1 { last_len } else { segment }),
            last_len: narrow(last_len),
            count: narrow(count),
            prefix: 0,
            prefix_len: 0,
            trailer: 0,
            next: NONE,
        };
        self.join(endpoint, to, record);
    }

    /// Queues one datagram with a copy of `bytes`. It leaves with the same flush as the trains and does not divide them.
    pub fn reply(&mut self, endpoint: EndpointId, to: SocketAddr, bytes: &[u8]) {
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
        self.push_train(endpoint, to, record, false);
    }

    /// Returns whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.trains.is_empty() && self.streams.is_empty()
    }

    /// Forgets everything queued, after a flush.
    pub fn clear(&mut self) {
        self.runs.clear();
        self.trains.clear();
        self.touched.clear();
        self.arena.clear();
        self.streams.clear();
        self.owned.clear();
        self.recent.train = NONE;
        self.recent.prefix = (0, 0);
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            // Stamps of the last round of numbers would look current again.
            self.flows.fill(Stamped::default());
            self.touched_by_endpoint.fill(Stamped::default());
            self.streams.forget();
            self.stamp = 1;
        }
    }

    /// Shows all queued datagrams in the order in which they leave: endpoint by endpoint, and in the order they were queued for each flow.
    /// For what stands in for a data path.
    pub fn datagrams<'a>(
        &'a self,
        memory: impl Memory<'a>,
    ) -> impl Iterator<Item = QueuedDatagram<'a>> {
        let trains = self.touched.iter().flat_map(|touched| self.trains(touched));
        trains.flat_map(move |(_, train)| {
            self.runs(train).flat_map(move |run| {
                let bytes = self.source(memory, run.source);
                (0..run.count).map(move |index| {
                    let (start, len) = run.payload(index);
                    QueuedDatagram {
                        endpoint: train.endpoint,
                        to: train.to,
                        dont_fragment: train.dont_fragment,
                        parts: parts(self.prefix(run), &bytes[start..start + len], run.trailer),
                    }
                })
            })
        })
    }

    /// Returns the bytes that the offsets of a run count in.
    #[inline]
    pub(crate) fn source<'a>(&'a self, memory: impl Memory<'a>, source: Source) -> &'a [u8] {
        match source {
            Source::Arena => &self.arena,
            Source::Slot(slot) => memory.slot(slot),
            Source::Stream => memory.streams(),
            Source::Owned(index) => self.owned.bytes(index),
        }
    }

    /// Returns the endpoints with something to send, in the order in which they were first named.
    pub(crate) fn touched(&self) -> &[Touched] {
        &self.touched
    }

    /// Returns the trains of an endpoint in sending order, with their numbers.
    pub(crate) fn trains(&self, touched: &Touched) -> impl Iterator<Item = (u32, &Train)> {
        let mut next = touched.first;
        std::iter::from_fn(move || {
            let number = next;
            let train = self.trains.get(number as usize)?;
            next = train.next;
            Some((number, train))
        })
    }

    /// Returns the train and the run of an endpoint that has only one datagram to send. That is the usual case for the relay
    /// socket of a voice call, and for the clients' socket in a turn with one datagram.
    #[inline]
    pub(crate) fn only_datagram(&self, touched: &Touched) -> Option<(&Train, &RunRecord)> {
        let train = &self.trains[touched.first as usize];
        let run = &self.runs[train.first_run as usize];
        let only = touched.first == touched.last && train.datagrams == 1 && !train.dont_fragment;
        only.then_some((train, run))
    }

    pub(crate) fn train(&self, number: u32) -> &Train {
        &self.trains[number as usize]
    }

    /// Returns the runs of a train in order.
    #[inline]
    pub(crate) fn runs(&self, train: &Train) -> impl Iterator<Item = &RunRecord> {
        let mut next = train.first_run;
        std::iter::from_fn(move || {
            let run = self.runs.get(next as usize)?;
            next = run.next;
            Some(run)
        })
    }

    pub(crate) fn prefix(&self, run: &RunRecord) -> &[u8] {
        &self.arena[run.prefix as usize..run.prefix as usize + usize::from(run.prefix_len)]
    }

    /// Puts a prefix into the arena unless it was the last one put there.
    #[inline]
    fn store_prefix(&mut self, prefix: &[u8]) -> (u32, u8) {
        let (start, len) = self.recent.prefix;
        if prefix.len() != usize::from(len)
            || self.arena[start as usize..][..usize::from(len)] != *prefix
        {
            let len = u8::try_from(prefix.len()).unwrap_or(u8::MAX);
            self.recent.prefix = (narrow(self.arena.len()), len);
            self.arena.extend_from_slice(prefix);
        }
        self.recent.prefix
    }

    /// Adds a run to the newest train of its flow as far as it fits, and begins new trains for the rest.
    #[inline]
    fn join(&mut self, endpoint: EndpointId, to: SocketAddr, mut run: RunRecord) {
        let extra = u32::from(run.prefix_len) + u32::from(run.trailer);
        let (wire_len, last_wire_len) = (run.len + extra, run.last_len + extra);
        let flow = self.flow_place(endpoint, to);
        let mut newest = self.newest_train(endpoint, to, flow);
        loop {
            let rest = run.count;
            let head = if rest == 1 { last_wire_len } else { wire_len };
            let mut room = newest.map_or(0, |number| self.room(number, head, rest));
            if room == 0 {
                room = self.room_when_empty(head);
            } else if let Some(number) = newest {
                room = room.min(sendable_together(rest, last_wire_len));
                let part = first_part(&mut run, room);
                self.append(number, part, extra);
                if part.count == rest {
                    break;
                }
                continue;
            }
            let part = first_part(&mut run, room.min(sendable_together(rest, last_wire_len)));
            newest = Some(self.push_train(endpoint, to, part, false));
            if part.count == rest {
                break;
            }
        }
        if let Some(number) = newest {
            self.note_newest(flow, number);
        }
    }

    /// Remembers the newest train of a flow.
    #[inline]
    fn note_newest(&mut self, flow: usize, number: u32) {
        self.recent.train = number;
        self.flows[flow] = Stamped {
            stamp: self.stamp,
            value: number,
        };
    }

    /// Returns how many datagrams of `head` bytes the train still takes; `rest` are left to add.
    #[inline]
    fn room(&self, number: u32, head: u32, rest: u32) -> u32 {
        let train = &self.trains[number as usize];
        let fits = head == train.wire_len || (rest == 1 && head < train.wire_len && head > 0);
        if train.closed || !fits || head == 0 {
            return 0;
        }
        let by_count = self.segments_max - train.datagrams;
        let by_bytes = TRAIN_BYTES_MAX.saturating_sub(train.bytes) / head;
        by_count.min(by_bytes)
    }

    /// Returns how many datagrams of `head` bytes a new train takes. An empty or oversized datagram has a train of its own.
    #[inline]
    fn room_when_empty(&self, head: u32) -> u32 {
        TRAIN_BYTES_MAX
            .checked_div(head)
            .map_or(1, |by_bytes| by_bytes.clamp(1, self.segments_max))
    }

    /// Adds a run that is known to fit.
    #[inline]
    fn append(&mut self, number: u32, run: RunRecord, extra: u32) {
        let run_number = narrow(self.runs.len());
        let train = &mut self.trains[number as usize];
        train.datagrams += run.count;
        train.bytes += (run.count - 1) * (run.len + extra) + run.last_len + extra;
        train.closed = run.last_len + extra < train.wire_len;
        self.runs[train.last_run as usize].next = run_number;
        train.last_run = run_number;
        self.runs.push(run);
    }

    /// Begins a train at the end of its endpoint's list and returns its number.
    #[inline]
    fn push_train(
        &mut self,
        endpoint: EndpointId,
        to: SocketAddr,
        run: RunRecord,
        dont_fragment: bool,
    ) -> u32 {
        let extra = u32::from(run.prefix_len) + u32::from(run.trailer);
        let wire_len = if run.count == 1 {
            run.last_len
        } else {
            run.len
        } + extra;
        let number = narrow(self.trains.len());
        let run_number = narrow(self.runs.len());
        self.trains.push(Train {
            endpoint,
            to,
            address: RawAddress::from(to),
            wire_len,
            datagrams: run.count,
            bytes: (run.count - 1) * wire_len + run.last_len + extra,
            closed: run.last_len + extra < wire_len || wire_len == 0 || dont_fragment,
            dont_fragment,
            first_run: run_number,
            last_run: run_number,
            next: NONE,
        });
        self.runs.push(run);
        self.touch(endpoint, number);
        number
    }

    /// Links train `number` to its endpoint's list.
    #[inline]
    fn touch(&mut self, endpoint: EndpointId, number: u32) {
        let index = endpoint.index();
        if index >= self.touched_by_endpoint.len() {
            self.touched_by_endpoint
                .resize(index + 1, Stamped::default());
        }
        let known = &mut self.touched_by_endpoint[index];
        if known.stamp == self.stamp {
            let touched = &mut self.touched[known.value as usize];
            if touched.endpoint == endpoint {
                self.trains[touched.last as usize].next = number;
                touched.last = number;
                return;
            }
        }
        *known = Stamped {
            stamp: self.stamp,
            value: narrow(self.touched.len()),
        };
        self.touched.push(Touched {
            endpoint,
            first: number,
            last: number,
        });
    }

    /// Returns the newest train of a flow, if it is known.
    #[inline]
    fn newest_train(&self, endpoint: EndpointId, to: SocketAddr, flow: usize) -> Option<u32> {
        let is_it = |number: u32| {
            self.trains
                .get(number as usize)
                .is_some_and(|train| train.endpoint == endpoint && train.to == to)
        };
        if is_it(self.recent.train) {
            return Some(self.recent.train);
        }
        let place = self.flows[flow];
        (place.stamp == self.stamp && is_it(place.value)).then_some(place.value)
    }

    /// Returns the slot of a flow in the table. The hash is seeded, so that a client cannot provoke collisions.
    #[inline]
    fn flow_place(&self, endpoint: EndpointId, to: SocketAddr) -> usize {
        let ip = match to.ip() {
            IpAddr::V4(ip) => u64::from(u32::from(ip)),
            IpAddr::V6(ip) => {
                let octets = ip.octets();
                let half =
                    |from| u64::from_ne_bytes(std::array::from_fn(|index| octets[from + index]));
                half(0).wrapping_mul(self.seed) ^ half(8)
            }
        };
        let key = ip ^ (u64::from(to.port()) << 48) ^ (u64::from(endpoint.to_u32()) << 32);
        let mixed = (key ^ (key >> 29)).wrapping_mul(self.seed ^ 0x9E37_79B9_7F4A_7C15);
        (mixed >> 48) as usize % FLOWS
    }
}

/// Cuts the first `count` datagrams off `run`.
#[inline]
fn first_part(run: &mut RunRecord, count: u32) -> RunRecord {
    let mut part = *run;
    if count < run.count {
        part.count = count;
        part.last_len = part.len;
        run.start += run.stride * count;
        run.count -= count;
    }
    part
}

/// Returns how many of the next `rest` datagrams may share a train. An empty last one may not: `UDP_SEGMENT` cannot express it.
#[inline]
fn sendable_together(rest: u32, last_wire_len: u32) -> u32 {
    if last_wire_len == 0 && rest > 1 {
        rest - 1
    } else {
        rest
    }
}

#[cfg(test)]
mod tests;
