//! Runs a range of seeds and says how it went.
//!
//! `simulate [--shards] [--seeds A..B] [--steps N] [--first] [--hashes]`; `--shards` runs several whole shards in place of the engine alone,
//! `--first` stops at the first failure, `--hashes` prints one line a seed.

#![expect(clippy::print_stdout, reason = "a command-line tool")]

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use turnbuckle_sim::{Coverage, run_seed, shards};

/// What the command line asks for.
#[derive(Debug)]
struct Arguments {
    first: u64,
    end: u64,
    steps: u64,
    first_only: bool,
    hashes: bool,
    shards: bool,
}

/// What is said of a seed: a line, the virtual time that passed, and what happened.
type Passed = (String, u64, Coverage);

/// Runs a seed of the world that is asked for.
fn run(arguments: &Arguments, seed: u64) -> Result<Passed, String> {
    let steps = arguments.steps;
    if arguments.shards {
        let report = shards::run_seed(seed, steps).map_err(|failure| failure.to_string())?;
        return Ok((report.to_string(), report.elapsed, report.coverage));
    }
    let report = run_seed(seed, steps).map_err(|failure| failure.to_string())?;
    Ok((report.to_string(), report.elapsed, report.coverage))
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        println!("usage: simulate [--shards] [--seeds A..B] [--steps N] [--first] [--hashes]");
        return ExitCode::from(2);
    };
    // The default hook would print each panic of the engine once for every reduction of it.
    std::panic::set_hook(Box::new(|_| {}));
    let started = Instant::now();
    let next = AtomicU64::new(arguments.first);
    let totals = Mutex::new((0_u64, 0_u64, 0_u64, Coverage::default()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= arguments.end {
                        return;
                    }
                    let result = run(&arguments, seed);
                    let mut totals = totals.lock().unwrap_or_else(|e| e.into_inner());
                    match result {
                        Ok((line, elapsed, seen)) => {
                            totals.0 += 1;
                            totals.1 += elapsed / 1_000_000_000;
                            totals.3.add(&seen);
                            if arguments.hashes {
                                println!("{line}");
                            } else if totals.0.is_multiple_of(1000) {
                                println!(
                                    "{} seeds, {} failed, {:?}",
                                    totals.0,
                                    totals.2,
                                    started.elapsed()
                                );
                            }
                        }
                        Err(failure) => {
                            totals.2 += 1;
                            if arguments.first_only {
                                next.store(arguments.end, Ordering::Relaxed);
                            }
                            println!("{failure}\n");
                        }
                    }
                }
            });
        }
    });
    let (passed, seconds, failed, coverage) =
        totals.into_inner().unwrap_or_else(|e| e.into_inner());
    if !arguments.hashes {
        for (what, kind, count) in coverage.iter() {
            println!("{count:>12} {what} {kind}");
        }
        println!(
            "{passed} seeds passed, {failed} failed, {} steps each, {} days of virtual time, {:?}",
            arguments.steps,
            seconds / 86_400,
            started.elapsed()
        );
    }
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn arguments() -> Option<Arguments> {
    let mut arguments = Arguments {
        first: 0,
        end: 1000,
        steps: 2000,
        first_only: false,
        hashes: false,
        shards: false,
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        match name.as_str() {
            "--seeds" => {
                let range = given.next()?;
                let (first, end) = range.split_once("..")?;
                arguments.first = first.parse().ok()?;
                arguments.end = end.parse().ok()?;
            }
            "--steps" => arguments.steps = given.next()?.parse().ok()?,
            "--first" => arguments.first_only = true,
            "--shards" => arguments.shards = true,
            "--hashes" => arguments.hashes = true,
            _ => return None,
        }
    }
    Some(arguments)
}
