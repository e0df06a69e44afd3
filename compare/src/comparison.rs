//! A comparison: every scenario on every store with every strategy, one after the other.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::CancelToken;
use tempfile::TempDir;

use crate::error::Failure;
use crate::holder::{Elsewhere, InProcess, InThread, Program};
use crate::meter::Meter;
use crate::report::row::{LeftOut, Report, Row};
use crate::scenario::Scenario;
use crate::scenario::context::{Run, Site, Sizes};
#[cfg(unix)]
use crate::servers::Servers;
use crate::store::client::Door;
use crate::store::{Store, Wanted};
use crate::strategy::Kind;
use crate::verdict::{Verdict, expected};

/// How often a control that happens to go right is run again. With many threads it never is.
const MORE_TRIES: u32 = 20;
/// The shortest time between reading and writing with which the control fails reliably.
const MIN_HELD: Duration = Duration::from_millis(1);
const MAX_HELD: Duration = Duration::from_secs(10);

/// What happens during a comparison; see [`Comparison::on_event`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The servers of [`Comparison::servers`] are being started.
    ServersStarting,
    /// The stores are open, and this many rows are going to be run.
    Planned(usize),
    /// A row begins.
    RowStarted {
        /// The row's scenario.
        scenario: Scenario,
        /// The row's store.
        store: &'a str,
        /// The row's strategy.
        strategy: Kind,
    },
    /// A row has been run as often as [`Comparison::repeat`] says.
    RowFinished(&'a Row),
}

