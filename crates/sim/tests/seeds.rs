//! The engine against the reference model and the invariants I1 to I10, seed after seed.
//!
//! `TURNBUCKLE_SEED=n cargo test -p turnbuckle-sim` runs one seed and prints what it did. A seed that
//! fails prints its last steps and the command that runs it again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{env, panic, thread};

use turnbuckle_sim::{Coverage, Scenario, run, run_seed};

/// About two minutes on two cores. A fixed number, so that the test does the same everywhere.
const SEEDS: u64 = 12_000;
const STEPS: u64 = 4_000;

/// Failures to print before giving up.
const FAILURES_MAX: usize = 3;

#[test]
fn every_seed_keeps_every_rule() {
    if let Some(seed) = seed_of_environment() {
        match run_seed(seed, STEPS) {
            Ok(report) => println!("{report}"),
            Err(failure) => panic!("{failure}"),
        }
        return;
    }
    panic::set_hook(Box::new(|_| {})); // a failure brings its own text
    let next = AtomicU64::new(0);
    let coverage = Mutex::new(Coverage::default());
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let failed = failures
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .len();
                    if seed >= SEEDS || failed >= FAILURES_MAX {
                        return;
                    }
                    match run_seed(seed, STEPS) {
                        Ok(report) => {
                            let mut sum = coverage.lock().unwrap_or_else(PoisonError::into_inner);
                            sum.add(&report.coverage);
                        }
                        Err(failure) => {
                            let mut all = failures.lock().unwrap_or_else(PoisonError::into_inner);
                            all.push(failure);
                        }
                    }
                }
            });
        }
    });
    drop(panic::take_hook());
    let failures = failures
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let text: Vec<String> = failures.iter().map(ToString::to_string).collect();
    assert!(text.is_empty(), "\n{}", text.join("\n\n"));
    happened(
        &coverage
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner),
    );
}

/// A simulation in which nothing happens finds nothing: each of these must have occurred.
fn happened(coverage: &Coverage) {
    let answers: [(&str, &[u16]); 5] = [
        (
            "Allocate",
            &[0, 400, 401, 420, 437, 438, 440, 442, 486, 508],
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
        ("Refresh", &[0, 400, 401, 420, 437, 438, 441, 443]),
    ];
    for (method, codes) in answers {
        for code in codes {
            assert!(
                coverage.of(method, *code) > 0,
                "never: {method} answered {code}"
            );
        }
    }
    for change in 0..=9 {
        assert!(coverage.of("change", change) > 0, "never: change {change}");
    }
    let events: [(&str, &[u16]); 16] = [
        ("allocate repeated", &[0]),
        ("both families", &[0]),
        ("channel data relayed", &[0]),
        ("crash", &[0, 1]),
        ("data to client", &[0, 1]),
        ("family released", &[0]),
        ("hairpin", &[0]),
        ("icmp dropped", &[0]),
        ("icmp relayed", &[0]),
        ("opened", &[0, 1]),
        ("opened too late", &[0]),
        ("opening given up", &[0]),
        ("redeemed", &[0]),
        ("release repeated", &[0]),
        ("reserved", &[0]),
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
        "malformed_channel_data",
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

fn seed_of_environment() -> Option<u64> {
    let seed = env::var("TURNBUCKLE_SEED").ok()?;
    Some(seed.parse().expect("TURNBUCKLE_SEED is a number"))
}
