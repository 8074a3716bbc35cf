//! Flows that the kernel relays by itself, in an XDP program, before a socket is looked up.
//!
//! User space decides which flows these are: it *publishes* a [`Route`] and *revokes* it (`routes.rs`). What the program does not know or finds
//! unusual goes to the sockets as before, so each datagram is handled by one of the two. The program is `bpf/turn.bpf.c`; what both sides share is
//! memory: lines (`line.rs`, `table.rs`), meters (`meters.rs`), next hops (`nexthop.rs`) and listeners (`screen.rs`). `program.rs` loads it.
//!
//! Invariants:
//! * After [`Routes::revoke`] no datagram that arrives is relayed by that route.
//! * [`Carried`] of a line that was revoked [`GRACE`] ago does not change any more.
//! * What is dropped beyond a rate is dropped by the bucket that user space charges too ([`Meters`]).
//! * What else is dropped came to a [`Listener`] and begins as nothing does that is served there. It is counted ([`Refused`]).

mod attachment;
mod hash;
mod line;
#[cfg_attr(
    not(any(test, all(feature = "xdp", target_arch = "x86_64"))),
    expect(dead_code, reason = "only the program makes meters")
)]
mod meters;
#[cfg_attr(
    not(all(feature = "xdp", target_arch = "x86_64")),
    expect(dead_code, reason = "only the program makes next hops")
)]
mod nexthop;
mod program;
mod routes;
#[cfg_attr(
    not(any(test, all(feature = "xdp", target_arch = "x86_64"))),
    expect(dead_code, reason = "only the program makes screens")
)]
mod screen;
#[cfg(test)]
mod structures;
#[cfg_attr(
    not(all(feature = "xdp", target_arch = "x86_64")),
    expect(dead_code, reason = "only the program makes tables")
)]
mod table;

use std::io;
use std::net::UdpSocket;

use turnbuckle_sys::ethtool;
pub use turnbuckle_sys::ethtool::Rings;

pub use self::attachment::Attachment;
pub use self::hash::Seed;
pub use self::meters::{Meters, Way};
pub use self::nexthop::{Hop, Hops, Wanted};
pub use self::program::{Action, Attach, Kernel, KernelRoutes, Passes, Verdict};
pub use self::routes::{Beyond, Carried, GRACE, Line, Route, Routes};
pub use self::screen::{FirstBytes, Listener, Mark, Refused, Screen};
pub use self::table::Table;

/// Returns whether the kernel may join datagrams that arrive by a device before a program in the network stack sees them.
///
/// # Errors
///
/// There is no such device, or it does not say.
pub fn joins_datagrams(device: &str) -> io::Result<bool> {
    ethtool::joins_datagrams(any_socket()?, device)
}

/// Returns the name of the driver of a device.
///
/// # Errors
///
/// As for [`joins_datagrams`].
pub fn driver(device: &str) -> io::Result<String> {
    ethtool::driver(any_socket()?, device)
}

/// Returns how many packets a device keeps each way.
///
/// # Errors
///
/// As for [`joins_datagrams`].
pub fn rings(device: &str) -> io::Result<Rings> {
    ethtool::rings(any_socket()?, device)
}

/// Returns a socket for questions about devices.
fn any_socket() -> io::Result<UdpSocket> {
    UdpSocket::bind(("127.0.0.1", 0)).or_else(|_| UdpSocket::bind(("::1", 0)))
}
