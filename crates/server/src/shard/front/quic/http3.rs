//! What a connection carries: HTTP/3 by [`turnbuckle_masque::h3`], on the streams of [`turnbuckle_quic`].
//!
//! What does not fit into a stream waits here, and the stream ends behind it.

use std::collections::{BTreeMap, VecDeque};

use turnbuckle_engine::AllocationId;
use turnbuckle_masque::h3::{Code, Dropped, Event, NotSent, Payload, Server, Streams};
use turnbuckle_quic::{
    Application, Bytes, Connection as QuicConnection, SendDatagramError, StreamError, StreamId,
    StreamState,
};

use crate::counters::CloseReason;

/// Returns the code and the words with which a connection is closed.
pub(super) const fn code_of(reason: CloseReason) -> (Code, &'static str) {
    match reason {
        CloseReason::Crowded | CloseReason::CrowdedAddress => {
            (Code::EXCESSIVE_LOAD, "too many connections")
        }
        CloseReason::FirstMessageLate => (Code::NO_ERROR, "no request"),
        CloseReason::MessageLate => (Code::MISSING_SETTINGS, "no settings"),
        CloseReason::RequestsExceeded => (Code::EXCESSIVE_LOAD, "too many wrong credentials"),
        _ => (Code::NO_ERROR, "over"),
    }
}

/// One connection.
pub(super) struct Http3 {
    server: Server<AllocationId>,
    waiting: Waiting,
    /// The code with which the connection was closed because of what the client did.
    closed: Option<Code>,
}

/// What waits for room, by its stream.
type Waiting = BTreeMap<u64, Outgoing>;

#[derive(Default)]
struct Outgoing {
    chunks: VecDeque<Bytes>,
    len: usize,
    is_last: bool,
}

/// The connection below, while something is done with it.
pub(super) struct Below<'a, 'b> {
    connection: &'a mut QuicConnection<'b>,
    waiting: &'a mut Waiting,
    closed: &'a mut Option<Code>,
}

/// What has come on a connection.
pub(super) struct Came {
    pub(super) dropped: Dropped,
    pub(super) events: Vec<Event<AllocationId>>,
}

impl Http3 {
    /// Returns a connection that serves tunnels, or rejects each request.
    pub(super) fn new(serves: bool) -> Self {
        Self {
            server: match serves {
                true => Server::default(),
                false => Server::rejecting(),
            },
            waiting: BTreeMap::new(),
            closed: None,
        }
    }

    /// Returns why the connection was closed, if the client did what HTTP/3 forbids.
    pub(super) fn broken_rule(&self) -> Option<CloseReason> {
        self.closed.map(|code| match code {
            Code::EXCESSIVE_LOAD => CloseReason::RequestsExceeded,
            _ => CloseReason::Malformed,
        })
    }

    /// Returns whether a request has begun.
    pub(super) const fn has_requested(&self) -> bool {
        self.server.has_requested()
    }

    /// Returns what HTTP/3 is, and what it needs below it.
    pub(super) const fn on<'a, 'b>(
        &'a mut self,
        connection: &'a mut QuicConnection<'b>,
    ) -> (&'a mut Server<AllocationId>, Below<'a, 'b>) {
        let below = Below {
            connection,
            waiting: &mut self.waiting,
            closed: &mut self.closed,
        };
        (&mut self.server, below)
    }

    /// Takes what has come; payloads for targets go into `payloads`.
    pub(super) fn take(&mut self, payloads: &mut Vec<Payload<AllocationId>>) -> Came {
        self.server.take_payloads(payloads);
        Came {
            dropped: self.server.take_dropped(),
            events: std::iter::from_fn(|| self.server.poll_event()).collect(),
        }
    }
}

impl Application for Http3 {
    fn connected(&mut self, connection: &mut QuicConnection<'_>) {
        let (server, mut below) = self.on(connection);
        server.connected(&mut below);
    }

