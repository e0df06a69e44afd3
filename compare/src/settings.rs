//! What a comparison is run with.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::error::Error;
use crate::scenario::Scenario;

/// The shortest time between reading and writing with which the control fails reliably.
const MIN_HELD: Duration = Duration::from_millis(1);
const MAX_HELD: Duration = Duration::from_secs(10);

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

impl Settings {
    /// Checks that these scenarios can be run.
    pub(crate) fn check(&self, scenarios: &[Scenario]) -> Result<(), Error> {
        for (name, value, range) in [
            ("threads", self.threads, 2..=10_000),
            ("repeat", self.repeat, 1..=1_000),
        ] {
            if !range.contains(&value) {
                return Err(Error::invalid(format!(
                    "{name} is {value}, and has to be in {range:?}"
                )));
            }
        }
        for (name, value, scenario) in [
            ("seats", self.seats, Scenario::Gather),
            ("items", self.items, Scenario::Stock),
        ] {
            let is_enough = value >= self.threads && scenarios.contains(&scenario);
            if value < 1 || is_enough {
                return Err(Error::invalid(format!(
                    "{value} {name} for {} threads: nothing could be oversold; use more threads, \
                     or fewer {name} (at least 1)",
                    self.threads
                )));
            }
        }
        if self.held < MIN_HELD {
            return Err(Error::invalid(
                "with less than 1ms between reading and writing the control could happen to be \
                 right; use 1ms or more",
            ));
        }
        if self.held > MAX_HELD {
            return Err(Error::invalid(
                "the threads hold the lock one after the other, so this would take too long; use \
                 10s or less",
            ));
        }
        Ok(())
    }
}

fn milliseconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(crate::report::row::milliseconds(*time))
}
