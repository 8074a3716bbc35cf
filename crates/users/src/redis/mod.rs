//! Users in Redis or Valkey, under coturn's keys: read, followed by what the server tells, asked for one by one, and changed by `turnadmin`. And a
//! server for what is no user ([`RedisStore`]).
//!
//! The keyspace is walked with `SCAN` and never with `KEYS`, which stops the server for everybody, and no command has the server save to its disk:
//! when that happens is the operator's choice.

mod connect;
mod driver;
mod keys;
mod mirror;
mod pushes;
mod store;
mod words;

pub use driver::Redis;
pub use store::{RedisError, RedisStore, RedisWrite};
pub use words::{RedisAddress, RedisAddressError};
