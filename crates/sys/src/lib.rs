//! The system calls that no safe library offers, one file per family. All unsafe code of the project is in this crate.
//!
//! Invariant: no function of this crate returns a raw pointer or a raw descriptor. Results are borrowed or owned Rust data.
//! Everything that a safe wrapper offers (epoll, eventfd, timerfd, bind) is called elsewhere, through `rustix` and `socket2`.
//!
//! The accept ring of the connection-rate tools comes with the feature `accept-ring`, so that the relay does not depend on `io-uring`.

#[cfg(feature = "accept-ring")]
pub mod accept_ring;
pub mod address;
mod cmsg;
pub mod cpus;
pub mod descriptors;
pub mod errqueue;
pub mod ethtool;
pub mod keeper;
pub mod links;
pub mod mapped;
mod pinned;
pub mod priority;
pub mod receive;
pub mod send;
pub mod sockopt;
pub mod steering;

/// Returns a count or offset that a system call takes as 32 bits: bounded by the arrays it is about, far below 2^32.
#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "bounded by the arrays of one call"
)]
fn narrow(value: usize) -> u32 {
    debug_assert!(u32::try_from(value).is_ok());
    value as u32
}
