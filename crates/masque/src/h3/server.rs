//! One HTTP/3 connection as its server sees it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use turnbuckle_wire::{CapsuleHeader, Varint};

use super::brought::{Brought, CAPSULES_WAITING_MAX, Dropped, Open, Payload};
use super::code::{Code, Wrong};
use super::event::Event;
use super::frames::{Frames, Piece, frame, kind, put_head};
use super::incoming::{ClientSide, Incoming, unexpected};
use super::request;
use super::settings;
use super::stage::{Request, State, count_useless};
use super::streams::{NotSent, Streams, Way};
use crate::bind::Head;
use crate::granted::Granted;
use crate::refusal::Refusal;

/// Requests of one connection without one that is granted.
const FRUITLESS_MAX: u32 = 100;
/// Bytes that are kept of all tunnels of a connection that are not open yet.
const EARLY_MAX: usize = 16 * 1024;
/// Datagrams that are kept of one of them.
const EARLY_COUNT_MAX: usize = 8;
/// The largest number in front of a datagram (RFC 9297 §2.1).
pub(super) const QUARTER_MAX: u64 = (1 << 60) - 1;

/// An HTTP/3 connection. `T` is the host's name for a tunnel.
///
/// Whatever comes may make payloads ([`Self::take_payloads`]), events ([`Self::poll_event`]) and drops ([`Self::take_dropped`]), which the host
/// takes in this order.
#[derive(Debug)]
pub struct Server<T> {
    client: ClientSide,
    /// The stream on which this side says something of itself.
    control: Option<u64>,
    /// Each in memory of its own: a tree has room for eleven where there is one.
    requests: BTreeMap<u64, Box<Request<T>>>,
    /// The first stream for a request that has not been seen yet.
    next_request: u64,
    /// Streams from this one on are rejected.
    going_away: Option<u64>,
    /// Requests since the last one that was granted.
    fruitless: u32,
    /// Bytes that are kept of tunnels that are not open yet.
    early_len: usize,
    /// Whether the connection is being closed.
    is_over: bool,
    events: VecDeque<Event<T>>,
    brought: Brought<T>,
    /// Where payloads for the client get their heads.
    pool: BytesMut,
}

impl<T: Copy> Default for Server<T> {
    fn default() -> Self {
        Self {
            client: ClientSide::default(),
            control: None,
            requests: BTreeMap::new(),
            next_request: 0,
            going_away: None,
            fruitless: 0,
            early_len: 0,
            is_over: false,
            events: VecDeque::new(),
            brought: Brought {
                payloads: Vec::new(),
                dropped: Dropped::default(),
                unjudged: Vec::new(),
            },
            pool: BytesMut::new(),
        }
    }
}

impl<T: Copy> Server<T> {
    /// Returns a connection on which each request is rejected unseen.
    #[must_use]
    pub fn rejecting() -> Self {
        Self {
            going_away: Some(0),
            ..Self::default()
        }
    }

    /// Says what this side is able to do, when the connection is there.
    pub fn connected(&mut self, streams: &mut impl Streams) {
        // A client that allows no stream from here breaks RFC 9114 §6.2, and hears nothing.
        self.control = streams.open_uni();
        if let Some(control) = self.control {
            streams.write(control, settings::of_server(self.going_away.is_none()));
        }
    }

    /// Handles what has come on a stream of the client's: `bytes`, which may be none if only its beginning is known.
    pub fn received(&mut self, streams: &mut impl Streams, stream: u64, bytes: &[u8]) {
        if self.is_over {
            return;
        }
        let done = match is_request(stream) {
            true => self.request_received(streams, stream, bytes),
            false => self.incoming_received(streams, stream, bytes),
        };
        self.settle(streams, stream, done);
    }

    /// Handles the end of what the client sends on a stream.
    pub fn finished(&mut self, streams: &mut impl Streams, stream: u64) {
        if self.is_over {
            return;
        }
        let done = match is_request(stream) {
            true => self.request_finished(streams, stream),
            false => self.incoming_ended(stream),
        };
        self.settle(streams, stream, done);
    }

