//! How many questions the user database gets.
//!
//! Only a request with a fresh nonce brings a question, so its source address is its own. All tables have their full size from the start.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use turnbuckle_engine::{Question, Time};
use turnbuckle_users::QUESTIONS_MAX;

use super::AskResult;

/// Questions of all clients per second, and how many of them may come at once.
const ALL_PER_S: u32 = 500;
/// Questions of one IPv4 address or IPv6 /64 per second, and how many of them may come at once.
const SOURCE_PER_S: u32 = 10;
/// Cells of the tables, which sources and questions share by a keyed hash.
const CELLS: usize = 8192;
/// How long the same source does not ask the same again that was in vain.
const VAIN_FOR: Duration = Duration::from_secs(2);
/// Questions without an answer, one after the other, after which nobody asks for a while. A single one may have been late because the machine is
/// busy.
const FAILURES: u32 = 3;
/// How long nobody asks after the database has not answered: at first, and at the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Who asks about whom.
#[derive(Clone, Copy)]
pub(super) struct About<'a> {
    pub(super) source: IpAddr,
    pub(super) realm: &'a str,
    pub(super) name: &'a str,
}

impl<'a> About<'a> {
    pub(super) fn of(source: IpAddr, question: &'a Question) -> Self {
        Self {
            source,
            realm: &question.realm,
            name: &question.name,
        }
    }
}

/// The bounds of one server.
pub(super) struct Bounds {
    keys: RandomState,
    in_flight: usize,
    all: Bucket,
    sources: Box<[Bucket]>,
    vain: Box<[Vain]>,
    breaker: Breaker,
}

/// A bucket that leaks: when it will be empty.
#[derive(Clone, Copy)]
struct Bucket {
    empty_at: Time,
}

/// A question that was in vain.
#[derive(Clone, Copy)]
struct Vain {
    hash: u64,
    until: Time,
}

/// Keeps questions from a database that does not answer.
#[derive(Clone, Copy)]
struct Breaker {
    /// Nobody asks before.
    until: Time,
    /// How long it stays open the next time.
    pause: Duration,
    /// How many questions in a row had no answer. From [`FAILURES`] on one at a time is asked.
    failures: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        let bucket = Bucket {
            empty_at: Time::ZERO,
        };
        let vain = Vain {
            hash: 0,
            until: Time::ZERO,
        };
        Self {
            keys: RandomState::new(),
            in_flight: 0,
            all: bucket,
            sources: vec![bucket; CELLS].into(),
            vain: vec![vain; CELLS].into(),
            breaker: Breaker {
                until: Time::ZERO,
                pause: PAUSE_MIN,
                failures: 0,
            },
        }
    }
}

impl Bounds {
    /// Admits a question, which [`Self::ended`] has to end.
    ///
    /// # Errors
    ///
    /// Why it is not asked. Nothing is charged then but what an address has used up.
    pub(super) fn admit(&mut self, now: Time, about: About<'_>) -> Result<(), AskResult> {
        let is_probe = self.breaker.failures >= FAILURES;
        // guard: V-54-ask-breaker
        if now < self.breaker.until || is_probe && self.in_flight > 0 {
            return Err(AskResult::Broken);
        }
        // guard: V-54-ask-queue
        if self.in_flight >= QUESTIONS_MAX {
            return Err(AskResult::LimitedQueue);
        }
        let hash = self.hash(about);
        let vain = self.vain[cell(hash)];
        // guard: V-54-ask-vain
        if vain.hash == hash && now < vain.until {
            return Err(AskResult::VainBefore);
        }
        let source = cell(self.keys.hash_one(network(about.source)));
        // guard: V-54-ask-address
        if !self.sources[source].takes(now, SOURCE_PER_S) {
            return Err(AskResult::LimitedAddress);
        }
        // guard: V-54-ask-rate
        if !self.all.takes(now, ALL_PER_S) {
            return Err(AskResult::LimitedRate);
        }
        self.in_flight += 1;
        Ok(())
    }

