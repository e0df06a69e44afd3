//! The table of strategies and scenarios: which were right.

use maud::{Markup, html};

use crate::report::row::{Report, Row};
use crate::scenario::Scenario;
use crate::strategy::Strategy;
use crate::verdict::Verdict;

pub(super) fn section(report: &Report) -> Markup {
    let has = |one: &dyn Fn(&Row) -> bool| report.rows.iter().any(one);
    let scenarios = Scenario::ALL.into_iter();
    let scenarios: Vec<_> = scenarios
        .filter(|&scenario| has(&|row| row.scenario == scenario))
        .collect();
    let strategies = Strategy::ALL.into_iter();
    let strategies = strategies.filter(|&strategy| has(&|row| row.strategy == strategy));
    html! {
        section #verdicts {
            h2 { "Which were right" }
            table.matrix {
                thead {
                    tr {
                        th scope="col" { span.hidden { "strategy" } }
                        @for scenario in &scenarios {
                            th scope="col" { a href={ "#" (scenario) } { (scenario) } }
                        }
                    }
                }
                tbody {
                    @for strategy in strategies {
                        tr.ours[strategy == Strategy::Lockkeeper] {
                            th scope="row" { (strategy) small { (strategy.description()) } }
                            @for &scenario in &scenarios { (cell(report, scenario, strategy)) }
                        }
                    }
                }
            }
            p.legend {
                span.right { "✓ right" } " "
                span.wrong { "✗ wrong, as it must be" } " "
                span.bad { "! not as it must be" } " "
                span.none { "· no part in it" }
            }
            (left_out(report))
        }
    }
}

fn cell(report: &Report, scenario: Scenario, strategy: Strategy) -> Markup {
    let rows = report.rows.iter();
    let rows = rows.filter(|row| row.scenario == scenario && row.strategy == strategy);
    let rows: Vec<_> = rows.collect();
    let worst = rows
        .iter()
        .find(|row| !row.is_as_expected())
        .or(rows.first());
    html! {
        @match worst {
            Some(row) => {
                @let (word, sign, class) = verdict(row);
                td class=(class) {
                    span aria-hidden="true" { (sign) }
                    span.hidden {
                        (word) " on " @match rows.len() { 1 => { (row.store) } n => { (n) " stores" } }
                    }
                }
            }
            None => td.none { span aria-hidden="true" { "·" } span.hidden { "no part in it" } }
        }
    }
}

fn left_out(report: &Report) -> Markup {
    html! {
        @if !report.left_out.is_empty() || !report.missing.is_empty() {
            ul.left {
                @for left in &report.left_out {
                    li { "Left out: " b { (left.strategy) } " " (left.why) "." }
                }
                @for why in &report.missing { li { "Not started: " (why) "." } }
            }
        }
    }
}

/// Returns the verdict of a row in words, with its sign and its CSS class.
pub(super) fn verdict(row: &Row) -> (&'static str, &'static str, &'static str) {
    match (row.verdict, row.expected) {
        (Verdict::Right, Verdict::Right) => ("right", "✓", "right"),
        (Verdict::Wrong, Verdict::Wrong) => ("wrong, as it must be", "✗", "wrong"),
        (Verdict::Wrong, Verdict::Right) => ("wrong, and must be right", "!", "bad"),
        (Verdict::Right, Verdict::Wrong) => ("right, and must be wrong", "!", "bad"),
    }
}
