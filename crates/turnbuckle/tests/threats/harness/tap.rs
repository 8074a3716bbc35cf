//! IP packets made by hand, and seen as they pass: header fields that no UDP socket shows. In a network namespace, as root.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6, recv,
    sendto, socket,
};

use super::icmp::checksum;

/// Longest time for a packet on its way within one host.
const TIMEOUT: Duration = Duration::from_secs(20);
const ETHERNET_HEADER_LEN: usize = 14;
const UDP: u8 = 17;

/// Sees the packets of all interfaces of the thread's namespace.
pub(crate) struct Tap(OwnedFd);

/// The header of an IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IpHeader {
    /// Type of service or traffic class: DSCP and ECN.
    pub(crate) traffic_class: u8,
    /// Time to live or hop limit.
    pub(crate) hop_limit: u8,
    /// Zero for IPv4.
    pub(crate) flow_label: u32,
    /// IPv4 options in bytes; for IPv6 whether there are extension headers, as their first number.
    pub(crate) options: u8,
    /// IPv4: don't fragment.
    pub(crate) dont_fragment: bool,
    /// Bytes of the whole packet.
    pub(crate) len: usize,
}

impl Tap {
    pub(crate) fn open() -> Self {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (family, kind) = (AddressFamily::Packet, SockType::Raw);
        Self(socket(family, kind, flags, SockProtocol::EthAll).expect("root may"))
    }

    /// Returns the header of the next packet between these addresses; fragments but the first have no ports and are found by addresses alone.
    #[track_caller]
    pub(crate) fn next(&self, from: SocketAddr, to: SocketAddr) -> IpHeader {
        let deadline = Instant::now() + TIMEOUT;
        let mut buffer = vec![0; 70_000];
        loop {
            assert!(Instant::now() < deadline, "no packet from {from} to {to}");
            match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(len) => {
                    let packet = buffer.get(ETHERNET_HEADER_LEN..len).unwrap_or_default();
                    if let Some(header) = header(packet, from, to) {
                        return header;
                    }
                }
                Err(Errno::EAGAIN) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("tap: {error}"),
            }
        }
    }

    /// Forgets what passed so far.
    pub(crate) fn skip(&self) {
        let mut buffer = [0; 64];
        while recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()).is_ok() {}
    }
}

/// Returns the header of `packet` if it carries UDP between these addresses.
fn header(packet: &[u8], from: SocketAddr, to: SocketAddr) -> Option<IpHeader> {
    let first = *packet.first()?;
    let (header, source, destination, ports) = if first >> 4 == 4 {
        let header_len = usize::from(first & 15) * 4;
        let header = IpHeader {
            traffic_class: *packet.get(1)?,
            hop_limit: *packet.get(8)?,
            flow_label: 0,
            options: (first & 15) * 4 - 20,
            dont_fragment: packet.get(6)? & 0x40 != 0,
            len: packet.len(),
        };
        let ip = |at: usize| {
            Some(IpAddr::from(
                <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?,
            ))
        };
        (header, ip(12)?, ip(16)?, header_len)
    } else {
        let word = u32::from_be_bytes(packet.get(..4)?.try_into().ok()?);
        let next = *packet.get(6)?;
        let header = IpHeader {
            traffic_class: u8::try_from((word >> 20) & 0xFF).ok()?,
            hop_limit: *packet.get(7)?,
            flow_label: word & 0xF_FFFF,
            options: if next == UDP { 0 } else { next },
            dont_fragment: false,
            len: packet.len(),
        };
        let ip = |at: usize| {
            Some(IpAddr::from(
                <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?,
            ))
        };
        (header, ip(8)?, ip(24)?, 40)
    };
    let port = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
    let is_same = source == from.ip()
        && destination == to.ip()
        && (header.options != 0 || (port(ports)? == from.port() && port(ports + 2)? == to.port()));
    is_same.then_some(header)
}

/// Sends a UDP datagram in a packet whose header says all that a relay should not take over: DSCP and CE, a short life, options or
/// an extension header, a flow label, and don't fragment.
pub(crate) fn send_marked(from: SocketAddr, to: SocketAddr, payload: &[u8]) {
    let len = u16::try_from(8 + payload.len()).expect("short");
    let mut udp = Vec::new();
    udp.extend(from.port().to_be_bytes());
    udp.extend(to.port().to_be_bytes());
    udp.extend(len.to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    let flags = SockFlag::SOCK_CLOEXEC;
    let sent = match (from, to) {
        (SocketAddr::V4(from), SocketAddr::V4(mut to)) => {
            // 28 bytes of header: the last eight are no-operations and the end of options. The kernel fills in length and checksum.
            let mut packet = vec![0x47, MARKS, 0, 0, 0, 9, 0x40, 0, HOPS, UDP, 0, 0];
            packet.extend(from.ip().octets());
            packet.extend(to.ip().octets());
            packet.extend([1, 1, 1, 1, 1, 1, 1, 0]);
            packet.extend(udp);
            let raw = socket(AddressFamily::Inet, SockType::Raw, flags, SockProtocol::Raw);
            to.set_port(0);
            sendto(
                raw.expect("root may").as_raw_fd(),
                &packet,
                &SockaddrIn::from(to),
                MsgFlags::empty(),
            )
        }
        (SocketAddr::V6(from), SocketAddr::V6(mut to)) => {
            let pseudo = [
                &from.ip().octets()[..],
                &to.ip().octets(),
                &u32::from(len).to_be_bytes(),
                &[0, 0, 0, UDP],
                &udp,
            ]
            .concat();
            udp[6..8].copy_from_slice(&checksum(&pseudo).to_be_bytes());
            let word: u32 = 6 << 28 | u32::from(MARKS) << 20 | FLOW_LABEL;
            let mut packet = word.to_be_bytes().to_vec();
            packet.extend((len + 8).to_be_bytes());
            packet.extend([DESTINATION_OPTIONS, HOPS]);
            packet.extend(from.ip().octets());
            packet.extend(to.ip().octets());
            packet.extend([UDP, 0, 1, 4, 0, 0, 0, 0]); // PadN
            packet.extend(udp);
            let raw = socket(
                AddressFamily::Inet6,
                SockType::Raw,
                flags,
                SockProtocol::Raw,
            );
            to.set_port(0);
            sendto(
                raw.expect("root may").as_raw_fd(),
                &packet,
                &SockaddrIn6::from(to),
                MsgFlags::empty(),
            )
        }
        _ => panic!("two addresses of one family"),
    };
    sent.expect("sent");
}

/// DSCP EF with Congestion Experienced.
const MARKS: u8 = 0xBB;
const HOPS: u8 = 7;
const FLOW_LABEL: u32 = 0xABCDE;
const DESTINATION_OPTIONS: u8 = 60;

impl IpHeader {
    /// Fails if anything of [`send_marked`] is there, or anything else but what a packet of this host has by default.
    #[track_caller]
    pub(crate) fn assert_own(&self) {
        assert_eq!(self.traffic_class, 0, "best effort, Not-ECT: {self:?}");
        assert_eq!(self.hop_limit, 64, "the system's default: {self:?}");
        assert_eq!(self.options, 0, "no options: {self:?}");
        assert_ne!(self.flow_label, FLOW_LABEL, "not copied: {self:?}");
        assert!(!self.dont_fragment, "may be fragmented: {self:?}");
    }

    /// Fails unless it is one of [`send_marked`], which shows that the tap sees marks.
    #[track_caller]
    pub(crate) fn assert_marked(&self) {
        assert_eq!((self.traffic_class, self.hop_limit), (MARKS, HOPS));
        assert_ne!(self.options, 0);
    }
}