    fn readable(&mut self, connection: &mut QuicConnection<'_>, stream: StreamId) {
        let mut bytes = Vec::new();
        let state = connection.read(stream, |part| bytes.extend_from_slice(part));
        let number = stream.to_u64();
        let (server, mut below) = self.on(connection);
        match state {
            Err(StreamError::Unknown) => return,
            Ok(_) | Err(_) => server.received(&mut below, number, &bytes),
        }
        match state {
            Ok(StreamState::Open) => {}
            Ok(StreamState::Finished) => server.finished(&mut below, number),
            Err(_) => server.abandoned(&mut below, number),
        }
    }

    fn writable(&mut self, connection: &mut QuicConnection<'_>, stream: StreamId) {
        let (server, mut below) = self.on(connection);
        if below.go_on(stream.to_u64()).is_err() {
            server.abandoned(&mut below, stream.to_u64());
        }
    }

    fn datagram(&mut self, connection: &mut QuicConnection<'_>, payload: Bytes) {
        let (server, mut below) = self.on(connection);
        server.datagram(&mut below, &payload);
    }
}

impl Below<'_, '_> {
    /// Keeps nothing for a stream, and for no stream no memory: a tree that has become empty has its own.
    fn forget(&mut self, stream: u64) {
        self.waiting.remove(&stream);
        if self.waiting.is_empty() {
            self.waiting.clear();
        }
    }

    /// Writes what waits, until there is no room. Nobody says that there is room again unless a write has met none at all.
    fn go_on(&mut self, stream: u64) -> Result<(), StreamError> {
        let id = StreamId::from_u64(stream);
        let Some(outgoing) = self.waiting.get_mut(&stream) else {
            // Nothing is written, but a stream that is not wanted any more says so.
            return self.connection.write(id, &mut Bytes::new()).map(|_| ());
        };
        while let Some(chunk) = outgoing.chunks.front_mut() {
            let written = match self.connection.write(id, chunk) {
                Ok(written) => written,
                Err(error) => {
                    self.forget(stream);
                    return Err(error);
                }
            };
            outgoing.len -= written;
            if chunk.is_empty() {
                outgoing.chunks.pop_front();
            } else if written == 0 {
                return Ok(());
            }
        }
        let is_last = outgoing.is_last;
        self.forget(stream);
        match is_last {
            true => self.connection.finish(id),
            false => Ok(()),
        }
    }

    /// Opens more streams to a client that has shown who it is.
    pub(super) fn allow_streams(&mut self, count: u32) {
        self.connection.allow_streams(count);
    }
}

impl Streams for Below<'_, '_> {
    fn open_uni(&mut self) -> Option<u64> {
        self.connection.open_uni().map(StreamId::to_u64)
    }

    fn write(&mut self, stream: u64, bytes: Vec<u8>) {
        let outgoing = self.waiting.entry(stream).or_default();
        outgoing.len += bytes.len();
        outgoing.chunks.push_back(Bytes::from(bytes));
        // A stream that is gone takes nothing, and the server hears of it when it is told.
        let _ = self.go_on(stream);
    }

    fn finish(&mut self, stream: u64) {
        self.waiting.entry(stream).or_default().is_last = true;
        let _ = self.go_on(stream);
    }

    fn stop(&mut self, stream: u64, code: Code) {
        self.connection.stop(StreamId::from_u64(stream), code.0);
    }

    fn abort(&mut self, stream: u64, code: Code) {
        self.forget(stream);
        self.connection.abandon(StreamId::from_u64(stream), code.0);
    }

    fn waiting_len(&self, stream: u64) -> usize {
        self.waiting.get(&stream).map_or(0, |outgoing| outgoing.len)
    }

    fn takes_datagrams(&mut self) -> bool {
        self.connection.takes_datagrams()
    }

    fn send_datagram(&mut self, payload: Bytes) -> Result<(), NotSent> {
        self.connection
            .send_datagram(payload)
            .map_err(|error| match error {
                SendDatagramError::Blocked => NotSent::Congested,
                SendDatagramError::TooLarge | SendDatagramError::Unsupported => NotSent::TooLarge,
            })
    }

    fn close(&mut self, code: Code, reason: &'static str) {
        self.closed.get_or_insert(code);
        self.connection.close(code.0, reason);
    }
}
