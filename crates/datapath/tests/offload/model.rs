//! What the program has to do with a frame, written for clarity: whole sums instead of differences, and no shared memory.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;

use turnbuckle_datapath::offload::{
    Action, Beyond, Carried, Hop, Listener, Passes, Refused, Route, Way,
};

/// A route as it was published, and what it has relayed.
#[derive(Clone, Debug)]
pub(crate) struct Published {
    pub(crate) route: Route,
    pub(crate) is_live: bool,
    pub(crate) has_expired: bool,
    pub(crate) carried: Carried,
}

/// A rate, with a bucket for each way and what was dropped because of it.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    pub(crate) rate: u64,
    pub(crate) empty_at_ns: [u64; 2],
    pub(crate) beyond: Beyond,
}

impl Meter {
    /// Returns whether a datagram is within the rate, and counts it.
    fn admits(&mut self, now_ns: u64, way: Way, bytes: u64) -> bool {
        let empty_at_ns = &mut self.empty_at_ns[way as usize];
        let filled_ns = u128::from(empty_at_ns.saturating_sub(now_ns));
        let wanted_ns = u128::from(bytes) * 1_000_000_000;
        // A second's worth may wait.
        if wanted_ns > 1_000_000_000_u128.saturating_sub(filled_ns) * u128::from(self.rate) {
            let beyond = match way {
                Way::Labelled => &mut self.beyond.labelled,
                Way::Plain => &mut self.beyond.plain,
            };
            beyond.datagrams += 1;
            beyond.bytes += bytes;
            return false;
        }
        let cost_ns = wanted_ns.div_ceil(u128::from(self.rate));
        *empty_at_ns = now_ns.max(*empty_at_ns) + u64::try_from(cost_ns).expect("a datagram");
        true
    }
}

/// Everything that the program knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Router {
    pub(crate) routes: Vec<Published>,
    pub(crate) meters: BTreeMap<NonZeroU32, Meter>,
    pub(crate) hops: BTreeMap<(IpAddr, IpAddr), Hop>,
    pub(crate) passes: Passes,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) refused: Refused,
}

/// The link-layer address of the device that frames come by, and its index.
pub(crate) const DEVICE: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(crate) const DEVICE_INDEX: u32 = 1;

/// A UDP datagram in a frame.
struct Datagram<'a> {
    from: SocketAddr,
    to: SocketAddr,
    /// DSCP and ECN.
    class: u8,
    /// TTL or hop limit.
    hops: u8,
    /// DF and identification, of IPv4.
    fragment: [u8; 2],
    id: [u8; 2],
    check: u16,
    payload: &'a [u8],
}

impl Router {
    /// Returns what becomes of a frame that comes at a time of `CLOCK_BOOTTIME`, and the frame afterwards.
    pub(crate) fn handle(&mut self, now_ns: u64, frame: &[u8]) -> (Action, Vec<u8>) {
        let passed = (Action::Pass, frame.to_vec());
        let Some(datagram) = parse(frame) else {
            return passed;
        };
        let Some((index, payload)) = self.find(&datagram) else {
            let action = match self.is_somebodys(&datagram) {
                true => Action::Pass,
                false => Action::Drop,
            };
            return (action, frame.to_vec());
        };
        let Published {
            route, has_expired, ..
        } = self.routes[index];
        let header = match route.new_label {
            Some(label) => {
                let len = u16::try_from(payload.len()).expect("it came in a packet");
                [label.to_be_bytes(), len.to_be_bytes()].concat()
            }
            None => Vec::new(),
        };
        let body = [&header[..], payload].concat();
        let is_v6 = route.new_from.is_ipv6();
        let packet_len = if is_v6 { 40 } else { 20 } + 8 + body.len();
        let sum_of_pseudo = pseudo_sum(datagram.from, datagram.to, datagram.payload.len() + 8);
        let rest = &datagram.payload[datagram
            .payload
            .len()
            .min(payload.len() + if route.label.is_some() { 4 } else { 0 })..];
        let is_padded_otherwise = rest.iter().any(|&byte| byte != 0);
        let passes = &mut self.passes;
        let hop = self.hops.get(&(route.new_from.ip(), route.new_to.ip()));
        let why = match hop {
            _ if is_padded_otherwise => &mut passes.padding,
            _ if has_expired => &mut passes.expired,
            None => &mut passes.next_hop,
            Some(hop) if packet_len > usize::from(hop.mtu) => &mut passes.too_large,
            // Of IPv4, a sum of 0 is impossible, and 0 means that there is none.
            Some(_) if datagram.check == sum_of_pseudo || (is_v6 && datagram.check == 0) => {
                &mut passes.checksum
            }
            Some(hop) => {
                let way = if route.label.is_some() {
                    Way::Labelled
                } else {
                    Way::Plain
                };
                if let Some(meter) = route.meter.and_then(|it| self.meters.get_mut(&it))
                    && !meter.admits(now_ns, way, payload.len() as u64)
                {
                    return (Action::Drop, frame.to_vec());
                }
                let carried = &mut self.routes[index].carried;
                let count = carried.datagrams;
                carried.datagrams += 1;
                carried.bytes += payload.len() as u64;
                let mut sent = build(&datagram, &route, hop, &body, count);
                // What follows the payload stays behind the packet, where nobody looks.
                let is_framed = usize::from(route.label.is_some());
                let headers = 14 + if is_v6 { 40 } else { 20 } + 8 + 4 * is_framed;
                sent.extend(&frame[headers + payload.len()..]);
                let action = match hop.device == DEVICE_INDEX {
                    true => Action::Send,
                    false => Action::Redirect,
                };
                return (action, sent);
            }
        };
        *why += 1;
        passed
    }

