//! The only place of the project with unsafe code: the system calls that no safe library offers, one file per family.
//!
//! Invariant: nothing in here hands out a raw pointer or a descriptor; what comes out is borrowed or owned Rust data.
//! Everything that a safe wrapper offers (epoll, eventfd, timerfd, bind) is called outside, through `rustix` and `socket2`.

pub(crate) mod accept_ring;
pub(crate) mod address;
pub(crate) mod cmsg;
pub(crate) mod cpus;
pub(crate) mod descriptors;
pub(crate) mod errqueue;
#[cfg(test)]
pub(crate) mod fault;
mod pinned;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod sockopt;
pub(crate) mod steering;
