//! Users in coturn's SQLite database: read, followed, and changed by `turnadmin`.
//!
//! Invariant: no shard and no request ever waits for a database. A thread of its own reads the tables whole and hands them over whenever they
//! have changed ([`follow`]), and the shards look users up in memory: a database that is slow, locked or gone keeps nobody waiting, strangers
//! cannot make the server ask it, and what a look-up costs does not tell who is in it (V-25, V-26).
//! [Decision 8](../../../../docs/decisions/0008-users-are-read-not-asked-for.md) has the reasons.

mod database;
mod follow;
mod records;
mod token_keys;

pub(crate) use database::{Database, DatabaseError, text};
pub(crate) use follow::Follower;
pub(crate) use records::Wanted;