    /// Takes note of what an admitted question came to.
    pub(super) fn ended(&mut self, now: Time, result: AskResult) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let breaker = &mut self.breaker;
        match result {
            AskResult::Away if now < breaker.until => {} // one that was asked with others
            AskResult::Away => {
                breaker.failures = breaker.failures.saturating_add(1);
                if breaker.failures >= FAILURES {
                    breaker.until = now + breaker.pause;
                    breaker.pause = (breaker.pause * 2).min(PAUSE_MAX);
                }
            }
            AskResult::Found | AskResult::Vain => {
                breaker.failures = 0;
                breaker.pause = PAUSE_MIN;
            }
            _ => {}
        }
    }

    /// Takes note that a question was in vain.
    pub(super) fn was_vain(&mut self, now: Time, about: About<'_>) {
        let hash = self.hash(about);
        self.vain[cell(hash)] = Vain {
            hash,
            until: now + VAIN_FOR,
        };
    }

    fn hash(&self, about: About<'_>) -> u64 {
        // The source is a part of it: else a stranger could ask for a user who is about to come, and keep it from being asked for.
        let key = (network(about.source), about.realm, about.name);
        self.keys.hash_one(key)
    }
}

impl Bucket {
    /// Takes one more if it is within a second's worth of `per_s`.
    fn takes(&mut self, now: Time, per_s: u32) -> bool {
        let each = Duration::from_secs(1) / per_s;
        let empty_at = self.empty_at.max(now) + each;
        let takes = empty_at.since(now) <= Duration::from_secs(1);
        if takes {
            self.empty_at = empty_at;
        }
        takes
    }
}

/// Returns what of an address counts as one source.
fn network(source: IpAddr) -> u64 {
    match source.to_canonical() {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => u64::try_from(ip.to_bits() >> 64).unwrap_or(0),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "any bits do")]
