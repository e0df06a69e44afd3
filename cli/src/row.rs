//! What a comparison brings: rows, and the object that `--json` prints. `compare --help` documents
//! its fields; [`Report::VERSION`] grows when one changes its meaning or goes.

use std::cmp::Reverse;
use std::time::Duration;

use serde::Serialize;

use crate::args;
use crate::scenario::{Run, Scenario, Sizes};
use crate::strategy::Kind;
use crate::waits::{WaitMs, Waits};

/// Whether the outcome is what it must be for the people in the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// It is, every time.
    Right,
    /// At least once it was not.
    Wrong,
}

/// One scenario on one store with one strategy, all repetitions together.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// What was played.
    pub(crate) scenario: Scenario,
    /// On which store.
    pub(crate) store: String,
    /// With which way of locking.
    pub(crate) strategy: Kind,
    /// Let in, in the worst repetition.
    pub(crate) admitted: u64,
    /// Not let in, in the same.
    pub(crate) turned_away: u64,
    /// Let in beyond the limit, in the same.
    pub(crate) oversold: u64,
    /// A repetition's time: the median.
    pub(crate) elapsed_ms: f64,
    /// Waits of all repetitions.
    pub(crate) wait_ms: Option<WaitMs>,
    /// The same, all of them.
    #[serde(skip)]
    pub(crate) waits: Option<Waits>,
    /// What the store was sent, by all repetitions' grants.
    pub(crate) commands_per_grant: Option<f64>,
    /// The most connections of any repetition.
    pub(crate) connections: Option<u32>,
    /// A repetition's processor time: the median.
    pub(crate) cpu_ms: Option<f64>,
    /// Right only if every repetition was.
    pub(crate) verdict: Verdict,
    /// The verdict that it must have.
    pub(crate) expected: Verdict,
    /// What was wrong with the worst repetition.
    pub(crate) faults: Vec<String>,
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
    pub(crate) fn is_as_expected(&self) -> bool {
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
pub(crate) struct LeftOut {
    /// Which.
    pub(crate) strategy: Kind,
    /// Why not, as the rest of a sentence about it.
    pub(crate) why: &'static str,
}

/// All that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    version: u32,
    /// Whether all rows are there.
    pub(crate) complete: bool,
    /// What it was measured with.
    pub(crate) settings: Settings,
    /// What could not be run on these stores.
    pub(crate) left_out: Vec<LeftOut>,
    /// Servers that were to be started and are not installed.
    pub(crate) missing: Vec<String>,
    /// In the order in which they were run.
    pub(crate) rows: Vec<Row>,
}

/// What was measured with.
#[derive(Debug, Serialize)]
pub(crate) struct Settings {
    pub(crate) threads: u32,
    pub(crate) seats: u32,
    pub(crate) items: u32,
    held_ms: f64,
    repeat: u32,
}

impl Report {
    /// The version of what `--json` prints.
    const VERSION: u32 = 1;

    /// Of these rows; `complete`: the run did not end early.
    pub(crate) fn new(
        args: &args::Compare,
        left_out: Vec<LeftOut>,
        missing: Vec<String>,
        rows: Vec<Row>,
        complete: bool,
    ) -> Self {
        let Sizes {
            threads,
            seats,
            items,
            held,
        } = args.sizes();
        Self {
            schema: "lockkeeper-compare",
            version: Self::VERSION,
            complete,
            settings: Settings {
                threads,
                seats,
                items,
                held_ms: milliseconds(held),
                repeat: args.repeat,
            },
            left_out,
            missing,
            rows,
        }
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
