//! Several whole shards of the real server, with everything but sockets and threads: hubs, fronts, peers and what passes between shards, over a
//! simulated data path and under virtual time.
//!
//! [`crate::World`] has the engine alone and a reference model that says what each answer has to be. Here is no model: the rules are those that
//! hold whatever the server decides. Every datagram is out or dropped for one reason; data reaches only whom it was sent to; nothing goes to a
//! port without a relay socket, and a reserved port is held; a source that proved nothing has one budget at all shards; what the operator's rules
//! forbid is over at once, in user space and in the kernel; what the kernel may relay its shard would relay too; a peer of a relay socket that
//! allocations share is one client's; and when faults
//! stop, whoever waits gets an answer.
//!
//! Clients of two realms come by UDP, TCP and sessions that look like those of DTLS ([`dtls`]), by IPv4 and IPv6, by themselves and through proxies that say who they are (PROXY protocol), come back at
//! other addresses with a ticket (RFC 8016), and relay TCP (RFC 6062). Some show tokens (RFC 7635), whose key the operator changes; of these a few have
//! expired, or are sealed for another server or with a key that the relay does not have. They show new ones for what they have, and ask for connections of
//! who holds another token. Strangers send requests without credentials, data in the name of clients behind
//! a proxy, hellos and records in the name of clients by DTLS, and open connections on which they say nothing. Datagrams are shown as GRO does or are too long to be shown,
//! connections are read and written in part, calls for datagrams and for connections fail, peers' hosts answer with ICMP errors, shards stand
//! still, other programs take UDP and TCP ports, the clock is set, and the operator changes users and peer rules, drains and stops draining. What waits
//! for a shard from others finds no room.
//!
//! Clients of HTTP have tunnels on connections of their own (RFC 9298), to one target or bound, and send to peers, to addresses that nobody may reach and
//! in contexts that there are not. A tunnel ends with its connection, and nothing is left of it. In half of the worlds their user may have one or two
//! sessions at a time: one more is refused, and one less is not.
//!
//! In some worlds there are clients by QUIC ([`quic`]), with tunnels in HTTP/3, that find themselves at one address after the other. The kernel gives their
//! datagrams to the shard that the connection id names, or to any, which hands them over. Nobody has to begin anew because of that, or of loss: a connection
//! ends with its client, when it gets no tunnel, or when its shard has failed. Strangers send packets with the ids of clients.
//!
//! The thread of a shard fails in the midst of a turn and is started anew; where there are journals, the whole process is killed too, and the next one
//! takes over. Then who comes by UDP and has been told of an allocation still has it.

mod client;
mod dtls;
mod host;
mod kernel;
mod meter;
mod pass;
mod path;
mod payload;
mod proxy;
mod quic;
mod streams;
mod wire;
mod world;

use std::fmt;

use crate::run::caught;
use crate::trace::seconds;
use crate::violation::{Coverage, Violation};
use world::ShardsWorld;

/// Lines of trace in a report of a failure.
const LINES: usize = 40;

/// A run without a broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardsReport {
    /// The seed.
    pub seed: u64,
    /// Virtual time that passed, in nanoseconds.
    pub elapsed: u64,
    /// A hash of everything that left a shard.
    pub hash: u64,
    /// How often what happened.
    pub coverage: Coverage,
}

impl fmt::Display for ShardsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            elapsed,
            hash,
            ..
        } = self;
        write!(f, "seed {seed}: {} s, hash {hash:016x}", seconds(*elapsed))
    }
}

/// A run with a broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The rule.
    pub violation: Violation,
    /// The last things that happened.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The rule first: whoever quotes one line of a failure quotes this one.
        writeln!(f, "seed {} broke {}", self.seed, self.violation)?;
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        write!(
            f,
            "again: TURNBUCKLE_SEED={} cargo test -p turnbuckle-sim --test shards",
            self.seed
        )
    }
}

impl std::error::Error for Failure {}

/// Runs the shards of a seed for `steps` events, then without faults until whoever waits has to have an answer. A failure comes with its trace.
///
/// # Errors
///
/// The first rule that was broken.
pub fn run_seed(seed: u64, steps: u64) -> Result<ShardsReport, Box<Failure>> {
    run(seed, steps, 0).or_else(|_| run(seed, steps, LINES))
}

fn run(seed: u64, steps: u64, lines: usize) -> Result<ShardsReport, Box<Failure>> {
    let mut world = ShardsWorld::new(seed, lines);
    let result = caught(|| {
        for _ in 0..steps {
            world.step()?;
        }
        world.close()
    });
    match result {
        Ok(()) => Ok(ShardsReport {
            seed,
            elapsed: world.elapsed(),
            hash: world.seen.trace.hash(),
            coverage: world.coverage(),
        }),
        Err(violation) => Err(Box::new(Failure {
            seed,
            violation,
            trace: world.seen.trace.text(),
        })),
    }
}
