//! Users in coturn's SQLite database: read, followed, and changed by `turnadmin`.
//!
//! Invariant: no shard and no request ever waits for a database. A separate thread reads the whole tables and hands them to the shards whenever
//! they have changed ([`follow`]). The shards look users up in memory. So a slow, locked or missing database delays no request. An unauthenticated
//! client cannot cause a query. The time of a look-up does not reveal which users exist (V-25, V-26).
//! [Decision 8](../../../../docs/decisions/0008-users-are-read-not-asked-for.md) has the reasons.

mod database;
mod follow;
mod origin;
mod records;
mod token_keys;

pub(crate) use database::{Database, DatabaseError, text};
pub(crate) use follow::Follower;
pub(crate) use origin::canonical;
pub(crate) use records::Wanted;
