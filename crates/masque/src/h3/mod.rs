//! HTTP/3 (RFC 9114) as far as tunnels need it: extended CONNECT (RFC 9220), datagrams and capsules (RFC 9297).
//!
//! Sans-IO: [`Server`] is one connection. It is handed the bytes of streams and the payloads of DATAGRAM frames, and gives what is to be sent to
//! [`Streams`]. No QUIC, no socket, no clock, and nothing about who may reach whom: each request becomes an [`Event`] that the host answers. [`Client`] is
//! a connection from the other side, for the instruments.
//!
//! How to read it: `server` is the connection and its requests; below it `incoming` has the client's other streams, `request` what a field section
//! asks for and `brought` what comes through tunnels, `qpack` how it is encoded, `frames` where a frame begins and ends.
//!
//! Invariant: what a client has this side keep is bounded, per stream and per connection, before and after it has shown who it is.

mod brought;
mod client;
mod code;
mod event;
mod frames;
mod incoming;
pub mod qpack;
mod request;
mod server;
mod settings;
mod stage;
mod streams;

pub use self::brought::{Dropped, Payload};
pub use self::client::{Client, Happened, Violation};
pub use self::code::Code;
pub use self::event::Event;
pub use self::request::{asking, asking_bound};
pub use self::server::Server;
pub use self::settings::FIELDS_SIZE_MAX;
pub use self::streams::{NotSent, Streams, Way};
