//! What a turn wants to send: strided runs of received messages, joined into trains.
//!
//! A *run* is some datagrams of one received message that go the same way; a *train* is what one `UDP_SEGMENT` send
//! carries: runs of one flow (endpoint, destination) whose datagrams have one size on the wire, the last may be shorter.
//!
//! Invariant: only the newest train of a flow is ever added to, and trains of an endpoint are sent in the order they were
//! begun; so the order within a flow never changes. The flow table only finds that newest train fast: an entry
//! that is overwritten costs a train its company, never its place.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, SocketAddr};

use crate::endpoint::EndpointId;
use crate::handler::{Payload, Place};
use crate::sys::address::RawAddress;
use crate::sys::send::PIECES_MAX;

/// Longest prefix of [`SendQueue::forward`], bytes.
pub const PREFIX_LEN_MAX: usize = 64;
/// Longest trailer of [`SendQueue::forward`], bytes.
pub const TRAILER_LEN_MAX: u8 = 3;

/// Payload bytes of one send, IPv4's limit, which suits IPv6 too.
pub(crate) const TRAIN_BYTES_MAX: u32 = 65_507;
/// Segments of one send that some kernel allows (`UDP_MAX_SEGMENTS`).
pub(crate) const TRAIN_SEGMENTS_MAX: u16 = 128;
/// Prefix, payload and trailer of every datagram of the longest train fit one message.
const _: () = assert!(TRAIN_SEGMENTS_MAX as usize * 3 <= PIECES_MAX);

/// Entries of the flow table: more than the flows of a full turn of single datagrams.
const FLOWS: usize = 1024;
const NONE: u32 = u32::MAX;

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
    /// One payload.
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

/// Where a run's payload lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// In the arena of this queue.
    Arena,
    /// In a receive slot.
    Slot(u32),
    /// In the arena that connections are read into.
    Stream,
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
    prefix: u32,
    prefix_len: u8,
    pub(crate) trailer: u8,
    next: u32,
}

impl RunRecord {
    /// Start and length of payload number `index`.
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

    /// Whether the payloads lie back to back with nothing to put between them: one piece for all.
    #[inline]
    pub(crate) fn is_contiguous(&self) -> bool {
        self.stride == self.len && self.is_bare()
    }

    /// Whether each datagram is its payload alone.
    #[inline]
    pub(crate) fn is_bare(&self) -> bool {
        self.prefix_len == 0 && self.trailer == 0
    }
}

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

#[derive(Clone, Copy, Debug, Default)]
struct Stamped {
    /// Turn in which `value` was written.
    stamp: u32,
    value: u32,
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
    /// Train of the flow that was forwarded last, or `NONE`.
    recent: u32,
    /// Prefix that was stored last: its place in the arena.
    recent_prefix: (u32, u8),
    segments_max: u32,
    streams: StreamRuns,
}

impl SendQueue {
    pub(crate) fn new(segments_max: u16) -> Self {
        Self {
            runs: Vec::with_capacity(1024),
            trains: Vec::with_capacity(512),
            touched: Vec::with_capacity(256),
            arena: Vec::with_capacity(16 * 1024),
            touched_by_endpoint: Vec::new(),
            flows: vec![Stamped::default(); FLOWS].into(),
            seed: RandomState::new().hash_one(0) | 1,
            stamp: 1,
            recent: NONE,
            recent_prefix: (0, 0),
            segments_max: u32::from(segments_max.clamp(1, TRAIN_SEGMENTS_MAX)),
            streams: StreamRuns::default(),
        }
    }

    /// Queues `run.count` datagrams from `endpoint` to `to`. Each is `prefix`, one payload of `message`, and `trailer`
    /// zero bytes. Nothing is copied here: what is queued is where the payload lies.
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
    /// made. Meant for rare datagrams: it costs two system calls more.
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

