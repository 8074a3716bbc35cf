//! What a run prints: sentences for people, or JSON for programs.

use std::io::{self, Write as _};

/// Prints a line to standard output. A reader that went away ends nothing: the exit code still counts.
pub(crate) fn line(text: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}
