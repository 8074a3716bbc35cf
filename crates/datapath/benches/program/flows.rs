//! The channels of the bench: as many as wanted, in a ring.

use std::net::{IpAddr, SocketAddr};

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use turnbuckle_datapath::offload::{Hop, Kernel, Route, Routes as _, Wanted};

use crate::model::DEVICE;

/// Ports of one address.
const PORTS: u32 = 50_000;
/// The first of them.
const FIRST_PORT: u16 = 1024;
/// The channel of every client.
pub(crate) const LABEL: u16 = 0x4000;

/// Channels that were published both ways.
pub(crate) struct Flows {
    is_v6: bool,
    /// In the order of the ring, which is random.
    ring: Vec<u32>,
    /// Routes that had no room. The relay leaves to user space what finds both of its buckets full.
    pub(crate) full: u32,
}

impl Flows {
    /// Publishes so many channels. What a client sends becomes a packet to its peer; such a packet, as it leaves, becomes one of the next client of the ring
    /// to the server. All leave by `device`.
    pub(crate) fn publish(kernel: &Kernel, count: u32, is_v6: bool, device: u32) -> Self {
        let mut ring: Vec<u32> = (0..count).collect();
        ring.shuffle(&mut SmallRng::seed_from_u64(1));
        let mut flows = Self {
            is_v6,
            ring,
            full: 0,
        };
        let mut routes = kernel.routes();
        let mut publish = |route: Route| {
            let (from, to) = (route.new_from.ip(), route.new_to.ip());
            let hop = Hop {
                device,
                mtu: 1500,
                to: DEVICE,
                from: [2, 0, 0, 0, 2, 1],
            };
            let has_room = routes.publish(&route).is_some();
            kernel.hops().set(Wanted { from, to }, Some(hop));
            u32::from(!has_room)
        };
        let (server, relay) = (flows.server(), flows.at(2, 1));
        for place in 0..flows.ring.len() {
            let (client, peer) = (flows.client(place), flows.at(3, flows.ring[place]));
            let to_peer = Route {
                from: client,
                to: server,
                label: Some(LABEL),
                new_from: relay,
                new_to: peer,
                new_label: None,
                expires_ns: u64::MAX,
                meter: None,
            };
            flows.full += publish(to_peer);
            flows.full += publish(Route {
                from: relay,
                to: peer,
                label: None,
                new_from: flows.client(place + 1),
                new_to: server,
                new_label: Some(LABEL),
                ..to_peer
            });
        }
        flows
    }

    /// Returns the address of the client at a place of the ring.
    pub(crate) fn client(&self, place: usize) -> SocketAddr {
        self.at(1, self.ring[place % self.ring.len()])
    }

    /// Returns where clients send to.
    pub(crate) fn server(&self) -> SocketAddr {
        self.at(2, 0)
    }

    /// `frames.bpf.c` has the same.
    fn at(&self, net: u8, flow: u32) -> SocketAddr {
        let port = FIRST_PORT + u16::try_from(flow % PORTS).unwrap();
        let last = u8::try_from(flow / PORTS + 1).unwrap();
        let host: IpAddr = match self.is_v6 {
            false => [10, net, 0, last].into(),
            true => [0xFD00, net.into(), 0, 0, 0, 0, 0, last.into()].into(),
        };
        SocketAddr::new(host, port)
    }
}
