//! A QUIC endpoint (RFC 9000) without sockets, clocks or threads: a host hands it datagrams and the time, and takes trains of datagrams from it.
//!
//! [`Endpoint`] serves the connections of one listener in one thread, each with an [`Application`] of its own. The protocol itself is a
//! library's; `stack` alone names it. What this crate adds is what a relay's thread needs:
//!
//! * connection ids that carry the number of the shard, with a tag that others cannot forge by chance (`cid`), keys that all shards share (`keys`), and
//!   a program by which the kernel reads them (`steering`);
//! * no state before proof: each new connection is answered with a Retry first, and what has proven nothing waits in a bounded queue (`gate`);
//! * a bounded table of connections, in which a panic ends one of them and nothing else (`connections`);
//! * one deadline for each connection (`deadlines`), and trains into buffers that the host lends (`transmit`).
//!
//! Invariant: each datagram handed in is delivered to a connection, begins one, is answered, waits, or is dropped under a [`Dropped`]; [`Totals`] adds up.
#![forbid(unsafe_code)]

mod cid;
mod connections;
mod deadlines;
mod endpoint;
mod events;
mod gate;
mod keys;
mod pool;
mod settings;
mod stack;
mod state;
mod steering;
mod totals;
mod transmit;

pub use bytes::{Bytes, BytesMut};

pub use cid::{CONNECTION_ID_LEN, Ids};
pub use connections::{Application, ConnectionName};
pub use endpoint::Endpoint;
pub use events::Event;
pub use gate::Strangers;
pub use keys::Keys;
pub use settings::{Limits, Path, Settings, WallClock};
pub use stack::{Connection, StreamId};
pub use state::{Closed, Refused, SendDatagramError, Statistics, StreamError, StreamState};
pub use steering::Instruction;
pub use totals::{Dropped, Totals};
pub use transmit::{Outlet, Via};
