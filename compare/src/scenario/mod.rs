//! What the threads do. Each scenario is a file.

mod contest;
pub(crate) mod context;
mod crash;
mod gather;
mod nested;
mod party;
mod seat;
mod slow;
mod stock;

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use self::context::{Context, RunResult};
use crate::error::Error;

/// What the threads of a comparison do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Scenario {
    /// Many threads want few seats.
    Gather,
    /// Many buyers want few items; then there are more items than buyers.
    Stock,
    /// All threads want the same seat, and none of them waits.
    Seat,
    /// Overlapping sets of seats, each booked as a whole or not at all.
    Party,
    /// A service that holds the lock calls another one that acquires it, too.
    Nested,
    /// The work outlives the lease.
    Slow,
    /// The holder dies.
    Crash,
}

impl Scenario {
    /// All scenarios, in the order in which they run and are shown.
    pub const ALL: [Self; 7] = [
        Self::Gather,
        Self::Stock,
        Self::Seat,
        Self::Party,
        Self::Nested,
        Self::Slow,
        Self::Crash,
    ];

    /// Returns the name as users write it: `gather`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gather => "gather",
            Self::Stock => "stock",
            Self::Seat => "seat",
            Self::Party => "party",
            Self::Nested => "nested",
            Self::Slow => "slow",
            Self::Crash => "crash",
        }
    }

    /// Describes the scenario in a few words.
    pub fn description(self) -> &'static str {
        match self {
            Self::Gather => "Many threads want few seats",
            Self::Stock => "Many buyers, few items; then more items than buyers",
            Self::Seat => "All threads want the same seat, and none waits",
            Self::Party => "Overlapping sets of seats, each as a whole or not at all",
            Self::Nested => "A service that holds the lock calls another that acquires it, too",
            Self::Slow => "The work outlives the lease",
            Self::Crash => "The holder dies",
        }
    }

    /// Runs the scenario once.
    pub(crate) fn run(self, context: &Context<'_>) -> Result<RunResult, Error> {
        match self {
            Self::Gather => gather::run(context),
            Self::Stock => stock::run(context),
            Self::Seat => seat::run(context),
            Self::Party => party::run(context),
            Self::Nested => nested::run(context),
            Self::Slow => slow::run(context),
            Self::Crash => crash::run(context),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scenario {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| Error::invalid(format!("unknown scenario {name:?}")))
    }
}

#[cfg(test)]
mod tests;
