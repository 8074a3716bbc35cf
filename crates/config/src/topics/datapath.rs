//! Threads and the UDP data path (coturn inventory §1.2), and our own keys about them.

use std::num::NonZeroU16;
use std::time::Duration;

use turnbuckle_datapath::{AcceptStrategy, Backend, CoalescePolicy};

use super::offload::Offload;
use crate::choice::{Choice, kind_of};
use crate::entry::Group;
use crate::findings::Findings;
use crate::machine::Machine;
use crate::row::{Row, Setting, Topic, VALUE_COUNTS, choice, flag, number, one};
use crate::value::Kind;

/// Most shards: coturn's limit, and more than any machine this was measured on has processors.
const SHARDS_MAX: u16 = 128;

/// The given values about threads and the data path.
#[derive(Default)]
pub(crate) struct GivenDatapath {
    relay_threads: Option<u16>,
    cpus: Option<NonZeroU16>,
    pin: bool,
    accept: AcceptStrategy,
    backend: Option<Backend>,
    flags: BackendFlags,
    shared: GivenSharedRelays,
    coalesce: Duration,
    coalesce_policy: CoalescePolicy,
    socket_buffer_bytes: u32,
    pub(crate) log_receive: bool,
    pub(crate) log_send: bool,
}

/// coturn's flags, each of which implies a backend.
#[derive(Clone, Copy, Default)]
struct BackendFlags {
    batched_receive: bool,
    segmentation: Option<bool>,
}

/// The given values about relay sockets that allocations share.
#[derive(Clone, Copy, Default)]
struct GivenSharedRelays {
    is_on: bool,
    first: u16,
    peers_per_allocation: u16,
}

/// Threads and processors, and how datagrams are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datapath {
    /// Shards, one thread each; 1 to 128.
    pub shards: NonZeroU16,
    /// Each shard's thread stays on one processor.
    pub pin: bool,
    /// Which shard takes a connection; [`AcceptStrategy::Cpu`] only with [`Self::pin`].
    pub accept: AcceptStrategy,
    /// Which backend moves datagrams; none means the best that a probe at the start finds working.
    pub backend: Option<Backend>,
    /// The ports of relay sockets that allocations share; none where each has its own.
    pub shared_relays: Option<SharedRelayPorts>,
    /// Longest pause before reading so that datagrams come in larger batches; zero turns the pause off. At most 10 ms.
    pub coalesce: Duration,
    /// The purpose of these pauses.
    pub coalesce_policy: CoalescePolicy,
    /// `SO_RCVBUF` and `SO_SNDBUF` of listeners, in bytes.
    pub socket_buffer_bytes: u32,
    /// Relaying in the kernel.
    pub offload: Offload,
    /// Print receive batch counters every [`Log::statistics_interval`](crate::Log::statistics_interval).
    pub log_receive: bool,
    /// Print send batch counters every [`Log::statistics_interval`](crate::Log::statistics_interval).
    pub log_send: bool,
}

/// Where relay sockets are that UDP allocations share (coturn's `multiplex-peer`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedRelayPorts {
    /// The port of the first shard for IPv4; 1 to 65000, so that each of 128 shards has its two.
    pub first: u16,
    /// Peers that one allocation may have; 1 to 65535.
    pub peers_per_allocation: u16,
}

impl SharedRelayPorts {
    /// Returns the ports of a shard, for IPv4 and for IPv6.
    pub fn ports_of(self, shard: u16) -> [u16; 2] {
        let first = self.first.saturating_add(shard.saturating_mul(2));
        [first, first.saturating_add(1)]
    }

    /// Returns the last port of so many shards.
    pub fn last(self, shards: NonZeroU16) -> u16 {
        self.ports_of(shards.get() - 1)[1]
    }
}

impl Topic for GivenDatapath {
    type Settings = Datapath;
}

impl Choice for AcceptStrategy {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("reuseport", Self::Reuseport),
        ("cpu", Self::Cpu),
        ("exclusive", Self::Exclusive),
        ("shared", Self::Shared),
    ];
}

impl Choice for Option<Backend> {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", None),
        (Backend::Single.as_str(), Some(Backend::Single)),
        (Backend::Mmsg.as_str(), Some(Backend::Mmsg)),
        (Backend::Gso.as_str(), Some(Backend::Gso)),
    ];
}

impl Choice for CoalescePolicy {
    const WORDS: &'static [(&'static str, Self)] =
        &[("latency", Self::Latency), ("cpu", Self::Cpu)];
}