    /// Queues datagrams that did not arrive but begin here: a copy of `bytes`, `segment` of them in each and the rest in the
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

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.trains.is_empty() && self.streams.is_empty()
    }

    /// Forgets everything queued.
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.trains.clear();
        self.touched.clear();
        self.arena.clear();
        self.streams.clear();
        self.recent = NONE;
        self.recent_prefix = (0, 0);
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            // Stamps of the last round of numbers would look current again.
            self.flows.fill(Stamped::default());
            self.touched_by_endpoint.fill(Stamped::default());
            self.streams.forget();
            self.stamp = 1;
        }
    }

    /// Endpoints with something to send, in the order they were first named.
    pub(crate) fn touched(&self) -> &[Touched] {
        &self.touched
    }

    /// The trains of an endpoint in sending order, with their numbers.
    pub(crate) fn trains(&self, touched: &Touched) -> impl Iterator<Item = (u32, &Train)> {
        let mut next = touched.first;
        std::iter::from_fn(move || {
            let number = next;
            let train = self.trains.get(number as usize)?;
            next = train.next;
            Some((number, train))
        })
    }

    /// The train and run of an endpoint that sends nothing but one datagram without prefix or trailer: what a relay socket
    /// of a voice call does in most turns.
    #[inline]
    pub(crate) fn only_datagram(&self, touched: &Touched) -> Option<(&Train, &RunRecord)> {
        let train = &self.trains[touched.first as usize];
        let run = &self.runs[train.first_run as usize];
        let only = touched.first == touched.last
            && train.datagrams == 1
            && !train.dont_fragment
            && run.is_bare();
        only.then_some((train, run))
    }

    pub(crate) fn train(&self, number: u32) -> &Train {
        &self.trains[number as usize]
    }

    /// The runs of a train in order.
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

    pub(crate) fn arena(&self) -> &[u8] {
        &self.arena
    }

    /// Puts a prefix into the arena unless it was the last one put there.
    #[inline]
    fn store_prefix(&mut self, prefix: &[u8]) -> (u32, u8) {
        let (start, len) = self.recent_prefix;
        if prefix.len() != usize::from(len)
            || self.arena[start as usize..][..usize::from(len)] != *prefix
        {
            let len = u8::try_from(prefix.len()).unwrap_or(u8::MAX);
            self.recent_prefix = (narrow(self.arena.len()), len);
            self.arena.extend_from_slice(prefix);
        }
        self.recent_prefix
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
        self.recent = number;
        self.flows[flow] = Stamped {
            stamp: self.stamp,
            value: number,
        };
    }

    /// How many datagrams of `head` bytes the train still takes, of `rest` that follow.
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

    /// How many datagrams of `head` bytes a new train takes. Empty datagrams and oversized ones travel alone.
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

    /// The newest train of a flow, if it is known.
    #[inline]
    fn newest_train(&self, endpoint: EndpointId, to: SocketAddr, flow: usize) -> Option<u32> {
        let is_it = |number: u32| {
            self.trains
                .get(number as usize)
                .is_some_and(|train| train.endpoint == endpoint && train.to == to)
        };
        if is_it(self.recent) {
            return Some(self.recent);
        }
        let place = self.flows[flow];
        (place.stamp == self.stamp && is_it(place.value)).then_some(place.value)
    }

    /// Place of a flow in the table. Seeded, so that a client cannot choose its neighbours.
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

/// Checks a run against its message.
#[inline]
fn record(payload: &impl Payload, run: Run, prefix: u32, prefix_len: u8, trailer: u8) -> RunRecord {
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

/// How many of the next `rest` datagrams may share a train: an empty last one may not, since `UDP_SEGMENT` cannot express it.
#[inline]
fn sendable_together(rest: u32, last_wire_len: u32) -> u32 {
    if last_wire_len == 0 && rest > 1 {
        rest - 1
    } else {
        rest
    }
}

/// Offsets and counts of one turn are far below 2^32: slots hold 64 KiB each.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "bounded by the memory of one turn"
)]
pub(crate) fn narrow(value: usize) -> u32 {
    debug_assert!(u32::try_from(value).is_ok());
    value as u32
}

mod streams;
pub use streams::Staged;
use streams::StreamRuns;
pub(crate) use streams::{Content, StreamTouched};

#[cfg(test)]
mod tests;
