//! The instruments: load generator, reflector and connection-rate tools.
//!
//! They speak to any server of the protocol and share [`turnbuckle_wire`] and [`turnbuckle_datapath`] with the relay, never its rules: a
//! generator that used the relay's engine would repeat its mistakes.
