//! What one packet costs in a sans-IO QUIC stack, without sockets: two endpoints in one process hand each other datagrams.
//!
//! `quic-stacks STACK CASE SIZE COUNT` prints one line of JSON: nanoseconds (which a busy machine falsifies) and heap allocations for each packet.
//! Instructions, which it does not falsify, are counted by callgrind inside the functions named `measured_*`; `./measure` runs all of it.

use std::hint::black_box;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

mod pair;
mod tls;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// AES-128-GCM and header protection of packets with a payload of so many bytes.
    Crypto,
    /// DATAGRAM frames of so many bytes, each in a packet of its own.
    Datagrams,
    /// A stream of packets as large as an MTU of so many bytes allows, in trains of ten.
    Stream,
}

/// Time and allocations of what was measured.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    time: Duration,
    allocations: u64,
}

impl Spent {
    /// Adds what `work` takes.
    fn on<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let mut result = None;
        let since = Instant::now();
        let counted = allocation_counter::measure(|| result = Some(work()));
        self.time += since.elapsed();
        self.allocations += counted.count_total;
        result.expect("the work was done")
    }
}

/// The two sides of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    packets: u64,
    transmit: Spent,
    handle: Spent,
}

const CLIENT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 4433);
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2)), 4433);

pair::stack!(quinn, quinn_proto, quinn_differs);
pair::stack!(noq, noq_proto, noq_differs);

fn main() -> anyhow::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [stack, case, size, count] = words.as_slice() else {
        bail!("usage: quic-stacks quinn|noq crypto|datagrams|stream SIZE COUNT");
    };
    let size: usize = size.parse().context("SIZE is a number of bytes")?;
    let count: u64 = count.parse().context("COUNT is a number of packets")?;
    let case_of = match case.as_str() {
        "crypto" => Case::Crypto,
        "datagrams" => Case::Datagrams,
        "stream" => Case::Stream,
        _ => bail!("no such case: {case}"),
    };
    let costs = match stack.as_str() {
        "quinn" => quinn::run(case_of, size, count)?,
        "noq" => noq::run(case_of, size, count)?,
        _ => bail!("no such stack: {stack}"),
    };
    let each = |spent: Spent| {
        let packets = black_box(costs.packets.max(1)) as f64;
        (spent.time.as_nanos() as f64 / packets, spent.allocations as f64 / packets)
    };
    let ((transmit_ns, transmit_heap), (handle_ns, handle_heap)) = (each(costs.transmit), each(costs.handle));
    println!(
        "{{\"stack\":\"{stack}\",\"case\":\"{case}\",\"size\":{size},\"packets\":{},\"transmit_ns\":{transmit_ns:.0},\"transmit_allocations\":{transmit_heap:.2},\"handle_ns\":{handle_ns:.0},\"handle_allocations\":{handle_heap:.2}}}",
        costs.packets
    );
    Ok(ExitCode::SUCCESS)
}
