//! What a run of the XDP program costs, by `BPF_PROG_TEST_RUN`, with few flows, whose lines are in the processor's caches, and with many; and what a frame
//! costs that goes through a device (`frames.rs`).
//!
//! `cargo bench -p turnbuckle-datapath --features xdp --bench program -- [FLOWS]...` (root); without numbers 1,000, 131,072 and 1,000,000 flows.
//!
//! The kernel repeats a run on what the program has made of the packet before. So the routes are laid in a ring in random order: a packet of a client
//! becomes one to its peer, that one becomes a packet of the next client, and each run looks up a line that was not used for as long as there are flows.
//! A packet that is relayed loses one of its hops, so a call of the kernel is of 250 runs, and the next call goes on where it ended. The program is
//! attached to the loopback device of a network namespace of its own, which is down: the kernel then has a direct call of it, and need not make one for
//! each call of ours, for which it waits some 50 ms, time enough for all caches to forget. The time is the kernel's own, with the loop around the program
//! and without drivers, queues and sending. Beside it stand that of a program that passes each packet at once, and what one read of memory takes that no
//! cache holds, of which a run with many flows needs one at least.
//!
//! `TURNBUCKLE_BENCH_OBJECT` names another object in place of the one of this build (`bpf/build`).
#![expect(clippy::print_stdout, reason = "a bench prints what it measures")]
#![expect(clippy::unwrap_used, reason = "a bench says what failed by panicking")]

mod flows;
mod frames;
#[path = "../../tests/offload/model.rs"]
#[expect(dead_code, reason = "the bench needs addresses and sums of it alone")]
mod model;
#[path = "../../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;
#[path = "../../tests/offload/object.rs"]
mod object;

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Instant;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use turnbuckle_datapath::offload::{Action, Attach, Kernel, Seed};

use self::flows::{Flows, LABEL};
use self::frames::Cables;
use self::model::{DEVICE, DEVICE_INDEX, pseudo_sum, sum, udp};

/// Runs of one call. A packet has at most 255 hops.
const RUNS: u32 = 250;
/// Calls whose runs are measured.
const CALLS: usize = 2_000;
/// Calls before them: with few flows, their lines come into the caches.
const WARM_UP: usize = 100;
/// Calls at most, with those in which a packet was left to user space.
const DRAWS_MAX: usize = 2 * (WARM_UP + CALLS);
/// The variable by which this program knows that it is in a network namespace of its own.
const INSIDE: &str = "TURNBUCKLE_BENCH_INSIDE";
/// The address of another device.
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Bytes of a voice packet.
const PAYLOAD: [u8; 160] = [0; 160];

fn main() {
    if std::env::var_os(INSIDE).is_none() {
        let mut itself = Command::new("unshare");
        itself.arg("--net").arg(std::env::current_exe().unwrap());
        let itself = itself.args(std::env::args_os().skip(1)).env(INSIDE, "1");
        let status = itself.status().expect("util-linux is installed");
        std::process::exit(status.code().unwrap_or(1));
    }
    let numbers = std::env::args().filter_map(|it| it.parse().ok());
    let mut wanted: Vec<u32> = numbers.collect();
    if wanted.is_empty() {
        wanted = vec![1_000, 131_072, 1_000_000];
    }
    println!("runs: ns, median of {CALLS} calls of {RUNS} runs [10th to 90th percentile]");
    println!(
        "frames: ns of CPU time each, median of {} calls [least to most], part that came back",
        frames::ROUNDS
    );
    for flows in wanted {
        for is_v6 in [false, true] {
            let family = if is_v6 { "IPv6" } else { "IPv4" };
            println!("{family}, {flows} flows");
            let runs = measure(flows, is_v6);
            println!("    {} of {} routes had no room", runs.full, flows * 2);
            let [relayed, passed] = [runs.relayed, runs.passed];
            for (name, [low, median, high]) in [("relay", relayed), ("pass at once", passed)] {
                println!("    runs that {name}: {median} [{low} to {high}]");
            }
            for (name, [median, low, high], arrived) in Cables::lay(flows, is_v6)
                .into_iter()
                .flat_map(Cables::measure)
            {
                println!("    frames to {name}: {median:.0} [{low:.0} to {high:.0}], {arrived:.4}");
            }
        }
        let lines = flows as usize * 4;
        let one = read_at_random(lines);
        println!("one read of memory as large as {lines} lines of IPv4: {one}");
    }
}

