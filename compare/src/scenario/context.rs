//! What the scenarios share: who takes part, and what a run brings.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper::{CancelToken, LeasePolicy, Usage};

use crate::cancel::pause;
use crate::error::Failure;
use crate::holder::Elsewhere;
use crate::meter::Meter;
use crate::stopwatch::Span;
use crate::store::state::State;
use crate::strategy::{Held, Job, Lock, Moment, Outcome, Strategy, Terms};

/// Long enough that no lease ends by itself.
const TTL: Duration = Duration::from_secs(30);
/// Beside the time that all others hold the lock: for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two questions of somebody who was refused.
const AGAIN: Duration = Duration::from_millis(10);

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
    /// What the names of the locks begin with; no other run has the same.
    pub(crate) lock: String,
    /// What the locks protect.
    pub(crate) state: &'a dyn State,
    /// Opens the way of locking, as one program would.
    pub(crate) open: &'a (dyn Fn() -> Result<Box<dyn Strategy>, Failure> + Sync),
    /// What it costs the store.
    pub(crate) meter: &'a Meter<'a>,
    /// Holds the lock where it can be killed.
    pub(crate) elsewhere: &'a dyn Elsewhere,
    /// Set when the run is to end early.
    pub(crate) stop: &'a CancelToken,
}

impl Site<'_> {
    /// Thinks, or works, for this long.
    pub(super) fn think(&self, how_long: Duration) -> Result<(), Failure> {
        pause(self.stop, how_long)
    }

    /// The name of the lock that protects a cell.
    pub(super) fn name(&self, cell: u32) -> String {
        format!("{}/{cell}", self.lock)
    }

    /// Opens a program.
    pub(super) fn program(&self) -> Result<Program<'_>, Failure> {
        let strategy = (self.open)()?;
        self.meter.restart()?;
        Ok(Program {
            site: self,
            before: strategy.usage(),
            waits: Mutex::default(),
            strategy,
        })
    }

    /// Waits as long as it takes, for a lease that does not end by itself.
    pub(super) fn patient(&self) -> Terms {
        let all = (self.sizes.held + Duration::from_millis(10)) * 2 * self.sizes.threads;
        Terms {
            lease: LeasePolicy::Renewed { ttl: TTL },
            wait: PATIENCE + all,
            again: false,
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

impl Run {
    /// Adds a fault where `wrong`.
    pub(super) fn fault_if(&mut self, wrong: bool, fault: impl FnOnce() -> String) {
        if wrong {
            self.faults.push(fault());
        }
    }
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

/// One program of the scenario: its way of locking, with the books kept.
pub(super) struct Program<'a> {
    pub(super) site: &'a Site<'a>,
    strategy: Box<dyn Strategy>,
    /// What opening it cost is not the locks'.
    before: Option<Usage>,
    waits: Mutex<Vec<Duration>>,
}

impl Program<'_> {
    fn waits(&self) -> MutexGuard<'_, Vec<Duration>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does one transaction on these cells, which are in ascending order, and thinks in it.
    pub(super) fn update(
        &self,
        user: u32,
        cells: &[u32],
        terms: Terms,
        decide: impl Fn(&[i64]) -> Option<Vec<i64>> + Sync,
    ) -> Result<Outcome, Failure> {
        self.update_and_tell(user, cells, terms, decide, |_| Ok(()))
    }

    /// As [`Program::update`], and tells of each moment.
    pub(super) fn update_and_tell(
        &self,
        user: u32,
        cells: &[u32],
        terms: Terms,
        decide: impl Fn(&[i64]) -> Option<Vec<i64>> + Sync,
        tell: impl Fn(Moment) -> Result<(), Failure> + Sync,
    ) -> Result<Outcome, Failure> {
        let locks: Vec<_> = cells.iter().map(|&cell| self.site.name(cell)).collect();
        self.strategy.update(&Job {
            locks: &locks,
            cells,
            user,
            terms,
            decide: &decide,
            at: &|moment| {
                match moment {
                    Moment::Granted(waited) => self.waits().push(waited),
                    Moment::Read => self.site.think(self.site.sizes.held)?,
                    Moment::Freed | Moment::LateCommit => {}
                }
                tell(moment)
            },
        })
    }

    /// The lock itself, for scenarios that are about locks only.
    pub(super) fn lock(&self) -> Result<&dyn Lock, Failure> {
        self.strategy.lock().ok_or_else(|| {
            Failure::Failed("this strategy is no lock; this is a defect, please report it".into())
        })
    }

    /// Asks for the lock of the first cell until it has it or the wait is over; `None`: somebody
    /// else has it.
    pub(super) fn take(&self, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure> {
        let (asked, name) = (Instant::now(), self.site.name(0));
        loop {
            let wait = terms.wait.saturating_sub(asked.elapsed());
            if let Some(held) = self.lock()?.take(&name, Terms { wait, ..terms })? {
                self.waits().push(asked.elapsed());
                return Ok(Some(held));
            }
            // Some recipes do not wait: then whoever wants it asks again.
            if asked.elapsed() >= terms.wait {
                return Ok(None);
            }
            self.site.think(AGAIN)?;
        }
    }

    /// Takes a lock that somebody will free, or that will run out.
    pub(super) fn must_take(&self, terms: Terms) -> Result<Box<dyn Held>, Failure> {
        self.take(terms)?.ok_or_else(|| {
            Failure::Failed(format!(
                "the lock was not to be had within {:?}, though nobody kept it for so long; is the \
                 store in use by something slow?",
                terms.wait
            ))
        })
    }
}

/// Closes the books of the programs that took part.
pub(super) fn settle<'a>(
    programs: impl IntoIterator<Item = Program<'a>>,
) -> Result<Account, Failure> {
    // All of them open, so that their connections are there to be counted.
    let programs: Vec<_> = programs.into_iter().collect();
    let mut account = Account::default();
    let mut usage = Some(Usage::default());
    for program in &programs {
        account.waits.append(&mut program.waits());
        let now = program.strategy.usage().zip(program.before);
        usage = usage.zip(now).map(|(sum, (now, before))| Usage {
            commands: sum.commands + now.commands.saturating_sub(before.commands),
            connections: sum.connections + now.connections,
        });
    }
    let counted = match programs.first() {
        Some(program) => program.site.meter.read()?.or(usage),
        None => None,
    };
    account.commands = counted.map(|usage| usage.commands);
    account.connections = counted.map(|usage| usage.connections);
    Ok(account)
}
