//! The instruments as programs: what they count must be what happened.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, and a word where one cannot run"
)]

mod connections;
mod discovery;
mod load;
mod modes;
mod peer;
#[path = "../ports/mod.rs"]
mod ports;
mod program;
mod stand_in;
mod transports;
mod uclient;