type Key = Row<GivenDatapath>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-015",
        "sock-buf-size",
        Group::Addresses,
        Kind::number(4096, 1 << 30, "bytes"),
        "Size of the kernel's receive and send buffers of listeners; the kernel may grant less.",
    )
    .default("2097152")
    .stricter("at least 4096")
    .works(number!(socket_buffer_bytes)),
    Key::new(
        "O-030",
        "relay-threads",
        Group::Threads,
        Kind::number(0, SHARDS_MAX as u32, "threads"),
        "Shards: threads that receive and relay, each with its own clients. 0 and 1 mean one.",
    )
    .short('m')
    .default("(number of processors)")
    .example("4")
    .works(Setting {
        take: |given, written| {
            given.relay_threads = Some(written.value.number()?);
            Ok(())
        },
        show: |datapath| one(datapath.shards),
    }),
    Key::new(
        "O-031",
        "cpus",
        Group::Threads,
        Kind::number(1, SHARDS_MAX as u32, "processors"),
        "Number of processors to reckon with, where detection sees too many or too few.",
    )
    .default("(detected)")
    .example("4")
    .works(Setting {
        take: |given, written| {
            given.cpus = NonZeroU16::new(written.value.number()?);
            Ok(())
        },
        show: |_| Vec::new(),
    }),
    Key::new(
        "O-032",
        "udp-recvmmsg",
        Group::Threads,
        Kind::Flag,
        "Receives datagrams in batches; off chooses udp-backend=single.",
    )
    .default("true")
    .works(Setting {
        take: |given, written| {
            given.flags.batched_receive = written.value.flag();
            Ok(())
        },
        show: |datapath| one(datapath.backend != Some(Backend::Single)),
    }),
    Key::new(
        "O-033",
        "udp-recvmmsg-log",
        Group::Threads,
        Kind::Flag,
        "Prints how full receive batches are, every statistics-interval.",
    )
    .default("false")
    .works(flag!(log_receive)),
    Key::new(
        "O-034",
        "udp-sendmmsg-log",
        Group::Threads,
        Kind::Flag,
        "Prints how full send batches are, every statistics-interval.",
    )
    .default("false")
    .works(flag!(log_send)),
    Key::new(
        "O-035",
        "udp-gso",
        Group::Threads,
        Kind::Flag,
        "Sends trains of equal datagrams by segmentation offload: on chooses udp-backend=gso, \
         off udp-backend=mmsg.",
    )
    .default("(as udp-backend finds)")
    .coturn_default(
        "false",
        "used where a probe at start finds it working; failures fall back at run time",
    )
    .example("true")
    .works(Setting {
        take: |given, written| {
            given.flags.segmentation = Some(written.value.flag());
            Ok(())
        },
        show: |_| Vec::new(),
    }),
    Key::new(
        "O-036",
        "multiplex-peer",
        Group::Threads,
        Kind::Flag,
        "One UDP relay socket per family and shard, shared by all allocations, in place of a port \
         for each: the port range is no limit, and fewer sockets are cheaper for thousands of \
         calls. All clients of a shard have one relayed transport address then, and a peer, by its \
         address and port, belongs to one of them at a time: another client of the shard gets 400. \
         So clients cannot reach each other's relayed addresses, nor one peer together. EVEN-PORT \
         gets 508, RESERVATION-TOKEN 400. TCP relays keep ports of their own.",
    )
    .default("false")
    .stricter(VALUE_COUNTS)
    .example("true")
    .always_on_in_coturn()
    .works(Setting {
        take: |given, written| {
            given.shared.is_on = written.value.flag();
            Ok(())
        },
        show: |datapath| one(datapath.shared_relays.is_some()),
    }),
    Key::new(
        "O-037",
        "multiplex-peer-port",
        Group::Threads,
        Kind::number(1, 65000, ""),
        "First port of shared relay sockets, on the first relay-ip of each family: shard i has \
         this port + 2i for IPv4 and the next for IPv6.",
    )
    .default("3480")
    .works(Setting {
        take: |given, written| {
            given.shared.first = written.value.number()?;
            Ok(())
        },
        show: |datapath| shown(datapath, |shared| shared.first),
    }),
    Key::new(
        "O-038",
        "multiplex-peer-max-peers",
        Group::Threads,
        Kind::number(1, 65535, "peers"),
        "Peers, by address and port, that one allocation may have on shared relay sockets. Beyond \
         it: 508 to CreatePermission and ChannelBind, and a Send indication is dropped.",
    )
    .default("256")
    .works(Setting {
        take: |given, written| {
            given.shared.peers_per_allocation = written.value.number()?;
            Ok(())
        },
        show: |datapath| shown(datapath, |shared| shared.peers_per_allocation),
    }),
    Key::own(
        "O-038",
        "udp-backend",
        Group::Threads,
        kind_of!(Option<Backend>),
        "How datagrams are moved: single uses one system call each, mmsg batches, gso adds \
         segmentation and receive offload; auto takes the best that works.",
    )
    .default("auto")
    .works(choice!(backend)),
    Key::own(
        "O-038",
        "udp-coalesce",
        Group::Threads,
        kind_of!(CoalescePolicy),
        "What a shard pauses for before it reads, so that datagrams gather into larger batches: \
         latency pauses only as far as the shard is busy, from 60 % of its time on; cpu at any \
         rate at which it saves work, which halves the CPU time of a moderate load and adds \
         about a millisecond to a round trip.",
    )
    .default("latency")
    .live()
    .works(choice!(coalesce_policy)),
    Key::own(
        "O-038",
        "udp-coalesce-us",
        Group::Threads,
        Kind::number(0, 10_000, "microseconds"),
        "Longest pause before reading that lets datagrams gather into larger batches (see \
         udp-coalesce). 0 turns it off.",
    )
    .default("500")
    .live()
    .works(Setting {
        take: |given, written| {
            given.coalesce = Duration::from_micros(written.value.number()?);
            Ok(())
        },
        show: |datapath| one(datapath.coalesce.as_micros()),
    }),
    Key::own(
        "O-038",
        "pin-threads",
        Group::Threads,
        Kind::Flag,
        "Keeps each shard on a processor of its own, as far as there are enough.",
    )
    .default("true")
    .works(flag!(pin)),
    Key::own(
        "O-038",
        "accept",
        Group::Threads,
        kind_of!(AcceptStrategy),
        "Which shard takes a connection: reuseport by the hash of its addresses, which spreads \
         them evenly on every machine; cpu the one on the processor where it arrives, for \
         network cards with a queue for each processor (needs pin-threads); exclusive one that \
         waits; shared the first that comes. Measured in \
         docs/performance/2026-11-21-connections.",
    )
    .default("reuseport")
    .works(choice!(accept)),
];

