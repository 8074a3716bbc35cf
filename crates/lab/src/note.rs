//! Lines for who watches.

use std::io::Write as _;

/// Prints a line for who watches; nothing is left to be said if nobody does.
pub(crate) fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
