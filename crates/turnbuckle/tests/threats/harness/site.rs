//! Loopback addresses that no other test uses, so that tests run side by side on fixed ports.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

/// A /24 within 127.0.0.0/8, one to a test. Processes differ in the second octet, tests in the third.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    second: u8,
    third: u8,
}

static NEXT: AtomicU8 = AtomicU8::new(1);

impl Site {
    pub(crate) fn new() -> Self {
        let second = (std::process::id() % 200) + 20; // 127.20 to 127.219
        Self {
            second: u8::try_from(second).expect("below 220"),
            third: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The address ending in `host`.
    pub(crate) fn ip(self, host: u8) -> IpAddr {
        Ipv4Addr::new(127, self.second, self.third, host).into()
    }

    /// Where this site's relay listens and relays.
    pub(crate) fn server(self) -> SocketAddr {
        SocketAddr::new(self.ip(1), 3478)
    }
}
