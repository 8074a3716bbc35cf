//! The interface between a data path and its handler.

use std::io;

use crate::counters::SocketPurpose;
use crate::names::{EndpointId, StreamId};
use crate::queue::SendQueue;
use crate::reports::{IcmpError, SendFailure, StreamEnd, Warning};
use crate::sockets::opening::Sockets;
use crate::views::{Accepted, Admission, Received, StreamInput, Taken};

/// Handles everything that a data path receives: all three traits on one value.
pub trait Handler: TurnHandler + DatagramHandler + StreamHandler {}

impl<T: TurnHandler + DatagramHandler + StreamHandler> Handler for T {}

/// Follows the course of a turn. This trait is separate from the other two because only its methods may open and close sockets, of either kind.
pub trait TurnHandler {
    /// Marks the beginning of a turn, after the wait. This is the place to read the clock.
    fn turn_started(&mut self) {}

    /// Returns whether what is queued is to leave before [`turn_ended`](Self::turn_ended), which has so much to do that nobody should wait for it.
    fn flushes_before_end(&self) -> bool {
        false
    }

    /// Marks the end of the messages of a turn. Sockets may be opened and closed here, and what is queued here leaves with the rest.
    fn turn_ended(&mut self, tx: &mut SendQueue, sockets: &mut impl Sockets) {
        let _ = (tx, sockets);
    }

    /// Puts on record what an answer announces, before the answer leaves: a data path sends nothing before it has called this.
    /// Called last when a turn ends, whether or not anything is queued. Called too before each earlier flush: when buffers are short,
    /// before strangers are served, and when the handler [wants one](Self::flushes_before_end).
    fn before_flush(&mut self) {}

    /// Reports something that an operator should see once.
    fn warning(&mut self, warning: Warning) {
        let _ = warning;
    }
}

/// Handles datagrams. Monomorphised: no virtual call per message.
pub trait DatagramHandler {
    /// Handles one message: a datagram, or a GRO buffer of equal datagrams from one sender.
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue);

    /// Handles a message to the endpoint of this token that cannot be shown: the kernel truncated it or reported no sender.
    fn truncated(&mut self, token: u64) {
        let _ = token;
    }

    /// Handles so many messages that the kernel has dropped at a socket, because its queue was full for example. They were never received. It is told of
    /// within a second, or when the socket closes.
    fn undelivered(&mut self, at: SocketPurpose, messages: u64) {
        let _ = (at, messages);
    }

    /// Handles an ICMP error about a datagram that was sent from a relay endpoint.
    fn icmp(&mut self, endpoint: EndpointId, token: u64, error: IcmpError, tx: &mut SendQueue) {
        let _ = (endpoint, token, error, tx);
    }

    /// Handles datagrams queued on `endpoint` that could not be sent, after every fall-back.
    fn send_failed(&mut self, endpoint: EndpointId, datagrams: u32, cause: SendFailure) {
        let _ = (endpoint, datagrams, cause);
    }
}

/// Handles connections. A handler that serves none keeps the default methods, which admit no connection.
pub trait StreamHandler {
    /// Handles a connection that has arrived. Returns whether it may stay.
    fn accepted(&mut self, stream: StreamId, accepted: &Accepted, tx: &mut SendQueue) -> Admission {
        let _ = (stream, accepted, tx);
        Admission::Refused
    }

    /// Handles the outcome of [`Sockets::connect`]. An established connection is not read before it is joined with another one.
    /// The name of a failed one is no longer valid.
    fn connected(&mut self, stream: StreamId, result: io::Result<()>, tx: &mut SendQueue) {
        let _ = (stream, result, tx);
    }

    /// Handles bytes received on a connection.
    fn stream_received(&mut self, input: &mut StreamInput<'_>, tx: &mut SendQueue) -> Taken {
        let _ = (input, tx);
        Taken::ALL
    }

    /// Handles the end of the other side's stream on a joined connection. This side may go on sending.
    fn stream_ended(&mut self, stream: StreamId) {
        let _ = stream;
    }

    /// Handles messages for a connection that could not be sent, or that were dropped in favour of newer ones
    /// ([`SendFailure::BufferFull`]).
    fn stream_failed(&mut self, stream: StreamId, messages: u32, cause: SendFailure) {
        let _ = (stream, messages, cause);
    }

    /// Handles the end of a connection that was accepted or made. Its name is no longer valid.
    fn stream_closed(&mut self, stream: StreamId, end: StreamEnd) {
        let _ = (stream, end);
    }

    /// Appends to `sealed` what is to be sent in place of `plain`, one message, on a connection of which
    /// [`SendQueue::seal_stream`] has said that it is sealed.
    ///
    /// # Errors
    /// Anything: the connection is closed then.
    fn seal(&mut self, stream: StreamId, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        let _ = stream;
        sealed.extend_from_slice(plain);
        Ok(())
    }

    /// Appends to `sealed` what ends this side of a sealed connection.
    fn seal_end(&mut self, stream: StreamId, sealed: &mut Vec<u8>) {
        let _ = (stream, sealed);
    }
}
