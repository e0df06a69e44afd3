//! What a comparison brings: rows, and the object that `--json` prints. `compare --help` documents
//! its fields; [`Report::VERSION`] grows when one changes its meaning or goes.

use std::cmp::Reverse;
use std::time::Duration;

use serde::Serialize;

use crate::error::Failure;
use crate::scenario::Scenario;
use crate::scenario::context::{Run, Sizes};
use crate::strategy::Kind;
use crate::verdict::Verdict;
use crate::waits::{WaitMs, Waits};

/// One scenario on one store with one strategy, all repetitions together.
#[derive(Debug, Serialize)]
pub struct Row {
    /// What was played.
    pub scenario: Scenario,
    /// On which store.
    pub store: String,
    /// With which way of locking.
    pub strategy: Kind,
    /// Let in, in the worst repetition.
    pub admitted: u64,
    /// Not let in, in the same.
    pub turned_away: u64,
    /// Let in beyond the limit, in the same.
    pub oversold: u64,
    /// A repetition's time: the median.
    pub elapsed_ms: f64,
    /// Waits of all repetitions.
    pub wait_ms: Option<WaitMs>,
    /// The same, all of them.
    #[serde(skip)]
    pub waits: Option<Waits>,
    /// What the store was sent, by all repetitions' grants.
    pub commands_per_grant: Option<f64>,
    /// The most connections of any repetition.
    pub connections: Option<u32>,
    /// A repetition's processor time: the median.
    pub cpu_ms: Option<f64>,
    /// Right only if every repetition was.
    pub verdict: Verdict,
    /// The verdict that it must have.
    pub expected: Verdict,
    /// What was wrong with the worst repetition.
    pub faults: Vec<String>,
}

impl Row {
    /// Makes one row of all repetitions.
    pub(crate) fn new(
        scenario: Scenario,
        store: &str,
        strategy: Kind,
        expected: Verdict,
        mut runs: Vec<Run>,
    ) -> Self {
        let elapsed = median(runs.iter().map(|run| run.span.elapsed).collect());
        let cpu: Option<Vec<_>> = runs.iter().map(|run| run.span.cpu).collect();
        let commands: Option<u64> = runs.iter().map(|run| run.account.commands).sum();
        let waits = Waits::of(runs.iter().flat_map(|run| &run.account.waits).copied());
        let grants = waits.as_ref().map_or(0, Waits::count);
        let connections = runs.iter().map(|run| run.account.connections).max();

        // Stable, so of equally bad ones it is the first.
        runs.sort_by_key(|run| Reverse((!run.faults.is_empty(), run.oversold)));
        let worst = runs.into_iter().next().unwrap_or_default();
        Self {
            scenario,
            store: store.to_owned(),
            strategy,
            admitted: worst.admitted,
            turned_away: worst.turned_away,
            oversold: worst.oversold,
            elapsed_ms: milliseconds(elapsed),
            wait_ms: waits.as_ref().map(Waits::ms),
            waits,
            commands_per_grant: commands
                .filter(|_| grants > 0)
                .map(|commands| rounded(commands as f64 / grants as f64)),
            connections: connections.flatten(),
            cpu_ms: cpu.map(|cpu| milliseconds(median(cpu))),
            verdict: if worst.faults.is_empty() {
                Verdict::Right
            } else {
                Verdict::Wrong
            },
            expected,
            faults: worst.faults,
        }
    }

    /// Whether the verdict is the one that it must have.
    pub fn is_as_expected(&self) -> bool {
        self.verdict == self.expected
    }
}

/// The middle one; zero where there is none.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn milliseconds(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1e3)
}

/// To three digits behind the point.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// A strategy that was not run.
#[derive(Debug, Serialize)]
pub struct LeftOut {
    /// Which.
    pub strategy: Kind,
    /// Why not, as the rest of a sentence about it.
    pub why: &'static str,
}

