//! What goes in, and exactly what comes out: the engine as its host sees it, topic by topic of RFC 8656 and RFC 8489.
//!
//! `support.rs` is the host of these tests: it keeps the clock, opens sockets, collects answers and speaks for clients.

#![expect(
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    reason = "a panic is how a test fails, in its helpers too"
)]

mod allocate;
mod answers;
mod authentication;
mod bandwidth;
mod bound;
mod channel;
mod classic;
mod connection;
mod discovery;
mod failed;
mod flows;
mod histories;
mod icmp;
mod limits;
mod mobility;
mod moved;
mod opening;
mod permission;
mod realm;
mod rebuild;
mod reconfigure;
mod redirect;
mod refresh;
mod relay;
mod reservation;
mod retransmission;
mod send;
mod shared;
mod standing;
mod stun;
mod support;
mod tcp;
mod token;
mod tunnel;
