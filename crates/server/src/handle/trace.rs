//! A trace of one user: what its requests ask for and are answered, and what becomes of its sessions, but nothing of what it relays.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// What takes the lines of a trace, on a shard's thread. It must not block, and returns false when nobody wants any more.
pub type TraceOutlet = Arc<dyn Fn(Traced) -> bool + Send + Sync>;

/// A trace that is to be made.
#[derive(Clone)]
pub struct Trace {
    /// The whole name of the user.
    pub user: Arc<str>,
    /// The numbers of sessions that the user has already.
    pub sessions: Arc<[u64]>,
    /// When it ends.
    pub until: Instant,
    /// Where its lines go.
    pub outlet: TraceOutlet,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { user, until, .. } = self;
        write!(f, "trace of {user:?} until {until:?}")
    }
}

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The shard at which it has happened.
    pub shard: usize,
    /// What has happened. All text of clients in it is escaped.
    pub text: String,
}
