//! The distribution of waits.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// An hour in microseconds; a longer wait counts as this.
const MAX_US: u64 = 3_600_000_000;
/// Significant digits of the histogram.
const DIGITS: u8 = 3;

/// The distribution of waits, from asking for the lock to having it.
///
/// Its `Debug` shows their number and percentiles.
#[derive(Clone, PartialEq)]
pub struct Waits {
    histogram: Histogram<u64>,
    max_us: u64,
}

/// Percentiles of the waits, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WaitMs {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The longest wait.
    pub max: f64,
}

impl Waits {
    /// Collects waits; `None` if there are none.
    pub(crate) fn of(waits: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut histogram = Histogram::<u64>::new_with_bounds(1, MAX_US, DIGITS).ok()?;
        let us = |wait: Duration| u64::try_from(wait.as_micros()).unwrap_or(MAX_US);
        let recorded = waits.into_iter().map(us);
        let max_us = recorded
            .inspect(|us| histogram.saturating_record(*us))
            .max()?;
        Some(Self { histogram, max_us })
    }

    /// Returns median, 99th percentile and maximum.
    pub fn ms(&self) -> WaitMs {
        // A bucket's end can lie above the longest wait that is in it.
        let percentile = |p| self.histogram.value_at_percentile(p).min(self.max_us) as f64 / 1e3;
        WaitMs {
            p50: percentile(50.0),
            p99: percentile(99.0),
            max: percentile(100.0),
        }
    }

    /// Returns the number of waits.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the share of all waits in each interval between two neighbours of `edges`, which are
    /// ascending microseconds. Waits outside of all intervals count with the nearest one.
    pub(crate) fn shares(&self, edges: &[u64]) -> Vec<f64> {
        let last = edges.len().saturating_sub(2);
        let mut counts = vec![0; edges.len().saturating_sub(1)];
        for step in self.histogram.iter_recorded() {
            let wait = step.value_iterated_to();
            let index = edges.partition_point(|&edge| edge <= wait);
            if let Some(count) = counts.get_mut(index.saturating_sub(1).min(last)) {
                *count += step.count_since_last_iteration();
            }
        }
        let share = |count: u64| count as f64 / self.count() as f64;
        counts.into_iter().map(share).collect()
    }
}

impl fmt::Debug for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waits")
            .field("count", &self.count())
            .field("ms", &self.ms())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_hundred_waits() {
        let waits = Waits::of((1..=100).map(Duration::from_millis)).unwrap();
        let ms = waits.ms();
        assert!((ms.p50 - 50.0).abs() < 0.1, "{ms:?}");
        assert!((ms.p99 - 99.0).abs() < 0.1, "{ms:?}");
        assert!((ms.max - 100.0).abs() < 0.1, "{ms:?}");
        assert!(format!("{waits:?}").starts_with("Waits { count: 100, ms: WaitMs {"));
        assert_eq!(Waits::of([]), None);
    }

    #[test]
    fn shares_include_waits_outside_of_the_edges() {
        let waits = Waits::of([1, 20, 20, 900].map(Duration::from_millis)).unwrap();
        let shares = waits.shares(&[10_000, 50_000, 100_000]);
        assert_eq!(shares, [0.75, 0.25]);
    }
}
