//! Rests between readings of everything, so that a database and this machine have time for others.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// A reading takes at most one part in so many of the thread's time.
const SHARE: u32 = 10;

/// The longest rest for the time that the database took. It may have hung, and then its changes are wanted soon.
const WAITED_MAX: Duration = Duration::from_secs(4);

/// The longest rest after the first reading of a connection. What was written as the database came back may have come too late for that reading, and is
/// to be known within five seconds, in which a second reading has to fit.
const FIRST_MAX: Duration = Duration::from_secs(1);

/// A reading that is under way on this thread.
pub(crate) struct Reading {
    began: Instant,
    cpu: Duration,
}

impl Reading {
    pub(crate) fn begin() -> Self {
        Self {
            began: Instant::now(),
            cpu: own_cpu_time(),
        }
    }

    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Returns for how long whoever has read is to rest.
    pub(crate) fn rest(&self) -> Duration {
        rest(
            self.began.elapsed(),
            own_cpu_time().saturating_sub(self.cpu),
        )
    }
}

/// The rests between the readings of one connection.
pub(crate) struct Rests {
    /// How long the next one may be.
    longest: Duration,
    until: Instant,
}

impl Rests {
    /// Begins with a connection, on which nothing has been read.
    pub(crate) fn new() -> Self {
        Self {
            longest: FIRST_MAX,
            until: Instant::now(),
        }
    }

    /// Returns whether a reading at `now` would come too early.
    pub(crate) fn is_resting(&self, now: Instant) -> bool {
        now < self.until
    }

    /// Begins the rest after a reading, which is over.
    pub(crate) fn begin(&mut self, reading: &Reading) {
        self.until = Instant::now() + reading.rest().min(self.longest);
        self.longest = Duration::MAX;
    }
}

fn rest(took: Duration, cpu: Duration) -> Duration {
    (cpu * SHARE).max((took * SHARE).min(WAITED_MAX))
}

fn own_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_a_tenth_of_the_work_and_a_database_that_hung_is_read_four_seconds_later() {
        let ms = Duration::from_millis;
        for (took, cpu, expected) in [
            (10, 5, 100),
            (900, 700, 7000),
            (2000, 1, 4000),
            (60_000, 1, 4000),
            (0, 0, 0),
        ] {
            assert_eq!(rest(ms(took), ms(cpu)), ms(expected), "{took} ms");
        }
    }

    #[test]
    fn what_the_thread_works_counts_and_not_that_it_waits() {
        let reading = Reading::begin();
        let before = own_cpu_time();
        while own_cpu_time() - before < Duration::from_millis(5) {}
        assert!(own_cpu_time() - reading.cpu >= Duration::from_millis(5));
        assert!(reading.rest() >= Duration::from_millis(50));
    }

    #[test]
    fn after_the_first_reading_of_a_connection_the_next_comes_within_a_second_and_later_ones_do_not()
     {
        let mut rests = Rests::new();
        assert!(!rests.is_resting(Instant::now()), "nothing was read");
        let reading = Reading::begin();
        let before = own_cpu_time();
        while own_cpu_time() - before < Duration::from_millis(110) {}
        // What a rest of the whole length would be.
        let whole = Instant::now() + Duration::from_millis(1100);
        rests.begin(&reading);
        let after_first = Instant::now() + Duration::from_secs(1);
        assert!(!rests.is_resting(after_first));
        rests.begin(&reading);
        assert!(rests.is_resting(whole - Duration::from_millis(1)));
    }
}
