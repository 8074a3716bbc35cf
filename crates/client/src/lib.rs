//! TURN clients, written on the codec alone, so that they cannot share a mistake with a relay's rules.
//!
//! [`Client`] is one without sockets and clocks: an allocation with a peer, kept alive until it is released. The load generator is made of it.
//! [`blocking`] has one that sends what its caller asks for, valid or not, by every transport. Attacks and tests are made of it. Both authenticate
//! with the same [`Proof`].

pub mod blocking;
pub mod certificates;
pub mod descriptors;

mod address;
mod client;
mod credentials;
mod plan;
mod proof;
mod request;
mod time;
mod token;
mod transport;

pub use address::server_address;
pub use client::Client;
pub use credentials::Credentials;
pub use plan::{Event, Failure, Path, Plan, Relay, TCP, Terms, UDP};
pub use proof::Proof;
pub use time::Nanos;
pub use transport::Transport;
