//! Time as the engine sees it: numbers handed in by the host, never read from a clock.

use core::ops::Add;
use core::time::Duration;

/// A point of a monotonic clock that successive processes of one boot share (`CLOCK_BOOTTIME`), in nanoseconds.
///
/// Arithmetic saturates: a point past the end of the clock never comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);
    /// A point that never comes.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the point `nanos` nanoseconds after the start of the clock.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the point `seconds` seconds after the start of the clock.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// Returns the nanoseconds since the start of the clock.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this point; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// Both clocks at one moment: the monotonic one for every deadline of TURN, the calendar for credentials that expire at a date.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock.
    pub time: Time,
    /// Seconds since 1970-01-01 00:00 UTC.
    pub unix_s: u64,
}