fn cell(hash: u64) -> usize {
    hash as usize % CELLS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(host: u32, name: &str) -> About<'_> {
        About {
            source: IpAddr::from(host.to_be_bytes()),
            realm: "r",
            name,
        }
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(1_000_000_000_000) + Duration::from_millis(ms)
    }

    /// Asks once, and has it end with `result` if it is admitted.
    fn asked(bounds: &mut Bounds, ms: u64, host: u32, result: AskResult) -> Result<(), AskResult> {
        let admitted = bounds.admit(at(ms), about(host, "alice"));
        if admitted.is_ok() {
            bounds.ended(at(ms), result);
        }
        admitted
    }

    #[test]
    fn an_address_asks_ten_times_at_once_and_ten_times_a_second() {
        let mut bounds = Bounds::default();
        let mut count = |ms| {
            let results = (0..100).map(|_| asked(&mut bounds, ms, 1, AskResult::Found));
            results.filter(Result::is_ok).count()
        };
        assert_eq!(
            [count(0), count(50), count(500), count(10_000)],
            [10, 0, 5, 10]
        );
        let refused = (0..11).map(|_| asked(&mut bounds, 20_000, 2, AskResult::Found));
        assert_eq!(refused.last(), Some(Err(AskResult::LimitedAddress)));
        assert_eq!(asked(&mut bounds, 20_000, 3, AskResult::Found), Ok(()));
    }

    #[test]
    fn all_together_ask_five_hundred_times_a_second() {
        let mut bounds = Bounds::default();
        let mut count = |ms, from| {
            let results =
                (from..from + 1000).map(|host| asked(&mut bounds, ms, host, AskResult::Found));
            results.filter(Result::is_ok).count()
        };
        assert_eq!(
            [count(0, 0), count(0, 1000), count(100, 2000)],
            [500, 0, 50]
        );
        let refused = asked(&mut bounds, 100, 5000, AskResult::Found);
        assert_eq!(refused, Err(AskResult::LimitedRate));
    }

    #[test]
    fn sixty_four_questions_are_under_way_and_one_that_ends_makes_room() {
        let mut bounds = Bounds::default();
        let admit = |bounds: &mut Bounds, host| bounds.admit(at(0), about(host, "alice"));
        for host in 0..64 {
            assert_eq!(admit(&mut bounds, host), Ok(()));
        }
        assert_eq!(admit(&mut bounds, 100), Err(AskResult::LimitedQueue));
        bounds.ended(at(0), AskResult::Vain);
        assert_eq!(admit(&mut bounds, 100), Ok(()));
    }

    #[test]
    fn what_was_in_vain_is_not_asked_again_by_the_same_address_for_two_seconds() {
        let mut bounds = Bounds::default();
        assert_eq!(asked(&mut bounds, 0, 1, AskResult::Vain), Ok(()));
        bounds.was_vain(at(0), about(1, "alice"));
        let again = asked(&mut bounds, 1999, 1, AskResult::Vain);
        assert_eq!(again, Err(AskResult::VainBefore));
        // Another address, and another name, are asked.
        assert_eq!(asked(&mut bounds, 1999, 2, AskResult::Vain), Ok(()));
        assert_eq!(bounds.admit(at(1999), about(1, "bob")), Ok(()));
        assert_eq!(asked(&mut bounds, 2000, 1, AskResult::Vain), Ok(()));
    }

    #[test]
    fn a_database_that_does_not_answer_is_asked_once_after_one_second_then_two_and_thirty_at_the_longest()
     {
        let mut bounds = Bounds::default();
        let mut asked_at = Vec::new();
        for _ in 1..FAILURES {
            assert_eq!(asked(&mut bounds, 0, 1, AskResult::Away), Ok(()));
        }
        for second in 0..200 {
            if asked(&mut bounds, second * 1000, 1, AskResult::Away).is_ok() {
                asked_at.push(second);
            }
        }
        assert_eq!(asked_at, [0, 1, 3, 7, 15, 31, 61, 91, 121, 151, 181]);
        // One at a time until it answers.
        assert_eq!(bounds.admit(at(300_000), about(1, "alice")), Ok(()));
        let other = bounds.admit(at(300_000), about(2, "alice"));
        assert_eq!(other, Err(AskResult::Broken));
        bounds.ended(at(300_000), AskResult::Vain);
        assert_eq!(bounds.admit(at(300_000), about(2, "alice")), Ok(()));
        assert_eq!(bounds.admit(at(300_000), about(3, "alice")), Ok(()));
    }

    #[test]
    fn one_late_answer_among_others_keeps_nobody_from_asking() {
        let mut bounds = Bounds::default();
        for second in 0..30 {
            let result = match second % 3 {
                2 => AskResult::Vain,
                _ => AskResult::Away,
            };
            assert_eq!(asked(&mut bounds, second * 1000, 1, result), Ok(()));
        }
    }

    #[test]
    fn questions_that_fail_together_count_once() {
        let mut bounds = Bounds::default();
        for host in 0..64 {
            assert_eq!(bounds.admit(at(0), about(host, "alice")), Ok(()));
        }
        for _ in 0..64 {
            bounds.ended(at(300), AskResult::Away);
        }
        assert_eq!(
            bounds.admit(at(1299), about(1, "alice")),
            Err(AskResult::Broken)
        );
        assert_eq!(bounds.admit(at(1300), about(1, "alice")), Ok(()));
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_source() {
        let mut bounds = Bounds::default();
        let results = (0..20u8).map(|host| {
            let source = format!("2001:db8::{host}").parse().expect("an address");
            let about = About {
                source,
                realm: "r",
                name: "alice",
            };
            bounds.admit(at(0), about)
        });
        assert_eq!(results.filter(Result::is_ok).count(), 10);
    }
}
