//! Loopback addresses that no other test uses, so that tests run side by side on fixed ports.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::ports::claim;

/// A /24 within 127.0.0.0/8, one to a test. Processes differ in the second octet, which each has to itself until it ends, tests in the third.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    second: u8,
    third: u8,
}

static NEXT: AtomicU8 = AtomicU8::new(1);

impl Site {
    pub(crate) fn new() -> Self {
        static SECOND: OnceLock<u8> = OnceLock::new();
        Self {
            // 127.20 to 127.219.
            second: *SECOND.get_or_init(|| {
                // Programs that run beside this one begin elsewhere, and what one has left running stays alone.
                let start = std::process::id() % 200;
                let mut octets = (0..200).map(|number| 20 + (start + number) % 200);
                let free = octets.find(|octet| claim(&format!("turnbuckle-test-net-{octet}")));
                let free = free.expect("fewer than 200 programs of tests run at once");
                u8::try_from(free).expect("below 220")
            }),
            third: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns the address ending in `host`.
    pub(crate) fn ip(self, host: u8) -> IpAddr {
        Ipv4Addr::new(127, self.second, self.third, host).into()
    }

    /// Returns where this site's relay listens and relays.
    pub(crate) fn server(self) -> SocketAddr {
        SocketAddr::new(self.ip(1), 3478)
    }
}
