//! ConnectionBind requests that pass from one engine to another (RFC 6062 §5.4).

use core::fmt;
use std::sync::Arc;

use turnbuckle_wire::IntegrityKey;

use crate::credential::User;
use crate::id::ConnectionId;
use crate::request::Envelope;

/// An authenticated ConnectionBind request on its way to the engine that has the connection.
#[derive(Clone)]
pub struct Handover {
    pub(crate) shard: u32,
    pub(crate) connection: ConnectionId,
    pub(crate) envelope: Envelope,
    pub(crate) key: Option<IntegrityKey>,
    pub(crate) user: Arc<User>,
}

impl Handover {
    /// Returns the shard of the engine that it is for, as set there with [`crate::Engine::set_shard`].
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// Returns the connection that it is about.
    pub fn connection(&self) -> ConnectionId {
        self.connection
    }
}

impl PartialEq for Handover {
    fn eq(&self, other: &Self) -> bool {
        self.connection == other.connection && self.envelope == other.envelope
    }
}

impl Eq for Handover {}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover")
            .field("shard", &self.shard)
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}
