//! ICMP errors made by hand.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, bind, sendto, socket,
};
use nix::unistd::geteuid;

use crate::not_run::not_run;

/// IP protocol numbers of what an error is about.
pub(crate) const ABOUT_TCP: u8 = 6;
pub(crate) const ABOUT_UDP: u8 = 17;

/// Sends "port unreachable" from `reporter` to the host of `sender`, about a datagram from `sender` to `about`. Takes root,
/// without which it says so and returns false.
pub(crate) fn forge_icmp(reporter: IpAddr, sender: SocketAddr, about: SocketAddr) -> bool {
    forge_icmp_about(ABOUT_UDP, [3, 3], reporter, sender, about)
}

/// Does the same as [`forge_icmp`] with another type and code, about a packet of another protocol.
pub(crate) fn forge_icmp_about(
    protocol: u8,
    [kind, code]: [u8; 2],
    reporter: IpAddr,
    sender: SocketAddr,
    about: SocketAddr,
) -> bool {
    if !geteuid().is_root() {
        not_run("forged ICMP errors need root");
        return false;
    }
    let (SocketAddr::V4(sender), SocketAddr::V4(about), IpAddr::V4(reporter)) =
        (sender, about, reporter)
    else {
        panic!("IPv4 only");
    };
    let raw = socket(
        AddressFamily::Inet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::Icmp,
    )
    .expect("root may");
    bind(
        raw.as_raw_fd(),
        &SockaddrIn::from(SocketAddrV4::new(reporter, 0)),
    )
    .expect("an address of this host");
    let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0]; // RFC 792: type, code, checksum, unused
    message.extend_from_slice(&ip_header(protocol, *sender.ip(), *about.ip()));
    message.extend_from_slice(&sender.port().to_be_bytes());
    message.extend_from_slice(&about.port().to_be_bytes());
    message.extend_from_slice(&[0, 8, 0, 0]); // UDP length, no checksum
    let checksum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&checksum);
    let to = SockaddrIn::from(SocketAddrV4::new(*sender.ip(), 0));
    let sent = sendto(raw.as_raw_fd(), &message, &to, MsgFlags::empty());
    assert_eq!(sent, Ok(message.len()));
    true
}

/// Returns the header of an IPv4 packet of 28 bytes.
fn ip_header(protocol: u8, from: Ipv4Addr, to: Ipv4Addr) -> [u8; 20] {
    let mut header = [
        0x45, 0, 0, 28, 0, 1, 0, 0, 64, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    header[12..16].copy_from_slice(&from.octets());
    header[16..].copy_from_slice(&to.octets());
    let checksum = checksum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&checksum);
    header
}

/// Returns the Internet checksum (RFC 1071).
pub(super) fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}
