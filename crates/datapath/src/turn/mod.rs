//! The turn of a shard's loop, which joins datagrams and connections.

pub(crate) mod coalesce;
pub(crate) mod datapath;
mod events;
mod opener;
mod waiting;
