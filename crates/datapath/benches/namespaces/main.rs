//! Measures the data path alone, without any protocol, between network namespaces.
//!
//! Three namespaces in a row: load, relay, peer. One program at a time runs in the relay's, on CPU 0: a reflector, a
//! forwarder that strips a 4-byte header from each datagram, or one that adds it; each on each backend. Two cases:
//!
//! * `gro-buffers`: the source floods with `UDP_SEGMENT` sends and veth hands them over whole, as a NIC does that merges
//!   datagrams; the figure is datagrams moved per second of CPU time;
//! * `singly`: the source is paced, its kernel cuts the trains into datagrams, and the relay's NAPI thread merges what it
//!   can, as with a NIC without merging; the figure is the program's own CPU time per datagram.
//!
//! CPU time is that of the program (`/proc/PID/task/*/schedstat`); datagrams are counted where they arrive, by the
//! receiving namespace's IP counters, never by the sender. Every combination is measured once per round, the rounds are
//! repeated, the first one is thrown away. `cargo bench -p turnbuckle-datapath --bench namespaces -- --smoke` takes twenty
//! seconds; `--help` lists the rest. It needs root.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench reports on the terminal"
)]

mod lab;
mod measure;
mod report;
mod roles;
mod traffic;

use std::time::Duration;

use lab::{Case, Lab};
use measure::Program;
use report::{Report, Sample};
use turnbuckle_datapath::Backend;

const HELP: &str = "\
cargo bench -p turnbuckle-datapath --bench namespaces -- [options]
  --smoke         one short round, to see that it works
  --rounds N      rounds, the first of which is not counted (6)
  --seconds S     measured time per combination (2)
  --rate N        datagrams per second in the paced case (400000)
  --size N        payload bytes of a datagram (120)
  --coalesce US   longest pause before reading, microseconds (200)
  --case NAME     gro-buffers or singly only
  --backend NAME  single, mmsg or gso only
  --program NAME  reflect, strip or add only
  --json          print one JSON document";

/// What to measure.
pub(crate) struct Options {
    rounds: usize,
    window: Duration,
    rate: u64,
    size: usize,
    coalesce: Duration,
    case: Option<Case>,
    backend: Option<Backend>,
    program: Option<Program>,
    json: bool,
}

fn main() -> Result<(), lexopt::Error> {
    let mut options = Options {
        rounds: 6,
        window: Duration::from_secs(2),
        rate: 400_000,
        size: 120,
        coalesce: Duration::from_micros(200),
        case: None,
        backend: None,
        program: None,
        json: false,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        use lexopt::prelude::*;
        match argument {
            Value(role) if role == "role" => {
                let role: Vec<String> = parser
                    .raw_args()?
                    .map(|word| word.string())
                    .collect::<Result<_, _>>()?;
                return roles::run(&role).map_err(|error| error.to_string().into());
            }
            Long("smoke") => (options.rounds, options.window) = (1, Duration::from_millis(300)),
            Long("rounds") => options.rounds = parser.value()?.parse()?,
            Long("seconds") => options.window = Duration::from_secs_f64(parser.value()?.parse()?),
            Long("rate") => options.rate = parser.value()?.parse()?,
            Long("size") => options.size = parser.value()?.parse()?,
            Long("coalesce") => options.coalesce = Duration::from_micros(parser.value()?.parse()?),
            Long("case") => options.case = Some(parser.value()?.parse()?),
            Long("backend") => options.backend = Some(parser.value()?.parse()?),
            Long("program") => options.program = Some(parser.value()?.parse()?),
            Long("json") => options.json = true,
            // `cargo bench` says so to every bench.
            Long("bench") => {}
            Long("help") => {
                println!("{HELP}");
                return Ok(());
            }
            _ => return Err(argument.unexpected()),
        }
    }
    if let Err(reason) = lab::check() {
        println!("not run: {reason}");
        return Ok(());
    }
    match measure(&options) {
        Ok(report) if options.json => println!("{}", report.json()),
        Ok(report) => print!("{}", report.text()),
        Err(error) => return Err(format!("{error:#}").into()),
    }
    Ok(())
}

/// Runs all rounds.
fn measure(options: &Options) -> std::io::Result<Report> {
    let mut report = Report::new(options);
    for case in [Case::GroBuffers, Case::Singly] {
        if options.case.is_some_and(|only| only != case) {
            continue;
        }
        let lab = Lab::new(case)?;
        for round in 0..options.rounds {
            for program in [Program::Reflect, Program::Strip, Program::Add] {
                for backend in [Backend::Single, Backend::Mmsg, Backend::Gso] {
                    let wanted = options.program.is_none_or(|only| only == program)
                        && options.backend.is_none_or(|only| only == backend);
                    if !wanted {
                        continue;
                    }
                    let reading = measure::measure(&lab, program, backend, options)?;
                    if reading.delivered == 0 {
                        eprintln!(
                            "round {round} {case} {program} {backend}: nothing delivered, left out"
                        );
                        continue;
                    }
                    if !options.json {
                        eprintln!("round {round} {case} {program} {backend}: {reading}");
                    }
                    // The first round warms caches and neighbours; it counts only if it is the only one.
                    if round > 0 || options.rounds == 1 {
                        report.add(Sample {
                            round,
                            case,
                            program,
                            backend,
                            reading,
                        });
                    }
                }
            }
        }
    }
    Ok(report)
}
