//! Measures the whole relay beside the bare forwarder, to say what engine and server add per datagram.
//!
//! The laboratory is that of the data path's own bench: namespaces load, relay and peer in a row. On the relay's CPU runs either
//! the forwarder of this bench, which strips 4 bytes from every datagram with the data path alone, or `turnbuckle serve` with
//! one shard, whose clients send ChannelData to one peer. Both get the same datagrams from the same number of sources, 1 and
//! 100, in trains of 64 as fast as the source can (`gro-buffers`) or paced and cut into single datagrams that the relay's
//! NAPI thread merges (`singly`). The figure is the program's own CPU time per datagram delivered at the peer; the difference
//! between the two, taken within each round, is what TURN costs. Run as root:
//!
//! ```text
//! cargo bench -p turnbuckle-server --bench relay -- [--smoke] [--rounds N] [--seconds S] [--rate N] [--json]
//! ```

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench reports on the terminal"
)]

#[path = "../../../datapath/benches/namespaces/lab.rs"]
#[expect(dead_code, reason = "the other bench uses the rest")]
mod lab;
#[path = "../../../datapath/benches/namespaces/traffic.rs"]
mod traffic;
mod turn;

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use lab::{
    Case, LOAD, Lab, PEER, PEER_ADDRESS, RELAY, RELAY_ADDRESS, RELAY_CPU, Reading, Role,
    SOURCE_CPU, sink_cpu,
};
use serde_json::{Value, json};
use turnbuckle_datapath::{
    Backend, Bind, DatagramHandler, Datapath, EndpointKind, Received, Run, SendQueue, Settings,
    StreamHandler, TurnHandler,
};
use turnbuckle_wire::{ChannelData, ChannelNumber};

/// Payload bytes of a datagram.
const PAYLOAD: u16 = 120;
/// The source's addresses: this one and consecutive ports.
const FIRST_SOURCE_PORT: u16 = 20_000;
const CLIENTS: [u16; 2] = [1, 100];

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// The data path alone.
    Forwarder,
    /// `turnbuckle serve`.
    Turn,
}

struct Options {
    rounds: usize,
    window: Duration,
    rate: u64,
    json: bool,
}

struct Sample {
    case: Case,
    clients: u16,
    program: Program,
    round: usize,
    reading: Reading,
}

fn main() -> Result<(), lexopt::Error> {
    let mut options = Options {
        rounds: 6,
        window: Duration::from_secs(2),
        rate: 400_000,
        json: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        use lexopt::prelude::*;
        match argument {
            Value(word) if word == "role" => {
                let words: Vec<String> = parser
                    .raw_args()?
                    .map(|word| word.string())
                    .collect::<Result<_, _>>()?;
                return role(&words).map_err(|error| error.to_string().into());
            }
            Long("smoke") => (options.rounds, options.window) = (1, Duration::from_millis(300)),
            Long("rounds") => options.rounds = parser.value()?.parse()?,
            Long("seconds") => options.window = Duration::from_secs_f64(parser.value()?.parse()?),
            Long("rate") => options.rate = parser.value()?.parse()?,
            Long("json") => options.json = true,
            // `cargo bench` says so to every bench.
            Long("bench") => {}
            _ => return Err(argument.unexpected()),
        }
    }
    if let Err(reason) = lab::check() {
        println!("not run: {reason}");
        return Ok(());
    }
    let samples = measure(&options).map_err(|error| error.to_string())?;
    if options.json {
        println!("{}", samples.iter().map(Sample::json).collect::<Value>());
    } else {
        print!("{}", report(&samples));
    }
    Ok(())
}

