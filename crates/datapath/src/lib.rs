//! Moves UDP datagrams in batches, so that a relay spends its time on rules and not on system calls.
//!
//! Why it exists: at a hundred thousand datagrams a second the kernel's cost per call and per packet decides, and the
//! features that cut it (`recvmmsg`, `UDP_GRO`, `UDP_SEGMENT`, `sendmmsg`) each have limits and failure modes that a
//! protocol should not have to know. This crate knows them and nothing about any protocol.
//!
//! One [`Datapath`] belongs to one thread, a shard. Its [`turn`](Datapath::turn) waits, receives messages of many
//! sockets into slots allocated at start, shows each to a [`Handler`], and sends what the handler queued. A message may be
//! a GRO buffer of many equal datagrams; the handler queues strided runs of it ([`SendQueue::forward`]), and runs of one
//! flow and size leave as one `UDP_SEGMENT` train. Payload goes out from where it came in (small datagrams that get or lose
//! a header are copied once, which is cheaper), and nothing is allocated per datagram.
//!
//! Invariants:
//! * datagrams of one flow (endpoint, destination) leave in the order they were queued;
//! * every queued datagram is handed to the kernel or reported by [`Handler::send_failed`], exactly once;
//! * a failed train is split and sent again before anything is given up.
//!
//! Read [`datapath`](Datapath) for the turn, `queue.rs` for trains, `pack.rs` and `flush.rs` for sending and its fall-backs,
//! `receive.rs` for receiving, `stream/` for connections, `sys/` for the system calls: all unsafe code of the project is there.
#![deny(unsafe_code)]

mod backend;
mod budget;
mod coalesce;
mod counters;
mod datapath;
mod endpoint;
mod epolls;
mod flush;
mod grown;
mod handler;
mod kept;
mod pack;
mod queue;
mod receive;
mod settings;
mod shard;
mod stream;
mod sys;
#[cfg(test)]
mod testing;

pub use backend::{Backend, UnknownBackend};
pub use budget::BufferBudget;
pub use coalesce::CoalescePolicy;
pub use counters::{
    Counter, Counters, HISTOGRAM_LABELS, PaceCounters, ReceiveCounters, SendCounters, Snapshot,
    StreamCounters, receive_log_line, send_log_line,
};
pub use datapath::{Datapath, Sockets, Waker};
pub use endpoint::{Bind, EndpointId, EndpointKind, SharedSocket};
pub use handler::{Handler, IcmpError, Payload, Place, Received, SendFailure, Warning};
pub use kept::KeptSockets;
pub use queue::{PREFIX_LEN_MAX, Run, SendQueue, Staged, TRAILER_LEN_MAX};
pub use settings::{Settings, probe_device};
pub use shard::{allowed_cpus, pin_current_thread};
pub use stream::{
    AcceptStrategy, Accepted, Accepting, DetachedStream, Listen, StreamEnd, StreamId, StreamInput,
    StreamListenerId, Taken,
};
pub use sys::accept_ring::{AcceptEvent, AcceptRing};
pub use sys::descriptors::unshare_descriptors;
pub use sys::sockopt::choose_port_at_connect;
pub use sys::steering::steer_by_cpu;
