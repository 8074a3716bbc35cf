//! What a run of the XDP program costs, by `BPF_PROG_TEST_RUN`, with few flows, whose lines are in the processor's caches, and with many.
//!
//! `cargo bench -p turnbuckle-datapath --features xdp --bench program -- [FLOWS]...` (root); without numbers 1,000, 131,072 and 1,000,000 flows.
//!
//! The kernel repeats a run on what the program has made of the packet before. So the routes are laid in a ring in random order: a packet of a client
//! becomes one to its peer, that one becomes a packet of the next client, and each run looks up a line that was not used for as long as there are flows.
//! A packet that is relayed loses one of its hops, so a call of the kernel is of 250 runs. The time is the kernel's own, with the loop around the
//! program and without drivers, queues and sending.
#![expect(clippy::print_stdout, reason = "a bench prints what it measures")]
#![expect(clippy::unwrap_used, reason = "a bench says what failed by panicking")]

#[path = "../tests/offload/model.rs"]
#[expect(dead_code, reason = "the bench needs addresses and sums of it alone")]
mod model;

use std::net::{IpAddr, SocketAddr};

use model::{DEVICE, DEVICE_INDEX, pseudo_sum, sum, udp};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use turnbuckle_datapath::offload::{Action, Hop, Kernel, Route, Routes as _, Seed, Wanted};

/// Runs of one call. A packet has at most 255 hops.
const RUNS: u32 = 250;
/// Calls whose runs are measured. Each waits some 50 ms until no processor runs the program before (`bpf_prog_change_xdp`), which is not counted.
const CALLS: usize = 200;
/// Calls at most, with those in which a packet was left to user space.
const DRAWS_MAX: usize = 20 * CALLS;
/// Ports of one address.
const PORTS: u32 = 50_000;
/// The channel of every client.
const LABEL: u16 = 0x4000;
/// Bytes of a voice packet.
const PAYLOAD: [u8; 160] = [0; 160];

fn main() {
    let numbers = std::env::args().filter_map(|it| it.parse().ok());
    let mut wanted: Vec<u32> = numbers.collect();
    if wanted.is_empty() {
        wanted = vec![1_000, 131_072, 1_000_000];
    }
    println!("ns per run: median of {CALLS} calls of {RUNS} runs [10th to 90th percentile]");
    for flows in wanted {
        for is_v6 in [false, true] {
            let family = if is_v6 { "IPv6" } else { "IPv4" };
            let [low, median, high] = measure(flows, is_v6);
            println!("{family}, {flows} flows: {median} [{low} to {high}]");
        }
    }
}

/// Returns three percentiles of what a run takes, in nanoseconds.
fn measure(flows: u32, is_v6: bool) -> [u128; 3] {
    let mut kernel = Kernel::load(flows, Seed(7)).expect("it needs root");
    let mut random = SmallRng::seed_from_u64(1);
    let mut ring: Vec<u32> = (0..flows).collect();
    ring.shuffle(&mut random);
    let at = |net, flow: u32| {
        let port = 1024 + u16::try_from(flow % PORTS).unwrap();
        let last = u8::try_from(flow / PORTS + 1).unwrap();
        SocketAddr::new(host(is_v6, net, last), port)
    };
    let (server, relay) = (at(2, 0), at(2, 1));
    let mut routes = kernel.routes();
    let mut full = 0;
    let mut publish = |route: Route| {
        // The relay leaves to user space what finds both of its buckets full.
        full += u32::from(routes.publish(&route).is_none());
        let (from, to) = (route.new_from.ip(), route.new_to.ip());
        let hop = Hop {
            device: DEVICE_INDEX,
            mtu: 1500,
            to: DEVICE,
            from: [2, 0, 0, 0, 2, 1],
        };
        kernel.hops().set(Wanted { from, to }, Some(hop));
    };
    for (place, &flow) in ring.iter().enumerate() {
        let next = ring[(place + 1) % ring.len()];
        let (client, peer) = (at(1, flow), at(3, flow));
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
        publish(to_peer);
        publish(Route {
            from: relay,
            to: peer,
            label: None,
            new_from: at(1, next),
            new_to: server,
            new_label: Some(LABEL),
            ..to_peer
        });
    }
    let len = u16::try_from(PAYLOAD.len()).unwrap();
    let message = [&LABEL.to_be_bytes()[..], &len.to_be_bytes(), &PAYLOAD].concat();
    let mut times: Vec<u128> = Vec::new();
    for _ in 0..DRAWS_MAX {
        let client = at(1, random.random_range(0..flows));
        let frame = frame(client, server, &message);
        let (time, verdict) = kernel.run_repeatedly(DEVICE, &frame, RUNS).unwrap();
        // What is passed once is passed ever after: one packet in 65,536 has the checksum that stands for one left to a device, and some of the
        // routes had no room.
        if verdict.action == Action::Send {
            times.push(time.as_nanos());
        }
        if times.len() == CALLS {
            break;
        }
    }
    let passes = kernel.passes();
    assert_eq!(times.len(), CALLS, "too few runs relayed: {passes:?}");
    println!("{full} of {} routes had no room", flows * 2);
    times.sort_unstable();
    [CALLS / 10, CALLS / 2, CALLS * 9 / 10].map(|place| times[place])
}

fn host(is_v6: bool, net: u8, last: u8) -> IpAddr {
    match is_v6 {
        false => [10, net, 0, last].into(),
        true => [0xFD00, net.into(), 0, 0, 0, 0, 0, last.into()].into(),
    }
}

/// Returns a frame that is not to be fragmented, with as many hops as there can be.
fn frame(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut udp = udp(from, to, payload);
    let whole = u32::from(pseudo_sum(from, to, udp.len())) + u32::from(sum(&udp));
    let check = !u16::try_from((whole & 0xFFFF) + (whole >> 16)).unwrap();
    udp[6..8].copy_from_slice(&check.to_be_bytes());
    let mut frame = [DEVICE, [2, 0, 0, 0, 9, 9]].concat();
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = u16::try_from(20 + udp.len()).unwrap().to_be_bytes();
            let mut header = vec![0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 255, 17, 0, 0];
            header.extend(from.octets());
            header.extend(to.octets());
            let check = !sum(&header);
            header[10..12].copy_from_slice(&check.to_be_bytes());
            frame.extend([8, 0]);
            frame.extend(header);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = u16::try_from(udp.len()).unwrap().to_be_bytes();
            frame.extend([0x86, 0xDD, 0x60, 0, 0, 0, len[0], len[1], 17, 255]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        _ => unreachable!("a route has one family"),
    }
    frame.extend(udp);
    frame
}
