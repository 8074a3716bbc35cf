//! What the kernel says about devices, routes and neighbours (rtnetlink(7)).

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use netlink_packet_core::{NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, LinkXdp, XdpAttached};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily as SocketFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv,
    sendto, socket_with,
};
use turnbuckle_datapath::offload::{Attach, joins_datagrams};

/// `RTMGRP_LINK`, `RTMGRP_NEIGH`, `RTMGRP_IPV4_ROUTE` and `RTMGRP_IPV6_ROUTE` of linux/rtnetlink.h.
const GROUPS: u32 = 0x1 | 0x4 | 0x40 | 0x400;
/// Room for one answer.
const ANSWER_LEN: usize = 32 * 1024;
/// Room for one notice.
const NOTICE_LEN: usize = 8 * 1024;

/// Questions to the kernel, and its notices that something has changed.
#[derive(Debug)]
pub(super) struct Netlink {
    questions: OwnedFd,
    notices: OwnedFd,
    sequence: u32,
}

/// A device with Ethernet frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(super) address: [u8; 6],
    pub(crate) mtu: u16,
    /// An XDP program is attached.
    pub(crate) has_program: bool,
    /// How it is, if that is one of the ways in which ours is.
    pub(super) attached: Option<Attach>,
}

impl Device {
    /// Returns whether the kernel may join datagrams that arrive by this device. What does not say is taken to do it.
    pub(super) fn has_gro(&self) -> bool {
        joins_datagrams(&self.name).unwrap_or(true)
    }
}

/// The way to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) device: u32,
    /// Whose link-layer address frames have.
    pub(super) neighbour: IpAddr,
    /// The path MTU, if it is known.
    pub(super) mtu: Option<u32>,
}

/// What notices are about.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Routes, devices, or what is not known.
    pub(super) has_routes: bool,
    /// Neighbours, each with the index of its device.
    pub(super) neighbours: BTreeSet<(u32, IpAddr)>,
}

impl Changed {
    /// Adds what one datagram says.
    fn note(&mut self, mut notice: &[u8]) {
        while !notice.is_empty() {
            let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(notice) else {
                self.has_routes = true;
                return;
            };
            match message.payload {
                NetlinkPayload::InnerMessage(
                    RouteNetlinkMessage::NewNeighbour(neighbour)
                    | RouteNetlinkMessage::DelNeighbour(neighbour),
                ) => {
                    let device = neighbour.header.ifindex;
                    let ip = neighbour.attributes.iter().find_map(|it| match it {
                        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => {
                            Some(IpAddr::from(*ip))
                        }
                        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => {
                            Some(IpAddr::from(*ip))
                        }
                        _ => None,
                    });
                    self.neighbours.extend(ip.map(|ip| (device, ip)));
                }
                _ => self.has_routes = true,
            }
            let len = usize::try_from(message.header.length).unwrap_or(usize::MAX);
            let next = len.max(1).checked_next_multiple_of(4);
            notice = next.and_then(|next| notice.get(next..)).unwrap_or_default();
        }
    }
}

impl Netlink {
    /// Opens the sockets.
    ///
    /// # Errors
    ///
    /// The kernel offers none.
    pub(super) fn open() -> io::Result<Self> {
        let socket = |flags, groups| {
            let kind = (SocketFamily::NETLINK, SocketType::RAW);
            // Without a protocol the number is 0, which is NETLINK_ROUTE.
            let socket = socket_with(kind.0, kind.1, SocketFlags::CLOEXEC | flags, None)?;
            bind(&socket, &SocketAddrNetlink::new(0, groups))?;
            io::Result::Ok(socket)
        };
        Ok(Self {
            questions: socket(SocketFlags::empty(), 0)?,
            notices: socket(SocketFlags::NONBLOCK, GROUPS)?,
            sequence: 0,
        })
    }

    /// Returns what is readable when something has changed.
    pub(super) fn notices(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }

    /// Takes all notices, and says what they are about. How it is now is asked for instead.
    pub(super) fn take_notices(&self) -> Changed {
        let mut changed = Changed::default();
        let mut notice = [0; NOTICE_LEN];
        loop {
            match recv(&self.notices, &mut notice[..], RecvFlags::TRUNC) {
                Ok((_, len)) => match notice.get(..len) {
                    Some(notice) => changed.note(notice),
                    None => changed.has_routes = true, // it was longer
                },
                // Notices were lost, and the socket still works.
                Err(Errno::NOBUFS) => changed.has_routes = true,
                Err(_) => return changed,
            }
        }
    }

