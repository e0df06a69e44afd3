//! What the scenarios share: the programs that take part, and the result of a run.

use std::time::{Duration, Instant};

use lockkeeper::{LeasePolicy, Usage};
use parking_lot::Mutex;

use super::LONGEST_TTL;
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::holder::{Hold, Holder};
use crate::meter::Meter;
use crate::settings::Settings;
use crate::stopwatch::Elapsed;
use crate::store::state::State;
use crate::strategy::lock::{Held, Lock, LockRequest};
use crate::strategy::transaction::{Outcome, Step, Transaction, Transactor};

/// How long a thread waits beyond the time that all others hold the lock, for a machine that is
/// busy with other work.
const EXTRA_WAIT: Duration = Duration::from_secs(60);
/// Between two attempts of a program with a strategy that does not wait.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Where a scenario runs.
pub(crate) struct Context<'a> {
    pub(crate) settings: &'a Settings,
    /// The prefix of the locks' names; no other run has the same.
    pub(crate) lock: String,
    /// What the store may take beyond the ttl of a dead holder.
    pub(crate) grace: Duration,
    /// What the locks protect.
    pub(crate) state: &'a dyn State,
    /// Opens the strategy, as one program with so many threads would.
    pub(crate) open: &'a (dyn Fn(u32) -> Result<Box<dyn Transactor>, Error> + Sync),
    /// Measures what the strategy costs the store.
    pub(crate) meter: &'a Meter,
    /// Starts a holder, and returns when it has what it is to hold.
    pub(crate) start_holder: &'a (dyn Fn(Hold) -> Result<Holder, Error> + Sync),
    pub(crate) cancel: &'a Cancellation,
}

impl Context<'_> {
    pub(super) fn lock_name(&self, cell: u32) -> String {
        format!("{}/{cell}", self.lock)
    }

    /// Opens a program that has all threads.
    pub(super) fn program(&self) -> Result<Program<'_>, Error> {
        self.program_of(self.settings.threads)
    }

    /// Opens a program that has so many threads.
    pub(super) fn program_of(&self, threads: u32) -> Result<Program<'_>, Error> {
        let strategy = (self.open)(threads)?;
        self.meter.restart();
        Ok(Program {
            context: self,
            usage_before: strategy.usage(),
            waits: Mutex::default(),
            strategy,
        })
    }

    /// Returns a request that waits until all others are done, with a lease that does not expire.
    pub(super) fn long_wait(&self) -> LockRequest {
        let all = (self.settings.held + Duration::from_millis(10)) * 2 * self.settings.threads;
        LockRequest::new(LeasePolicy::Renewed { ttl: LONGEST_TTL }, EXTRA_WAIT + all)
    }
}

/// The result of one run.
#[derive(Debug, Default)]
pub(crate) struct RunResult {
    pub(crate) admitted: u64,
    pub(crate) turned_away: u64,
    /// Admitted beyond the limit.
    pub(crate) oversold: u64,
    /// What is wrong with the outcome; empty if it is right.
    pub(crate) faults: Vec<String>,
    pub(crate) elapsed: Elapsed,
    pub(crate) cost: Cost,
}

impl RunResult {
    /// Counts how the requests of many threads ended.
    pub(super) fn of(outcomes: &[Outcome], elapsed: Elapsed) -> Self {
        let mut run = Self {
            elapsed,
            ..Self::default()
        };
        let mut broken = Vec::new();
        for outcome in outcomes {
            match outcome {
                Outcome::Done => run.admitted += 1,
                Outcome::TurnedAway => run.turned_away += 1,
                Outcome::Broken(why) => broken.push(why),
            }
        }
        run.turned_away += broken.len() as u64;
        if let Some(why) = broken.first() {
            // A request that fails is wrong, whatever the data says.
            run.fault(format!("{} requests failed: {why}", broken.len()));
        }
        run
    }

    /// Adds the time and the faults of a second round to those of this one.
    pub(super) fn then(mut self, second: Self) -> Self {
        self.oversold += second.oversold;
        let (time, more) = (&mut self.elapsed, second.elapsed);
        time.wall += more.wall;
        time.cpu = time.cpu.zip(more.cpu).map(|(a, b)| a + b);
        self.faults.extend(second.faults);
        self
    }

