//! What the cases share: a comparison on one store that must leave nothing behind, and its rows.

use std::env;
use std::process::ExitCode;

use lockkeeper_compare::{Comparison, Error, Report, Row, Scenario, Strategy, Verdict, holder};

/// The argument that makes this program the process that `crash` and `limit` kill.
pub(crate) const HOLDER: &str = "--holder";

/// Is the process that `crash` and `limit` kill.
pub(crate) fn hold() -> ExitCode {
    match holder::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

pub(crate) fn gather() -> Comparison {
    Comparison::new().scenarios([Scenario::Gather])
}

/// Runs `comparison` on `url`. It must leave no file behind, and must not show `secret`.
pub(crate) fn run(comparison: &Comparison, url: &str, secret: &str) -> Result<Report, Error> {
    let folder = tempfile::tempdir().unwrap();
    let comparison = comparison
        .clone()
        .url(url)
        .holder(env::current_exe().unwrap(), [HOLDER])
        .temp_dir(folder.path());
    let result = comparison.run();
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    let shown = match &result {
        Ok(report) => report.to_text() + &report.to_html(),
        Err(error) => error.to_string(),
    };
    assert!(!format!("{shown}{result:?}{comparison:?}").contains(secret));
    result
}

/// Returns the rows of a comparison that ran to its end, with the verdicts that they must have.
pub(crate) fn rows(comparison: &Comparison, url: &str, secret: &str) -> Vec<Row> {
    let report = run(comparison, url, secret).unwrap();
    assert!(report.ended_by.is_none(), "{:?}", report.ended_by);
    for row in &report.rows {
        assert_eq!(row.verdict, row.expected, "{row:?}");
    }
    report.rows
}

/// Finds the row of a strategy, in rows of one scenario.
pub(crate) fn of(rows: &[Row], strategy: Strategy) -> &Row {
    let row = rows.iter().find(|row| row.strategy == strategy);
    row.unwrap_or_else(|| panic!("no {strategy} in {rows:#?}"))
}

pub(crate) fn is_right(row: &Row) -> bool {
    row.verdict == Verdict::Right
}
