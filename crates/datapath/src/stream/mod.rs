//! Connections in the shard's own loop, beside the datagrams.
//!
//! A connection is read at most once per turn, into one arena for all of them, and what a handler forwards from it lies there
//! until the flush. What the handler cannot use yet it *keeps*: those bytes come again in front of the next ones. Towards a
//! connection each turn's messages leave with one gathering write. What the kernel does not take waits in an
//! [`Outgoing`](outgoing::Outgoing), which is bounded: relayed data beyond the bound pushes out the oldest, and a connection whose control messages
//! do not fit is closed.
//!
//! Two connections can be *joined*: what is read from either is sent on the other, nothing is dropped, and one is not read while
//! something waits for the other. The end of either stream is passed on as that, a failure as a reset.
//!
//! Invariants:
//! * nothing blocks: every socket is non-blocking, and every loop over a socket is bounded per turn;
//! * a message that was begun on a connection is completed or the connection is closed;
//! * every queued message is handed to the kernel or reported by [`StreamHandler::stream_failed`](crate::StreamHandler::stream_failed),
//!   exactly once;
//! * what a connection takes while nothing is under way is its entry in the table.
//!
//! Read `accept.rs` for how connections come (`accepting.rs`: to which shard, `shortage.rs`: when descriptors are short), `read.rs` and `flush.rs` for how bytes come and go, `outgoing.rs` for what waits.

pub(crate) mod accept;
pub(crate) mod accepting;
pub(crate) mod connection;
pub(crate) mod flush;
mod outgoing;
pub(crate) mod read;
mod shortage;
pub(crate) mod streams;