    /// Returns whether a datagram of no route could be somebody's where it comes, and counts it if not.
    fn is_somebodys(&mut self, datagram: &Datagram<'_>) -> bool {
        let mut listeners = self.listeners.iter();
        let Some(listener) = listeners.find(|it| it.address == datagram.to) else {
            return true;
        };
        if datagram.to.is_ipv6() && datagram.check == 0 {
            return true;
        }
        let Some(&first) = datagram.payload.first() else {
            self.refused.unknown += 1;
            return false;
        };
        if !listener.first_bytes.contains(first) {
            self.refused.unknown += 1;
            return false;
        }
        let marks = listener.mark.filter(|it| first < it.first_bytes_below);
        let has_mark = marks.is_none_or(|mark| {
            let Some((header, rest)) = datagram.payload.split_at_checked(mark.header_len.into())
            else {
                return false;
            };
            let follow = u16::from_be_bytes([header[2], header[3]]);
            header[4..8] == mark.bytes && usize::from(follow) == rest.len() && rest.len() % 4 == 0
        });
        self.refused.unmarked += u64::from(!has_mark);
        has_mark
    }

    /// Returns the route of a datagram, and the payload that it relays.
    fn find<'a>(&self, datagram: &Datagram<'a>) -> Option<(usize, &'a [u8])> {
        let of_label = |label: Option<u16>| {
            self.routes.iter().position(|it| {
                let key = (it.route.from, it.route.to, it.route.label);
                it.is_live && key == (datagram.from, datagram.to, label)
            })
        };
        if let [a, b, c, d, rest @ ..] = datagram.payload
            && (0x40..0x50).contains(a)
        {
            let len = usize::from(u16::from_be_bytes([*c, *d]));
            let index = of_label(Some(u16::from_be_bytes([*a, *b])));
            if let Some(index) = index
                && len <= rest.len()
                && rest.len() - len <= 3
            {
                return Some((index, &rest[..len]));
            }
        }
        Some((of_label(None)?, datagram.payload))
    }
}

