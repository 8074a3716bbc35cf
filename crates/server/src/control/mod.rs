//! The control side runs beside the shards, on threads of its own.
//!
//! The thread that calls [`serve`] waits for [`events`] and timers, and sends changes to the shards. Separate threads follow signals, the addresses
//! of the machine and the user database, and send events. Each part has its own state, returns when it is due, and is called then. [`run`] connects
//! the parts.
//!
//! Invariant: a shard never waits for any of this.

mod announce;
mod certificates;
mod devices;
mod drain;
mod error;
pub(crate) mod events;
mod failures;
mod interfaces;
pub(crate) mod keys;
pub(crate) mod limits;
mod listening;
mod pending;
mod rehearsal;
mod relays;
mod reload;
mod run;
mod shards;
mod start;
mod statistics;
mod upgrading;
mod users;

pub use error::ServeError;
pub use rehearsal::rehearse;
pub use reload::Configuration;
pub use run::{serve, serve_and_reload};
