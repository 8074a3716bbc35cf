//! The instruments: load generator, reflector and connection-rate tools.
//!
//! They speak to any server of the protocol and share [`turnbuckle_wire`] and [`turnbuckle_datapath`] with the relay, never its rules: a
//! generator that used the relay's engine would repeat its mistakes.
//!
//! [`load`] is the generator, [`peer`] the reflector; [`client`] is the TURN client that the generator is made of, and
//! [`uclient`] the generator behind the flags of coturn's. [`connections`] are two programs that count TCP connections per second, and
//! [`probe`] attacks a server with what has gone wrong in others.
//! [`stunclient`] and [`natdiscovery`] ask a server what it sees of this host.

pub mod client;
pub mod connections;
pub mod load;
pub mod natdiscovery;
pub mod peer;
pub mod probe;
pub mod stunclient;
pub mod uclient;

mod certificates;
mod cli;
mod flags;
mod output;
mod packet;
mod reflection;
mod socket_drops;
mod stop;
mod threads;
