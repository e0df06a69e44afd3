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

use self::context::{Run, Site};
use crate::error::Failure;

/// Which scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Many threads want few seats.
    Gather,
    /// Many buyers, few items; then more items than buyers.
    Stock,
    /// Everybody wants the same seat, and nobody waits.
    Seat,
    /// Overlapping sets of seats, each as a whole or not at all.
    Party,
    /// A service that holds the lock calls another that takes it, too.
    Nested,
    /// The work outlives the lease.
    Slow,
    /// The holder dies.
    Crash,
}

impl Scenario {
    /// All scenarios, in the order in which they are run and shown.
    pub const ALL: [Self; 7] = [
        Self::Gather,
        Self::Stock,
        Self::Seat,
        Self::Party,
        Self::Nested,
        Self::Slow,
        Self::Crash,
    ];

    /// Returns the name: lower case, as users write it.
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
            Self::Seat => "Everybody wants the same seat, and nobody waits",
            Self::Party => "Overlapping sets of seats, each as a whole or not at all",
            Self::Nested => "A service that holds the lock calls another that takes it, too",
            Self::Slow => "The work outlives the lease",
            Self::Crash => "The holder dies",
        }
    }

    /// Plays it once.
    pub(crate) fn play(self, site: &Site<'_>) -> Result<Run, Failure> {
        match self {
            Self::Gather => gather::play(site),
            Self::Stock => stock::play(site),
            Self::Seat => seat::play(site),
            Self::Party => party::play(site),
            Self::Nested => nested::play(site),
            Self::Slow => slow::play(site),
            Self::Crash => crash::play(site),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scenario {
    type Err = Failure;

    fn from_str(name: &str) -> Result<Self, Failure> {
        let found = Self::ALL.into_iter().find(|one| one.name() == name);
        found.ok_or_else(|| Failure::Usage(format!("unknown scenario {name:?}")))
    }
}

#[cfg(test)]
mod tests;
