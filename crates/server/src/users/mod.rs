//! Users of a database: their rows become settings of the engines, now and whenever the database changes.
//!
//! Invariant: no shard ever waits for a database, and no request that is good does. A separate thread reads it and hands new settings to the shards whenever it has
//! changed ([`followed`]). The shards look users up in memory. So a slow, locked or missing database delays none of these. Who is unknown, or
//! has another key, is asked for within bounds ([`crate::asking`]). The time of a look-up does not reveal which users exist (V-25, V-26).
//! Decisions [8](../../../../docs/decisions/0008-users-are-read-not-asked-for.md) and
//! [43](../../../../docs/decisions/0043-a-request-is-refused-after-one-question.md) have the reasons.

mod followed;
mod learned;
mod origin;
mod records;
mod token_keys;

pub(crate) use followed::{Base, Followed, Outcome};
pub(crate) use origin::canonical;
