//! One line of the log before it has a form.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use crate::config::Level;
use crate::log::Summary;

/// A line of the log, or the summary of a session.
pub(super) struct Entry {
    pub(super) level: Level,
    /// One line: whoever worded it has escaped the names in it.
    pub(super) message: String,
    pub(super) time: Timestamp,
    /// Time since the log was opened.
    pub(super) elapsed: Duration,
    pub(super) session: Option<Summary>,
}

impl Entry {
    /// Returns the time on this machine's clock on the wall. The first call reads the whole list of time zones: it is for the thread of an output, since
    /// a relay that takes calls over must not wait for that.
    pub(super) fn local_time(&self) -> Zoned {
        self.time.to_zoned(TimeZone::system())
    }

    /// Returns a copy of the times of an entry with the line that says how many lines were lost before it.
    pub(super) fn about_lost(&self, count: u64) -> Self {
        self.warning(format!("{count} lines before the next one were lost"))
    }

    /// Returns a warning of the same moment.
    pub(super) fn warning(&self, message: String) -> Self {
        Self {
            level: Level::Warning,
            message,
            time: self.time,
            elapsed: self.elapsed,
            session: None,
        }
    }
}
