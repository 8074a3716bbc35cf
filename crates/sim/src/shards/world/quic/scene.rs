//! What is around clients by QUIC while they do or hear something.

use turnbuckle_server::simulation::Server;

use super::super::super::host::SharedHost;
use super::super::rules::Rules;
use super::Due;
use crate::violation::Coverage;

/// What there is, and what comes of it.
pub(in super::super) struct Scene<'a> {
    pub(in super::super) now: u64,
    pub(in super::super) rules: &'a Rules,
    pub(in super::super) server: &'a Server,
    pub(in super::super) host: &'a SharedHost,
    pub(in super::super) coverage: &'a mut Coverage,
    /// What is to happen because of it.
    pub(in super::super) due: Vec<Due>,
    /// Payloads that were sent.
    pub(in super::super) payloads: u64,
}

impl Scene<'_> {
    /// Counts that something has happened.
    pub(super) fn count(&mut self, what: &'static str, kind: u16) {
        self.coverage.count(what, kind);
    }

    /// Returns whether the host of a peer has refused what was sent in the name of `owner`.
    pub(super) fn has_refused(&self, owner: u32) -> bool {
        self.host.lock().refused.contains(&owner)
    }
}
