//! What HTTP/3 needs of a QUIC connection.

use bytes::Bytes;

use super::code::Code;

/// The connection below, to which everything is handed that goes to the client.
pub trait Streams {
    /// Opens a unidirectional stream. `None` if the client allows none.
    fn open_uni(&mut self) -> Option<u64>;

    /// Sends `bytes` on a stream, as soon as there is room.
    fn write(&mut self, stream: u64, bytes: Vec<u8>);

    /// Ends what is sent on a stream, behind what was written.
    fn finish(&mut self, stream: u64);

    /// Asks the client to send nothing more on a stream.
    fn stop(&mut self, stream: u64, code: Code);

    /// Ends a stream both ways, whatever was written.
    fn abort(&mut self, stream: u64, code: Code);

    /// Returns how many bytes that were written to a stream wait for room.
    fn waiting_len(&self, stream: u64) -> usize;

    /// Returns whether the client takes DATAGRAM frames (RFC 9221 §3).
    fn takes_datagrams(&mut self) -> bool;

    /// Sends a DATAGRAM frame.
    ///
    /// # Errors
    ///
    /// Why it cannot be sent. It is not kept then.
    fn send_datagram(&mut self, payload: Bytes) -> Result<(), NotSent>;

    /// Ends the connection, with a reason for people.
    fn close(&mut self, code: Code, reason: &'static str);
}

/// How a payload is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In a capsule, on the stream of its tunnel.
    Capsule,
    /// In a DATAGRAM frame.
    Frame,
}

/// Why a payload is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// Too much waits already.
    Congested,
    /// There is no tunnel that is open.
    NoTunnel,
    /// No packet is large enough for it.
    TooLarge,
    /// The client of a bound tunnel has no context for it.
    Unwanted,
}
