//! Relay sockets that the host has been asked for, and how far it is with them.

use super::lease::Lease;
use crate::id::{Endpoint, RelayProtocol};
use crate::ports::{PortKind, PortLease};
use crate::reject::Reject;
use crate::reservation::ReservedPort;
use crate::time::Time;

/// What an allocation or a tunnel waits for before there is one.
#[derive(Debug)]
pub(crate) struct Openings {
    /// By [`crate::Family::index`].
    pub(crate) by_family: [Opening; 2],
    /// What to try in place of a port that another process has; `None` if no other one will do.
    pub(crate) other: Option<(PortKind, RelayProtocol)>,
    /// Ports another process was found to have: kept until the end so that they are not tried twice.
    pub(crate) in_use: Vec<PortLease>,
    /// When it is given up.
    pub(crate) deadline: Time,
}

/// How far one family is.
#[derive(Debug)]
pub(crate) enum Opening {
    /// Not asked for.
    Unwanted,
    /// The host has been asked.
    Waiting {
        attempt: u8,
        lease: PortLease,
        sibling: Option<PortLease>,
    },
    /// Done.
    Open {
        endpoint: Endpoint,
        lease: Lease,
        sibling: Option<ReservedPort>,
    },
    /// Not to be had.
    Failed(Reject),
}

impl Openings {
    pub(crate) fn new(
        by_family: [Opening; 2],
        other: Option<(PortKind, RelayProtocol)>,
        deadline: Time,
    ) -> Self {
        Self {
            by_family,
            other,
            in_use: Vec::new(),
            deadline,
        }
    }

    /// Returns whether the host has answered all that it was asked.
    pub(crate) fn are_answered(&self) -> bool {
        let mut openings = self.by_family.iter();
        openings.all(|opening| !matches!(opening, Opening::Waiting { .. }))
    }
}
