//! The relay: engine joined to datapath, configuration, shards, counters.

pub mod config;

mod announce;
mod clock;
mod counters;
mod dtls;
mod interfaces;
mod listening;
mod log;
mod pending;
mod process;
mod proxy;
mod random;
mod relay;
mod serial;
mod serve;
mod shard;
mod sources;
mod stream;
mod tls;
mod train;
mod translate;
mod turnadmin;
mod users;

pub use counters::Accounting;
pub use log::Sink;
pub use process::detach;
pub use serve::{ServeError, serve};
pub use turnadmin::turnadmin;
