//! The rules that apply to all allocations of an engine.

use std::sync::Arc;

use crate::allocation::lease::SharedRelay;
use crate::commons::Commons;
use crate::config::Config;
use crate::id::{Family, RelayProtocol};
use crate::listeners::Listeners;
use crate::policies::Policies;
use crate::ticket::Tickets;

/// The configuration of an engine and what it shares with the other engines. Handling a request changes none of it.
pub(crate) struct Rules {
    pub(crate) config: Arc<Config>,
    pub(crate) commons: Arc<Commons>,
    pub(crate) listeners: Listeners,
    /// Which peers clients may reach.
    pub(crate) policies: Policies,
    /// The relay sockets that UDP allocations share, by [`Family::index`]; none where each has its own.
    pub(crate) shared: [Option<Arc<SharedRelay>>; 2],
    /// `None` where allocations cannot move.
    pub(crate) tickets: Option<Tickets>,
    /// Which shard this engine is to the others.
    pub(crate) shard: u32,
    /// Whether new allocations are refused.
    pub(crate) is_draining: bool,
}

impl Rules {
    /// Returns whether allocations of this protocol share relay sockets.
    pub(crate) fn shares(&self, protocol: RelayProtocol) -> bool {
        protocol == RelayProtocol::Udp && self.config.relays.shared.is_some()
    }

    /// Returns whether relayed transport addresses of this family and protocol are to be had.
    pub(crate) fn supports(&self, family: Family, protocol: RelayProtocol) -> bool {
        match self.shares(protocol) {
            true => self.shared[family.index()].is_some(),
            false => self.commons.ports.supports(family),
        }
    }
}
