//! The run: every scenario on every store with every strategy, one after the other.

use lockkeeper::CancelToken;
use tempfile::TempDir;

use crate::args;
use crate::failure::Failure;
use crate::output::Output;
use crate::row::{Row, Verdict};
use crate::scenario::{Run, Scenario, Site};
use crate::store::Store;
use crate::strategy::Kind;

/// How often a control that happens to go right is run again. With many threads it never is.
const MORE_TRIES: usize = 20;

/// What is to be run, on stores that could be opened.
pub(crate) struct Plan<'a> {
    args: &'a args::Compare,
    stop: &'a CancelToken,
    stores: Vec<Store>,
    /// Removed with all that is in it, after the stores are closed.
    folder: TempDir,
}

impl<'a> Plan<'a> {
    /// Opens the stores, all of them before anything is run.
    pub(crate) fn new(args: &'a args::Compare, stop: &'a CancelToken) -> Result<Self, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("lockkeeper-compare-")
            .tempdir()
            .map_err(|error| {
                Failure::Failed(format!(
                    "cannot make a throw-away folder: {error}; set TMPDIR to a folder that can be written to"
                ))
            })?;
        Ok(Self {
            args,
            stop,
            stores: Store::open_all(&args.url, folder.path())?,
            folder,
        })
    }

    /// Runs it all, and adds a row for each that came to its end.
    pub(crate) fn run(&self, output: &Output, rows: &mut Vec<Row>) -> Result<(), Failure> {
        let (scenarios, strategies) = (self.args.scenarios(), self.args.strategies());
        let total = scenarios.len() * self.stores.len() * strategies.len();
        let progress = output.progress(total);
        for scenario in scenarios {
            for store in &self.stores {
                for &strategy in &strategies {
                    let what = format!("{scenario} on {} with {strategy}", store.label());
                    progress.begin(&what);
                    let runs = self
                        .repeat(scenario, store, strategy)
                        .map_err(|failure| failure.about(&what))?;
                    rows.push(Row::new(scenario, store.label(), strategy, runs));
                    progress.done();
                }
            }
        }
        Ok(())
    }

    fn repeat(
        &self,
        scenario: Scenario,
        store: &Store,
        strategy: Kind,
    ) -> Result<Vec<Run>, Failure> {
        let control = strategy.expected() == Verdict::Wrong;
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
            runs.push(scenario.play(&Site {
                sizes: self.args.sizes(),
                lock: self.lock_name(scenario),
                state: store.state(),
                open: &|| strategy.open(store, self.stop),
                stop: self.stop,
            })?);
        }
    }

    /// On a store that others use too, nobody else has this name: the folder's is unique.
    fn lock_name(&self, scenario: Scenario) -> String {
        let run = self.folder.path().file_name().unwrap_or_default();
        format!("{}/{scenario}", run.display())
    }
}