    /// Handles that the client abandons a stream, or wants no more of what is sent to it there.
    pub fn abandoned(&mut self, streams: &mut impl Streams, stream: u64) {
        if self.is_over {
            return;
        }
        let done = if is_request(stream) {
            match self.begins(streams, stream) {
                Ok(true) => Err(Wrong::Stream(Code::REQUEST_CANCELLED)),
                Ok(false) => Ok(()),
                Err(wrong) => Err(wrong),
            }
        } else if self.control == Some(stream) {
            let why = "the control stream is not wanted";
            Err(Wrong::Connection(Code::CLOSED_CRITICAL_STREAM, why))
        } else {
            self.incoming_ended(stream)
        };
        self.settle(streams, stream, done);
    }

    /// Handles the payload of a DATAGRAM frame (RFC 9297 §2.1).
    pub fn datagram(&mut self, streams: &mut impl Streams, payload: &Bytes) {
        if self.is_over {
            return;
        }
        let quarter = Varint::read(payload).filter(|&(quarter, _)| quarter <= QUARTER_MAX);
        let Some((quarter, len)) = quarter else {
            self.brought.dropped.malformed += 1;
            let why = "a datagram without the number of a stream";
            let wrong = Wrong::Connection(Code::DATAGRAM_ERROR, why);
            return self.settle(streams, 0, Err(wrong));
        };
        let stream = quarter * 4;
        let payload = payload.slice(len..);
        let Self {
            requests,
            brought,
            early_len,
            ..
        } = self;
        let state = requests.get_mut(&stream).map(|request| &mut request.state);
        let done = match state {
            Some(State::Open(open)) => brought.datagram(open, &payload),
            Some(State::Asked { datagrams, .. })
                // guard: V-92-early
                if datagrams.len() < EARLY_COUNT_MAX && *early_len + payload.len() <= EARLY_MAX =>
            {
                *early_len += payload.len();
                // A copy of its own: a part of a packet would keep all of its memory.
                datagrams.push(Bytes::copy_from_slice(&payload));
                Ok(())
            }
            Some(State::Asked { .. } | State::Head(_)) | None => {
                brought.dropped.no_tunnel += 1;
                Ok(())
            }
        };
        self.settle(streams, stream, done);
    }

    /// Grants a request: what comes on its stream from now on is for `tunnel`. The client hears of it as soon as it has sent its settings. A request that there is no more has been told so by an event.
    pub fn grant(&mut self, streams: &mut impl Streams, stream: u64, tunnel: T, granted: Granted) {
        let Self {
            requests,
            brought,
            early_len,
            ..
        } = self;
        let Some(request) = requests.get_mut(&stream) else {
            return;
        };
        let State::Asked { data, datagrams } = &mut request.state else {
            return;
        };
        let (data, datagrams) = (std::mem::take(data), std::mem::take(datagrams));
        *early_len -= data.len() + datagrams.iter().map(Bytes::len).sum::<usize>();
        self.fruitless = 0;
        let mut open = Open::new(tunnel, granted);
        // Capsules first: they may register the contexts of the datagrams.
        let mut done = brought.data(stream, &mut open, &data);
        done = done.and_then(|()| {
            let mut datagrams = datagrams.iter();
            datagrams.try_for_each(|payload| brought.datagram(&open, payload))
        });
        done = done.and_then(|()| open.flush(streams, stream));
        request.state = State::Open(open);
        self.answer_granted(streams);
        self.settle(streams, stream, done);
    }

    /// Refuses a request. A challenge names `realm`.
    pub fn refuse(
        &mut self,
        streams: &mut impl Streams,
        stream: u64,
        refusal: Refusal,
        realm: &str,
    ) {
        if let Some(request) = self.requests.remove(&stream) {
            self.forget(*request);
            let section = request::refused(refusal, realm);
            streams.write(stream, frame(kind::HEADERS, &section));
            close(streams, stream);
        }
    }

