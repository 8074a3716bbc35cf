//! A relayed transport address in use.

use super::lease::Lease;
use crate::change::Relayed;
use crate::id::Endpoint;
use crate::outbox::Outbox;
use crate::time::Time;

/// A relayed transport address in use. Each family of a dual allocation has its own lifetime (RFC 8656 §8.1).
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) endpoint: Endpoint,
    pub(crate) expires: Time,
    pub(crate) lease: Lease,
}

impl Relay {
    /// Marks the address of `lease` as open, because the host has its socket. From now on other allocations may send there.
    pub(crate) fn new(endpoint: Endpoint, expires: Time, lease: Lease) -> Self {
        lease.open();
        Self {
            endpoint,
            expires,
            lease,
        }
    }

    pub(crate) fn addresses(&self) -> Relayed {
        Relayed {
            local: self.lease.local(),
            external: self.lease.external(),
        }
    }

    /// Closes the socket, if it is the allocation's own.
    pub(crate) fn close(&self, outbox: &mut Outbox) {
        close(self.endpoint, &self.lease, outbox);
    }
}

/// Closes the socket of a relayed transport address, unless other allocations have it too.
pub(crate) fn close(endpoint: Endpoint, lease: &Lease, outbox: &mut Outbox) {
    if !lease.is_shared() {
        outbox.close_relay(endpoint);
    }
}
