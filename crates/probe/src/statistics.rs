//! Compares two samples of times: could they be of one distribution?

/// Two samples compared.
pub(super) struct Comparison {
    /// Welch's t: the difference of the means by its standard error.
    pub(super) t: f64,
    /// How likely two samples of one kind differ as much as these do, by the test of Kolmogorov and Smirnov.
    pub(super) p: f64,
}

/// Compares two samples, each of two values at least.
pub(super) fn compare(one: &[f64], other: &[f64]) -> Comparison {
    let (mean_one, error_one) = mean_and_error(one);
    let (mean_other, error_other) = mean_and_error(other);
    let t = (mean_one - mean_other) / (error_one + error_other).sqrt().max(f64::MIN_POSITIVE);
    let (n, m) = (count(one), count(other));
    let size = (n * m / (n + m)).sqrt();
    // Stephens' approximation, good from sizes of 4 on.
    let lambda = (size + 0.12 + 0.11 / size) * largest_distance(one, other);
    Comparison { t, p: tail(lambda) }
}

/// Returns the mean of a sample; zero if there is none.
pub(super) fn mean(sample: &[f64]) -> f64 {
    sample.iter().sum::<f64>() / count(sample).max(1.0)
}

/// Returns the mean of a sample and the square of the mean's standard error.
fn mean_and_error(sample: &[f64]) -> (f64, f64) {
    let n = count(sample);
    let mean = mean(sample);
    let squares = sample.iter().map(|value| (value - mean).powi(2));
    (mean, squares.sum::<f64>() / (n - 1.0).max(1.0) / n)
}

/// Returns the largest distance between the two empirical distributions.
fn largest_distance(one: &[f64], other: &[f64]) -> f64 {
    let below = |sample: &[f64], value: f64| {
        let below = sample.iter().filter(|own| **own <= value);
        ratio(below.count(), sample.len())
    };
    let values = one.iter().chain(other);
    let distances = values.map(|value| (below(one, *value) - below(other, *value)).abs());
    distances.fold(0.0, f64::max)
}

/// Returns the probability that Kolmogorov's statistic is beyond `lambda`.
fn tail(lambda: f64) -> f64 {
    if lambda < 0.2 {
        return 1.0; // where the sum converges slowly
    }
    let term = |j: i32| {
        let j = f64::from(j);
        (-2.0 * (j * lambda).powi(2)).exp()
    };
    let sum: f64 = (1..=100)
        .map(|j| if j % 2 == 1 { term(j) } else { -term(j) })
        .sum();
    (2.0 * sum).clamp(0.0, 1.0)
}

#[expect(clippy::cast_precision_loss, reason = "numbers of samples")]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn count(sample: &[f64]) -> f64 {
    ratio(sample.len(), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_samples_are_of_one_kind_and_shifted_ones_are_not() {
        let sample: Vec<f64> = (0..50).map(|n| f64::from(n * 37 % 50)).collect();
        let same = compare(&sample, &sample);
        assert!(
            same.t.abs() < 1e-9 && same.p > 0.99,
            "{} {}",
            same.t,
            same.p
        );
        let shifted: Vec<f64> = sample.iter().map(|value| value + 30.0).collect();
        let other = compare(&sample, &shifted);
        assert!(other.t < -9.0 && other.p < 1e-6, "{} {}", other.t, other.p);
    }

    #[test]
    fn the_tail_is_that_of_the_tables() {
        // Critical values of Kolmogorov's distribution.
        for (lambda, p) in [(1.2238, 0.10), (1.3581, 0.05), (1.6276, 0.01)] {
            assert!(
                (tail(lambda) - p).abs() < 1e-4,
                "{lambda}: {}",
                tail(lambda)
            );
        }
    }
}
