//! The topics of a configuration. Each file holds the given values of its topic, the resulting settings, their option rows, and their checks.

pub(crate) mod addresses;
pub(crate) mod admin;
pub(crate) mod authentication;
pub(crate) mod auxiliary;
pub(crate) mod clients;
pub(crate) mod console;
pub(crate) mod database;
pub(crate) mod datapath;
pub(crate) mod exporter;
pub(crate) mod guests;
pub(crate) mod http;
pub(crate) mod limits;
pub(crate) mod log;
pub(crate) mod nat_discovery;
pub(crate) mod offload;
pub(crate) mod peers;
pub(crate) mod process;
pub(crate) mod proxies;
pub(crate) mod redirection;
pub(crate) mod relays;
pub(crate) mod requests;
pub(crate) mod statsdb;
pub(crate) mod stun;
pub(crate) mod third_parties;
pub(crate) mod tls;