type Listener = Arc<dyn Fn(Event<'_>) + Send + Sync>;

/// What to compare: every scenario, on every store, with every strategy.
///
/// The default is all scenarios and all strategies with 100 threads, on `memory:` and on a SQLite
/// file that is thrown away.
#[derive(Clone)]
pub struct Comparison {
    stores: Vec<Wanted>,
    scenarios: Vec<Scenario>,
    strategies: Vec<Kind>,
    sizes: Sizes,
    repeat: u32,
    servers: bool,
    holder: Option<Program>,
    temp_dir: Option<PathBuf>,
    cancel: CancelToken,
    on_event: Option<Listener>,
}

impl Default for Comparison {
    fn default() -> Self {
        Self {
            stores: Vec::new(),
            scenarios: Scenario::ALL.into(),
            strategies: Kind::ALL.into(),
            sizes: Sizes {
                threads: 100,
                seats: 5,
                items: 10,
                held: MIN_HELD,
            },
            repeat: 1,
            servers: false,
            holder: None,
            temp_dir: None,
            cancel: CancelToken::new(),
            on_event: None,
        }
    }
}

impl Comparison {
    /// Compares everything on the two embedded stores, unless told otherwise.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a store by its URL. With the first one, the embedded stores are no longer compared.
    pub fn url(self, url: &str) -> Self {
        let number = self.stores.len() + 1;
        self.store(Wanted::url(url).origin(format!("store {number}")))
    }

    /// Adds a store, as [`Comparison::url`] does.
    pub fn store(mut self, store: Wanted) -> Self {
        self.stores.push(store);
        self
    }

    /// Starts Redis, MariaDB and MySQL servers for the run, as far as they are installed, and stops
    /// them at its end. They are compared beside the embedded stores and those that were added.
    pub fn servers(mut self, servers: bool) -> Self {
        self.servers = servers;
        self
    }

    /// Runs only these scenarios, in the order of [`Scenario::ALL`]. None at all means all of them.
    pub fn scenarios(mut self, scenarios: impl IntoIterator<Item = Scenario>) -> Self {
        self.scenarios = chosen(Scenario::ALL, scenarios);
        self
    }

    /// Runs only these strategies, in the order of [`Strategy::ALL`](Kind::ALL). None at all means
    /// all of them.
    pub fn strategies(mut self, strategies: impl IntoIterator<Item = Kind>) -> Self {
        self.strategies = chosen(Kind::ALL, strategies);
        self
    }

    /// Sets how many threads compete: 2 to 10,000. The default is 100.
    pub fn threads(mut self, threads: u32) -> Self {
        self.sizes.threads = threads;
        self
    }

    /// Sets the seats of `gather`: 1 or more, and fewer than threads. The default is 5.
    pub fn seats(mut self, seats: u32) -> Self {
        self.sizes.seats = seats;
        self
    }

    /// Sets the items of `stock`: 1 or more, and fewer than threads. The default is 10.
    pub fn items(mut self, items: u32) -> Self {
        self.sizes.items = items;
        self
    }

    /// Sets how long a thread thinks between reading and writing: 1 ms, the default, to 10 s.
    pub fn held(mut self, held: Duration) -> Self {
        self.sizes.held = held;
        self
    }

    /// Sets how often each row is run: 1, the default, to 1,000. A row is right only if it is right
    /// each time.
    pub fn repeat(mut self, times: u32) -> Self {
        self.repeat = times;
        self
    }

    /// Names the program that holds the lock in `crash` and is killed. Its `main` has to call
    /// [`holder::main`](crate::holder::main) when it is started with these arguments.
    ///
    /// ```no_run
    /// # use lockkeeper_compare::{Comparison, Error, holder};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// if std::env::args().nth(1).as_deref() == Some("--holder") {
    ///     return Ok(holder::main()?);
    /// }
    /// let report = Comparison::new()
    ///     .url("sqlite:/tmp/locks.db")
    ///     .holder(std::env::current_exe()?, ["--holder"])
    ///     .run()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn holder<A: Into<OsString>>(
        mut self,
        program: impl Into<OsString>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        self.holder = Some(Program {
            program: program.into(),
            args: args.into_iter().map(Into::into).collect(),
        });
        self
    }

    /// Sets where the throw-away folder is made; the default is the system's folder for temporary
    /// files.
    pub fn temp_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.temp_dir = Some(folder.into());
        self
    }

    /// Ends the run early when `cancel` is cancelled.
    pub fn cancel(mut self, cancel: &CancelToken) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Calls `listener` at each [`Event`], on the thread that runs the comparison.
    pub fn on_event(mut self, listener: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(listener));
        self
    }

    /// Runs the comparison. A run that ends early still has a report, of what was measured until
    /// then; [`Report::ended_by`] says why it ended.
    ///
    /// # Errors
    /// If the settings are not valid, if there is nothing to run, or if a store cannot be opened.
    pub fn run(&self) -> Result<Report, Failure> {
        self.check()?;
        let plan = Plan::new(self)?;
        let mut rows = Vec::new();
        let ended = plan.run(&mut rows);
        Ok(Report::new(
            self.sizes,
            self.repeat,
            plan.left_out(),
            plan.missing(),
            rows,
            ended.err(),
        ))
    }

    fn check(&self) -> Result<(), Failure> {
        let Sizes {
            threads,
            seats,
            items,
            held,
        } = self.sizes;
        let most = |scenario| match self.scenarios.contains(&scenario) {
            true => threads.saturating_sub(1),
            false => u32::MAX,
        };
        for (name, value, range) in [
            ("threads", threads, 2..=10_000),
            ("repeat", self.repeat, 1..=1_000),
        ] {
            if !range.contains(&value) {
                return Err(Failure::Usage(format!(
                    "{name} is {value}, and has to be in {range:?}"
                )));
            }
        }
        for (name, value, most) in [
            ("seats", seats, most(Scenario::Gather)),
            ("items", items, most(Scenario::Stock)),
        ] {
            if !(1..=most).contains(&value) {
                return Err(Failure::Usage(format!(
                    "{value} {name} for {threads} threads: nothing could be oversold; use more \
                     threads, or fewer {name} (at least 1)"
                )));
            }
        }
        if held < MIN_HELD {
            return Err(Failure::Usage(
                "with less than 1ms between reading and writing the control could happen to be \
                 right; use 1ms or more"
                    .to_owned(),
            ));
        }
        if held > MAX_HELD {
            return Err(Failure::Usage(
                "the threads hold the lock one after the other, so this would take too long; use \
                 10s or less"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    fn notify(&self, event: Event<'_>) {
        if let Some(listener) = &self.on_event {
            listener(event);
        }
    }
}

fn chosen<T: Copy + PartialEq, const N: usize>(
    all: [T; N],
    asked: impl IntoIterator<Item = T>,
) -> Vec<T> {
    let asked: Vec<_> = asked.into_iter().collect();
    let is_chosen = |one: &T| asked.is_empty() || asked.contains(one);
    all.into_iter().filter(is_chosen).collect()
}

impl fmt::Debug for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Comparison")
            .field("stores", &self.stores)
            .field("scenarios", &self.scenarios)
            .field("strategies", &self.strategies)
            .field("sizes", &self.sizes)
            .field("repeat", &self.repeat)
            .field("servers", &self.servers)
            .finish_non_exhaustive()
    }
}

/// What is to be run, on stores that could be opened.
struct Plan<'a> {
    comparison: &'a Comparison,
    stores: Vec<Store>,
    /// Stopped after the stores are closed.
    #[cfg(unix)]
    servers: Option<Servers>,
    /// Removed with all that is in it, after the stores are closed.
    folder: TempDir,
}

