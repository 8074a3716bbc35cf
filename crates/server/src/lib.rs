//! The relay: engine joined to datapath, configuration, shards, counters.

pub mod config;
