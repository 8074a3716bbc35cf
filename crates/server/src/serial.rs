//! Numbers that tell apart all connections and sessions that the process ever has.
//!
//! A shard reuses its places, and tells others about clients by name. With such a number in it a name that comes late, or to the wrong shard,
//! names nobody.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The next number. Written when a connection comes, never for a message.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A number that no other call returns: with a million a second they last for half a million years.
pub(crate) fn serial() -> u64 {
    NEXT.fetch_add(1, Relaxed)
}