/// One row to come.
#[derive(Clone, Copy)]
struct Step<'a> {
    scenario: Scenario,
    store: &'a Store,
    strategy: Kind,
    expected: Verdict,
}

impl<'a> Plan<'a> {
    /// Opens the stores, all of them before anything is run.
    #[cfg(unix)]
    fn new(comparison: &'a Comparison) -> Result<Self, Failure> {
        let start = || {
            comparison.notify(Event::ServersStarting);
            Servers::start(comparison.sizes.threads, &comparison.cancel)
        };
        let servers = comparison.servers.then(start).transpose()?;
        let started = servers.as_ref().map(Servers::wanted).unwrap_or_default();
        let mut plan = Self::on(comparison, started)?;
        plan.servers = servers;
        Ok(plan)
    }

    /// Opens the stores, all of them before anything is run.
    #[cfg(not(unix))]
    fn new(comparison: &'a Comparison) -> Result<Self, Failure> {
        if comparison.servers {
            return Err(Failure::Usage(
                "servers cannot be started on this system; start them, and give their URLs"
                    .to_owned(),
            ));
        }
        Self::on(comparison, Vec::new())
    }

    fn on(comparison: &'a Comparison, started: Vec<Wanted>) -> Result<Self, Failure> {
        let mut folder = tempfile::Builder::new();
        folder.prefix("lockkeeper-compare-");
        let folder = match &comparison.temp_dir {
            Some(above) => folder.tempdir_in(above),
            None => folder.tempdir(),
        };
        let folder = folder.map_err(|error| {
            Failure::Failed(format!(
                "cannot make a throw-away folder: {error}; set TMPDIR to a folder that can be written to"
            ))
        })?;
        let mut wanted = comparison.stores.clone();
        if wanted.is_empty() || comparison.servers {
            wanted.splice(0..0, Wanted::embedded(folder.path())?);
        }
        wanted.extend(started);
        let plan = Self {
            comparison,
            stores: Store::open_all(wanted, folder.path())?,
            #[cfg(unix)]
            servers: None,
            folder,
        };
        if plan.steps().is_empty() {
            return Err(Failure::Usage(plan.nothing_to_run()));
        }
        Ok(plan)
    }

