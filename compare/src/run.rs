//! Running a comparison: every scenario on every store with every strategy, one after the other.

use lockkeeper::Capability;
use tempfile::TempDir;

use crate::cancel::Cancellation;
use crate::comparison::{Comparison, Event};
use crate::error::Error;
use crate::holder::{Holder, Order};
use crate::meter::Meter;
use crate::report::row::{LeftOut, Report, Row};
use crate::scenario::Scenario;
use crate::scenario::context::{Context, RunResult};
use crate::servers::Servers;
use crate::store::Store;
use crate::store::spec::StoreSpec;
use crate::strategy::Strategy;
use crate::verdict::{Verdict, expected};

/// How often a control that must go wrong is run again if it happens to go right. With many threads, once is
/// enough.
const MAX_RETRIES: u32 = 20;

impl Comparison {
    /// Runs the comparison. A run that ends early still has a report of the rows so far.
    /// [`Report::ended_by`] says why it ended.
    ///
    /// # Errors
    /// The settings are not valid, there is nothing to run, or a store cannot be opened.
    pub fn run(&self) -> Result<Report, Error> {
        let mut comparison = self.clone();
        comparison.scenarios = chosen(Scenario::ALL, &self.scenarios);
        comparison.strategies = chosen(Strategy::ALL, &self.strategies);
        comparison.check()?;
        let plan = Plan::new(&comparison)?;
        let mut rows = Vec::new();
        let ended_by = plan.run(&mut rows).err();
        let mut report = Report::new(self.settings.clone(), rows, ended_by);
        report.left_out = plan.left_out();
        report.missing = plan.missing();
        Ok(report)
    }
}

/// Returns the items of `all` that are in `wanted`, each once. If `wanted` is empty, returns all.
fn chosen<T: Copy + PartialEq, const N: usize>(all: [T; N], wanted: &[T]) -> Vec<T> {
    let is_chosen = |one: &T| wanted.is_empty() || wanted.contains(one);
    all.into_iter().filter(is_chosen).collect()
}

/// Returns the capability that lockkeeper needs in the scenario and the store does not have.
fn lacks(scenario: Scenario, store: &Store) -> Option<Capability> {
    let capabilities = &store.handle.capabilities;
    scenario.needs().filter(|needed| !capabilities.has(*needed))
}

/// The rows to run, and the stores, which are open. The fields are dropped in this order.
struct Plan<'a> {
    comparison: &'a Comparison,
    cancel: Cancellation,
    stores: Vec<Store>,
    servers: Option<Servers>,
    folder: TempDir,
}

/// A row that is to be run.
#[derive(Clone, Copy)]
struct PlannedRow<'a> {
    scenario: Scenario,
    store: &'a Store,
    strategy: Strategy,
    expected: Verdict,
}

impl<'a> Plan<'a> {
    /// Starts all servers and opens all stores, before the first row runs.
    fn new(comparison: &'a Comparison) -> Result<Self, Error> {
        let cancel = Cancellation::new(&comparison.cancel);
        let servers = match comparison.servers {
            true => {
                comparison.notify(Event::ServersStarting);
                Some(Servers::start(comparison.settings.threads, &cancel)?)
            }
            false => None,
        };
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
        specs.extend(servers.iter().flat_map(Servers::specs));
        let plan = Self {
            comparison,
            cancel,
            stores: Store::open_all(specs, folder.path())?,
            servers,
            folder,
        };
        if plan.rows().is_empty() {
            return Err(Error::invalid(plan.nothing_to_run()));
        }
        Ok(plan)
    }

