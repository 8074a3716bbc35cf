//! What goes in, and exactly what comes out: the engine as its host sees it, topic by topic of RFC 8656 and RFC 8489.
//!
//! `support.rs` is the host of these tests: it keeps the clock, opens sockets, collects answers and speaks for clients.

mod relay;
mod support;
