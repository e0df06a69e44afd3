//! The distribution of waits.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Microseconds in an hour: no wait is longer, and what were would count as that.
const LONGEST_US: u64 = 3_600_000_000;
/// Three digits are kept.
const DIGITS: u8 = 3;

/// The distribution of waits, from asking for the lock to having it.
#[derive(Clone, Debug, PartialEq)]
pub struct Waits {
    all: Histogram<u64>,
    max_us: u64,
}

/// What is told of it everywhere, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WaitMs {
    /// Half of the waits were no longer.
    pub p50: f64,
    /// 99 of 100 were no longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Waits {
    /// Of these waits; `None` where nobody asked.
    pub(crate) fn of(waits: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut all = Histogram::<u64>::new_with_bounds(1, LONGEST_US, DIGITS).ok()?;
        let mut max_us = 0;
        for wait in waits {
            let us = u64::try_from(wait.as_micros()).unwrap_or(LONGEST_US);
            all.saturating_record(us);
            max_us = max_us.max(us);
        }
        (!all.is_empty()).then_some(Self { all, max_us })
    }

    /// Median, 99th percentile and longest.
    pub fn ms(&self) -> WaitMs {
        // A bucket's end can lie above the longest wait that is in it.
        let at =
            |percentile| milliseconds(self.all.value_at_percentile(percentile).min(self.max_us));
        WaitMs {
            p50: at(50.0),
            p99: at(99.0),
            max: milliseconds(self.max_us),
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.all.len()
    }

    /// The share of all waits between each two neighbours of `edges`, which are microseconds and
    /// grow. What is below the first or above the last counts with the nearest.
    pub fn shares(&self, edges: &[u64]) -> Vec<f64> {
        let last = edges.len().saturating_sub(2);
        let mut counts = vec![0; edges.len().saturating_sub(1)];
        for step in self.all.iter_recorded() {
            let wait = step.value_iterated_to();
            let place = edges.partition_point(|&edge| edge <= wait);
            if let Some(count) = counts.get_mut(place.saturating_sub(1).min(last)) {
                *count += step.count_since_last_iteration();
            }
        }
        let all = self.count() as f64;
        counts
            .into_iter()
            .map(|count: u64| count as f64 / all)
            .collect()
    }
}

fn milliseconds(us: u64) -> f64 {
    us as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_hundred_waits_and_of_none() {
        let waits = Waits::of((1..=100).map(Duration::from_millis)).unwrap();
        let ms = waits.ms();
        assert!((ms.p50 - 50.0).abs() < 0.1, "{ms:?}");
        assert!((ms.p99 - 99.0).abs() < 0.1, "{ms:?}");
        assert!((ms.max - 100.0).abs() < 0.1, "{ms:?}");
        assert_eq!(Waits::of([]), None);
    }

    #[test]
    fn shares_add_up_and_nothing_is_left_out() {
        let waits = Waits::of([1, 20, 20, 900].map(Duration::from_millis)).unwrap();
        let shares = waits.shares(&[10_000, 50_000, 100_000]);
        assert_eq!(shares, [0.75, 0.25]);
    }
}
