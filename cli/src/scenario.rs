//! What the threads do. Each scenario is a file; here is what they share: who takes part, and what
//! a run brings.

mod contest;
mod gather;
mod slow;
mod stock;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use lockkeeper::CancelToken;
use serde::Serialize;

use crate::failure::Failure;
use crate::state::State;
use crate::stopwatch::Span;
use crate::strategy::{Held, Strategy, Terms};

/// Sleeping threads look up this often, to see whether the run was interrupted.
const LOOK_UP: Duration = Duration::from_millis(100);

/// Which scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scenario {
    /// Many threads want few seats
    Gather,
    /// Many buyers, few items; then more items than buyers
    Stock,
    /// The work outlives the lease
    Slow,
}

impl Scenario {
    /// Plays it once.
    pub(crate) fn play(self, site: &Site<'_>) -> Result<Run, Failure> {
        match self {
            Scenario::Gather => gather::play(site),
            Scenario::Stock => stock::play(site),
            Scenario::Slow => slow::play(site),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scenario::Gather => "gather",
            Scenario::Stock => "stock",
            Scenario::Slow => "slow",
        })
    }
}

/// How big the scenarios are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Threads that compete.
    pub(crate) threads: u32,
    /// Seats that they want in `gather`.
    pub(crate) seats: u32,
    /// Items that they want in `stock`.
    pub(crate) items: u32,
    /// How long a thread thinks between reading and writing.
    pub(crate) held: Duration,
}

/// Where a scenario is played.
pub(crate) struct Site<'a> {
    /// How big.
    pub(crate) sizes: Sizes,
    /// The name of the lock; no other run has the same.
    pub(crate) lock: String,
    /// What the lock protects.
    pub(crate) state: &'a dyn State,
    /// Opens the way of locking, as one program would.
    pub(crate) open: &'a (dyn Fn() -> Result<Box<dyn Strategy>, Failure> + Sync),
    /// Set when the run is to end early.
    pub(crate) stop: &'a CancelToken,
}

impl Site<'_> {
    /// Thinks, or works, for this long.
    fn think(&self, how_long: Duration) -> Result<(), Failure> {
        let end = Instant::now() + how_long;
        loop {
            if self.stop.is_cancelled() {
                return Err(Failure::Interrupted);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(LOOK_UP));
        }
    }
}

/// What one run brought.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// Let in.
    pub(crate) admitted: u64,
    /// Not let in.
    pub(crate) turned_away: u64,
    /// Let in beyond the limit.
    pub(crate) oversold: u64,
    /// What is wrong with the outcome; empty: it is right.
    pub(crate) faults: Vec<String>,
    /// How long it took.
    pub(crate) span: Span,
    /// What the locking cost.
    pub(crate) account: Account,
}

/// What the locking cost.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// From asking for the lock to having it, for every grant.
    pub(crate) waits: Vec<Duration>,
    /// What the store was sent, where that can be counted.
    pub(crate) commands: Option<u64>,
    /// Connections at the peak, likewise.
    pub(crate) connections: Option<u32>,
}

impl Account {
    /// Both together; `beside`: at the same time, so that connections add up.
    fn with(mut self, other: Account, beside: bool) -> Self {
        self.waits.extend(other.waits);
        let both = |(a, b): (u64, u64)| a + b;
        self.commands = self.commands.zip(other.commands).map(both);
        let peak = |(a, b): (u32, u32)| if beside { a + b } else { a.max(b) };
        self.connections = self.connections.zip(other.connections).map(peak);
        self
    }
}

/// One program of the scenario: its way of locking, with the books kept.
struct Program<'a> {
    site: &'a Site<'a>,
    strategy: Box<dyn Strategy>,
    /// What opening it cost is not the locks'.
    commands_before: Option<u64>,
    account: Mutex<Account>,
}

impl<'a> Program<'a> {
    fn open(site: &'a Site<'a>) -> Result<Self, Failure> {
        let strategy = (site.open)()?;
        Ok(Self {
            site,
            commands_before: strategy.usage().map(|usage| usage.commands),
            account: Mutex::default(),
            strategy,
        })
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock of the site; `None`: somebody else has it.
    fn take(&self, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure> {
        let asked = Instant::now();
        let held = self.strategy.take(&self.site.lock, terms)?;
        if held.is_some() {
            let waited = asked.elapsed();
            let now = self.strategy.usage().map(|usage| usage.connections);
            let mut account = self.account();
            account.waits.push(waited);
            account.connections = account.connections.max(now);
        }
        Ok(held)
    }

    /// Closes the books.
    fn settle(self) -> Account {
        let commands = self.strategy.usage().map(|usage| usage.commands);
        let mut account = std::mem::take(&mut *self.account());
        account.commands = commands
            .zip(self.commands_before)
            .map(|(now, before)| now.saturating_sub(before));
        account
    }
}

#[cfg(test)]
mod tests;
