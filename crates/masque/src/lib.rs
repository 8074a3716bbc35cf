//! UDP proxying in HTTP (RFC 9298): what a request asks for, what it is answered, and the datagrams in a stream of capsules.
//!
//! Sans-IO: bytes in, values and bytes out. No socket, no clock, no thread, and nothing about who may reach whom: that is the
//! engine's, as for TURN.
//!
//! How to read it, in the order in which a client's bytes meet it:
//!
//! 1. [`http1::read`] takes the head of an HTTP/1.1 request. [`Asked`] is what is left of it, and of a request that comes by another
//!    version of HTTP.
//! 2. [`Target`] is the host and the port in its path, [`BasicCredentials`] who asks.
//! 3. [`http1::opened`] and [`http1::refused`] are what it is answered, the latter with a [`Refusal`].
//! 4. [`Capsules`] finds the UDP payloads in what follows.
//!
//! A tunnel that is bound leads to whomever its client names: [`bind`] has what that needs.
//!
//! By HTTP/3, [`h3::Server`] does all of this for one connection.
//!
//! The one invariant: nothing here keeps more of a client than it says. Who reads a stream of HTTP/1.1 keeps what is incomplete.

#![forbid(unsafe_code)]

mod asked;
pub mod bind;
mod capsules;
mod credentials;
mod granted;
pub mod h3;
pub mod http1;
mod refusal;
mod target;

pub use asked::Asked;
pub use capsules::{BoundPiece, Capsules, Datagrams, Malformed, Passed, Piece};
pub use credentials::BasicCredentials;
pub use granted::Granted;
pub use refusal::Refusal;
pub use target::{Host, Target, TargetError};
