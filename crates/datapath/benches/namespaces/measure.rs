//! One measurement of the data path alone.

use std::fmt;
use std::io;
use std::str::FromStr;

use turnbuckle_datapath::Backend;

use crate::Options;
use crate::lab::{
    Case, LOAD, LOAD_ADDRESS, Lab, PEER, PEER_ADDRESS, RELAY, RELAY_ADDRESS, RELAY_CPU, Reading,
    Role, SOURCE_CPU, sink_cpu,
};
use crate::roles::HEADER_LEN;

/// What the relay does with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Program {
    Reflect,
    Strip,
    Add,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reflect => "reflect",
            Self::Strip => "strip",
            Self::Add => "add",
        })
    }
}

impl FromStr for Program {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        [Self::Reflect, Self::Strip, Self::Add]
            .into_iter()
            .find(|program| program.to_string() == name)
            .ok_or_else(|| format!("no program {name}"))
    }
}

/// Measures one program on one backend. What it delivers may be nothing: a backend that is far slower than the pace can be
/// kept from its CPU by the kernel's own receiving.
pub(crate) fn measure(
    lab: &Lab,
    program: Program,
    backend: Backend,
    options: &Options,
) -> io::Result<Reading> {
    let sink_cpu = sink_cpu();
    let coalesce = options.coalesce.as_micros();
    let sink = Role::start(PEER, &format!("sink {sink_cpu} {PEER_ADDRESS}"))?;
    let relay = Role::start(
        RELAY,
        &format!("relay {RELAY_CPU} {program} {backend} {coalesce} {RELAY_ADDRESS} {PEER_ADDRESS}"),
    )?;
    let size = if program == Program::Strip {
        options.size + HEADER_LEN
    } else {
        options.size
    };
    let rate = if lab.case == Case::Singly {
        options.rate
    } else {
        0
    };
    let source = Role::start(
        LOAD,
        &format!("source {SOURCE_CPU} {LOAD_ADDRESS} {RELAY_ADDRESS} {size} {rate}"),
    )?;
    let behind = if program == Program::Reflect {
        &source
    } else {
        &sink
    };
    lab.read(&relay, behind, options.window)
}
