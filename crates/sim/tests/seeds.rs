//! The engine against the reference model and the invariants I1 to I10, seed after seed.
//!
//! `TURNBUCKLE_SEED=n cargo test -p turnbuckle-sim` runs one seed and prints what it did. A seed that
//! fails prints its last steps and the command that runs it again. `TURNBUCKLE_SEEDS=n` runs the first n in place of all.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::{env, panic, thread};

use turnbuckle_sim::{Coverage, Scenario, run, run_seed};

/// About three minutes on two cores. A fixed number, so that the test does the same everywhere.
const SEEDS: u64 = 12_000;
const STEPS: u64 = 4_000;

/// The name of the threads that run seeds.
const RUNNER: &str = "seeds";

/// Failures to print before giving up.
const FAILURES_MAX: usize = 3;

/// The reference model says of every request which code is due, from what the RFCs say the code means.
//= TURN-119
#[test]
fn every_seed_keeps_every_rule() {
    if let Some(seed) = number_of_environment("TURNBUCKLE_SEED") {
        match run_seed(seed, STEPS) {
            Ok(report) => println!("{report}"),
            Err(failure) => panic!("{failure}"),
        }
        return;
    }
    let loud = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        // A panic in the engine is a failure of the seed and brings its own text.
        if thread::current().name() != Some(RUNNER) {
            loud(panic);
        }
    }));
    let seeds = number_of_environment("TURNBUCKLE_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    let failed = AtomicUsize::new(0);
    let work = || {
        let (mut coverage, mut failures) = (Coverage::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds || failed.load(Ordering::Relaxed) >= FAILURES_MAX {
                return (coverage, failures);
            }
            match run_seed(seed, STEPS) {
                Ok(report) => coverage.add(&report.coverage),
                Err(failure) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    failures.push(failure.to_string());
                }
            }
        }
    };
    let (mut coverage, mut failures) = (Coverage::default(), Vec::new());
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(2, usize::from);
        let runners: Vec<_> = (0..threads)
            .map(|_| {
                let runner = thread::Builder::new().name(RUNNER.to_owned());
                runner.spawn_scoped(scope, work).expect("a thread starts")
            })
            .collect();
        for runner in runners {
            let (seen, failed) = runner.join().expect("a runner catches what panics");
            coverage.add(&seen);
            failures.extend(failed);
        }
    });
    assert!(failures.is_empty(), "\n{}", failures.join("\n\n"));
    happened(&coverage);
}

/// Checks that each of these has occurred: a simulation in which nothing happens finds nothing.
fn happened(coverage: &Coverage) {
    let answers: [(&str, &[u16]); 5] = [
        (
            "Allocate",
            &[0, 400, 401, 405, 420, 437, 438, 440, 442, 486, 508],
        ),
        ("Binding", &[0, 420]),
        (
            "ChannelBind",
            &[0, 400, 401, 403, 420, 437, 438, 441, 443, 508],
        ),
        (
            "CreatePermission",
            &[0, 400, 401, 403, 420, 437, 438, 441, 443, 508],
        ),
        ("Refresh", &[0, 400, 401, 405, 420, 437, 438, 441, 443]),
    ];
    for (method, codes) in answers {
        for code in codes {
            assert!(
                coverage.of(method, *code) > 0,
                "never: {method} answered {code}"
            );
        }
    }
    for change in (0..=9).chain([14, 15]) {
        assert!(coverage.of("change", change) > 0, "never: change {change}");
    }
    let events: [(&str, &[u16]); 20] = [
        ("allocate repeated", &[0]),
        ("both families", &[0]),
        ("channel data relayed", &[0]),
        ("crash", &[0, 1]),
        ("data to client", &[0, 1]),
        ("family released", &[0]),
        ("hairpin", &[0]),
        ("icmp dropped", &[0]),
        ("icmp relayed", &[0]),
        ("malformed channel data", &[0]),
        ("moved", &[0]),
        ("opened", &[0, 1]),
        ("opened too late", &[0]),
        ("opening given up", &[0]),
        ("redeemed", &[0]),
        ("release repeated", &[0]),
        ("reserved", &[0]),
        ("resume repeated", &[0]),
        ("resumed", &[0, 1]),
        ("send relayed", &[0]),
    ];
    for (event, kinds) in events {
        for kind in kinds {
            assert!(coverage.of(event, *kind) > 0, "never: {event} {kind}");
        }
    }
    let reasons = [
        "channel_not_bound",
        "channel_reserved",
        "class_unexpected",
        "fingerprint_mismatch",
        "fragmentation_unsupported",
        "indication_malformed",
        "keep_alive",
        "malformed_stun",
        "method_unknown",
        "no_allocation",
        "no_permission",
        "peer_forbidden",
        "peer_family_mismatch",
        "relay_closed",
        "request_in_progress",
        "response_unexpected",
        "source_invalid",
        "unknown_attribute",
        "unverified_budget",
    ];
    for reason in turnbuckle_engine::DropReason::ALL {
        if reasons.contains(&reason.as_str()) {
            assert!(
                coverage.of("drop", reason as u16) > 0,
                "never: dropped as {reason:?}"
            );
        }
    }
}

#[test]
fn the_same_seed_does_the_same_again() {
    for seed in 0..40 {
        let first = run(Scenario::draw(seed), 1_500).map(|report| report.hash);
        // On another thread, with another stack and another heap.
        let again = thread::spawn(move || run(Scenario::draw(seed), 1_500));
        let again = again
            .join()
            .expect("a run does not panic")
            .map(|report| report.hash);
        assert_eq!(first, again, "seed {seed}");
    }
}

#[test]
fn other_seeds_do_other_things() {
    let mut hashes: Vec<u64> = (0..40)
        .filter_map(|seed| run(Scenario::draw(seed), 300).ok())
        .map(|report| report.hash)
        .collect();
    let runs = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), runs);
}

fn number_of_environment(name: &str) -> Option<u64> {
    let number = env::var(name).ok()?;
    Some(
        number
            .parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}
