//! What all engines of a server share: ports, quotas, reservations. Never touched per relayed datagram.

use std::sync::Arc;

use crate::config::Config;

/// Port pools, quota ledger and reservations of a whole server.
#[derive(Debug)]
pub struct Commons {}

impl Commons {
    /// The pools for `config`, all free.
    pub fn new(_config: &Config) -> Arc<Self> {
        Arc::new(Self {})
    }
}
