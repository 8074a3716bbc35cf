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
//! * every queued datagram is handed to the kernel or reported by [`DatagramHandler::send_failed`], exactly once;
//! * a failed train is split and sent again before anything is given up.
//!
//! The floors, from below: `names.rs`, `views.rs`, `reports.rs`, `counters.rs`, `queue/` and `handler.rs` say what is passed to whom and touch no
//! descriptor; `sockets/` opens sockets; `udp/` receives and sends datagrams, `stream/` serves connections; `turn/` joins the two.
//! System calls that safe libraries lack are in `turnbuckle-sys`.
#![forbid(unsafe_code)]

mod counters;
mod handler;
mod names;
pub mod offload;
mod queue;
mod reports;
mod settings;
mod sockets;
mod stream;
#[cfg(test)]
mod testing;
mod turn;
mod udp;
mod views;

pub use counters::{
    BatchSize, Counters, PaceCounters, ReceiveCounters, SendCounters, Snapshot, SocketPurpose,
    StreamCounters, receive_log_line, send_log_line,
};
pub use handler::{DatagramHandler, Handler, StreamHandler, TurnHandler};
pub use names::{Bind, EndpointId, EndpointKind, Listen, StreamId, StreamListenerId};
pub use queue::to_streams::Staged;
pub use queue::{
    Content, Memory, PREFIX_LEN_MAX, QueuedDatagram, Run, SendQueue, StreamChange, StreamMessage,
    StreamTouched, TRAILER_LEN_MAX,
};
pub use reports::{IcmpError, SendFailure, StreamEnd, Warning};
pub use settings::{
    BURST_DATAGRAMS, BufferSettings, Devices, RELAY_START_BYTES, Settings, StreamSettings,
};
pub use sockets::budget::BufferBudget;
pub use sockets::device::probe_device;
pub use sockets::kept::{KeptSockets, SocketKind};
pub use sockets::opening::{DetachedStream, HeldSocket, Sockets};
pub use sockets::socket::{SharedSocket, grantable_receive_buffer};
pub use sockets::waker::Waker;
pub use stream::accepting::{AcceptStrategy, Accepting};
pub use turn::coalesce::CoalescePolicy;
pub use turn::datapath::Datapath;
pub use turnbuckle_sys::cpus::{allowed_cpus, pin_current_thread};
pub use turnbuckle_sys::steering::Instruction;
pub use udp::backend::{Backend, UnknownBackend};
pub use views::{Accepted, Admission, Payload, Place, Received, StreamInput, Taken};