    /// The rows to come, in their order.
    fn steps(&self) -> Vec<Step<'_>> {
        let mut steps = Vec::new();
        for &scenario in &self.comparison.scenarios {
            for store in &self.stores {
                if scenario == Scenario::Crash && self.lacks_holder(store) {
                    continue;
                }
                for &strategy in &self.comparison.strategies {
                    let here = self.not_on(strategy, store).is_none();
                    if let Some(expected) = expected(strategy, scenario).filter(|_| here) {
                        steps.push(Step {
                            scenario,
                            store,
                            strategy,
                            expected,
                        });
                    }
                }
            }
        }
        steps
    }

    /// Whether `crash` on this store needs a process, and the caller named no program for it.
    fn lacks_holder(&self, store: &Store) -> bool {
        !matches!(store.reach().door(), Door::Memory) && self.comparison.holder.is_none()
    }

    fn not_on(&self, strategy: Kind, store: &Store) -> Option<&'static str> {
        strategy.not_on(store.reach(), self.comparison.sizes.threads)
    }

    /// Strategies that no store here can do, with the reason of the store that comes nearest.
    fn left_out(&self) -> Vec<LeftOut> {
        let strategies = self.comparison.strategies.iter();
        let left_out = strategies.filter_map(|&strategy| {
            let reasons = self.stores.iter().map(|store| self.not_on(strategy, store));
            let why = reasons.collect::<Option<Vec<_>>>()?.pop()?;
            Some(LeftOut { strategy, why })
        });
        left_out.collect()
    }

    /// What was not started, with what to do about it.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        #[cfg(unix)]
        if let Some(servers) = &self.servers {
            missing.extend_from_slice(servers.missing());
        }
        if self.comparison.scenarios.contains(&Scenario::Crash) {
            let stores = self.stores.iter().filter(|store| self.lacks_holder(store));
            missing.extend(stores.map(|store| {
                format!(
                    "crash on {} needs a program to kill, and Comparison::holder names none",
                    store.label()
                )
            }));
        }
        missing
    }

    fn nothing_to_run(&self) -> String {
        if let Some(LeftOut { strategy, why }) = self.left_out().first() {
            return format!("{strategy} {why}");
        }
        self.missing().pop().unwrap_or_else(|| {
            "these strategies have no part in these scenarios; choose others".to_owned()
        })
    }

    /// Runs it all, and adds a row for each that came to its end.
    fn run(&self, rows: &mut Vec<Row>) -> Result<(), Failure> {
        let steps = self.steps();
        self.comparison.notify(Event::Planned(steps.len()));
        for step in steps {
            let Step {
                scenario,
                store,
                strategy,
                expected,
            } = step;
            let store = store.label();
            self.comparison.notify(Event::RowStarted {
                scenario,
                store,
                strategy,
            });
            let runs = self.repeat(step, rows.len()).map_err(|failure| {
                let what = format!("{scenario} on {store} with {strategy}");
                self.why(failure).about(&what)
            })?;
            let row = Row::new(scenario, store, strategy, expected, runs);
            self.comparison.notify(Event::RowFinished(&row));
            rows.push(row);
        }
        Ok(())
    }

    /// What fails while the run is being ended fails because of that.
    fn why(&self, failure: Failure) -> Failure {
        if self.comparison.cancel.is_cancelled() {
            return Failure::Interrupted;
        }
        failure
    }

    fn repeat(&self, step: Step<'_>, row: usize) -> Result<Vec<Run>, Failure> {
        let asked = self.comparison.repeat;
        let mut shown = step.expected == Verdict::Right;
        let mut runs: Vec<Run> = Vec::new();
        for number in 0..asked + MORE_TRIES {
            if number >= asked && shown {
                break;
            }
            if self.comparison.cancel.is_cancelled() {
                return Err(Failure::Interrupted);
            }
            let lock = format!("{}/{}-{row}.{number}", self.run_name(), step.scenario);
            let run = self.play(step, lock)?;
            shown |= !run.faults.is_empty();
            runs.push(run);
        }
        Ok(runs)
    }

    fn play(&self, step: Step<'_>, lock: String) -> Result<Run, Failure> {
        let Step {
            store, strategy, ..
        } = step;
        let Comparison {
            sizes,
            cancel: stop,
            holder,
            ..
        } = self.comparison;
        let open = || strategy.open(store, sizes.threads, stop);
        let elsewhere: Box<dyn Elsewhere> = match holder {
            // No other process can see `memory:`.
            Some(program) if !matches!(store.reach().door(), Door::Memory) => Box::new(InProcess {
                reach: store.reach(),
                strategy,
                program,
            }),
            _ => Box::new(InThread { open: &open }),
        };
        let meter = Meter::new(store.counters(strategy.commands())?)?;
        // It is to survive that.
        #[cfg(unix)]
        let _dead = match (step.scenario, strategy, &self.servers) {
            (Scenario::Crash, Kind::Redlock, Some(servers)) => Some(servers.two_dead()),
            _ => None,
        };
        step.scenario.play(&Site {
            sizes: *sizes,
            lock,
            state: store.data().state().as_ref(),
            open: &open,
            meter: &meter,
            elsewhere: elsewhere.as_ref(),
            stop,
        })
    }

    /// On a store that others use too, nobody else has names that begin so: the folder's is unique.
    fn run_name(&self) -> String {
        let run = self.folder.path().file_name().unwrap_or_default();
        run.display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_scenarios_keep_their_order_and_appear_once() {
        let asked = [Scenario::Slow, Scenario::Gather, Scenario::Slow];
        let chosen = Comparison::new().scenarios(asked).scenarios;
        assert_eq!(chosen, [Scenario::Gather, Scenario::Slow]);
        assert_eq!(Comparison::new().scenarios([]).scenarios, Scenario::ALL);
    }
}
