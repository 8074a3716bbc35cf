//! The output of an engine besides routes: commands with their answers, and changes.

use std::collections::VecDeque;

use crate::change::Change;
use crate::outbox::Outbox;

/// The output that waits for the host.
#[derive(Debug, Default)]
pub(crate) struct Out {
    pub(crate) outbox: Outbox,
    pub(crate) changes: VecDeque<Change>,
    /// The error code of the answer that was withheld last because of its source's limit; `None` if it was no error.
    pub(crate) withheld: Option<u16>,
}
