//! Ports of loopback for servers that are told which one to take.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, PoisonError};

/// Below the range from which the kernel serves those who ask for any port: connections of other tests, and what is left of them
/// when they end (TIME-WAIT), stay out of the way there.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// Returns the first of two ports in a row that nobody has for UDP or TCP. No other test of this program or of another gets them before this program has ended.
pub(crate) fn free_ports() -> u16 {
    // Programs that run beside this one begin elsewhere, and seldom have to look further.
    let start = u16::try_from(std::process::id() % u32::from(COUNT / 2)).unwrap_or(0);
    (0..COUNT / 2)
        .map(|number| FIRST + (start + number) % (COUNT / 2) * 2)
        .filter(|port| claim(&format!("turnbuckle-test-port-{port}")))
        .find(|&port| is_free(port) && is_free(port + 1))
        .expect("two ports in a row")
}

/// Returns whether this program has the name from now on until it ends, which it had not before, and which no other has. The kernel keeps names of
/// sockets for each network namespace, as it does ports.
pub(crate) fn claim(name: &str) -> bool {
    static HELD: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());
    let address = SocketAddr::from_abstract_name(name).expect("a short name");
    match UnixDatagram::bind_addr(&address) {
        Ok(socket) => {
            let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
            held.push(socket);
            true
        }
        Err(error) if error.kind() == ErrorKind::AddrInUse => false,
        Err(error) => panic!("{name}: {error}"),
    }
}

fn is_free(port: u16) -> bool {
    let address = (Ipv4Addr::LOCALHOST, port);
    UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok()
}