    /// Prefixes all faults with what the threads did.
    pub(super) fn about(mut self, what: &str) -> Self {
        for fault in &mut self.faults {
            fault.insert_str(0, what);
        }
        self
    }

    pub(super) fn fault(&mut self, fault: impl Into<String>) {
        self.faults.push(fault.into());
    }
}

/// What the locking cost.
#[derive(Debug, Default)]
pub(crate) struct Cost {
    /// From asking for the lock to having it, for every grant.
    pub(crate) waits: Vec<Duration>,
    /// Commands that the store received, and connections at the end of the run, where they can be
    /// counted.
    pub(crate) usage: Option<Usage>,
}

/// One program of a scenario, with its strategy and its waits.
pub(super) struct Program<'a> {
    pub(super) context: &'a Context<'a>,
    strategy: Box<dyn Transactor>,
    /// What it cost to open the strategy does not count.
    usage_before: Option<Usage>,
    waits: Mutex<Vec<Duration>>,
}

impl Program<'_> {
    /// Executes a transaction on these cells, which are in ascending order, with a time to think.
    pub(super) fn execute(
        &self,
        user: u32,
        cells: &[u32],
        request: LockRequest,
        decide: impl Fn(&[i64]) -> Option<Vec<i64>> + Sync,
        on_step: impl Fn(Step) -> Result<(), Error> + Sync,
    ) -> Result<Outcome, Error> {
        let context = self.context;
        let locks: Vec<_> = cells.iter().map(|&cell| context.lock_name(cell)).collect();
        let outcome = self.strategy.execute(&Transaction {
            locks: &locks,
            cells,
            user,
            request,
            decide: &decide,
            on_step: &|step| {
                match step {
                    Step::Granted(waited) => self.waits.lock().push(waited),
                    Step::Read => context.cancel.sleep(context.settings.held)?,
                    Step::Released | Step::LateCommit => {}
                }
                on_step(step)
            },
        });
        match outcome {
            Err(Error::PoolExhausted(why)) => Ok(Outcome::Broken(why)),
            result => result,
        }
    }

    /// Returns the lock itself, for scenarios that are about locks only.
    pub(super) fn lock(&self) -> Result<&dyn Lock, Error> {
        self.strategy.lock().ok_or_else(|| {
            Error::failed("this strategy is no lock; this is a defect, please report it")
        })
    }

    /// Acquires the lock of cell 0; `None` if it was busy until the end of the wait.
    pub(super) fn acquire(&self, request: LockRequest) -> Result<Option<Held>, Error> {
        let (started, name) = (Instant::now(), self.context.lock_name(0));
        let (lock, cancel) = (self.lock()?, self.context.cancel);
        // Some strategies do not wait; then the program tries again.
        let attempt = |wait| lock.acquire(&name, LockRequest { wait, ..request });
        let held = cancel.retry(request.wait, || RETRY_INTERVAL, attempt)?;
        if held.is_some() {
            self.waits.lock().push(started.elapsed());
        }
        Ok(held)
    }

    /// Acquires a lock that is going to be released or to expire.
    pub(super) fn must_acquire(&self, request: LockRequest) -> Result<Held, Error> {
        self.acquire(request)?.ok_or_else(|| {
            Error::failed(format!(
                "the lock was not granted within {:?}, though it should be free by then; is the \
                 store overloaded?",
                request.wait
            ))
        })
    }
}

/// Returns what the programs of a run cost together.
pub(super) fn total_cost(programs: &[&Program<'_>]) -> Result<Cost, Error> {
    // All programs are still open, so that their connections are counted.
    let mut cost = Cost {
        waits: Vec::new(),
        usage: Some(Usage::default()),
    };
    for program in programs {
        cost.waits.append(&mut program.waits.lock());
        let now = program.strategy.usage().zip(program.usage_before);
        cost.usage = cost.usage.zip(now).map(|(sum, (now, before))| Usage {
            commands: sum.commands + now.commands.saturating_sub(before.commands),
            connections: sum.connections + now.connections,
        });
    }
    if let Some(program) = programs.first() {
        cost.usage = program.context.meter.read()?.or(cost.usage);
    }
    Ok(cost)
}
