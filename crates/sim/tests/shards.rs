//! Several whole shards under virtual time, seed after seed.
//!
//! `TURNBUCKLE_SEED=n cargo test -p turnbuckle-sim --test shards` runs one seed and prints what it did.

use std::env;

use turnbuckle_sim::Coverage;
use turnbuckle_sim::shards::run_seed;

/// As many as take about a minute.
const SEEDS: u64 = 60;
const STEPS: u64 = 4_000;
/// Connections of QUIC that end because the server does not know them, or because their client closes them.
const RESET: u16 = 2;
const LEFT: u16 = 4;

//= V-30
#[test]
fn several_shards_keep_every_rule() {
    if let Some(seed) = seed_of_environment() {
        match run_seed(seed, STEPS) {
            Ok(report) => println!("{report}\n{:?}", report.coverage),
            Err(failure) => panic!("{failure}"),
        }
        return;
    }
    let mut coverage = Coverage::default();
    for seed in 0..SEEDS {
        match run_seed(seed, STEPS) {
            Ok(report) => coverage.add(&report.coverage),
            Err(failure) => panic!("{failure}"),
        }
    }
    for (what, kind) in [
        ("answers", 200),
        ("answers to requests by QUIC", 200),
        ("answers to requests by QUIC", 403),
        ("answers to requests by QUIC", 407),
        ("answers to requests for tunnels", 101),
        ("answers to requests for tunnels", 403),
        ("answers to requests for tunnels", 407),
        ("answers to requests for tunnels", 429),
        ("answers to requests for tunnels", 503),
        ("answers to strangers", 0),
        ("attacks on connections", 0),
        ("buffers that are cut short", 0),
        ("channel data to clients", 0),
        ("channels served", 0),
        ("connections of other holders", 441),
        ("connections by QUIC", 0),
        ("connections by QUIC that end", RESET),
        ("connections by QUIC that end", LEFT),
        ("contexts answered", 0),
        ("contexts answered", 1),
        ("data by shared ports", 0),
        ("data indications", 0),
        ("data to peers", 0),
        ("datagrams for another shard", 0),
        ("datagrams shown together", 0),
        ("errors of peers", 0),
        ("failures of shards", 0),
        ("failures of shards", 1),
        ("false proxies", 0),
        ("forged packets", 0),
        ("forged records", 0),
        ("granted by IPv6", 0),
        ("granted by tokens", 0),
        ("granted through proxies", 0),
        ("guests that leave", 0),
        ("hairpins", 0),
        ("kills", 0),
        ("kills while a journal is begun anew", 0),
        ("relayed by the kernel", 0),
        ("dropped by the kernel", 0),
        ("moves", 0),
        ("moves of clients by QUIC", 0),
        ("ports of others", 1),
        ("ports of others", 2),
        ("reconfigurations", 0),
        ("records of peers", 0),
        ("sends without buffers", 0),
        ("sessions", 0),
        ("short writes", 0),
        ("short writes", 1),
        ("sockets without descriptors", 0),
        ("stalls", 0),
        ("steps of the clock", 0),
        ("tokens refused", 0),
        ("tokens renewed", 0),
        ("tunnelled data to clients", 0),
        ("tunnelled data to clients", 1),
        ("tunnelled data to clients by QUIC", 0),
        ("tunnelled data to peers", 0),
        ("tunnels opened", 0),
        ("tunnels opened", 1),
        ("tunnels by QUIC that end", 0),
    ] {
        assert!(coverage.of(what, kind) > 0, "{what} {kind}: {coverage:?}");
    }
}

#[test]
fn a_seed_of_the_shards_does_the_same_again() {
    for seed in 0..4 {
        assert_eq!(run_seed(seed, STEPS), run_seed(seed, STEPS));
    }
}

fn seed_of_environment() -> Option<u64> {
    let seed = env::var("TURNBUCKLE_SEED").ok()?;
    Some(seed.parse().expect("TURNBUCKLE_SEED is a number"))
}