    /// Returns a device, or `None` if it has no Ethernet frames or loops back.
    ///
    /// # Errors
    ///
    /// The kernel gives no answer.
    pub(super) fn device(&mut self, index: u32) -> io::Result<Option<Device>> {
        let mut question = LinkMessage::default();
        question.header.index = index;
        let Some(RouteNetlinkMessage::NewLink(link)) =
            self.ask(RouteNetlinkMessage::GetLink(question))?
        else {
            return Ok(None);
        };
        let (mut name, mut address, mut mtu) = (None, None, None);
        let (mut has_program, mut attached) = (false, None);
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(it) => name = Some(it),
                LinkAttribute::Address(it) => address = <[u8; 6]>::try_from(it).ok(),
                LinkAttribute::Mtu(it) => mtu = Some(it),
                LinkAttribute::Xdp(it) => {
                    let how = it.iter().find_map(|it| match it {
                        LinkXdp::Attached(how) => Some(*how),
                        _ => None,
                    });
                    has_program = how.is_some_and(|how| how != XdpAttached::None);
                    attached = match how {
                        Some(XdpAttached::Driver) => Some(Attach::Native),
                        Some(XdpAttached::SocketBuffer) => Some(Attach::Generic),
                        _ => None,
                    };
                }
                _ => {}
            }
        }
        let is_loopback = link.header.flags.contains(LinkFlags::Loopback);
        Ok((name.zip(address).zip(mtu))
            .filter(|_| !is_loopback)
            .map(|((name, address), mtu)| Device {
                index,
                name,
                address,
                mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
                has_program,
                attached,
            }))
    }

    /// Returns the way from an address of this host to a destination elsewhere.
    ///
    /// # Errors
    ///
    /// The kernel gives no answer.
    pub(super) fn way(&mut self, from: IpAddr, to: IpAddr) -> io::Result<Option<Way>> {
        let mut question = RouteMessage::default();
        let len = if to.is_ipv4() { 32 } else { 128 };
        question.header.address_family = family(to);
        question.header.source_prefix_length = len;
        question.header.destination_prefix_length = len;
        question.attributes = vec![
            RouteAttribute::Destination(RouteAddress::from(to)),
            RouteAttribute::Source(RouteAddress::from(from)),
        ];
        let Some(RouteNetlinkMessage::NewRoute(route)) =
            self.ask(RouteNetlinkMessage::GetRoute(question))?
        else {
            return Ok(None);
        };
        let (mut device, mut neighbour, mut mtu) = (None, to, None);
        for attribute in route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => device = Some(index),
                RouteAttribute::Gateway(RouteAddress::Inet(ip)) => neighbour = ip.into(),
                RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => neighbour = ip.into(),
                RouteAttribute::Metrics(metrics) => {
                    mtu = metrics.into_iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) => Some(mtu),
                        _ => None,
                    });
                }
                // A gateway of another family, or a tunnel.
                RouteAttribute::Via(_) | RouteAttribute::Encap(_) => return Ok(None),
                _ => {}
            }
        }
        let is_elsewhere = route.header.kind == RouteType::Unicast;
        Ok(device.filter(|_| is_elsewhere).map(|device| Way {
            device,
            neighbour,
            mtu,
        }))
    }

    /// Returns the link-layer address of a neighbour, if it is known.
    ///
    /// # Errors
    ///
    /// The kernel gives no answer.
    pub(super) fn neighbour(&mut self, device: u32, ip: IpAddr) -> io::Result<Option<[u8; 6]>> {
        let mut question = NeighbourMessage::default();
        question.header.family = family(ip);
        question.header.ifindex = device;
        let address = match ip {
            IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
            IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
        };
        question.attributes = vec![NeighbourAttribute::Destination(address)];
        let Some(RouteNetlinkMessage::NewNeighbour(found)) =
            self.ask(RouteNetlinkMessage::GetNeighbour(question))?
        else {
            return Ok(None);
        };
        let is_known = matches!(
            found.header.state,
            NeighbourState::Delay
                | NeighbourState::Noarp
                | NeighbourState::Permanent
                | NeighbourState::Probe
                | NeighbourState::Reachable
                | NeighbourState::Stale
        );
        let mut attributes = found.attributes.into_iter();
        Ok(attributes
            .find_map(|attribute| match attribute {
                NeighbourAttribute::LinkLayerAddress(it) => <[u8; 6]>::try_from(it).ok(),
                _ => None,
            })
            .filter(|_| is_known))
    }

    /// Asks one question. Returns `None` if the kernel answers that there is no such thing.
    fn ask(&mut self, question: RouteNetlinkMessage) -> io::Result<Option<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(question);
        message.header.flags = NLM_F_REQUEST;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.questions, &bytes, SendFlags::empty(), &kernel)?;
        let mut answer = vec![0; ANSWER_LEN];
        loop {
            let (len, _) = recv(&self.questions, &mut answer[..], RecvFlags::empty())?;
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer[..len])
                .map_err(io::Error::other)?;
            if message.header.sequence_number != self.sequence {
                continue; // The answer to a question that was interrupted.
            }
            return match message.payload {
                NetlinkPayload::InnerMessage(answer) => Ok(Some(answer)),
                _ => Ok(None),
            };
        }
    }
}

fn family(ip: IpAddr) -> AddressFamily {
    match ip {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(message: RouteNetlinkMessage) -> Vec<u8> {
        let mut message = NetlinkMessage::from(message);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn a_notice_of_a_neighbour_is_about_no_route() {
        let mut neighbour = NeighbourMessage::default();
        neighbour.header.family = AddressFamily::Inet;
        neighbour.header.ifindex = 7;
        let ip = std::net::Ipv4Addr::new(192, 0, 2, 1);
        neighbour.attributes = vec![NeighbourAttribute::Destination(NeighbourAddress::Inet(ip))];
        let came = notice(RouteNetlinkMessage::NewNeighbour(neighbour.clone()));
        let went = notice(RouteNetlinkMessage::DelNeighbour(neighbour));
        let mut changed = Changed::default();
        changed.note(&[came, went].concat());
        let expected = Changed {
            has_routes: false,
            neighbours: BTreeSet::from([(7, ip.into())]),
        };
        assert_eq!(changed, expected);
        let route = notice(RouteNetlinkMessage::NewRoute(RouteMessage::default()));
        for other in [&route[..], &[1, 2, 3]] {
            let mut changed = Changed::default();
            changed.note(other);
            assert!(changed.has_routes, "{other:?}");
        }
    }
}
