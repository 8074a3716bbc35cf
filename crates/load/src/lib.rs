//! The instruments: load generator, reflector and connection-rate tools.
//!
//! They speak to any server of the protocol and share [`turnbuckle_wire`] and [`turnbuckle_datapath`] with the relay, never its rules: a
//! generator that used the relay's engine would repeat its mistakes.
//!
//! [`load`] is the generator, [`peer`] the reflector, and [`uclient`] the generator behind the flags of coturn's; clients are those of
//! [`turnbuckle_client`]. [`connections`] are two programs that count TCP connections per second, [`quic`] are two that move bytes over QUIC connections.
//! [`link`] is a path between others that delays, loses and reorders. [`stunclient`] and [`natdiscovery`] ask a server what it sees of this host.
#![forbid(unsafe_code)]

pub mod connections;
pub mod link;
pub mod load;
pub mod natdiscovery;
pub mod peer;
pub mod quic;
mod reach;
pub mod stunclient;
pub mod uclient;

mod authorities;
mod cli;
mod flags;
mod negative;
mod output;
mod packet;
mod reflection;
mod socket_drops;
mod stop;
mod threads;
