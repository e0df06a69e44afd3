//! The run: every scenario on every store with every strategy, one after the other.

use lockkeeper::CancelToken;
use tempfile::TempDir;

use crate::args;
use crate::failure::Failure;
use crate::holder::{Elsewhere, InProcess, InThread};
use crate::meter::Meter;
use crate::output::Output;
use crate::row::{LeftOut, Row, Verdict};
use crate::scenario::{Run, Scenario, Site};
#[cfg(unix)]
use crate::servers::Servers;
use crate::state::Door;
use crate::store::{Store, Wanted};
use crate::strategy::Kind;

/// How often a control that happens to go right is run again. With many threads it never is.
const MORE_TRIES: usize = 20;

/// What is to be run, on stores that could be opened.
pub(crate) struct Plan<'a> {
    args: &'a args::Compare,
    stop: &'a CancelToken,
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
    pub(crate) fn new(
        args: &'a args::Compare,
        output: &Output,
        stop: &'a CancelToken,
    ) -> Result<Self, Failure> {
        let progress = args.servers.then(|| output.progress(0));
        if let Some(progress) = &progress {
            progress.begin("starting servers");
        }
        let start = || Servers::start(args.threads, stop);
        let servers = args.servers.then(start).transpose()?;
        let started = servers.as_ref().map(Servers::wanted).unwrap_or_default();
        let mut plan = Self::on(args, stop, started)?;
        plan.servers = servers;
        Ok(plan)
    }

    /// Opens the stores, all of them before anything is run.
    #[cfg(not(unix))]
    pub(crate) fn new(
        args: &'a args::Compare,
        _output: &Output,
        stop: &'a CancelToken,
    ) -> Result<Self, Failure> {
        if args.servers {
            return Err(Failure::Usage(
                "--servers cannot start servers on this system; start them, and give their --url"
                    .to_owned(),
            ));
        }
        Self::on(args, stop, Vec::new())
    }

    fn on(
        args: &'a args::Compare,
        stop: &'a CancelToken,
        started: Vec<Wanted>,
    ) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("lockkeeper-compare-")
            .tempdir()
            .map_err(|error| {
                Failure::Failed(format!(
                    "cannot make a throw-away folder: {error}; set TMPDIR to a folder that can be written to"
                ))
            })?;
        let mut wanted = args.wanted()?;
        if wanted.is_empty() || args.servers {
            wanted.splice(0..0, Wanted::embedded(folder.path())?);
        }
        wanted.extend(started);
        let plan = Self {
            args,
            stop,
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
        for scenario in self.args.scenarios() {
            for store in &self.stores {
                for strategy in self.args.strategies() {
                    let here = strategy.not_on(store.reach(), self.args.threads).is_none();
                    if let Some(expected) = strategy.expected(scenario).filter(|_| here) {
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

    /// Strategies that no store here can do, with the reason of the store that comes nearest.
    pub(crate) fn left_out(&self) -> Vec<LeftOut> {
        let strategies = self.args.strategies().into_iter();
        let left_out = strategies.filter_map(|strategy| {
            let reasons = self
                .stores
                .iter()
                .map(|store| strategy.not_on(store.reach(), self.args.threads));
            let why = reasons.collect::<Option<Vec<_>>>()?.pop()?;
            Some(LeftOut { strategy, why })
        });
        left_out.collect()
    }

    /// Servers that are not installed, with what to do about it.
    pub(crate) fn missing(&self) -> Vec<String> {
        #[cfg(unix)]
        if let Some(servers) = &self.servers {
            return servers.missing().to_vec();
        }
        Vec::new()
    }

    fn nothing_to_run(&self) -> String {
        match self.left_out().first() {
            Some(LeftOut { strategy, why }) => format!("{strategy} {why}"),
            None => "these strategies have no part in these scenarios; choose others".to_owned(),
        }
    }

    /// Runs it all, and adds a row for each that came to its end.
    pub(crate) fn run(&self, output: &Output, rows: &mut Vec<Row>) -> Result<(), Failure> {
        let steps = self.steps();
        let progress = output.progress(steps.len());
        for step in steps {
            let what = format!(
                "{} on {} with {}",
                step.scenario,
                step.store.label(),
                step.strategy
            );
            progress.begin(&what);
            let runs = self.repeat(step, rows.len());
            let runs = runs.map_err(|failure| self.why(failure).about(&what))?;
            rows.push(Row::new(
                step.scenario,
                step.store.label(),
                step.strategy,
                step.expected,
                runs,
            ));
            progress.done();
        }
        Ok(())
    }

    /// What fails while the run is being ended fails because of that.
    fn why(&self, failure: Failure) -> Failure {
        if self.stop.is_cancelled() {
            return Failure::Interrupted;
        }
        failure
    }

    fn repeat(&self, step: Step<'_>, row: usize) -> Result<Vec<Run>, Failure> {
        let control = step.expected == Verdict::Wrong;
        let asked = usize::try_from(self.args.repeat).unwrap_or(usize::MAX);
        let mut runs: Vec<Run> = Vec::new();
        loop {
            let shown = !control || runs.iter().any(|run| !run.faults.is_empty());
            if runs.len() >= asked && (shown || runs.len() >= asked + MORE_TRIES) {
                return Ok(runs);
            }
            if self.stop.is_cancelled() {
                return Err(Failure::Interrupted);
            }
            let lock = format!("{}/{}-{row}.{}", self.run_name(), step.scenario, runs.len());
            runs.push(self.play(step, lock)?);
        }
    }

    fn play(&self, step: Step<'_>, lock: String) -> Result<Run, Failure> {
        let Step {
            store, strategy, ..
        } = step;
        let open = || strategy.open(store, self.args.threads, self.stop);
        let elsewhere: Box<dyn Elsewhere> = match store.reach().door() {
            // No other process can see it.
            Door::Memory => Box::new(InThread { open: &open }),
            _ => Box::new(InProcess {
                reach: store.reach(),
                strategy,
            }),
        };
        let meter = Meter::new(store.counters(strategy.commands())?)?;
        // It is to survive that.
        #[cfg(unix)]
        let _dead = match (step.scenario, strategy, &self.servers) {
            (Scenario::Crash, Kind::Redlock, Some(servers)) => Some(servers.two_dead()),
            _ => None,
        };
        step.scenario.play(&Site {
            sizes: self.args.sizes(),
            lock,
            state: store.data().state().as_ref(),
            open: &open,
            meter: &meter,
            elsewhere: elsewhere.as_ref(),
            stop: self.stop,
        })
    }

    /// On a store that others use too, nobody else has names that begin so: the folder's is unique.
    fn run_name(&self) -> String {
        let run = self.folder.path().file_name().unwrap_or_default();
        run.display().to_string()
    }
}
