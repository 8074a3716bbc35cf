//! Limits how many lines of one kind are written, so that a client cannot fill the disk by causing lines (V-50).

use turnbuckle_engine::Time;

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Admits so many lines per second, and some more after a pause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Nanoseconds that one line uses up. It is not zero.
    line_ns: u64,
    /// How far lines may run ahead of the clock, in nanoseconds.
    ahead_ns: u64,
    /// The time that the lines so far have used up, in nanoseconds of the clock.
    used_ns: u64,
    /// Lines that were not admitted since the last one that was.
    left_out: u64,
}

impl Pace {
    /// Admits at most `per_s` lines per second on average, and `burst` at once. Both are at least 1.
    pub(super) const fn new(per_s: u64, burst: u64) -> Self {
        let line_ns = SECOND_NS / if per_s == 0 { 1 } else { per_s };
        Self {
            line_ns,
            ahead_ns: line_ns * (if burst == 0 { 1 } else { burst } - 1),
            used_ns: 0,
            left_out: 0,
        }
    }

    /// Returns how many lines were left out since the last admitted one if a line may be written now. Returns `None` if it may not.
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
        // The next admitted line reports how many were left out.
        let later = Time::from_secs(200);
        assert_eq!(pace.admit(later), Some(999));
        assert_eq!(pace.admit(later), Some(0));
        assert_eq!(admitted(&mut pace, later), 3);
    }
}