/// All that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    version: u32,
    /// Whether all rows are there.
    pub complete: bool,
    /// What it was measured with.
    pub settings: Settings,
    /// What could not be run on these stores.
    pub left_out: Vec<LeftOut>,
    /// Servers that were to be started and are not installed.
    pub missing: Vec<String>,
    /// In the order in which they were run.
    pub rows: Vec<Row>,
    /// Why the run ended early, where it did.
    #[serde(skip)]
    pub ended_by: Option<Failure>,
}

/// What was measured with.
#[derive(Debug, Serialize)]
pub struct Settings {
    /// Threads that compete.
    pub threads: u32,
    /// Seats in `gather`.
    pub seats: u32,
    /// Items in `stock`.
    pub items: u32,
    held_ms: f64,
    repeat: u32,
}

impl Report {
    /// The version of what `--json` prints.
    const VERSION: u32 = 1;

    /// Makes the report of a run of scenarios of these sizes.
    pub(crate) fn new(
        sizes: Sizes,
        repeat: u32,
        left_out: Vec<LeftOut>,
        missing: Vec<String>,
        rows: Vec<Row>,
        ended_by: Option<Failure>,
    ) -> Self {
        let Sizes {
            threads,
            seats,
            items,
            held,
        } = sizes;
        Self {
            schema: "lockkeeper-compare",
            version: Self::VERSION,
            complete: ended_by.is_none(),
            settings: Settings {
                threads,
                seats,
                items,
                held_ms: milliseconds(held),
                repeat,
            },
            left_out,
            missing,
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

    /// A report with a row that is wide everywhere, as runs of `--servers` have them.
    pub(crate) fn widest() -> Report {
        let mut wide = run(100, 9_999);
        wide.account.waits = [1_000, 1_000, 5_000].map(Duration::from_millis).into();
        wide.account.commands = Some(1_500);
        wide.account.connections = Some(100);
        wide.span.cpu = Some(Duration::from_millis(999));
        let kind = Kind::ReentrantHash;
        let row = Row::new(
            Scenario::Gather,
            "mariadb-2",
            kind,
            Verdict::Wrong,
            vec![wide],
        );
        Report {
            schema: "",
            version: 0,
            complete: true,
            settings: Settings {
                threads: 100,
                seats: 5,
                items: 10,
                held_ms: 1.0,
                repeat: 1,
            },
            left_out: Vec::new(),
            missing: Vec::new(),
            rows: vec![row],
            ended_by: None,
        }
    }

    fn run(oversold: u64, elapsed_ms: u64) -> Run {
        let mut run = Run {
            oversold,
            ..Run::default()
        };
        run.span.elapsed = Duration::from_millis(elapsed_ms);
        run.account.waits = vec![Duration::from_millis(elapsed_ms)];
        run.account.commands = Some(3);
        if oversold > 0 {
            run.faults.push(format!("{oversold} too many"));
        }
        run
    }

    #[test]
    fn one_wrong_repetition_makes_a_wrong_row_with_its_numbers() {
        let runs = vec![run(0, 10), run(3, 20), run(1, 60)];
        let row = Row::new(
            Scenario::Gather,
            "memory",
            Kind::Lockkeeper,
            Verdict::Right,
            runs,
        );
        assert_eq!((row.verdict, row.oversold), (Verdict::Wrong, 3));
        assert_eq!(row.faults, ["3 too many"]);
        assert!(!row.is_as_expected());
        assert!((row.elapsed_ms - 20.0).abs() < 0.01, "{row:?}");
        assert!((row.wait_ms.unwrap().max - 60.0).abs() < 0.1, "{row:?}");
        assert_eq!(row.commands_per_grant, Some(3.0));
        assert_eq!(row.cpu_ms, None);
    }

    #[test]
    fn what_is_right_each_time_is_right_and_for_the_control_unexpected() {
        let runs = vec![run(0, 1), run(0, 2)];
        let row = Row::new(Scenario::Stock, "sqlite", Kind::None, Verdict::Wrong, runs);
        assert_eq!(row.verdict, Verdict::Right);
        assert!(!row.is_as_expected());
    }
}
