//! One line of the table: a flow in one direction, as the program reads it.
//!
//! A line is a row of 64-bit words. The words of `struct line4` and `struct line6` (`bpf/turn.bpf.c`) have these places; addresses and ports stand in
//! them as in a packet. A test compares the places with those in the object.

use std::net::{IpAddr, SocketAddr};

use super::hash::{Seed, mix};
use super::routes::Route;

/// The last two bits of `seq`. Above them it counts how often the line was taken; its upper half is the place of the meter.
pub(super) const FREE: u64 = 0;
pub(super) const TAKEN: u64 = 1;
pub(super) const LIVE: u64 = 2;
pub(super) const STATE: u64 = 3;
/// How much `seq` grows when a line is taken, and the bits that this changes.
pub(super) const TAKE: u64 = 4;
pub(super) const NUMBER: u64 = 0xFFFF_FFFC;
/// Where in `seq` the place of the meter is.
pub(super) const METER_SHIFT: u32 = 32;

/// Where the words of a line are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Words of two addresses.
    pub(super) addresses_len: usize,
    /// Words of a line.
    pub(super) len: usize,
}

impl Layout {
    pub(super) const V4: Self = Self {
        addresses_len: 1,
        len: 8,
    };
    pub(super) const V6: Self = Self {
        addresses_len: 4,
        len: 16,
    };
    pub(super) const SEQ: usize = 0;
    pub(super) const PORTS: usize = 1;
    pub(super) const ADDRESSES: usize = 2;

    pub(super) const fn new_ports(self) -> usize {
        Self::ADDRESSES + self.addresses_len
    }

    pub(super) const fn new_addresses(self) -> usize {
        self.new_ports() + 1
    }

    pub(super) const fn expires_ns(self) -> usize {
        self.new_addresses() + self.addresses_len
    }

    pub(super) const fn packets(self) -> usize {
        self.expires_ns() + 1
    }

    pub(super) const fn bytes(self) -> usize {
        self.packets() + 1
    }
}

/// The fields of a line that user space writes, as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) is_v6: bool,
    pub(super) ports: u64,
    pub(super) addresses: [u64; 4],
    pub(super) new_ports: u64,
    pub(super) new_addresses: [u64; 4],
}

impl Fields {
    /// Returns the fields of a route through a next hop, or `None` if its addresses are not of one family.
    pub(super) fn of(route: &Route, hop: u16) -> Option<Self> {
        let (is_v6, addresses) = pair(route.from.ip(), route.to.ip())?;
        let (new_is_v6, new_addresses) = pair(route.new_from.ip(), route.new_to.ip())?;
        (is_v6 == new_is_v6).then(|| Self {
            is_v6,
            ports: ports(route.from, route.to, route.label, 0),
            addresses,
            new_ports: ports(route.new_from, route.new_to, route.new_label, hop),
            new_addresses,
        })
    }

    /// Returns the two buckets of the key in a table of `buckets` buckets, a power of two.
    pub(super) fn buckets(&self, seed: Seed, buckets: usize) -> [usize; 2] {
        let words = match self.is_v6 {
            false => &self.addresses[..Layout::V4.addresses_len],
            true => &self.addresses[..],
        };
        let hash = words
            .iter()
            .fold(mix(seed.0, self.ports), |hash, &word| mix(hash, word));
        let mask = buckets as u64 - 1;
        [hash & 0xFFFF_FFFF & mask, hash >> 32 & mask].map(|it| usize::try_from(it).unwrap_or(0))
    }
}

fn ports(from: SocketAddr, to: SocketAddr, label: Option<u16>, last: u16) -> u64 {
    let in_packet = |number: u16| u64::from(u16::from_ne_bytes(number.to_be_bytes()));
    let label = in_packet(label.unwrap_or(0));
    in_packet(from.port()) | in_packet(to.port()) << 16 | label << 32 | u64::from(last) << 48
}

fn pair(from: IpAddr, to: IpAddr) -> Option<(bool, [u64; 4])> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let [from, to] = [from, to].map(|it| u64::from(u32::from_ne_bytes(it.octets())));
            Some((false, [from | to << 32, 0, 0, 0]))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let halves = |it: std::net::Ipv6Addr| {
                let octets = it.octets();
                let (halves, _) = octets.as_chunks::<8>();
                [halves[0], halves[1]].map(u64::from_ne_bytes)
            };
            let ([a, b], [c, d]) = (halves(from), halves(to));
            Some((true, [a, b, c, d]))
        }
        _ => None,
    }
}
