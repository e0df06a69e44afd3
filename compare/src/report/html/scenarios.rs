//! A section for each scenario, and in it a table with charts for each store.

use maud::{Markup, html};

use super::chart::{axis, bar, distribution, time};
use super::verdicts::verdict;
use crate::report::row::{Report, Row};
use crate::report::summary;
use crate::scenario::Scenario;
use crate::strategy::Strategy;
use crate::verdict::Verdict;

pub(super) fn sections(report: &Report) -> Markup {
    html! {
        @for scenario in Scenario::ALL {
            @let rows = report.rows.iter().filter(|row| row.scenario == scenario);
            @let rows: Vec<_> = rows.collect();
            @if !rows.is_empty() { (section(report, scenario, &rows)) }
        }
    }
}

fn section(report: &Report, scenario: Scenario, rows: &[&Row]) -> Markup {
    let mut stores: Vec<&str> = Vec::new();
    for row in rows {
        if !stores.contains(&row.store.as_str()) {
            stores.push(&row.store);
        }
    }
    html! {
        section id=(scenario) {
            h2 { (scenario) }
            p.what {
                b { (summary::question(scenario, &report.settings)) ". " }
                "Right: " (right(scenario)) "."
            }
            div.stores {
                @for store in stores {
                    @let here = rows.iter().filter(|row| row.store == store).copied();
                    (table(scenario, store, &here.collect::<Vec<_>>()))
                }
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
    }
}

fn table(scenario: Scenario, store: &str, rows: &[&Row]) -> Markup {
    let most = |of: &dyn Fn(&Row) -> Option<f64>| {
        let values = rows.iter().filter_map(|row| of(row));
        values.fold(0.0, f64::max)
    };
    let elapsed = most(&|row| Some(row.elapsed_ms));
    let commands = most(&|row| row.commands_per_grant);
    let connections = most(&|row| row.connections.map(f64::from));
    html! {
        table.rows {
            caption { (store) }
            thead {
                tr {
                    th scope="col" { "strategy" }
                    th scope="col" { "elapsed" }
                    th scope="col" { "commands per grant" }
                    th scope="col" { "connections" }
                    th scope="col" { "waits" (axis()) }
                }
            }
            tbody {
                @for row in rows {
                    tr.ours[row.strategy == Strategy::Lockkeeper] {
                        th scope="row" { (row.strategy) (outcome(scenario, row)) }
                        td data-label="elapsed" {
                            (bar(Some(row.elapsed_ms), elapsed, &time(row.elapsed_ms), "elapsed"))
                        }
                        td data-label="commands per grant" {
                            @let value = row.commands_per_grant;
                            @let text = value.map_or_else(not_counted, number);
                            (bar(value, commands, &text, "commands per grant"))
                        }
                        td data-label="connections" {
                            @let value = row.connections.map(f64::from);
                            @let text = value.map_or_else(not_counted, |value| value.to_string());
                            (bar(value, connections, &text, "connections"))
                        }
                        td.waits data-label="waits" {
                            (distribution(row))
                        }
                    }
                }
            }
        }
    }
}

fn not_counted() -> String {
    "–".to_owned()
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

fn outcome(scenario: Scenario, row: &Row) -> Markup {
    let (word, sign, class) = verdict(row);
    let note = match scenario {
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
