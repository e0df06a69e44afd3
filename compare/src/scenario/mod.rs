//! What the threads do. Each scenario is a file.
//!
//! What must go wrong does so by an order of events, not by luck. In `seat` half of the threads start when
//! the first one has released the lock. `freed-early` commits only after a second thread has read. `nested`
//! and `slow` continue until the other program got in. In `limit` threads keep their permits until all
//! permits are in use again. In `catalog` new readers come until the writers are done.

mod catalog;
mod contest;
pub(crate) mod context;
mod crash;
mod gather;
pub(crate) mod limit;
mod nested;
mod party;
mod seat;
pub(crate) mod slow;
mod stock;

use std::time::Duration;

use lockkeeper::Capability;
use serde::Serialize;

use self::context::{Context, RunResult};
use crate::error::Error;
use crate::named::named_enum;

/// Long enough that no lease expires; no scenario has a longer one.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(30);

named_enum! {
    /// What the threads of a comparison do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    #[non_exhaustive]
    pub enum Scenario {
        Gather "gather": "Many threads want few seats",
        Stock "stock": "Many buyers, few items; then more items than buyers",
        Seat "seat": "All threads want the same seat, and none waits",
        Party "party": "Overlapping sets of seats, each as a whole or not at all",
        Nested "nested": "A service that holds the lock calls another that acquires it, too",
        Slow "slow": "The work outlives the lease",
        Crash "crash": "The holder dies",
        Limit "limit": "Many threads want few permits, and a holder of two dies",
        Catalog "catalog": "Many readers and a few writers of rows that must agree",
    }
}

impl Scenario {
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
            Self::Limit => limit::run(context),
            Self::Catalog => catalog::run(context),
        }
    }

    /// Tells whether a holder is killed, which is a process where the store can be seen by several.
    pub(crate) fn kills_holder(self) -> bool {
        matches!(self, Self::Limit | Self::Crash)
    }

    /// Returns what a store must be able to do for this library's part in the scenario.
    pub(crate) fn needs(self) -> Option<Capability> {
        match self {
            Self::Limit => Some(Capability::Permits),
            Self::Catalog => Some(Capability::Shared),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
