//! `turnbuckle quic-server` and `turnbuckle quic-client`: bytes over QUIC connections, up and down, through the relay's own data path.
//!
//! Both sides have the same QUIC stack, which hands out the same trains whatever the backend; what differs between backends is how the data path
//! moves them, and so the difference is the backend's. Each transfer is checked, its length and a hash of its bytes, by the side that
//! asked for it; one that is wrong or late is a failure, never a figure.
//!
//! `exchange` is what is said on a stream, `datagrams` what is done without one, `side` joins endpoint and data path, `server` and `client` are the programs.

mod batching;
mod client;
mod datagrams;
mod exchange;
mod payload;
mod server;
mod side;
mod summary;
mod tls;

pub use self::client::{ClientArguments, measure};
pub use self::server::{ServerArguments, serve};
