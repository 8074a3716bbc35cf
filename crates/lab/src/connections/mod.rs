//! Scenarios about connections: how many a second by which strategy, what calls notice of a storm of them, and what becomes of those that find no
//! descriptor.
//!
//! `turnbuckle connect-client` is the load. A scenario's [`Settings`] say which *cells* it has, each of which all servers are measured in, in
//! turn: `cell.rs`. `commands.rs` has the command lines, `run.rs` the runs.

mod cell;
mod commands;
mod run;

pub(crate) use self::cell::{Cell, Settings};
pub(crate) use self::commands::commands;
pub(crate) use self::run::{give_ports, run};