    /// Ends a stream whose tunnel has ended.
    pub fn end(&mut self, streams: &mut impl Streams, stream: u64) {
        if let Some(request) = self.requests.remove(&stream) {
            self.forget(*request);
            close(streams, stream);
        }
    }

    /// Takes the host's verdict on the address of a context.
    pub fn judged(
        &mut self,
        streams: &mut impl Streams,
        stream: u64,
        context: u64,
        is_allowed: bool,
    ) {
        let request = self.requests.get_mut(&stream);
        let Some(State::Open(open)) = request.map(|request| &mut request.state) else {
            return;
        };
        let contexts = open.contexts.as_mut();
        let answer = contexts.and_then(|contexts| contexts.judged(context, is_allowed));
        open.unsent.extend(answer.unwrap_or_default());
        let done = open.flush(streams, stream);
        self.settle(streams, stream, done);
    }

    /// Returns whether the client of the bound tunnel of a stream wants what comes from `source`.
    #[must_use]
    pub fn wants(&self, stream: u64, source: SocketAddr) -> bool {
        let state = self.requests.get(&stream).map(|request| &request.state);
        match state {
            Some(State::Open(Open {
                contexts: Some(contexts),
                ..
            })) => contexts.wants(source),
            _ => false,
        }
    }

    /// Sends a payload of `source` by the tunnel of a stream, in a DATAGRAM frame if the client takes those, and else in a capsule. Returns in
    /// which.
    ///
    /// # Errors
    ///
    /// Why it is not sent.
    pub fn send(
        &mut self,
        streams: &mut impl Streams,
        stream: u64,
        source: SocketAddr,
        payload: &[u8],
    ) -> Result<Way, NotSent> {
        let state = self.requests.get(&stream).map(|request| &request.state);
        let (
            Some(State::Open(Open {
                answer: None,
                contexts,
                ..
            })),
            Some(settings),
        ) = (state, self.client.settings)
        else {
            return Err(NotSent::NoTunnel);
        };
        let head = match contexts {
            None => None,
            Some(contexts) => Some(contexts.head(source).ok_or(NotSent::Unwanted)?),
        };
        // What is not bound has the context of payloads.
        let head = head.as_ref().map_or(&[0][..], Head::as_bytes);
        // guard: V-92-frames
        if settings.takes_datagrams {
            let quarter = Varint::new(stream / 4).ok_or(NotSent::NoTunnel)?;
            self.pool.extend_from_slice(quarter.as_bytes());
            self.pool.extend_from_slice(head);
            self.pool.extend_from_slice(payload);
            let sent = streams.send_datagram(self.pool.split().freeze());
            return sent.map(|()| Way::Frame);
        }
        if streams.waiting_len(stream) + payload.len() > CAPSULES_WAITING_MAX {
            return Err(NotSent::Congested);
        }
        let value_len = head.len() + payload.len();
        let mut capsule = Vec::with_capacity(CapsuleHeader::LEN_MAX);
        put_head(&mut capsule, CapsuleHeader::DATAGRAM, value_len);
        let len = capsule.len() + value_len;
        let mut bytes = Vec::with_capacity(len + 2 * Varint::LEN_MAX);
        put_head(&mut bytes, kind::DATA, len);
        bytes.extend_from_slice(&capsule);
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(payload);
        streams.write(stream, bytes);
        Ok(Way::Capsule)
    }

    /// Takes no further requests, and says so (RFC 9114 §5.2).
    pub fn go_away(&mut self, streams: &mut impl Streams) {
        if let (Some(control), None, Some(id)) = (
            self.control,
            self.going_away,
            Varint::new(self.next_request),
        ) {
            self.going_away = Some(self.next_request);
            streams.write(control, frame(kind::GOAWAY, id.as_bytes()));
        }
    }

    /// Returns whether a request has begun.
    #[must_use]
    pub const fn has_requested(&self) -> bool {
        self.next_request > 0
    }

    /// Returns whether the client has sent its settings.
    #[must_use]
    pub const fn has_settings(&self) -> bool {
        self.client.settings.is_some()
    }

    /// Takes the next thing that the host is to do.
    pub fn poll_event(&mut self) -> Option<Event<T>> {
        self.events.pop_front()
    }

