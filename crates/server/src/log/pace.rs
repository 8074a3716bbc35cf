//! How many lines of one kind may be written: who can cause lines must not be able to fill the disk (V-50).

use turnbuckle_engine::Time;

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Admits so many lines per second, and some more after a pause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Nanoseconds that a line takes; not zero.
    line_ns: u64,
    /// What lines may be ahead of the clock, in nanoseconds.
    ahead_ns: u64,
    /// Up to when the lines so far have used the time.
    used_ns: u64,
    /// Lines that were not admitted since the last one that was.
    left_out: u64,
}

impl Pace {
    /// At most `per_s` lines in a second on average, and `burst` at once; both at least 1.
    pub(super) const fn new(per_s: u64, burst: u64) -> Self {
        let line_ns = SECOND_NS / if per_s == 0 { 1 } else { per_s };
        Self {
            line_ns,
            ahead_ns: line_ns * (if burst == 0 { 1 } else { burst } - 1),
            used_ns: 0,
            left_out: 0,
        }
    }

    /// Whether a line may be written now; if so, how many before it were not.
    pub(super) fn admit(&mut self, now: Time) -> Option<u64> {
        let now = now.as_nanos();
        if self.used_ns > now.saturating_add(self.ahead_ns) {
            self.left_out += 1;
            return None;
        }
        self.used_ns = self.used_ns.max(now) + self.line_ns;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_a_rate() {
        let mut pace = Pace::new(10, 5);
        let start = Time::from_secs(100);
        let admitted = |pace: &mut Pace, at| (0..1_000).filter_map(|_| pace.admit(at)).count();
        assert_eq!(admitted(&mut pace, start), 5);
        assert_eq!(
            admitted(
                &mut pace,
                Time::from_nanos(start.as_nanos() + SECOND_NS / 10)
            ),
            1
        );
        // What was left out is told with the next line.
        let later = Time::from_secs(200);
        assert_eq!(pace.admit(later), Some(999));
        assert_eq!(pace.admit(later), Some(0));
        assert_eq!(admitted(&mut pace, later), 3);
    }
}
