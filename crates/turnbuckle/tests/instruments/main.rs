//! The instruments as programs: what they count must be what happened.
#![expect(clippy::unwrap_used, reason = "tests")]

mod connections;
mod discovery;
mod load;
mod modes;
#[path = "../not_run/mod.rs"]
mod not_run;
mod peer;
#[path = "../ports/mod.rs"]
mod ports;
mod program;
mod quic;
mod stand_in;
mod transports;
mod tunnels;
mod uclient;
