//! Bounds on what sources that proved nothing get.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use super::*;
use crate::random::seeded::Seeded;

const REQUEST: usize = 20;
const CHALLENGE: usize = 116;

fn budget(limits: &UnverifiedLimits) -> UnverifiedBudget {
    keyed(limits, 3)
}

fn keyed(limits: &UnverifiedLimits, seed: u64) -> UnverifiedBudget {
    let budget = UnverifiedBudget::new(limits);
    budget.set_key(&mut Seeded(seed));
    budget
}

/// Returns limits under which only the answers count.
fn answers(per_s: u32) -> UnverifiedLimits {
    let open = Rate {
        burst: u32::MAX,
        per_s: u32::MAX,
    };
    UnverifiedLimits {
        answers_per_s: Some(per_s),
        excess: open,
        bytes: open,
        ..UnverifiedLimits::default()
    }
}

fn source(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(number).into()
}

#[test]
fn a_forged_source_gets_the_budget_and_no_more() {
    //= V-40
    let limits = UnverifiedLimits::default();
    let budget = budget(&limits);
    let (mut received, mut sent) = (0_usize, 0_usize);
    for microsecond in (0..60_000_000).step_by(100) {
        let now = Time::ZERO + Duration::from_micros(microsecond);
        received += REQUEST;
        if budget.admit(now, source(1), REQUEST, CHALLENGE) {
            sent += CHALLENGE;
        }
    }
    let bytes = usize::try_from(limits.bytes.burst + 60 * limits.bytes.per_s).unwrap();
    assert!(sent <= bytes, "{sent} of {bytes}");
    assert!(
        sent >= 60 * 1024,
        "a budget that is never given out protects nobody: {sent}"
    );
    assert!(sent < received, "600,000 requests");
}

#[test]
fn amplification_is_bounded_apart_from_bytes() {
    //= V-40
    let limits = UnverifiedLimits::default();
    let budget = budget(&limits);
    let (mut received, mut sent) = (0_usize, 0_usize);
    // Slow enough that every answer would fit into the rate of bytes.
    for step in 0..14_400 {
        let now = Time::ZERO + Duration::from_millis(5 * step);
        received += REQUEST;
        if budget.admit(now, source(1), REQUEST, CHALLENGE) {
            sent += CHALLENGE;
        }
    }
    let excess = usize::try_from(limits.excess.burst + 72 * limits.excess.per_s).unwrap();
    assert!(sent.saturating_sub(received) <= excess);
    assert!(sent < 14_400 * CHALLENGE, "some were refused");
}

#[test]
fn answers_as_long_as_their_requests_cost_no_excess() {
    let none = Rate { burst: 0, per_s: 0 };
    let limits = UnverifiedLimits {
        excess: none,
        ..UnverifiedLimits::default()
    };
    let budget = budget(&limits);
    assert!(budget.admit(Time::ZERO, source(1), 100, 100));
    assert!(!budget.admit(Time::ZERO, source(1), 100, 101));
}

#[test]
fn a_refused_answer_is_not_charged() {
    let limits = UnverifiedLimits {
        bytes: Rate {
            burst: 100,
            per_s: 0,
        },
        excess: Rate {
            burst: 1000,
            per_s: 0,
        },
        ..UnverifiedLimits::default()
    };
    let budget = budget(&limits);
    assert!(!budget.admit(Time::ZERO, source(1), 0, 101));
    assert!(budget.admit(Time::ZERO, source(1), 0, 100));
    assert!(!budget.admit(Time::ZERO, source(1), 0, 1));
}

#[test]
fn answers_per_second_as_coturn_counts_them() {
    let budget = budget(&answers(10));
    let admitted = |budget: &UnverifiedBudget, ms| {
        let now = Time::ZERO + Duration::from_millis(ms);
        budget.admit(now, source(1), REQUEST, CHALLENGE)
    };
    assert_eq!((0..100).filter(|_| admitted(&budget, 0)).count(), 10);
    assert_eq!((0..100).filter(|_| admitted(&budget, 1000)).count(), 10);
    // Also when requests come so densely that no two are a whole step apart.
    assert_eq!(
        (1001..=11_000).filter(|&ms| admitted(&budget, ms)).count(),
        100
    );
}

#[test]
fn sources_do_not_pay_for_each_other() {
    //= V-21
    let budget = budget(&answers(1));
    let admitted = (0..100_u32)
        .filter(|&number| budget.admit(Time::ZERO, source(number << 8), REQUEST, CHALLENGE));
    // Of 100 sources on 65,536 buckets, two meet with a probability of 7 %, and do not with this seed.
    assert_eq!(admitted.count(), 100);
    assert!(!budget.admit(Time::ZERO, source(5 << 8), REQUEST, CHALLENGE));
}

