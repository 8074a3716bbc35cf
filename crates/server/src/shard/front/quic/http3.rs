//! What a connection carries: HTTP/3 (RFC 9114) in which every request is rejected, because nothing is served over it yet.

use turnbuckle_quic::{Application, Bytes, Connection, StreamId};

use crate::counters::CloseReason;

/// Nothing is wrong (RFC 9114 §8.1).
pub(super) const NO_ERROR: u32 = 0x0100;
/// The other side does what costs too much.
const EXCESSIVE_LOAD: u32 = 0x0107;
/// A request was not looked at.
const REQUEST_REJECTED: u32 = 0x010b;
/// The control stream: its type, and SETTINGS with SETTINGS_MAX_FIELD_SECTION_SIZE of 16 KiB. QPACK's dynamic table has the default size, 0.
const CONTROL: &[u8] = &[0x00, 0x04, 0x05, 0x06, 0x80, 0x00, 0x40, 0x00];
/// Requests of one connection.
const REQUESTS_MAX: u64 = 100;

/// Returns the code and the words with which a connection is closed.
pub(super) const fn code_of(reason: CloseReason) -> (u32, &'static str) {
    match reason {
        CloseReason::Crowded | CloseReason::CrowdedAddress => {
            (EXCESSIVE_LOAD, "too many connections")
        }
        CloseReason::FirstMessageLate => (NO_ERROR, "no request"),
        _ => (NO_ERROR, "over"),
    }
}

/// One connection.
#[derive(Debug, Default)]
pub(super) struct Http3 {
    /// The first stream for a request that has not been seen yet, divided by four: streams begin in the order of their numbers.
    requests: u64,
    /// The control stream, and what is to be written to it.
    control: Option<(StreamId, Bytes)>,
}

impl Http3 {
    /// Returns whether a request has begun.
    pub(super) const fn has_requested(&self) -> bool {
        self.requests > 0
    }
}

impl Application for Http3 {
    fn connected(&mut self, connection: &mut Connection<'_>) {
        // A client that allows no stream from here breaks RFC 9114 §6.2, and hears nothing.
        if let Some(stream) = connection.open_uni() {
            self.control = Some((stream, Bytes::from_static(CONTROL)));
            self.writable(connection, stream);
        }
    }

    fn readable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        if !stream.is_bidirectional() {
            // The client's settings ask nothing of who rejects all requests. What has come is read so that there is room for more.
            let _ = connection.read(stream, |_| {});
            return;
        }
        let request = stream.to_u64() / 4;
        if request < self.requests {
            return;
        }
        self.requests = request + 1;
        // guard: V-88-requests
        if self.requests > REQUESTS_MAX {
            return connection.close(EXCESSIVE_LOAD, "too many requests");
        }
        connection.abandon(stream, REQUEST_REJECTED);
    }

    fn writable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        let Some((control, left)) = &mut self.control else {
            return;
        };
        if *control == stream && !left.is_empty() {
            // What is left is written when there is room. A client that wants no settings ends the connection itself.
            let _ = connection.write(stream, left);
        }
    }
}