/// Measures all rounds; the first, which warms caches and neighbours, counts only if it is the only one.
fn measure(options: &Options) -> io::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for case in [Case::GroBuffers, Case::Singly] {
        let lab = Lab::new(case)?;
        for round in 0..options.rounds {
            for clients in CLIENTS {
                for program in [Program::Forwarder, Program::Turn] {
                    let reading = measure_one(&lab, program, clients, options)?;
                    if !options.json {
                        eprintln!("round {round} {case} {clients} clients {program:?}: {reading}");
                    }
                    if round > 0 || options.rounds == 1 {
                        samples.push(Sample {
                            case,
                            clients,
                            program,
                            round,
                            reading,
                        });
                    }
                }
            }
        }
    }
    Ok(samples)
}

fn measure_one(
    lab: &Lab,
    program: Program,
    clients: u16,
    options: &Options,
) -> io::Result<Reading> {
    let sink = Role::start(PEER, &format!("sink {} {PEER_ADDRESS}", sink_cpu()))?;
    let relay = match program {
        Program::Forwarder => Role::start(
            RELAY,
            &format!("forwarder {RELAY_CPU} {RELAY_ADDRESS} {PEER_ADDRESS}"),
        )?,
        Program::Turn => Role::start_program(RELAY, &serve())?,
    };
    let rate = if lab.case == Case::Singly {
        options.rate
    } else {
        0
    };
    let kind = if program == Program::Turn {
        "clients"
    } else {
        "sources"
    };
    let source = Role::start(LOAD, &format!("{kind} {SOURCE_CPU} {clients} {rate}"))?;
    let reading = lab.read(&relay, &sink, options.window)?;
    drop(source);
    if reading.delivered == 0 {
        return Err(io::Error::other(format!("{program:?} delivered nothing")));
    }
    Ok(reading)
}

/// Returns the command for the relay itself, on one CPU and outside the scheduling group of whoever started the bench, as the forwarder is.
fn serve() -> Command {
    let mut command = Command::new("setsid");
    // A new session begins a new scheduling group, so the order matters.
    let script =
        format!("echo -10 > /proc/self/autogroup; exec taskset -c {RELAY_CPU} \"$0\" \"$@\"");
    command.args(["sh", "-c", &script]).arg(turnbuckle());
    command.args([
        "serve",
        "--listening-ip=10.99.1.2",
        "--relay-ip=10.99.2.2",
        "--relay-threads=1",
        "--sock-buf-size=8388608",
        "--udp-backend=gso",
        "--allowed-peer-ip=10.99.2.1",
        &format!("--realm={}", turn::REALM),
        &format!("--user={}:{}", turn::USER, turn::PASSWORD),
    ]);
    command
}

/// Returns the release binary beside this bench, in the target folder.
fn turnbuckle() -> PathBuf {
    let mut path = std::env::current_exe().unwrap_or_default();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.join("turnbuckle")
}

/// Runs a process of the bench until killed.
fn role(words: &[String]) -> io::Result<()> {
    let bad = || io::Error::new(io::ErrorKind::InvalidInput, format!("role {words:?}"));
    let word = |index: usize| words.get(index).map(String::as_str).ok_or_else(bad);
    let address = |index: usize| word(index)?.parse::<SocketAddr>().map_err(|_| bad());
    let number = |index: usize| word(index)?.parse::<u64>().map_err(|_| bad());
    traffic::settle_down(usize::try_from(number(1)?).map_err(|_| bad())?)?;
    match word(0)? {
        "sink" => traffic::sink(address(2)?),
        "forwarder" => forwarder(address(2)?, address(3)?),
        kind @ ("clients" | "sources") => {
            let clients = u16::try_from(number(2)?).map_err(|_| bad())?;
            source(clients, number(3)?, kind == "clients")
        }
        _ => Err(bad()),
    }
}

