//! Figures of several runs.

use serde_json::{Value, json};

/// Median, minimum, maximum and 90th percentile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Summary {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) p90: f64,
}

impl Summary {
    /// Returns the figures of at least one run.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        // The smallest value that nine of ten do not exceed.
        let p90 = values[(values.len() * 9).div_ceil(10) - 1];
        Some(Self {
            median,
            min,
            max,
            p90,
        })
    }

    pub(super) fn value(&self) -> Value {
        json!({"median": self.median, "min": self.min, "max": self.max, "p90": self.p90})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_runs() {
        let of = |values: &[f64]| {
            let Summary {
                median,
                min,
                max,
                p90,
            } = Summary::of(values.iter().copied()).expect("runs");
            [median, min, max, p90]
        };
        assert_eq!(of(&[3.0]), [3.0; 4]);
        assert_eq!(of(&[4.0, 1.0, 3.0, 2.0]), [2.5, 1.0, 4.0, 4.0]);
        let ten: Vec<_> = (1..=10).map(f64::from).collect();
        assert_eq!(of(&ten), [5.5, 1.0, 10.0, 9.0]);
        assert_eq!(Summary::of([]), None);
    }
}
