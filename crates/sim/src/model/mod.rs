//! A reference model of RFC 8656: small, slow and obvious.
//!
//! The model holds what the RFC says a server holds (§6) in ordered maps, scans them without shame
//! and says what may happen next. Where the RFC leaves a choice to the server, such as the relayed port, the model says which
//! choices are sound and takes over the one that it observes.
//!
//! It has no rule from the engine, but parts in common with it: messages are parsed and their integrity is computed by
//! `turnbuckle-wire`, and names of the engine's are used for what is compared (`DropReason`, `Change`, identifiers). A mistake in those shows in
//! the tests of `wire` against other codecs, and not here. Which strangers share a bucket of the budget the engine says too; here it is
//! checked that few do.
//!
//! Not in this world: streams, tokens, several realms, a new configuration, discovery, a proxy, shared relay sockets. TCP relays have a world of
//! their own ([`crate::connections`]). The monotonic clock and the calendar go at one pace; where they step apart is tried in the engine's scenarios.
//!
//! [`state`] is the page to begin with: what RFC 8656 says a server remembers, and what RFC 8016 adds. [`memory`] adds what a run has to know
//! beside it. [`rules`] is what the operator decided. [`predict`] reads like the RFC's numbered steps and says what may be answered ([`expect`]),
//! with [`mobility`] for clients that move; [`proof`] says who has proved what (RFC 8489 §9.2).

mod expect;
mod memory;
mod mobility;
mod predict;
mod proof;
mod rules;
mod state;
mod wrong;

pub use self::expect::Expect;
pub use self::memory::{Asked, Finished, Model, Pending};
pub use self::predict::{Inbound, canonical};
pub use self::proof::{Nonces, Proof, Secrets, quota_name};
pub use self::rules::{Bounds, Lifetimes, Rules};
pub use self::state::{Allocation, Mobility, Reservation, Resumed, Tuple};