fn parse(frame: &[u8]) -> Option<Datagram<'_>> {
    let ethernet = frame.get(..14)?;
    if ethernet[..6] != DEVICE {
        return None;
    }
    let packet = &frame[14..];
    let (from, to, class, hops, fragment, id, udp): (IpAddr, IpAddr, _, _, _, _, _);
    match (ethernet[12], ethernet[13]) {
        (8, 0) => {
            let header: [u8; 20] = packet.get(..20)?.try_into().ok()?;
            let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let is_usable = header[0] == 0x45
                && header[9] == 17
                && header[8] >= 2
                && header[6] & 0xBF == 0
                && header[7] == 0
                && sum(&header) == 0xFFFF;
            if !is_usable {
                return None;
            }
            let octets = |at: usize| <[u8; 4]>::try_from(&header[at..at + 4]).expect("four");
            from = Ipv4Addr::from(octets(12)).into();
            to = Ipv4Addr::from(octets(16)).into();
            (class, hops) = (header[1], header[8]);
            fragment = [header[6], header[7]];
            id = [header[4], header[5]];
            udp = packet.get(20..len)?;
        }
        (0x86, 0xDD) => {
            let header: [u8; 40] = packet.get(..40)?.try_into().ok()?;
            let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
            if header[0] >> 4 != 6 || header[6] != 17 || header[7] < 2 {
                return None;
            }
            let octets = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).expect("16");
            from = Ipv6Addr::from(octets(8)).into();
            to = Ipv6Addr::from(octets(24)).into();
            (class, hops) = (header[0] << 4 | header[1] >> 4, header[7]);
            (fragment, id) = ([0; 2], [0; 2]);
            udp = packet.get(40..40 + len)?;
        }
        _ => return None,
    }
    let number = |at: usize| Some(u16::from_be_bytes([*udp.get(at)?, *udp.get(at + 1)?]));
    if usize::from(number(4)?) != udp.len() {
        return None;
    }
    Some(Datagram {
        from: SocketAddr::new(from, number(0)?),
        to: SocketAddr::new(to, number(2)?),
        class,
        hops,
        fragment,
        id,
        check: number(6)?,
        payload: udp.get(8..)?,
    })
}

fn build(old: &Datagram<'_>, route: &Route, hop: &Hop, body: &[u8], count: u64) -> Vec<u8> {
    let old_udp = udp(old.from, old.to, old.payload);
    let mut new_udp = udp(route.new_from, route.new_to, body);
    if old.check != 0 {
        // A checksum that was wrong stays wrong by as much, so that nobody takes damaged data for whole.
        let old_sum = add(pseudo_sum(old.from, old.to, old_udp.len()), sum(&old_udp));
        let new_sum = add(
            pseudo_sum(route.new_from, route.new_to, new_udp.len()),
            sum(&new_udp),
        );
        let difference = add(!old.check, !old_sum);
        let check = match !add(difference, new_sum) {
            0 => 0xFFFF,
            check => check,
        };
        new_udp[6..8].copy_from_slice(&check.to_be_bytes());
    }
    let mut frame = [&hop.to[..], &hop.from[..]].concat();
    match (route.new_from.ip(), route.new_to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = u16::try_from(20 + new_udp.len()).expect("it fits the MTU");
            let mut header = vec![0x45, old.class];
            header.extend(len.to_be_bytes());
            let low = count.to_le_bytes();
            header.extend(match old.fragment[0] & 0x40 {
                0 => [low[0], low[1]],
                _ => old.id,
            });
            header.extend(old.fragment);
            header.extend([old.hops - 1, 17, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
            let check = !sum(&header);
            header[10..12].copy_from_slice(&check.to_be_bytes());
            frame.extend([8, 0]);
            frame.extend(header);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = u16::try_from(new_udp.len()).expect("it fits the MTU");
            frame.extend([0x86, 0xDD, 0x60 | old.class >> 4, old.class << 4, 0, 0]);
            frame.extend(len.to_be_bytes());
            frame.extend([17, old.hops - 1]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        _ => panic!("a route of two families was published"),
    }
    frame.extend(new_udp);
    frame
}

/// Returns a UDP datagram without checksum.
pub(crate) fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + payload.len()).expect("a datagram");
    let mut udp = Vec::new();
    for number in [from.port(), to.port(), len, 0] {
        udp.extend(number.to_be_bytes());
    }
    udp.extend(payload);
    udp
}

/// Returns the sum of the pseudo header (RFC 768, RFC 8200 §8.1).
pub(crate) fn pseudo_sum(from: SocketAddr, to: SocketAddr, len: usize) -> u16 {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let len = u16::try_from(len).expect("a datagram").to_be_bytes();
    let header = [&octets(from.ip())[..], &octets(to.ip())[..], &[0, 17], &len].concat();
    sum(&header)
}

/// Returns the ones' complement sum of 16-bit words.
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(0, |sum, pair| {
        let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
        add(sum, word)
    })
}

fn add(a: u16, b: u16) -> u16 {
    let (sum, carries) = a.overflowing_add(b);
    sum + u16::from(carries)
}
