//! A comparison: every scenario on every store with every strategy, one after the other.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::CancelToken;
use tempfile::TempDir;

use crate::cancel::Cancellation;
use crate::error::Error;
use crate::holder::{HolderCommand, HolderFactory, ProcessHolders, ThreadHolders};
use crate::meter::Meter;
use crate::report::row::{LeftOut, Report, Row};
use crate::scenario::Scenario;
use crate::scenario::context::{Context, RunResult, Sizes};
#[cfg(unix)]
use crate::servers::Servers;
use crate::store::Store;
use crate::store::client::ClientConfig;
use crate::store::spec::StoreSpec;
use crate::strategy::Strategy;
use crate::verdict::{Verdict, expected};

/// How often a control that happens to go right is run again. With many threads it never is.
const MAX_RETRIES: u32 = 20;
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
        strategy: Strategy,
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
    stores: Vec<StoreSpec>,
    scenarios: Vec<Scenario>,
    strategies: Vec<Strategy>,
    sizes: Sizes,
    repeat: u32,
    servers: bool,
    holder: Option<HolderCommand>,
    temp_dir: Option<PathBuf>,
    cancel: CancelToken,
    on_event: Option<Listener>,
}

impl Default for Comparison {
    fn default() -> Self {
        Self {
            stores: Vec::new(),
            scenarios: Scenario::ALL.into(),
            strategies: Strategy::ALL.into(),
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
    /// Returns a comparison of everything on the two embedded stores.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a store by its URL. With the first one, the embedded stores are no longer compared.
    pub fn url(self, url: &str) -> Self {
        let number = self.stores.len() + 1;
        self.store(StoreSpec::url(url).origin(format!("store {number}")))
    }

    /// Adds a store, as [`Comparison::url`] does.
    pub fn store(mut self, store: StoreSpec) -> Self {
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

    /// Runs only these strategies, in the order of [`Strategy::ALL`]. None at all means
    /// all of them.
    pub fn strategies(mut self, strategies: impl IntoIterator<Item = Strategy>) -> Self {
        self.strategies = chosen(Strategy::ALL, strategies);
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
        self.holder = Some(HolderCommand {
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
    pub fn run(&self) -> Result<Report, Error> {
        self.check()?;
        let plan = Plan::new(self)?;
        let mut report = Report::new(self.sizes, self.repeat);
        report.left_out = plan.left_out();
        report.missing = plan.missing();
        report.ended_by = plan.run(&mut report.rows).err();
        report.complete = report.ended_by.is_none();
        Ok(report)
    }

    fn check(&self) -> Result<(), Error> {
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
                return Err(Error::invalid(format!(
                    "{name} is {value}, and has to be in {range:?}"
                )));
            }
        }
        for (name, value, most) in [
            ("seats", seats, most(Scenario::Gather)),
            ("items", items, most(Scenario::Stock)),
        ] {
            if !(1..=most).contains(&value) {
                return Err(Error::invalid(format!(
                    "{value} {name} for {threads} threads: nothing could be oversold; use more \
                     threads, or fewer {name} (at least 1)"
                )));
            }
        }
        if held < MIN_HELD {
            return Err(Error::invalid(
                "with less than 1ms between reading and writing the control could happen to be \
                 right; use 1ms or more",
            ));
        }
        if held > MAX_HELD {
            return Err(Error::invalid(
                "the threads hold the lock one after the other, so this would take too long; use \
                 10s or less",
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
    wanted: impl IntoIterator<Item = T>,
) -> Vec<T> {
    let wanted: Vec<_> = wanted.into_iter().collect();
    let is_chosen = |one: &T| wanted.is_empty() || wanted.contains(one);
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

/// What is to be run, on stores that could be opened. The fields are dropped in this order.
struct Plan<'a> {
    comparison: &'a Comparison,
    cancel: Cancellation,
    stores: Vec<Store>,
    #[cfg(unix)]
    servers: Option<Servers>,
    folder: TempDir,
}

/// One row to come.
#[derive(Clone, Copy)]
struct PlannedRow<'a> {
    scenario: Scenario,
    store: &'a Store,
    strategy: Strategy,
    expected: Verdict,
}

impl<'a> Plan<'a> {
    /// Starts the servers and opens the stores, all of them before anything is run.
    fn new(comparison: &'a Comparison) -> Result<Self, Error> {
        let cancel = Cancellation::new(&comparison.cancel);
        #[cfg(unix)]
        let servers = match comparison.servers {
            true => {
                comparison.notify(Event::ServersStarting);
                Some(Servers::start(comparison.sizes.threads, &cancel)?)
            }
            false => None,
        };
        #[cfg(not(unix))]
        if comparison.servers {
            return Err(Error::invalid(
                "servers cannot be started on this system; start them, and give their URLs",
            ));
        }
        let mut folder = tempfile::Builder::new();
        folder.prefix("lockkeeper-compare-");
        let folder = match &comparison.temp_dir {
            Some(above) => folder.tempdir_in(above),
            None => folder.tempdir(),
        };
        let folder = folder.map_err(|error| {
            Error::failed(format!(
                "cannot make a throw-away folder: {error}; set TMPDIR to a folder that can be \
                 written to"
            ))
        })?;
        let mut specs = comparison.stores.clone();
        if specs.is_empty() || comparison.servers {
            specs.splice(0..0, StoreSpec::embedded(folder.path())?);
        }
        #[cfg(unix)]
        specs.extend(servers.iter().flat_map(Servers::specs));
        let plan = Self {
            comparison,
            cancel,
            stores: Store::open_all(specs, folder.path())?,
            #[cfg(unix)]
            servers,
            folder,
        };
        if plan.rows().is_empty() {
            return Err(Error::invalid(plan.nothing_to_run()));
        }
        Ok(plan)
    }

    /// Returns the rows to come, in their order.
    fn rows(&self) -> Vec<PlannedRow<'_>> {
        let mut rows = Vec::new();
        for &scenario in &self.comparison.scenarios {
            for store in &self.stores {
                if scenario == Scenario::Crash && self.lacks_holder(store) {
                    continue;
                }
                for &strategy in &self.comparison.strategies {
                    let runs_here = self.not_on(strategy, store).is_none();
                    if let Some(expected) = expected(strategy, scenario).filter(|_| runs_here) {
                        rows.push(PlannedRow {
                            scenario,
                            store,
                            strategy,
                            expected,
                        });
                    }
                }
            }
        }
        rows
    }

    /// Tells whether `crash` on this store needs a process, and the caller named no program for it.
    fn lacks_holder(&self, store: &Store) -> bool {
        is_cross_process(store) && self.comparison.holder.is_none()
    }

    fn not_on(&self, strategy: Strategy, store: &Store) -> Option<&'static str> {
        strategy.not_on(&store.handle, self.comparison.sizes.threads)
    }

    /// Returns the strategies that cannot run on any store, with the reason of the last store.
    fn left_out(&self) -> Vec<LeftOut> {
        let strategies = self.comparison.strategies.iter();
        let left_out = strategies.filter_map(|&strategy| {
            let reasons = self.stores.iter().map(|store| self.not_on(strategy, store));
            let why = reasons.collect::<Option<Vec<_>>>()?.pop()?;
            Some(LeftOut { strategy, why })
        });
        left_out.collect()
    }

    /// Returns what could not be started, with what to do about it.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        #[cfg(unix)]
        if let Some(servers) = &self.servers {
            missing.extend_from_slice(servers.missing());
        }
        if self.comparison.scenarios.contains(&Scenario::Crash) {
            let stores = self.stores.iter().filter(|store| self.lacks_holder(store));
            missing.extend(stores.map(|store| {
                let store = &store.label;
                format!("the holder of crash on {store}; name a program with Comparison::holder")
            }));
        }
        missing
    }

    fn nothing_to_run(&self) -> String {
        if let Some(LeftOut { strategy, why }) = self.left_out().first() {
            return format!("{strategy} {why}");
        }
        match self.missing().first() {
            Some(missing) => format!("not started: {missing}"),
            None => "these strategies have no part in these scenarios; choose others".to_owned(),
        }
    }

    /// Runs all rows, and adds each that came to its end.
    fn run(&self, rows: &mut Vec<Row>) -> Result<(), Error> {
        let planned = self.rows();
        self.comparison.notify(Event::Planned(planned.len()));
        for row in planned {
            let PlannedRow {
                scenario,
                store,
                strategy,
                expected,
            } = row;
            let store = store.label.as_str();
            self.comparison.notify(Event::RowStarted {
                scenario,
                store,
                strategy,
            });
            let runs = self.repeat(row, rows.len()).map_err(|error| {
                // What fails while the comparison is being cancelled fails because of that.
                let interrupted = self.cancel.check().err();
                let what = format!("{scenario} on {store} with {strategy}");
                interrupted.unwrap_or(error).about(&what)
            })?;
            let row = Row::new(scenario, store, strategy, expected, runs);
            self.comparison.notify(Event::RowFinished(&row));
            rows.push(row);
        }
        Ok(())
    }

    /// Runs a row as often as [`Comparison::repeat`] says. A row that must be wrong and happens to be right is run
    /// again.
    fn repeat(&self, row: PlannedRow<'_>, index: usize) -> Result<Vec<RunResult>, Error> {
        let repeat = self.comparison.repeat;
        let mut is_shown = row.expected == Verdict::Right;
        let mut runs: Vec<RunResult> = Vec::new();
        for number in 0..repeat + MAX_RETRIES {
            if number >= repeat && is_shown {
                break;
            }
            self.cancel.check()?;
            let lock = format!("{}/{}-{index}.{number}", self.run_name(), row.scenario);
            let run = self.run_once(row, lock)?;
            is_shown |= !run.faults.is_empty();
            runs.push(run);
        }
        Ok(runs)
    }

    fn run_once(&self, row: PlannedRow<'_>, lock: String) -> Result<RunResult, Error> {
        let PlannedRow {
            store, strategy, ..
        } = row;
        let (sizes, cancel) = (self.comparison.sizes, &self.cancel);
        let open = || strategy.open(store, sizes.threads, cancel);
        let holders: Box<dyn HolderFactory> = match &self.comparison.holder {
            Some(command) if is_cross_process(store) => Box::new(ProcessHolders {
                command,
                spec: &store.handle.spec,
                strategy,
                cancel,
            }),
            _ => Box::new(ThreadHolders { open: &open }),
        };
        let meter = Meter::new(store.counters(strategy.commands())?, cancel)?;
        // Redlock has to survive that.
        #[cfg(unix)]
        let _killed = match (row.scenario, strategy, &self.servers) {
            (Scenario::Crash, Strategy::Redlock, Some(servers)) => Some(servers.kill_two()),
            _ => None,
        };
        row.scenario.run(&Context {
            sizes,
            lock,
            state: store.data.state().as_ref(),
            open: &open,
            meter: &meter,
            holders: holders.as_ref(),
            cancel,
        })
    }

    /// Returns the prefix of the locks' names. On a store that others use, too, no other program has
    /// the same, since the folder's name is unique.
    fn run_name(&self) -> String {
        let run = self.folder.path().file_name().unwrap_or_default();
        run.display().to_string()
    }
}

/// Tells whether another process can see the store.
fn is_cross_process(store: &Store) -> bool {
    !matches!(store.handle.client, ClientConfig::Memory)
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

    #[test]
    fn crash_without_a_holder_program_runs_on_memory_alone() {
        let crash = Comparison::new()
            .scenarios([Scenario::Crash])
            .strategies([Strategy::Lockkeeper]);
        let report = crash.run().unwrap();
        let stores: Vec<_> = report.rows.iter().map(|row| row.store.as_str()).collect();
        assert_eq!(stores, ["memory"]);
        assert!(report.missing.join("").contains("crash on sqlite"));

        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}/locks.db", folder.path().display());
        let error = crash.url(&url).run().unwrap_err();
        assert!(error.to_string().contains("Comparison::holder"), "{error}");
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let gather = || Comparison::new().url("memory:");
        for comparison in [
            gather().threads(1),
            gather().threads(10_001),
            gather().seats(0),
            gather().items(100),
            gather().held(Duration::ZERO),
            gather().held(Duration::from_secs(11)),
            gather().repeat(0),
        ] {
            let result = comparison.run();
            assert!(matches!(result, Err(Error::Invalid(_))), "{comparison:?}");
        }
    }
}