/// Reports a way to share connections that needs shards which stay where they are.
pub(crate) fn check(given: &GivenDatapath, findings: &mut Findings) {
    if given.accept == AcceptStrategy::Cpu && !given.pin {
        findings.problem(
            "accept",
            "`cpu` gives connections to the shard that stays on their processor, and \
             pin-threads=false lets shards move; allowed then: reuseport, exclusive, shared",
        );
    }
}

pub(crate) fn finish(
    given: &GivenDatapath,
    offload: Offload,
    machine: &Machine,
    findings: &mut Findings,
) -> Datapath {
    Datapath {
        shared_relays: shared_relays(given, findings),
        shards: shards(given, machine, findings),
        pin: given.pin,
        accept: given.accept,
        backend: backend(given, findings),
        coalesce: given.coalesce,
        coalesce_policy: given.coalesce_policy,
        socket_buffer_bytes: given.socket_buffer_bytes,
        offload,
        log_receive: given.log_receive,
        log_send: given.log_send,
    }
}

fn shards(given: &GivenDatapath, machine: &Machine, findings: &mut Findings) -> NonZeroU16 {
    if given.relay_threads == Some(0) {
        findings.note(
            "relay-threads",
            "0 means one shard here: it is what receives and relays",
        );
    }
    match given.relay_threads {
        Some(number) => NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN),
        None => given
            .cpus
            .unwrap_or(machine.processors)
            .min(NonZeroU16::MIN.saturating_add(SHARDS_MAX - 1)),
    }
}

/// Shows a value about shared relay sockets, if there are any.
fn shown(datapath: &Datapath, value: fn(SharedRelayPorts) -> u16) -> Vec<String> {
    datapath
        .shared_relays
        .map(|shared| value(shared).to_string())
        .into_iter()
        .collect()
}

fn shared_relays(given: &GivenDatapath, findings: &mut Findings) -> Option<SharedRelayPorts> {
    if !given.shared.is_on {
        for key in ["multiplex-peer-port", "multiplex-peer-max-peers"] {
            if findings.is_given(key) {
                findings.note(key, "has no effect without `multiplex-peer`");
            }
        }
        return None;
    }
    Some(SharedRelayPorts {
        first: given.shared.first,
        peers_per_allocation: given.shared.peers_per_allocation,
    })
}

fn backend(given: &GivenDatapath, findings: &mut Findings) -> Option<Backend> {
    let implied = match (given.flags.batched_receive, given.flags.segmentation) {
        (false, Some(true)) => {
            findings.problem(
                "udp-gso",
                "needs batched receive; remove `udp-recvmmsg=false`",
            );
            None
        }
        (false, _) => Some(Backend::Single),
        (true, Some(true)) => Some(Backend::Gso),
        (true, Some(false)) => Some(Backend::Mmsg),
        (true, None) => None,
    };
    let (Some(chosen), Some(implied)) = (given.backend, implied) else {
        return given.backend.or(implied);
    };
    if chosen != implied {
        let other = match implied {
            Backend::Single => "udp-recvmmsg",
            _ => "udp-gso",
        };
        findings.problem(
            "udp-backend",
            format!("contradicts `{other}`; give `udp-backend` alone"),
        );
    }
    Some(chosen)
}
