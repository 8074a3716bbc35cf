//! Ports of loopback for servers that are told which one to take.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range from which the kernel serves those who ask for any port: connections of other tests, and what is left of them
/// when they end (TIME-WAIT), stay out of the way there.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// Two ports in a row, the first of them given, that nobody has for UDP or TCP; no other test of this program gets them.
pub(crate) fn free_ports() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Programs that run beside this one begin elsewhere.
    let start = u16::try_from(std::process::id() % u32::from(COUNT / 2)).unwrap_or(0) * 2;
    (0..COUNT / 2)
        .map(|_| FIRST + (start + NEXT.fetch_add(2, Ordering::Relaxed) % COUNT) % COUNT)
        .find(|&port| is_free(port) && is_free(port + 1))
        .expect("two ports in a row")
}

fn is_free(port: u16) -> bool {
    let address = (Ipv4Addr::LOCALHOST, port);
    UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok()
}
