//! The rules that apply to all allocations of an engine.

use std::sync::Arc;

use crate::commons::Commons;
use crate::config::Config;
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
    /// `None` where allocations cannot move.
    pub(crate) tickets: Option<Tickets>,
    /// Which shard this engine is to the others.
    pub(crate) shard: u32,
    /// Whether new allocations are refused.
    pub(crate) is_draining: bool,
}
