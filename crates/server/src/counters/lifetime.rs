//! How long sessions last, in classes.

use std::time::Duration;

use turnbuckle_counters::reasons;

use super::SessionCounters;

reasons! {
    /// How long a session has lasted: the first of these that it has not outlasted.
    pub(crate) enum Lifetime {
        /// A second at most.
        Second = "1s",
        /// Ten seconds at most.
        TenSeconds = "10s",
        /// A minute at most.
        Minute = "1m",
        /// Five minutes at most.
        FiveMinutes = "5m",
        /// Ten minutes at most, as long as one lasts that is never refreshed.
        TenMinutes = "10m",
        /// Half an hour at most.
        HalfHour = "30m",
        /// An hour at most.
        Hour = "1h",
        /// Four hours at most.
        FourHours = "4h",
        /// A day at most.
        Day = "1d",
        /// Longer than a day.
        Longer = "longer",
    }
}

/// The longest lifetimes of the classes, but for the last class, which has none.
pub const SESSION_LIFETIME_BOUNDS_S: [u64; Lifetime::ALL.len() - 1] =
    [1, 10, 60, 300, 600, 1800, 3600, 14_400, 86_400];

impl Lifetime {
    fn of(lasted: Duration) -> Self {
        let bounds = SESSION_LIFETIME_BOUNDS_S.into_iter();
        let outlasted = bounds.take_while(|&bound| lasted > Duration::from_secs(bound));
        Self::ALL[outlasted.count()]
    }
}

impl SessionCounters {
    /// Counts the end of a session that has lasted so long.
    pub(crate) fn lasted(&self, lasted: Duration) {
        self.session_lifetimes.of(Lifetime::of(lasted)).add(1);
        let ms = u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX);
        self.session_lifetimes_ms.add(ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_ends_with_its_bound_and_the_last_has_none() {
        let label = |lasted| Lifetime::of(lasted).as_str();
        assert_eq!(label(Duration::ZERO), "1s");
        assert_eq!(label(Duration::MAX), "longer");
        let labels = Lifetime::ALL.map(Lifetime::as_str);
        for (class, bound) in SESSION_LIFETIME_BOUNDS_S.into_iter().enumerate() {
            let bound = Duration::from_secs(bound);
            assert_eq!(label(bound), labels[class]);
            let longer = bound + Duration::from_nanos(1);
            assert_eq!(label(longer), labels[class + 1]);
        }
    }
}
