//! Medians and percentiles.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The middle of some figures; the mean of the two middle ones of an even count. 0 of none.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[half],
        _ => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

/// Single times, as ticks, in buckets of three digits' precision.
#[derive(Debug)]
pub struct Samples(Histogram<u64>);

/// The longest time that is distinguished, in ticks: minutes.
const LONGEST: u64 = 1 << 38;

impl Samples {
    /// None yet. Allocates all that it will need.
    pub fn new() -> Self {
        // Bounds that the constructor documents as valid.
        Self(Histogram::new_with_bounds(1, LONGEST, 3).expect("valid bounds"))
    }

    /// Adds one.
    #[inline]
    pub fn record(&mut self, ticks: u64) {
        self.0.saturating_record(ticks);
    }

    /// What they say; each is worth `scale` nanoseconds a tick.
    pub fn percentiles(&self, scale: f64) -> Percentiles {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 * scale;
        Percentiles {
            samples: self.0.len(),
            min: self.0.min() as f64 * scale,
            mean: self.0.mean() * scale,
            median: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: self.0.max() as f64 * scale,
        }
    }

    /// The curve: for each quantile, from `0` on ever closer to 1, its nanoseconds.
    pub fn curve(&self, scale: f64) -> Vec<(f64, f64)> {
        self.0
            .iter_quantiles(8)
            .map(|step| {
                let value = step.value_iterated_to() as f64 * scale;
                (step.quantile_iterated_to(), value)
            })
            .collect()
    }

    /// For each time that occurred, its nanoseconds and how often it did.
    pub fn counts(&self, scale: f64) -> Vec<(f64, u64)> {
        self.0
            .iter_recorded()
            .map(|step| {
                let ns = step.value_iterated_to() as f64 * scale;
                (ns, step.count_since_last_iteration())
            })
            .collect()
    }
}

/// What a latency distribution is described by. Nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Percentiles {
    /// How many operations were timed one by one.
    pub samples: u64,
    /// The fastest.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// Half were faster.
    pub median: f64,
    /// 99 of 100 were faster.
    pub p99: f64,
    /// 999 of 1000 were faster.
    pub p999: f64,
    /// The slowest.
    pub max: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[5.0, 1.0, 3.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[1.0, 1.0, 1e9]), 1.0, "an outlier changes nothing");
    }

    #[test]
    fn percentiles_of_a_known_series() {
        let mut samples = Samples::new();
        for ticks in 1..=1000 {
            samples.record(ticks);
        }
        let p = samples.percentiles(0.5);
        assert_eq!((p.samples, p.min, p.max), (1000, 0.5, 500.0));
        let near = |value: f64, expected: f64| (value - expected).abs() <= expected / 500.0;
        assert!(near(p.median, 250.0), "{}", p.median);
        assert!(near(p.mean, 250.25), "{}", p.mean);
        assert!(near(p.p99, 495.0), "{}", p.p99);
        assert!(near(p.p999, 499.5), "{}", p.p999);
    }

    #[test]
    fn the_curve_rises_to_the_slowest() {
        let mut samples = Samples::new();
        for ticks in 1..=100 {
            samples.record(ticks * 10);
        }
        let curve = samples.curve(1.0);
        assert!(
            curve
                .windows(2)
                .all(|w| w[0].0 <= w[1].0 && w[0].1 <= w[1].1)
        );
        assert_eq!(curve.last().map(|p| p.1), Some(1000.0));
    }

    #[test]
    fn each_time_is_counted() {
        let mut samples = Samples::new();
        for ticks in [10, 20, 10] {
            samples.record(ticks);
        }
        assert_eq!(samples.counts(0.5), [(5.0, 2), (10.0, 1)]);
    }

    #[test]
    fn a_sample_beyond_the_end_is_kept_as_the_longest() {
        let mut samples = Samples::new();
        samples.record(u64::MAX);
        assert!(samples.percentiles(1.0).max >= LONGEST as f64);
    }
}
