//! The engine under virtual time: a simulated Internet in which everything goes wrong, and rules
//! that hold all the same.
//!
//! One number, the seed, names a whole history: who takes part, what each datagram meets on its way,
//! when the server dies. The same seed at the same commit does the same again, to the last byte, in
//! every build profile ([`Report::hash`]).
//!
//! The invariant of this crate: nothing here reads a clock, asks the operating system for
//! randomness or iterates over anything whose order is not fixed.
//!
//! How to read it: [`World`] moves events along; [`Watched`] gives each input to the engine and to the
//! reference [`Model`] and compares; [`Scenario`] draws a seed's world; [`run_seed`] runs it.

#![forbid(unsafe_code)]

pub mod attack;
pub mod check;
pub mod client;
pub mod connections;
pub mod features;
pub mod held;
pub mod link;
pub mod message;
pub mod model;
pub mod plan;
pub mod queue;
pub mod random;
pub mod run;
pub mod scenario;
pub mod server;
pub mod shards;
pub mod trace;
pub mod violation;
pub mod world;

pub use crate::check::{Datagram, Output, Watched};
pub use crate::features::{Feature, Features};
pub use crate::link::Faults;
pub use crate::model::{
    Allocation, Asked, Bounds, Expect, Finished, Inbound, Lifetimes, Mobility, Model, Nonces,
    Pending, Proof, Reservation, Resumed, Rules, Secrets, Tuple,
};
pub use crate::random::Seeded;
pub use crate::run::{Failure, Report, run, run_seed};
pub use crate::scenario::Scenario;
pub use crate::server::{Opening, Server, Socket, Step, Verdict};
pub use crate::trace::Trace;
pub use crate::violation::{Coverage, Violation};
pub use crate::world::World;
