//! What must come out of each scenario with each strategy.

use serde::Serialize;

use crate::scenario::Scenario;
use crate::strategy::Kind;

/// Whether the outcome is what it must be for the people in the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is, every time.
    Right,
    /// At least once it was not.
    Wrong,
}

/// The verdict that it must have; `None`: the scenario says nothing about it.
pub(crate) fn expected(strategy: Kind, scenario: Scenario) -> Option<Verdict> {
    use Scenario::{Crash, Gather, Nested, Party, Seat, Slow, Stock};
    use Verdict::{Right, Wrong};
    match (strategy, scenario) {
        (Kind::None, _) => Some(Wrong),
        (Kind::Lockkeeper, _) => Some(Right),
        // What is wrong with it shows where somebody comes between the unlock and the commit.
        (Kind::FreedEarly, _) => (scenario == Seat).then_some(Wrong),
        // It takes no lock, so there is none to take twice, to outlive or to leave behind.
        (Kind::Optimistic, Nested | Slow | Crash) => None,
        // Who gives up at once leaves seats empty that nobody else has taken.
        (Kind::SetnxOnce, Gather | Stock) => None,
        // The application's pool is dry while its threads wait for a lock.
        (Kind::NamedLockSharedPool, Gather | Stock | Party) => Some(Wrong),
        (_, Gather | Stock | Seat | Party) => Some(Right),
        // Those that know which thread holds.
        (Kind::Pubsub | Kind::ReentrantHash, Nested) => Some(Right),
        (Kind::NamedLock | Kind::NamedLockSharedPool, Nested) => Some(Right),
        (_, Nested) => Some(Wrong),
        // Those that do not run out while their holder lives. A late write is refused by a
        // token only, and the others have none.
        (Kind::ReentrantHash, Slow) => Some(Right),
        (Kind::NamedLock | Kind::NamedLockSharedPool, Slow) => Some(Right),
        (_, Slow) => Some(Wrong),
        // It has no time to live.
        (Kind::SetnxUnsafe, Crash) => Some(Wrong),
        (_, Crash) => Some(Right),
    }
}
