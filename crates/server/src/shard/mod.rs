//! A shard: one thread with its own sockets, allocations, timers and counters.
//!
//! [`thread`] is the loop. [`hub`] joins engine and data path: it routes what comes and carries out what the engine wants. A *front* is how
//! a client is reached ([`front`]), a *peer* how the other side is ([`peer`]). [`across`] is what passes between shards.

pub(crate) mod across;
pub(crate) mod book;
pub(crate) mod changes;
pub(crate) mod discovery;
pub(crate) mod front;
pub(in crate::shard) mod hub;
pub(crate) mod name;
mod pages;
mod parking;
pub(in crate::shard) mod peer;
pub(crate) mod relay;
pub(crate) mod serving;
pub(crate) mod sessions;
mod steering;
pub(crate) mod thread;
pub(crate) mod train;

pub(crate) use thread::{Followers, HostAddresses, Listeners, Plan, Request, Shard, Starting};

#[cfg(test)]
pub(crate) mod tests;
