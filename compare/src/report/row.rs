//! The report, which is also the JSON object of `compare --json`; `compare --help` and
//! `cli/compare.schema.json` document its fields.

use std::cmp::Reverse;
use std::time::Duration;

use serde::Serialize;

use crate::error::Error;
use crate::scenario::Scenario;
use crate::scenario::context::RunResult;
use crate::settings::Settings;
use crate::stopwatch::{milliseconds, rounded};
use crate::strategy::Strategy;
use crate::verdict::Verdict;
use crate::waits::{WaitMs, Waits};

/// One scenario on one store with one strategy, all repetitions together.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The scenario that was run.
    pub scenario: Scenario,
    /// The store's name, such as `redis`; numbered if there are several of a kind.
    pub store: String,
    /// The strategy that was used.
    pub strategy: Strategy,
    /// Threads that were let in, in the worst repetition.
    pub admitted: u64,
    /// Threads that were not let in, in the worst repetition.
    pub turned_away: u64,
    /// Threads that were let in beyond the limit, in the worst repetition.
    pub oversold: u64,
    /// The median of the repetitions' times.
    pub elapsed_ms: f64,
    /// Percentiles of the waits of all repetitions; `None` if no lock was granted.
    pub wait_ms: Option<WaitMs>,
    /// The distribution of these waits.
    #[serde(skip)]
    pub waits: Option<Waits>,
    /// Commands that the store received, divided by the grants of all repetitions.
    pub commands_per_grant: Option<f64>,
    /// The largest number of connections of a repetition.
    pub connections: Option<u32>,
    /// The median of the repetitions' processor times.
    pub cpu_ms: Option<f64>,
    /// The verdict: right only if every repetition was.
    pub verdict: Verdict,
    /// The verdict that the row must have.
    pub expected: Verdict,
    /// What was wrong in the worst repetition.
    pub faults: Vec<String>,
}

impl Row {
    /// Makes one row of all repetitions.
    pub(crate) fn new(
        scenario: Scenario,
        store: &str,
        strategy: Strategy,
        expected: Verdict,
        mut runs: Vec<RunResult>,
    ) -> Self {
        let wall = median(runs.iter().map(|run| run.elapsed.wall).collect());
        let cpu: Option<Vec<_>> = runs.iter().map(|run| run.elapsed.cpu).collect();
        let usage = || runs.iter().map(|run| run.cost.usage);
        let commands: Option<u64> = usage().map(|usage| Some(usage?.commands)).sum();
        let waits = Waits::of(runs.iter().flat_map(|run| &run.cost.waits).copied());
        let grants = waits.as_ref().map_or(0, Waits::count);
        let connections = usage().map(|usage| Some(usage?.connections)).max();

        // A stable sort: of equally bad repetitions the first one is shown.
        runs.sort_by_key(|run| Reverse((!run.faults.is_empty(), run.oversold)));
        let worst = runs.into_iter().next().unwrap_or_default();
        Self {
            scenario,
            store: store.to_owned(),
            strategy,
            admitted: worst.admitted,
            turned_away: worst.turned_away,
            oversold: worst.oversold,
            elapsed_ms: milliseconds(wall),
            wait_ms: waits.as_ref().map(Waits::ms),
            waits,
            commands_per_grant: commands
                .filter(|_| grants > 0)
                .map(|commands| rounded(commands as f64 / grants as f64)),
            connections: connections.flatten(),
            cpu_ms: cpu.map(|cpu| milliseconds(median(cpu))),
            verdict: match worst.faults.is_empty() {
                true => Verdict::Right,
                false => Verdict::Wrong,
            },
            expected,
            faults: worst.faults,
        }
    }

    /// Tells whether the row has the verdict that it must have.
    pub fn is_as_expected(&self) -> bool {
        self.verdict == self.expected
    }
}

/// Returns the median; zero if there are no times.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// A strategy that could not run on any of the stores.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LeftOut {
    /// The strategy.
    pub strategy: Strategy,
    /// Why it could not run, as the rest of a sentence about it.
    pub why: &'static str,
}

/// Everything that was measured. Serializes as the JSON object of `lockkeeper compare --json`.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    schema: &'static str,
    version: u32,
    /// Whether all rows are there.
    pub complete: bool,
    /// What the comparison was run with.
    pub settings: Settings,
    /// Strategies that could not run on these stores.
    pub left_out: Vec<LeftOut>,
    /// What could not be started, with what to do about it.
    pub missing: Vec<String>,
    /// The rows, in the order in which they were run.
    pub rows: Vec<Row>,
    /// Why the run ended early, if it did.
    #[serde(skip)]
    pub ended_by: Option<Error>,
}

impl Report {
    /// The version of the JSON object; it grows when a field changes its meaning or is removed.
    const VERSION: u32 = 1;

    pub(crate) fn new(settings: Settings, rows: Vec<Row>, ended_by: Option<Error>) -> Self {
        Self {
            schema: "lockkeeper-compare",
            version: Self::VERSION,
            complete: ended_by.is_none(),
            settings,
            left_out: Vec::new(),
            missing: Vec::new(),
            rows,
            ended_by,
        }
    }

    /// Tells whether every row has the verdict that it must have.
    pub fn is_as_expected(&self) -> bool {
        self.rows.iter().all(Row::is_as_expected)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lockkeeper::Usage;

    /// Returns a report with a row that is as wide as those of `--servers` can be.
    pub(crate) fn widest() -> Report {
        let mut wide = run(100, 9_999);
        wide.cost.waits = [1_000, 1_000, 5_000].map(Duration::from_millis).into();
        wide.cost.usage = Some(Usage {
            commands: 1_500,
            connections: 100,
        });
        wide.elapsed.cpu = Some(Duration::from_millis(999));
        let row = row(
            "mariadb-2",
            Strategy::ReentrantHash,
            Verdict::Wrong,
            vec![wide],
        );
        Report::new(Settings::default(), vec![row], None)
    }

    fn row(store: &str, strategy: Strategy, expected: Verdict, runs: Vec<RunResult>) -> Row {
        Row::new(Scenario::Gather, store, strategy, expected, runs)
    }

    fn run(oversold: u64, wall_ms: u64) -> RunResult {
        let mut run = RunResult {
            oversold,
            ..RunResult::default()
        };
        run.elapsed.wall = Duration::from_millis(wall_ms);
        run.cost.waits = vec![Duration::from_millis(wall_ms)];
        run.cost.usage = Some(Usage {
            commands: 3,
            connections: 0,
        });
        if oversold > 0 {
            run.faults.push(format!("{oversold} too many"));
        }
        run
    }

    #[test]
    fn one_wrong_repetition_makes_the_row_wrong() {
        let runs = vec![run(0, 10), run(3, 20), run(1, 60)];
        let row = row("memory", Strategy::Lockkeeper, Verdict::Right, runs);
        assert_eq!((row.verdict, row.oversold), (Verdict::Wrong, 3));
        assert_eq!(row.faults, ["3 too many"]);
        assert!(!row.is_as_expected());
        assert!((row.elapsed_ms - 20.0).abs() < 0.01, "{row:?}");
        assert!((row.wait_ms.unwrap().max - 60.0).abs() < 0.1, "{row:?}");
        assert_eq!(row.commands_per_grant, Some(3.0));
        assert_eq!(row.cpu_ms, None);
    }

    #[test]
    fn control_that_is_always_right_is_not_as_expected() {
        let runs = vec![run(0, 1), run(0, 2)];
        let row = row("sqlite", Strategy::None, Verdict::Wrong, runs);
        assert_eq!(row.verdict, Verdict::Right);
        assert!(!row.is_as_expected());
    }
}
