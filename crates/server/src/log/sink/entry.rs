//! One line of the log before it has a form.

use std::time::Duration;

use jiff::Zoned;

use crate::config::Level;
use crate::log::Summary;

/// A line of the log, or the summary of a session.
pub(super) struct Entry {
    pub(super) level: Level,
    /// One line: whoever worded it has escaped the names in it.
    pub(super) message: String,
    pub(super) time: Zoned,
    /// Time since the log was opened.
    pub(super) elapsed: Duration,
    pub(super) session: Option<Summary>,
}

impl Entry {
    /// Returns a copy of the times of an entry with the line that says how many lines were lost before it.
    pub(super) fn about_lost(&self, count: u64) -> Self {
        self.warning(format!("{count} lines before the next one were lost"))
    }

    /// Returns a warning of the same moment.
    pub(super) fn warning(&self, message: String) -> Self {
        Self {
            level: Level::Warning,
            message,
            time: self.time.clone(),
            elapsed: self.elapsed,
            session: None,
        }
    }
}