    /// Moves the payloads for targets that have come into `to`.
    pub fn take_payloads(&mut self, to: &mut Vec<Payload<T>>) {
        to.append(&mut self.brought.payloads);
    }

    /// Takes how many datagrams and capsules were dropped since the last time.
    pub fn take_dropped(&mut self) -> Dropped {
        std::mem::take(&mut self.brought.dropped)
    }

    /// Notes a stream of a request. Returns whether there is a request on it.
    fn begins(&mut self, streams: &mut impl Streams, stream: u64) -> Result<bool, Wrong> {
        if stream < self.next_request {
            return Ok(self.requests.contains_key(&stream));
        }
        self.next_request = stream + 4;
        self.fruitless += 1;
        // guard: V-88-fruitless, V-88-requests
        if self.fruitless > FRUITLESS_MAX {
            let why = "too many requests and none that was granted";
            return Err(Wrong::Connection(Code::EXCESSIVE_LOAD, why));
        }
        if self.going_away.is_some_and(|from| stream >= from) {
            streams.abort(stream, Code::REQUEST_REJECTED);
            return Ok(false);
        }
        let request = Request {
            frames: Frames::default(),
            state: State::Head(Vec::new()),
        };
        self.requests.insert(stream, Box::new(request));
        Ok(true)
    }

    fn request_received(
        &mut self,
        streams: &mut impl Streams,
        stream: u64,
        mut bytes: &[u8],
    ) -> Result<(), Wrong> {
        if !self.begins(streams, stream)? {
            return Ok(());
        }
        let mut refused = None;
        let Self {
            client,
            requests,
            early_len,
            events,
            brought,
            ..
        } = self;
        let Some(Request { frames, state }) = requests.get_mut(&stream).map(Box::as_mut) else {
            return Ok(());
        };
        while let Some(piece) = frames.next(&mut bytes) {
            match piece {
                Piece::Begins(kind, len) => {
                    if let Some(refusal) = state.begins(kind, len, &mut client.useless)? {
                        refused = Some(refusal);
                        break;
                    }
                }
                Piece::Payload(kind::HEADERS, part, is_last) => {
                    let State::Head(section) = state else {
                        return Err(unexpected());
                    };
                    section.extend_from_slice(part);
                    if !is_last {
                        continue;
                    }
                    match request::read(section)? {
                        Ok(asked) => {
                            *state = State::Asked {
                                data: Vec::new(),
                                datagrams: Vec::new(),
                            };
                            events.push_back(Event::Asked { stream, asked });
                        }
                        Err(refusal) => {
                            refused = Some(refusal);
                            break;
                        }
                    }
                }
                Piece::Payload(kind::DATA, part, _) => match state {
                    State::Head(_) => {}
                    // guard: V-87-early
                    State::Asked { .. } if *early_len + part.len() > EARLY_MAX => {
                        brought.dropped.no_tunnel += 1;
                        return Err(Wrong::Stream(Code::EXCESSIVE_LOAD));
                    }
                    State::Asked { data, .. } => {
                        *early_len += part.len();
                        data.extend_from_slice(part);
                    }
                    State::Open(open) => {
                        brought.data(stream, open, part)?;
                        open.flush(streams, stream)?;
                    }
                },
                Piece::Payload(..) => {}
            }
        }
        if let Some(refusal) = refused {
            self.refuse(streams, stream, refusal, "");
        }
        Ok(())
    }

    fn request_finished(&mut self, streams: &mut impl Streams, stream: u64) -> Result<(), Wrong> {
        if !self.begins(streams, stream)? {
            return Ok(());
        }
        let Some(request) = self.requests.get(&stream) else {
            return Ok(());
        };
        if !request.frames.may_end() {
            return Err(Wrong::Connection(Code::FRAME_ERROR, "half a frame"));
        }
        match &request.state {
            State::Head(_) => Err(Wrong::Stream(Code::REQUEST_INCOMPLETE)),
            State::Asked { .. } => Err(Wrong::Stream(Code::REQUEST_CANCELLED)),
            State::Open(open) if !open.capsules.may_end(&open.kept) => {
                self.brought.dropped.malformed += 1;
                Err(Wrong::Stream(Code::MESSAGE_ERROR))
            }
            State::Open(open) => {
                let tunnel = Some(open.tunnel);
                self.events.push_back(Event::Ended { stream, tunnel });
                self.requests.remove(&stream);
                streams.finish(stream);
                Ok(())
            }
        }
    }