#[test]
fn a_mapped_address_is_no_second_source_and_neither_is_a_neighbour_in_the_same_64() {
    let budget = budget(&answers(1));
    assert!(budget.admit(Time::ZERO, source(7), REQUEST, CHALLENGE));
    let mapped = Ipv4Addr::from_bits(7).to_ipv6_mapped();
    assert!(!budget.admit(Time::ZERO, mapped.into(), REQUEST, CHALLENGE));

    let v6 = |low| IpAddr::from(Ipv6Addr::new(0x2606, 0x4700, 0, 1, 0, 0, 0, low));
    assert!(budget.admit(Time::ZERO, v6(1), REQUEST, CHALLENGE));
    assert!(!budget.admit(Time::ZERO, v6(2), REQUEST, CHALLENGE));
}

#[test]
fn a_million_sources_leave_the_table_as_large_as_it_was() {
    //= V-21
    let budget = budget(&UnverifiedLimits::default());
    let size = size_of_val(&*budget.buckets);
    for number in 0..1_000_000 {
        budget.admit(Time::ZERO, source(number), REQUEST, CHALLENGE);
    }
    assert_eq!((size, budget.bucket_count()), (1 << 21, 1 << 16));
    assert_eq!(size_of_val(&*budget.buckets), size);
}

#[test]
fn who_does_not_know_the_key_cannot_aim_at_a_bucket() {
    //= V-53
    let limits = UnverifiedLimits::default();
    let [one, other] = [1, 2].map(|seed| keyed(&limits, seed));
    let victim = source(0x0808_0808);
    let shares = |budget: &UnverifiedBudget| -> Vec<u32> {
        let number = |&number: &u32| budget.index(source(number)) == budget.index(victim);
        (0..1_000_000).filter(number).collect()
    };
    let (found, useful) = (shares(&one), shares(&other));
    assert!(found.len() > 5, "16 expected");
    assert!(
        found
            .iter()
            .filter(|number| useful.contains(number))
            .count()
            <= 2
    );
}

#[test]
fn the_clock_may_wrap_and_stand_still() {
    let budget = budget(&answers(1));
    let wrap = Time::ZERO + Duration::from_millis((u64::from(STEP_MS) << 32) - 50);
    assert!(budget.admit(wrap, source(1), REQUEST, CHALLENGE));
    assert!(!budget.admit(wrap, source(1), REQUEST, CHALLENGE));
    assert!(budget.admit(wrap + Duration::from_secs(1), source(1), REQUEST, CHALLENGE));
    assert!(!budget.admit(wrap + Duration::from_secs(1), source(1), REQUEST, CHALLENGE));
}

#[test]
fn an_engine_whose_clock_is_behind_drains_nothing() {
    let budget = budget(&answers(1));
    let ahead = Time::ZERO + Duration::from_secs(100);
    assert!(budget.admit(ahead, source(1), REQUEST, CHALLENGE));
    for ms in [99_900, 99_500, 98_000] {
        let behind = Time::ZERO + Duration::from_millis(ms);
        assert!(!budget.admit(behind, source(1), REQUEST, CHALLENGE), "{ms}");
    }
    assert!(budget.admit(
        ahead + Duration::from_secs(1),
        source(1),
        REQUEST,
        CHALLENGE
    ));
}

#[test]
fn threads_that_ask_at_once_get_what_one_would_get() {
    let limits = UnverifiedLimits {
        bytes: Rate {
            burst: 100 * 1000,
            per_s: 0,
        },
        excess: Rate {
            burst: u32::MAX,
            per_s: 0,
        },
        ..UnverifiedLimits::default()
    };
    let budget = budget(&limits);
    let ask = || (0..1000).filter(|_| budget.admit(Time::ZERO, source(1), 0, 100));
    let admitted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| ask().count())).collect();
        let counts = threads.into_iter().map(|thread| thread.join().unwrap());
        counts.sum()
    });
    assert_eq!(admitted, 1000, "of 4000");
}

#[test]
fn a_refusal_is_remembered_until_the_bucket_drains() {
    let budget = budget(&answers(1));
    assert!(budget.admit(Time::ZERO, source(1), REQUEST, CHALLENGE));
    assert!(!budget.is_exhausted(Time::ZERO, source(1)));
    assert!(!budget.admit(Time::ZERO, source(1), REQUEST, CHALLENGE));
    let last = Time::ZERO + Duration::from_millis(99);
    assert!(budget.is_exhausted(last, source(1)));
    assert!(!budget.is_exhausted(last, source(2)));
    assert!(!budget.is_exhausted(last + Duration::from_millis(1), source(1)));
}

#[test]
fn the_number_of_buckets_is_bounded() {
    for (asked, given) in [(0, 1), (1, 1), (3, 4), (1000, 1024)] {
        let budget = budget(&UnverifiedLimits {
            buckets: asked,
            ..UnverifiedLimits::default()
        });
        assert_eq!(budget.bucket_count(), given);
    }
}
