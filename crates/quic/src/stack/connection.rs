//! A connection as its application sees it, in words of its own.

use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use quinn_proto as proto;
use quinn_proto::{Dir, VarInt};

use crate::state::{Closed, SendDatagramError, Statistics, StreamError, StreamState};

/// Names a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub(super) proto::StreamId);

impl StreamId {
    /// Returns whether both sides send on it.
    pub fn is_bidirectional(self) -> bool {
        self.0.dir() == Dir::Bi
    }

    /// Returns the stream of this number, of which the two highest bits do not count.
    pub fn from_u64(number: u64) -> Self {
        let number = number & (VarInt::MAX.into_inner());
        Self(VarInt::from_u64(number).unwrap_or_default().into())
    }

    /// Returns the number of RFC 9000 §2.1.
    pub fn to_u64(self) -> u64 {
        VarInt::from(self.0).into_inner()
    }
}

impl From<proto::ConnectionError> for Closed {
    fn from(error: proto::ConnectionError) -> Self {
        match error {
            proto::ConnectionError::TimedOut => Self::Idle,
            proto::ConnectionError::Reset => Self::Reset,
            proto::ConnectionError::LocallyClosed => Self::Local,
            proto::ConnectionError::ApplicationClosed(close) => {
                Self::Remote(close.error_code.into_inner())
            }
            error => Self::Failed(error.to_string()),
        }
    }
}

/// A connection as its application sees it.
pub struct Connection<'a> {
    pub(super) inner: &'a mut proto::Connection,
    pub(super) now: Instant,
}

impl Connection<'_> {
    /// Returns the other side's address, which may change.
    pub fn remote(&self) -> SocketAddr {
        self.inner.remote_address()
    }

    /// Opens a bidirectional stream. `None` while the other side allows no further one.
    pub fn open(&mut self) -> Option<StreamId> {
        self.inner.streams().open(Dir::Bi).map(StreamId)
    }

    /// Opens a unidirectional stream. `None` while the other side allows no further one.
    pub fn open_uni(&mut self) -> Option<StreamId> {
        self.inner.streams().open(Dir::Uni).map(StreamId)
    }

    /// Shows what has come on a stream, in order.
    ///
    /// # Errors
    /// The other side abandoned the stream, or there is none.
    pub fn read(
        &mut self,
        stream: StreamId,
        mut show: impl FnMut(&[u8]),
    ) -> Result<StreamState, StreamError> {
        let mut stream = self.inner.recv_stream(stream.0);
        let Ok(mut chunks) = stream.read(true) else {
            return Err(StreamError::Unknown);
        };
        let state = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => show(&chunk.bytes),
                Ok(None) => break Ok(StreamState::Finished),
                Err(proto::ReadError::Blocked) => break Ok(StreamState::Open),
                Err(proto::ReadError::Reset(code)) => {
                    break Err(StreamError::Reset(code.into_inner()));
                }
            }
        };
        // Whether there is something to send is asked for all connections that were touched.
        let _ = chunks.finalize();
        state
    }

    /// Takes from the front of `bytes` what the stream has room for, without copying it. Returns how many bytes; 0 if it has none, and then the
    /// application hears when it has.
    ///
    /// # Errors
    /// The other side wants no more, or there is no such stream.
    pub fn write(&mut self, stream: StreamId, bytes: &mut Bytes) -> Result<usize, StreamError> {
        let mut chunks = [std::mem::take(bytes)];
        let written = self.inner.send_stream(stream.0).write_chunks(&mut chunks);
        [*bytes] = chunks;
        match written {
            Ok(written) => Ok(written.bytes),
            Err(proto::WriteError::Blocked) => Ok(0),
            Err(proto::WriteError::Stopped(code)) => Err(StreamError::Stopped(code.into_inner())),
            Err(proto::WriteError::ClosedStream) => Err(StreamError::Unknown),
        }
    }

    /// Ends what is sent on a stream.
    ///
    /// # Errors
    /// The other side wants no more, or there is no such stream.
    pub fn finish(&mut self, stream: StreamId) -> Result<(), StreamError> {
        let finished = self.inner.send_stream(stream.0).finish();
        finished.map_err(|error| match error {
            proto::FinishError::Stopped(code) => StreamError::Stopped(code.into_inner()),
            proto::FinishError::ClosedStream => StreamError::Unknown,
        })
    }

    /// Abandons a stream both ways.
    pub fn abandon(&mut self, stream: StreamId, code: u32) {
        // Each way may be over already.
        let _ = self.inner.send_stream(stream.0).reset(code.into());
        let _ = self.inner.recv_stream(stream.0).stop(code.into());
    }

    /// Asks the other side to send nothing more on a stream.
    pub fn stop(&mut self, stream: StreamId, code: u32) {
        // It may have ended already.
        let _ = self.inner.recv_stream(stream.0).stop(code.into());
    }

    /// Sets how many bidirectional streams the other side may have open from now on.
    pub fn allow_streams(&mut self, count: u32) {
        self.inner.set_max_concurrent_streams(Dir::Bi, count.into());
    }

    /// Returns whether the other side takes DATAGRAM frames.
    pub fn takes_datagrams(&mut self) -> bool {
        self.inner.datagrams().max_size().is_some()
    }

    /// Returns how many bytes of DATAGRAM frames may be sent now.
    pub fn datagram_room(&mut self) -> usize {
        self.inner.datagrams().send_buffer_space()
    }

    /// Sends a DATAGRAM frame (RFC 9221).
    ///
    /// # Errors
    /// The other side takes none, it is too large, or too much waits.
    pub fn send_datagram(&mut self, payload: Bytes) -> Result<(), SendDatagramError> {
        let sent = self.inner.datagrams().send(payload, false);
        sent.map_err(|error| match error {
            proto::SendDatagramError::TooLarge => SendDatagramError::TooLarge,
            proto::SendDatagramError::Blocked(_) => SendDatagramError::Blocked,
            proto::SendDatagramError::UnsupportedByPeer | proto::SendDatagramError::Disabled => {
                SendDatagramError::Unsupported
            }
        })
    }

    /// Closes the connection with a code of the application.
    pub fn close(&mut self, code: u32, reason: &'static str) {
        self.inner
            .close(self.now, code.into(), Bytes::from_static(reason.as_bytes()));
    }

    /// Begins a new key phase (RFC 9001 §6).
    pub fn update_keys(&mut self) {
        self.inner.force_key_update();
    }

    /// Returns what the connection has seen.
    pub fn statistics(&self) -> Statistics {
        statistics(self.inner)
    }

    /// Returns the time that the host has named, of which an application needs no clock of its own.
    pub const fn now(&self) -> Instant {
        self.now
    }
}

/// Returns what a connection has seen.
pub(super) fn statistics(connection: &proto::Connection) -> Statistics {
    let stats = connection.stats();
    Statistics {
        sent: stats.path.sent_packets,
        lost: stats.path.lost_packets,
        congestion_events: stats.path.congestion_events,
        acks_sent: stats.frame_tx.acks,
        acks_received: stats.frame_rx.acks,
        datagrams_out: stats.udp_tx.datagrams,
        datagrams_in: stats.udp_rx.datagrams,
        mtu: stats.path.current_mtu,
        rtt: stats.path.rtt,
        window: stats.path.cwnd,
    }
}
