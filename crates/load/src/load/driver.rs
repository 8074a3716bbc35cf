//! What each transport has to do for a listener thread.

use super::listener::{Listener, Opened};
use super::sender;

/// What moves the messages of a thread's clients.
pub(super) trait Driver {
    fn listener(&mut self) -> &mut Listener;

    /// Returns whether packets may flow, as far as they ever will.
    fn is_open(&mut self) -> bool {
        self.listener().is_open()
    }

    /// Waits until something is to be done, and does it.
    ///
    /// # Errors
    /// The system does not let it wait.
    fn turn(&mut self) -> anyhow::Result<()>;

    /// Returns the clients that may send.
    ///
    /// # Errors
    /// A socket cannot be shared.
    fn opened(&mut self) -> anyhow::Result<Opened>;

    /// Closes the sockets. What was sent comes with it where this thread sent.
    fn finish(self) -> (Listener, Option<sender::Outcome>);
}
