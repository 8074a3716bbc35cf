//! `turnbuckle accept-server` and `turnbuckle connect-client`: TCP connections per second.
//!
//! The pair after DragonFly's `accept_connect`: the server accepts and closes a connection when its peer does; the client connects and closes
//! at once, and no byte is exchanged. Their workers were processes; ours are threads, each with a table of descriptors of its own.

mod client;
mod errors;
mod exchange;
mod limits;
mod preflight;
mod server;
mod worker;

pub use client::Arguments as ConnectClient;
pub use server::Arguments as AcceptServer;