    fn incoming_received(
        &mut self,
        streams: &mut impl Streams,
        stream: u64,
        bytes: &[u8],
    ) -> Result<(), Wrong> {
        if stream >= self.client.next_incoming {
            self.client.next_incoming = stream + 4;
            self.client
                .incoming
                .insert(stream, Box::new(Incoming::new()));
        }
        let Some(incoming) = self.client.incoming.get_mut(&stream) else {
            return Ok(());
        };
        let read = incoming.read(bytes, &mut self.client.critical)?;
        if read.stops {
            streams.stop(stream, Code::STREAM_CREATION_ERROR);
            self.client.incoming.remove(&stream);
        }
        count_useless(&mut self.client.useless, read.useless)?;
        if let Some(mut settings) = read.settings {
            settings.takes_datagrams &= streams.takes_datagrams();
            self.client.settings = Some(settings);
            self.answer_granted(streams);
        }
        Ok(())
    }

    fn incoming_ended(&mut self, stream: u64) -> Result<(), Wrong> {
        match self.client.incoming.remove(&stream) {
            Some(incoming) => incoming.ended(),
            None => Ok(()),
        }
    }

    /// Answers the requests that are granted, if the client has sent its settings.
    fn answer_granted(&mut self, streams: &mut impl Streams) {
        // guard: V-92-settings
        if self.client.settings.is_none() {
            return;
        }
        for (&stream, request) in &mut self.requests {
            if let State::Open(open) = &mut request.state
                && let Some(granted) = open.answer.take()
            {
                let section = request::granted(&granted);
                streams.write(stream, frame(kind::HEADERS, &section));
                // No more waits than may.
                let _ = open.flush(streams, stream);
            }
        }
    }

    /// Carries out what follows from a broken rule.
    fn settle(&mut self, streams: &mut impl Streams, stream: u64, done: Result<(), Wrong>) {
        for (stream, context, peer) in std::mem::take(&mut self.brought.unjudged) {
            let request = self.requests.get(&stream);
            if let Some(State::Open(open)) = request.map(|request| &request.state) {
                self.events.push_back(Event::Registered {
                    stream,
                    tunnel: open.tunnel,
                    context,
                    peer,
                });
            }
        }
        match done {
            Ok(()) => {}
            Err(Wrong::Connection(code, why)) => {
                self.is_over = true;
                streams.close(code, why);
            }
            Err(Wrong::Stream(code)) => {
                streams.abort(stream, code);
                if let Some(request) = self.requests.remove(&stream) {
                    let tunnel = self.forget(*request);
                    self.events.push_back(Event::Ended { stream, tunnel });
                }
            }
        }
    }

    /// Drops what is kept of a request. Returns its tunnel.
    fn forget(&mut self, request: Request<T>) -> Option<T> {
        match request.state {
            State::Head(_) => None,
            State::Asked { data, datagrams } => {
                self.early_len -= data.len() + datagrams.iter().map(Bytes::len).sum::<usize>();
                self.brought.dropped.no_tunnel += datagrams.len() as u64;
                None
            }
            State::Open(open) => Some(open.tunnel),
        }
    }
}

/// Ends a stream in order: nothing more is sent, and nothing more is wanted (RFC 9114 §4.1).
fn close(streams: &mut impl Streams, stream: u64) {
    streams.finish(stream);
    streams.stop(stream, Code::NO_ERROR);
}

/// Returns whether a stream is one for requests: the client's, both ways (RFC 9000 §2.1).
const fn is_request(stream: u64) -> bool {
    stream.is_multiple_of(4)
}
