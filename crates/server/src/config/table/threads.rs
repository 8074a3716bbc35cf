//! Threads and the UDP data path (coturn inventory §1.2), and our own keys about them.

use std::num::NonZeroU16;
use std::time::Duration;

use crate::config::entry::{Entry, Group};
use crate::config::settings::{Accept, Backend, Coalesce};
use crate::config::value::Kind;

use super::{flag, one};

const GROUP: Group = Group::Threads;
const NO_SHARED_SOCKETS: &str = "relay sockets shared by allocations are not implemented yet";

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new(
        "O-030",
        "relay-threads",
        GROUP,
        Kind::Integer { min: 0, max: 128, unit: "threads" },
        "Shards: threads that receive and relay, each with its own clients. 0 and 1 mean one.",
    )
    .short('m')
    .default("(number of processors)")
    .works(
        |draft, value, _| {
            draft.relay_threads = Some(value.port());
            Ok(())
        },
        |config| one(config.threads.shards),
    ),
    Entry::new(
        "O-031",
        "cpus",
        GROUP,
        Kind::Integer { min: 1, max: 128, unit: "processors" },
        "Number of processors to reckon with, where detection sees too many or too few.",
    )
    .default("(detected)")
    .works(
        |draft, value, _| {
            draft.cpus = NonZeroU16::new(value.port());
            Ok(())
        },
        |_| Vec::new(),
    ),
    Entry::new("O-032", "udp-recvmmsg", GROUP, Kind::Flag, "Receives datagrams in batches; off chooses udp-backend=single.").default("true").works(
        |draft, value, _| {
            draft.batched_receive = value.flag();
            Ok(())
        },
        |config| flag(config.datapath.backend != Backend::Single),
    ),
    Entry::new("O-033", "udp-recvmmsg-log", GROUP, Kind::Flag, "Prints how full receive batches are, every statistics-interval.").default("false").works(
        |draft, value, _| {
            draft.log_receive = value.flag();
            Ok(())
        },
        |config| flag(config.datapath.log_receive),
    ),
    Entry::new("O-034", "udp-sendmmsg-log", GROUP, Kind::Flag, "Prints how full send batches are, every statistics-interval.").default("false").works(
        |draft, value, _| {
            draft.log_send = value.flag();
            Ok(())
        },
        |config| flag(config.datapath.log_send),
    ),
    Entry::new(
        "O-035",
        "udp-gso",
        GROUP,
        Kind::Flag,
        "Sends trains of equal datagrams by segmentation offload: on chooses udp-backend=gso, off udp-backend=mmsg.",
    )
    .default("(as udp-backend finds)")
    .coturn_default("false", "used where a probe at start finds it working; failures fall back at run time")
    .works(
        |draft, value, _| {
            draft.segmentation = Some(value.flag());
            Ok(())
        },
        |_| Vec::new(),
    ),
    Entry::new("O-036", "multiplex-peer", GROUP, Kind::Flag, "One relay socket per family and shard, shared by all allocations.")
        .default("false")
        .only(&["false"], NO_SHARED_SOCKETS),
    Entry::new("O-037", "multiplex-peer-port", GROUP, Kind::Integer { min: 1, max: 65000, unit: "" }, "First port of shared relay sockets.")
        .default("3480")
        .not_yet("relay sockets shared by allocations are"),
    Entry::new(
        "O-038",
        "multiplex-peer-max-peers",
        GROUP,
        Kind::Integer { min: 1, max: 65535, unit: "peers" },
        "Peers that one allocation may have on shared relay sockets.",
    )
    .default("256")
    .not_yet("relay sockets shared by allocations are"),
    Entry::new(
        "",
        "udp-backend",
        GROUP,
        Kind::Choice(&["auto", "single", "mmsg", "gso"]),
        "How datagrams are moved: single uses one system call each, mmsg batches, gso adds segmentation and receive offload; auto takes the best that works.",
    )
    .default("auto")
    .works(
        |draft, value, _| {
            draft.backend = match value.text() {
                "single" => Backend::Single,
                "mmsg" => Backend::Mmsg,
                "gso" => Backend::Gso,
                _ => Backend::Auto,
            };
            Ok(())
        },
        |config| {
            one(match config.datapath.backend {
                Backend::Auto => "auto",
                Backend::Single => "single",
                Backend::Mmsg => "mmsg",
                Backend::Gso => "gso",
            })
        },
    ),
    Entry::new(
        "",
        "udp-coalesce",
        GROUP,
        Kind::Choice(&["latency", "cpu"]),
        "What a shard pauses for before it reads, so that datagrams gather into larger batches: latency pauses only as far as the shard is busy, from 60 % of its time on; cpu at any rate at which it saves work, which halves the CPU time of a moderate load and adds about a millisecond to a round trip.",
    )
    .default("latency")
    .works(
        |draft, value, _| {
            draft.coalesce_policy = match value.text() {
                "cpu" => Coalesce::Cpu,
                _ => Coalesce::Latency,
            };
            Ok(())
        },
        |config| {
            one(match config.datapath.coalesce_policy {
                Coalesce::Cpu => "cpu",
                Coalesce::Latency => "latency",
            })
        },
    ),
    Entry::new(
        "",
        "udp-coalesce-us",
        GROUP,
        Kind::Integer { min: 0, max: 10_000, unit: "microseconds" },
        "Longest pause before reading that lets datagrams gather into larger batches (see udp-coalesce). 0 turns it off.",
    )
    .default("500")
    .works(
        |draft, value, _| {
            draft.coalesce = Duration::from_micros(value.integer().into());
            Ok(())
        },
        |config| one(config.datapath.coalesce.as_micros()),
    ),
    Entry::new("", "pin-threads", GROUP, Kind::Flag, "Keeps each shard on a processor of its own, as far as there are enough.").default("true").works(
        |draft, value, _| {
            draft.pin_threads = value.flag();
            Ok(())
        },
        |config| flag(config.threads.pin),
    ),
    Entry::new(
        "",
        "accept",
        GROUP,
        Kind::Choice(&["reuseport", "cpu", "exclusive", "shared"]),
        "Which shard takes a connection: reuseport by the hash of its addresses, which spreads them evenly on every machine; cpu the one on the processor where it arrives, \
         for network cards with a queue for each processor (needs pin-threads); exclusive one that waits; shared the first that comes. Measured in \
         docs/performance/2026-11-21-connections.",
    )
    .default("reuseport")
    .works(
        |draft, value, _| {
            draft.accept = match value.text() {
                "cpu" => Accept::Cpu,
                "exclusive" => Accept::Exclusive,
                "shared" => Accept::Shared,
                _ => Accept::Reuseport,
            };
            Ok(())
        },
        |config| {
            one(match config.threads.accept {
                Accept::Cpu => "cpu",
                Accept::Exclusive => "exclusive",
                Accept::Reuseport => "reuseport",
                Accept::Shared => "shared",
            })
        },
    ),
];