/// What runs take, in nanoseconds: three percentiles.
struct Runs {
    /// Of runs that relay.
    relayed: [u128; 3],
    /// Of runs that pass a packet because it is addressed to another device.
    passed: [u128; 3],
    /// Routes that had no room.
    full: u32,
}

fn measure(flows: u32, is_v6: bool) -> Runs {
    let object = std::env::var_os("TURNBUCKLE_BENCH_OBJECT").map(|it| std::fs::read(it).unwrap());
    let kernel = match object {
        Some(object) => Kernel::load_object(&object, flows, Seed(7)),
        None => Kernel::load(flows, Seed(7)),
    };
    let mut kernel = kernel.expect("it needs root");
    // The only device of the namespace.
    kernel
        .attach(DEVICE_INDEX, DEVICE, Attach::Generic)
        .unwrap();
    let flows = Flows::publish(&kernel, flows, is_v6, DEVICE_INDEX);
    let len = u16::try_from(PAYLOAD.len()).unwrap();
    let message = [&LABEL.to_be_bytes()[..], &len.to_be_bytes(), &PAYLOAD].concat();
    let mut relayed: Vec<u128> = Vec::new();
    let mut passed: Vec<u128> = Vec::new();
    for draw in 0..DRAWS_MAX {
        // Two runs for each of the ring, which lie one after the other.
        let client = flows.client(draw * RUNS as usize / 2);
        let frame = frame(client, flows.server(), &message);
        let (time, verdict) = kernel.run_repeatedly(DEVICE, &frame, RUNS).unwrap();
        // What is passed once is passed ever after: one packet in 65,536 has the checksum that stands for one left to a device, and some of the
        // routes had no room.
        if verdict.action == Action::Send {
            relayed.push(time.as_nanos());
            let (time, verdict) = kernel.run_repeatedly(OTHER, &frame, RUNS).unwrap();
            assert_eq!(verdict.action, Action::Pass);
            passed.push(time.as_nanos());
        }
        if relayed.len() == WARM_UP + CALLS {
            break;
        }
    }
    let passes = kernel.passes();
    assert_eq!(
        relayed.len(),
        WARM_UP + CALLS,
        "too few runs relayed: {passes:?}"
    );
    let [relayed, passed] = [relayed, passed].map(|mut times| {
        let times = &mut times[WARM_UP..];
        times.sort_unstable();
        [CALLS / 10, CALLS / 2, CALLS * 9 / 10].map(|place| times[place])
    });
    Runs {
        relayed,
        passed,
        full: flows.full,
    }
}

/// Returns how long a processor waits for a line of 64 bytes of so many, each of which tells where the next is, in nanoseconds: a run waits at least once.
fn read_at_random(lines: usize) -> u128 {
    #[repr(align(64))]
    #[derive(Clone)]
    struct Line(usize);
    let mut order: Vec<usize> = (0..lines).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(2));
    let mut memory = vec![Line(0); lines];
    for (place, &line) in order.iter().enumerate() {
        memory[line].0 = order[(place + 1) % lines];
    }
    let mut at = 0;
    let mut read = |times: usize| (0..times).for_each(|_| at = memory[at].0);
    read(lines);
    let begun = Instant::now();
    read(lines);
    let time = begun.elapsed().as_nanos();
    assert!(at < lines);
    time / lines as u128
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
