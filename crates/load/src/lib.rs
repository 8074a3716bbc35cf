//! The instruments: load generator and reflector.
//!
//! They speak to any server of the protocol and share [`turnbuckle_wire`] and [`turnbuckle_datapath`] with the relay, never its rules: a
//! generator that used the relay's engine would repeat its mistakes.
//!
//! [`peer`] is the reflector.

pub mod peer;

mod cli;
mod output;
mod socket_drops;
mod stop;
mod threads;
