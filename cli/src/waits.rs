//! The distribution of waits.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Microseconds in an hour: no wait is longer, and what were would count as that.
const LONGEST_US: u64 = 3_600_000_000;
/// Three digits are kept.
const DIGITS: u8 = 3;

/// How long the lock was waited for, from asking for it to having it, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct WaitMs {
    /// Half of the waits were no longer.
    pub(crate) p50: f64,
    /// 99 of 100 were no longer.
    pub(crate) p99: f64,
    /// The longest.
    pub(crate) max: f64,
}

impl WaitMs {
    /// Of these waits; `None` where nobody asked.
    pub(crate) fn of(waits: impl IntoIterator<Item = Duration>) -> Option<Self> {
        let mut all = Histogram::<u64>::new_with_bounds(1, LONGEST_US, DIGITS).ok()?;
        let mut max = 0;
        for wait in waits {
            let us = u64::try_from(wait.as_micros()).unwrap_or(LONGEST_US);
            all.saturating_record(us);
            max = max.max(us);
        }
        // A bucket's end can lie above the longest wait that is in it.
        let at = |percentile| milliseconds(all.value_at_percentile(percentile).min(max));
        (!all.is_empty()).then(|| Self {
            p50: at(50.0),
            p99: at(99.0),
            max: milliseconds(max),
        })
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
        let ms = WaitMs::of((1..=100).map(Duration::from_millis)).unwrap();
        assert!((ms.p50 - 50.0).abs() < 0.1, "{ms:?}");
        assert!((ms.p99 - 99.0).abs() < 0.1, "{ms:?}");
        assert!((ms.max - 100.0).abs() < 0.1, "{ms:?}");
        assert_eq!(WaitMs::of([]), None);
    }
}
