//! The log's record of an allocation.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use turnbuckle_engine::{Traffic, Usage};

use crate::log::pace::Pace;
use crate::log::request::{Path, Seal};

/// Number of datagrams after which coturn prints the usage of a session.
const USAGE_INTERVAL: u64 = 4096;

/// Holds an allocation and the fields that its lines repeat.
pub(super) struct LoggedSession {
    pub(super) number: u64,
    pub(super) path: Path,
    pub(super) realm: String,
    pub(super) user: String,
    pub(super) origin: String,
    pub(super) seal: Option<Seal>,
    /// Peers with a permission; kept only while sessions are logged.
    pub(super) peers: BTreeSet<IpAddr>,
    /// Whether its connection ended by an error.
    pub(super) is_broken: bool,
    /// The usage at the time of the last usage line.
    pub(super) reported: Usage,
    pub(super) requests: Pace,
    /// The address from which the allocation was resumed, until the client sends data from there (RFC 8016).
    pub(super) resumed: Option<SocketAddr>,
}

impl LoggedSession {
    /// Returns the text with realm and user.
    pub(super) fn whose(&self) -> String {
        format!("realm=<{}>, username=<{}>", self.realm, self.user)
    }

    /// Returns whether coturn would print the usage of the session now.
    pub(super) fn is_usage_due(&self, usage: &Usage) -> bool {
        datagrams(usage).saturating_sub(datagrams(&self.reported)) >= USAGE_INTERVAL
    }

    /// Returns the two lines about the session's usage since the last such lines.
    pub(super) fn used(&mut self, title: &str, totals: &Usage) -> [String; 2] {
        let whose = self.whose();
        let since = |now: &Traffic, then: &Traffic| Traffic {
            datagrams: now.datagrams.saturating_sub(then.datagrams),
            bytes: now.bytes.saturating_sub(then.bytes),
        };
        let said = |received: Traffic, sent: Traffic| {
            format!(
                "{whose}, rp={}, rb={}, sp={}, sb={}",
                received.datagrams, received.bytes, sent.datagrams, sent.bytes
            )
        };
        let then = std::mem::replace(&mut self.reported, *totals);
        let client = said(
            since(&totals.client_received, &then.client_received),
            since(&totals.client_sent, &then.client_sent),
        );
        let peer = said(
            since(&totals.peer_received, &then.peer_received),
            since(&totals.peer_sent, &then.peer_sent),
        );
        [
            format!("{title}: usage: {client}"),
            format!("{title}: peer usage: {peer}"),
        ]
    }
}

/// Returns the number of datagrams in both directions, on the client's and on the peers' side.
fn datagrams(usage: &Usage) -> u64 {
    let all = [
        usage.client_received,
        usage.client_sent,
        usage.peer_received,
        usage.peer_sent,
    ];
    all.iter().map(|traffic| traffic.datagrams).sum()
}
