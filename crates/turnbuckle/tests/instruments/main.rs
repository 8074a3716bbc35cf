//! The instruments as programs: what they count must be what happened.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, and a word where one cannot run"
)]

mod connections;
mod discovery;
mod load;
mod peer;
mod program;
mod stand_in;
mod uclient;
