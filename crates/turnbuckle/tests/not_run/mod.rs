//! A word where a test cannot be run: `scripts/test` counts them, names them at its end, and fails.

use std::fs::OpenOptions;
use std::io::{Write as _, stderr};

/// Says that the calling test is not run, or not all of it, and why: on standard error, past the harness that would keep it to itself,
/// and in a line of the file that `TURNBUCKLE_NOT_RUN` names in the environment.
pub(crate) fn not_run(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a thread without a name");
    let line = format!("{}: {test}: {why}\n", env!("CARGO_CRATE_NAME"));
    let _ = stderr().write_all(format!("not run: {line}").as_bytes());
    if let Some(path) = std::env::var_os("TURNBUCKLE_NOT_RUN") {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .expect("TURNBUCKLE_NOT_RUN names a file that can be written");
        file.write_all(line.as_bytes()).expect("written");
    }
}
