//! A section for each scenario, and in it a table with charts for each store.

use maud::{Markup, html};

use super::chart::{axis, distribution, time};
use super::figures::{Table, TableRow};
use super::verdicts::verdict;
use crate::report::row::{Report, Row};
use crate::report::summary;
use crate::scenario::Scenario;
use crate::strategy::Strategy;
use crate::verdict::Verdict;

pub(super) fn sections(report: &Report) -> Markup {
    // The rows of a scenario are neighbours, and so are those of a store in it.
    let rows = &report.rows;
    html! {
        @for rows in rows.chunk_by(|row, next| row.scenario == next.scenario) {
            @if let Some(row) = rows.first() { (section(report, row.scenario, rows)) }
        }
    }
}

fn section(report: &Report, scenario: Scenario, rows: &[Row]) -> Markup {
    html! {
        section id=(scenario) {
            h2 { (scenario) }
            p.what {
                b { (summary::question(scenario, &report.settings)) ". " }
                "Right: " (right(scenario)) "."
            }
            div.stores {
                @for rows in rows.chunk_by(|row, next| row.store == next.store) { (table(rows)) }
            }
        }
    }
}

/// Says what must come out.
fn right(scenario: Scenario) -> &'static str {
    match scenario {
        Scenario::Gather => "as many get in as there are seats, and the count says so",
        Scenario::Stock => "sold is the smaller of items and buyers, and the stock agrees",
        Scenario::Seat => "exactly one booking, each time",
        Scenario::Party => "each set is booked as a whole or not at all, and nothing deadlocks",
        Scenario::Nested => {
            "the second service gets the lock, and it is free with the outermost release only"
        }
        Scenario::Slow => {
            "renewed, no other thread gets in; not renewed, the late holder is notified and its write refused"
        }
        Scenario::Crash => {
            "no other thread gets in before, and the next one within ttl + 1 s after"
        }
        Scenario::Limit => {
            "never more than the limit, and all permits are in use within ttl + 1 s after the death"
        }
        Scenario::Catalog => {
            "no reader sees the rows disagree, and writers get in while there are readers"
        }
    }
}

/// Returns the table of one store.
fn table(rows: &[Row]) -> Markup {
    let shown = |value: Option<f64>, text: fn(f64) -> String| {
        (value, value.map_or_else(|| "–".to_owned(), text))
    };
    let table = Table {
        caption: rows
            .first()
            .map(|row| row.store.clone())
            .unwrap_or_default(),
        columns: ["strategy", "elapsed", "commands per grant", "connections"]
            .map(str::to_owned)
            .into(),
        rows: rows
            .iter()
            .map(|row| TableRow {
                name: row.strategy.to_string(),
                is_ours: row.strategy == Strategy::Lockkeeper,
                figures: vec![
                    shown(Some(row.elapsed_ms), time),
                    shown(row.commands_per_grant, number),
                    shown(row.connections.map(f64::from), |count| count.to_string()),
                ],
            })
            .collect(),
    };
    let heading = html! { th scope="col" { "waits" (axis()) } };
    table.draw(&heading, |number| {
        let row = rows.get(number);
        let waits = html! {
            td.waits data-label="waits" { @if let Some(row) = row { (distribution(row)) } }
        };
        (html! { @if let Some(row) = row { (outcome(row)) } }, waits)
    })
}

fn number(value: f64) -> String {
    if value >= 99.95 {
        format!("{value:.0}")
    } else if value >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

fn outcome(row: &Row) -> Markup {
    let (word, sign, class) = verdict(row);
    let note = match row.scenario {
        Scenario::Gather | Scenario::Stock | Scenario::Seat | Scenario::Party => {
            Some(format!("{} in, {} away", row.admitted, row.turned_away))
        }
        _ => None,
    };
    html! {
        span.outcome {
            span class=(class) { (sign) " " (word) }
            @if let Some(note) = note { " " span.note { (note) } }
        }
        @if row.verdict == Verdict::Wrong && let Some(fault) = row.faults.first() {
            small.fault { (fault) }
        }
    }
}
