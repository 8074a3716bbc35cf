//! The laboratory: servers compared under the same load, in network namespaces or over real machines.
//!
//! It links nothing else of ours. It starts programs, reads the kernel's counters, names what limited each run, and writes a folder with every
//! figure and every command. How to read it: [`cli`](crate::Arguments) says what can be asked for, `suite` alternates servers in rounds, `case` says what one
//! run is, `run` does it, `bottleneck` has the rules, `connections` is for scenarios about those, `report` the pages.
#![forbid(unsafe_code)]

mod bottleneck;
mod case;
mod certificate;
mod cli;
mod commands;
mod connections;
mod counters;
mod cpus;
mod host;
mod hosts;
mod interrupt;
mod namespaces;
mod note;
mod program;
mod record;
mod report;
mod run;
mod scenario;
mod scratch;
mod server;
mod suite;

pub use cli::{Arguments, run};