/// Sends the same ChannelData from every client, after it has allocated and bound the channel if `is_turn`.
fn source(clients: u16, rate: u64, is_turn: bool) -> io::Result<()> {
    let (server, peer): (SocketAddr, SocketAddr) = (literal(RELAY_ADDRESS), literal(PEER_ADDRESS));
    let addresses: Vec<SocketAddr> = (0..clients)
        .map(|client| (Ipv4Addr::new(10, 99, 1, 1), FIRST_SOURCE_PORT + client).into())
        .collect();
    if is_turn {
        for &local in &addresses {
            turn::bind_channel(local, server, peer, ChannelNumber::MIN)?;
        }
    }
    let mut datagram = ChannelData::header(ChannelNumber::MIN, PAYLOAD).to_vec();
    datagram.resize(ChannelData::HEADER_LEN + usize::from(PAYLOAD), 0x5A);
    traffic::source(&addresses, server, &datagram, rate)
}

fn literal(address: &str) -> SocketAddr {
    address.parse().expect("a constant of this bench")
}

/// The data path with the least that can be called a relay.
struct Forwarder {
    to: SocketAddr,
}

impl TurnHandler for Forwarder {}

impl DatagramHandler for Forwarder {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        let count = message.segment_count();
        let last_len = message.bytes.len() - (count - 1) * message.segment;
        let header = ChannelData::HEADER_LEN;
        let run = Run {
            start: header,
            stride: message.segment,
            len: message.segment.saturating_sub(header),
            last_len: last_len.saturating_sub(header),
            count,
        };
        tx.forward(message.endpoint, self.to, message, run, &[], 0);
    }
}

impl StreamHandler for Forwarder {}

fn forwarder(address: SocketAddr, to: SocketAddr) -> io::Result<()> {
    let mut datapath = Datapath::new(Settings {
        backend: Backend::Gso,
        ..Settings::default()
    })?;
    datapath.bind(Bind {
        address,
        kind: EndpointKind::Listener { reuseport: false },
        token: 0,
    })?;
    let mut forwarder = Forwarder { to };
    traffic::ready()?;
    loop {
        datapath.turn(None, &mut forwarder)?;
    }
}

impl Sample {
    fn json(&self) -> Value {
        json!({
            "case": self.case.to_string(),
            "clients": self.clients,
            "program": format!("{:?}", self.program),
            "round": self.round,
            "seconds": self.reading.seconds,
            "delivered": self.reading.delivered,
            "cpu_seconds": self.reading.cpu,
        })
    }
}

/// Says the median and range of what both programs cost, and of the difference within each round.
fn report(samples: &[Sample]) -> String {
    let mut text = "| case | clients | forwarder M/s | relay M/s | forwarder ns | relay ns | added ns, median [min-max] |\n".to_owned();
    text += "|---|---|---|---|---|---|---|\n";
    for case in [Case::GroBuffers, Case::Singly] {
        for clients in CLIENTS {
            let of = |program: Program, value: fn(&Reading) -> f64| -> Vec<f64> {
                let wanted = samples.iter().filter(|sample| {
                    (sample.case, sample.clients, sample.program) == (case, clients, program)
                });
                wanted.map(|sample| value(&sample.reading)).collect()
            };
            let rate = |reading: &Reading| reading.delivered as f64 / reading.seconds / 1e6;
            let (bare, whole) = (
                of(Program::Forwarder, Reading::ns_per_datagram),
                of(Program::Turn, Reading::ns_per_datagram),
            );
            let added = whole
                .iter()
                .zip(&bare)
                .map(|(whole, bare)| whole - bare)
                .collect();
            let (added, least, most) = spread(added);
            let _ = writeln!(
                text,
                "| {case} | {clients} | {:.3} | {:.3} | {:.0} | {:.0} | {added:.0} [{least:.0}-{most:.0}] |",
                spread(of(Program::Forwarder, rate)).0,
                spread(of(Program::Turn, rate)).0,
                spread(bare).0,
                spread(whole).0,
            );
        }
    }
    text
}

/// Returns the median, the least and the greatest of values.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    let middle = (at(values.len() / 2) + at(values.len().saturating_sub(1) / 2)) / 2.0;
    (middle, at(0), at(values.len().saturating_sub(1)))
}
