//! The rows as a table of at most 100 columns, without colour.

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, TableStyle, Width,
};

use super::row::{Report, Row};
use super::summary::{self, WIDTH};
use crate::verdict::Verdict;
use crate::waits::WaitMs;

/// Only a line under the header.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─'));
/// Shown for what a store cannot count.
const NOT_COUNTED: &str = "-";

const HEADER: [&str; 12] = [
    "scenario",
    "store",
    "strategy",
    "ad-\nmitted",
    "turned\naway",
    "over-\nsold",
    "time\nms",
    "wait ms\np50/p99/max",
    "cmds/\ngrant",
    "conns",
    "cpu\nms",
    "verdict",
];
const STRATEGY: usize = 2;
/// The columns with numbers.
const NUMBERS: std::ops::Range<usize> = 3..11;

impl Report {
    /// Returns the report as text: a table of at most 100 columns, and what it says in sentences.
    pub fn to_text(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        format!("{}\n\n{}", table(self), summary::of(self))
    }
}

/// Returns the table, without a line break at its end.
fn table(report: &Report) -> String {
    let mut table = Table::new();
    table
        .load_style(STYLE)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH)
        .set_header(HEADER)
        .add_rows(report.rows.iter().map(cells));
    let last = HEADER.len() - 1;
    for (index, column) in table.column_iter_mut().enumerate() {
        // One space between columns, none at the end.
        column.set_padding((0, u16::from(index < last)));
        if NUMBERS.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        // If the table gets too wide, this column is wrapped, and no number is.
        column.set_constraint(match index {
            STRATEGY => ColumnConstraint::LowerBoundary(Width::Fixed(15)),
            _ => ColumnConstraint::ContentWidth,
        });
    }
    table.trim_fmt()
}

fn cells(row: &Row) -> [String; HEADER.len()] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| NOT_COUNTED.to_owned());
    let wait = |wait: WaitMs| [wait.p50, wait.p99, wait.max].map(short).join("/");
    [
        row.scenario.to_string(),
        row.store.clone(),
        // The longest name by far.
        row.strategy.to_string().replace("-shared", "-\nshared"),
        row.admitted.to_string(),
        row.turned_away.to_string(),
        row.oversold.to_string(),
        short(row.elapsed_ms),
        or_dash(row.wait_ms.map(wait)),
        or_dash(
            row.commands_per_grant
                .map(|commands| format!("{commands:.2}")),
        ),
        or_dash(row.connections.map(|connections| connections.to_string())),
        or_dash(row.cpu_ms.map(short)),
        verdict(row).to_owned(),
    ]
}

/// Formats milliseconds with the precision that means something, and many of them as seconds.
fn short(ms: f64) -> String {
    if ms >= 9_999.5 {
        return format!("{:.0}s", ms / 1e3);
    }
    let digits = usize::from(ms < 9.95);
    format!("{ms:.digits$}")
}

fn verdict(row: &Row) -> &'static str {
    match (row.verdict, row.expected) {
        (Verdict::Right, Verdict::Right) => "right",
        (Verdict::Wrong, Verdict::Right) => "WRONG",
        (Verdict::Wrong, Verdict::Wrong) => "wrong, ok",
        (Verdict::Right, Verdict::Wrong) => "RIGHT?",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widest_row_fits() {
        use crate::report::row::tests::widest;
        let shown = table(&widest());
        for line in shown.lines() {
            assert!(line.chars().count() <= usize::from(WIDTH), "{shown}");
        }
        assert!(shown.contains("1000/5000/5000"), "{shown}");
    }

    #[test]
    fn numbers_are_short() {
        let shown = [0.04, 9.94, 9.96, 1234.4, 9_999.0, 600_000.0].map(short);
        assert_eq!(shown, ["0.0", "9.9", "10", "1234", "9999", "600s"]);
    }
}