    /// Returns the rows to run, in their order.
    fn rows(&self) -> Vec<PlannedRow<'_>> {
        let mut rows = Vec::new();
        for &scenario in &self.comparison.scenarios {
            for store in &self.stores {
                if self.not_started(scenario, store).is_some() {
                    continue;
                }
                for &strategy in &self.comparison.strategies {
                    let runs_here = self.not_on(strategy, store).is_none()
                        && (strategy != Strategy::Lockkeeper || lacks(scenario, store).is_none());
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

    /// Returns why the scenario cannot be run on this store, and what to do; `None` if it can.
    fn not_started(&self, scenario: Scenario, store: &Store) -> Option<String> {
        let label = &store.label;
        let lacks_holder = store.is_cross_process() && self.comparison.holder.is_none();
        (lacks_holder && scenario.kills_holder()).then(|| {
            format!("the holder of {scenario} on {label}; name a program with Comparison::holder")
        })
    }

    fn not_on(&self, strategy: Strategy, store: &Store) -> Option<&'static str> {
        strategy.not_on(&store.handle, self.comparison.settings.threads)
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

    /// Returns the rows and servers that could not be started, each with what to do.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if let Some(servers) = &self.servers {
            missing.extend_from_slice(&servers.missing);
        }
        for &scenario in &self.comparison.scenarios {
            let stores = self.stores.iter();
            missing.extend(stores.filter_map(|store| self.not_started(scenario, store)));
            if self.comparison.strategies.contains(&Strategy::Lockkeeper) {
                missing.extend(self.stores.iter().filter_map(|store| {
                    let (needed, label) = (lacks(scenario, store)?, &store.label);
                    Some(format!(
                        "lockkeeper in {scenario} on {label}, which does not have the capability {needed}; use another store"
                    ))
                }));
            }
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

    /// Runs all rows. Adds each row that ends to `rows`.
    fn run(&self, rows: &mut Vec<Row>) -> Result<(), Error> {
        let planned = self.rows();
        self.comparison.notify(Event::Planned(planned.len()));
        for row in planned {
            let (scenario, strategy, store) =
                (row.scenario, row.strategy, row.store.label.as_str());
            self.comparison.notify(Event::RowStarted {
                scenario,
                store,
                strategy,
            });
            let runs = self.repeat(row, rows.len()).map_err(|error| {
                // After a cancel, a failure counts as the cancel.
                let interrupted = self.cancel.check().err();
                let what = format!("{scenario} on {store} with {strategy}");
                interrupted.unwrap_or(error).about(&what)
            })?;
            let row = Row::new(scenario, store, strategy, row.expected, runs);
            self.comparison.notify(Event::RowFinished(&row));
            rows.push(row);
        }
        Ok(())
    }

    /// Runs a row as often as [`Comparison::repeat`] says. A row that must be wrong and happens to be
    /// right is run again.
    fn repeat(&self, row: PlannedRow<'_>, index: usize) -> Result<Vec<RunResult>, Error> {
        let repeat = self.comparison.settings.repeat;
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
        let (store, strategy) = (row.store, row.strategy);
        let (settings, cancel) = (&self.comparison.settings, &self.cancel);
        let open = |threads| strategy.open(store, threads, cancel);
        let start_holder = |hold| match &self.comparison.holder {
            Some(command) if store.is_cross_process() => {
                let order = Order {
                    store: store.handle.settings.clone(),
                    strategy,
                    hold,
                };
                Holder::process(command, &order, cancel)
            }
            _ => Holder::thread(open(1)?, hold),
        };
        let servers = self
            .servers
            .as_ref()
            .filter(|_| !store.handle.members.is_empty());
        if let Some(servers) = servers {
            servers.wait_for_members(cancel)?;
        }
        let meter = Meter::new(store.counters(strategy.commands())?, cancel)?;
        // The majority that still runs has to suffice.
        let _killed = servers
            .filter(|_| row.scenario == Scenario::Crash)
            .map(Servers::kill_two);
        let result = row.scenario.run(&Context {
            settings,
            lock,
            grace: store.handle.grace(),
            state: store.data.state().as_ref(),
            open: &open,
            meter: &meter,
            start_holder: &start_holder,
            cancel,
        });
        meter.wait_for_close(cancel)?;
        result
    }

    /// Returns the prefix of the locks' names. The folder's name is unique, so other programs on the
    /// same store have other prefixes.
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
        let wanted = [Scenario::Slow, Scenario::Gather, Scenario::Slow];
        let chosen_ones = chosen(Scenario::ALL, &wanted);
        assert_eq!(chosen_ones, [Scenario::Gather, Scenario::Slow]);
        assert_eq!(chosen(Scenario::ALL, &[]), Scenario::ALL);
    }
}
