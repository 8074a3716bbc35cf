//! The laboratory: servers compared under the same load, in network namespaces or over real machines.
//!
//! It links nothing else of ours. It starts programs, reads the kernel's counters, names what limited each run, and writes a folder with every
//! figure and every command. How to read it: [`cli`](crate::Arguments) says what can be asked for, `suite` alternates servers in rounds, `run` is one
//! run, `bottleneck` has the rules, `connections` is for scenarios about those, `report` the pages.

mod bottleneck;
mod certificate;
mod cli;
mod connections;
mod counters;
mod cpus;
mod host;
mod hosts;
mod interrupt;
mod namespaces;
mod program;
mod record;
mod report;
mod run;
mod scenario;
mod server;
mod suite;

pub use cli::{Arguments, run};

use std::io::Write as _;

/// A line for who watches; nothing is left to be said if nobody does.
fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
