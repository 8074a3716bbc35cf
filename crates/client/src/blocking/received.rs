//! Results of waiting for a message.

use std::io::{self, ErrorKind};

/// The result of waiting for the next message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// A whole message, of whatever bytes.
    Message(Vec<u8>),
    /// Nothing in that time.
    Nothing,
    /// The server has closed the connection, or the session.
    End,
}

/// Returns whether a socket's error is only that nothing came, or that something sent before did not arrive. A wait is also cut short when the
/// process is stopped and goes on (signal(7)).
pub(super) fn is_transient(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionRefused, Interrupted, TimedOut, WouldBlock};
    matches!(
        error.kind(),
        WouldBlock | TimedOut | Interrupted | ConnectionRefused
    )
}
