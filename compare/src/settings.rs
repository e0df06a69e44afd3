//! What a comparison is run with.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::stopwatch;

/// The shortest time between reading and writing with which the control fails reliably.
pub(crate) const MIN_HELD: Duration = Duration::from_millis(1);

/// What a comparison is run with; see the methods of [`Comparison`](crate::Comparison).
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Settings {
    /// Threads that compete.
    pub threads: u32,
    /// Seats in `gather`.
    pub seats: u32,
    /// Items in `stock`.
    pub items: u32,
    /// How long a thread thinks between reading and writing. Serializes as `held_ms`.
    #[serde(rename = "held_ms", serialize_with = "milliseconds")]
    pub held: Duration,
    /// How often each row is run.
    pub repeat: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            threads: 100,
            seats: 5,
            items: 10,
            held: MIN_HELD,
            repeat: 1,
        }
    }
}

fn milliseconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(stopwatch::milliseconds(*time))
}
