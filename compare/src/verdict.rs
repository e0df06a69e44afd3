//! What must come out of each scenario with each strategy.
//!
//! A row that must be wrong and happens to be right is run again; a row that must be right never is.

use serde::Serialize;

use crate::scenario::Scenario;
use crate::strategy::Strategy;

/// Whether the outcome of a scenario is what the scenario demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The outcome was right every time.
    Right,
    /// The outcome was wrong at least once.
    Wrong,
}

/// Returns the verdict that a row must have; `None` if the strategy has no part in the scenario.
pub(crate) fn expected(strategy: Strategy, scenario: Scenario) -> Option<Verdict> {
    use Scenario::{Catalog, Crash, Gather, Limit, Nested, Party, Seat, Slow, Stock};
    use Verdict::{Right, Wrong};
    match (strategy, scenario) {
        (Strategy::None, _) => Some(Wrong),
        (Strategy::Lockkeeper, _) => Some(Right),
        // Only this scenario has a thread come between the unlock and the commit.
        (Strategy::FreedEarly, _) => (scenario == Seat).then_some(Wrong),
        // A counter does not know which process has died; a thread that polls gets in all the same.
        (Strategy::IncrDecr, _) => (scenario == Limit).then_some(Wrong),
        (Strategy::PolledLocks, _) => (scenario == Limit).then_some(Right),
        // Readers that wait for each other are right, and those that overtake have a writer starve.
        (Strategy::Exclusive, _) => (scenario == Catalog).then_some(Right),
        (Strategy::ReaderCounter, _) => (scenario == Catalog).then_some(Wrong),
        (Strategy::LockAll, _) => (scenario == Party).then_some(Right),
        // The others know exclusive locks only.
        (_, Limit | Catalog) => None,
        // There is no lock to take twice, to outlive or to leave behind.
        (Strategy::Optimistic, Nested | Slow | Crash) => None,
        // Threads that give up at once leave seats empty that no other thread has taken.
        (Strategy::SetnxOnce, Gather | Stock) => None,
        // The application's pool is dry while its threads wait for a lock. Threads that give up at once only race
        // for its connections, so a busy machine decides.
        (Strategy::NamedLockSharedPool, Gather | Stock | Party) => Some(Wrong),
        (Strategy::NamedLockSharedPool, Seat) => None,
        (_, Gather | Stock | Seat | Party) => Some(Right),
        // These know which thread or session holds the lock.
        (Strategy::Pubsub | Strategy::ReentrantHash, Nested) => Some(Right),
        (
            Strategy::NamedLock | Strategy::NamedLockSharedPool | Strategy::RowLock,
            Nested | Slow,
        ) => Some(Right),
        (_, Nested) => Some(Wrong),
        // These do not expire while their holder lives, nor do those of sessions. A late write is refused only by a token,
        // and the others have none.
        (
            Strategy::ReentrantHash
            | Strategy::EtcdctlLock
            | Strategy::ConsulLock
            | Strategy::SequentialNode
            | Strategy::InsertDelete,
            Slow,
        ) => Some(Right),
        (_, Slow) => Some(Wrong),
        // They have no time to live.
        (Strategy::SetnxUnsafe | Strategy::InsertDelete, Crash) => Some(Wrong),
        (_, Crash) => Some(Right),
    }
}
