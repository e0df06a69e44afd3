//! The report as a page: verdicts, and charts beside their numbers. One file that needs no network;
//! every picture has a text that says the same, and a table around it.

mod chart;
mod figures;
mod scenarios;
mod verdicts;

pub use figures::{Figures, Table, TableRow};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::row::Report;
use super::summary;

const STYLE: &str = include_str!("style.css");

impl Report {
    /// Returns the report as one HTML file that needs no network.
    pub fn to_html(&self) -> String {
        page("lockkeeper compare", &content(self)).into_string()
    }
}

/// Wraps the content of a page in the style of the report.
fn page(title: &str, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (content) }
        }
    }
}

fn content(report: &Report) -> Markup {
    html! {
        (head(report))
        main {
            (verdicts::section(report))
            (scenarios::sections(report))
        }
        footer {
            p {
                "Made by " code { "lockkeeper compare --html" } ", version "
                (env!("CARGO_PKG_VERSION")) ". The numbers are of one machine and one run; "
                "the verdicts are not."
            }
        }
    }
}

fn head(report: &Report) -> Markup {
    let settings = &report.settings;
    html! {
        header {
            p.name { "lockkeeper compare" }
            h1 { "The same work, with every way of locking" }
            p.lede {
                (settings.threads) " threads read, think and write in separate statements: nothing "
                "but the lock protects the data. Which ways oversell, how long do threads wait, and "
                "how many commands and connections does each way need?"
            }
            (banner(report))
            @let sentences = summary::sentences(report);
            @if !sentences.is_empty() {
                ul.sentences { @for line in &sentences { li { (line) } } }
            }
        }
    }
}

fn banner(report: &Report) -> Markup {
    let all = report.rows.len();
    let bad = report.rows.iter().filter(|row| !row.is_as_expected());
    let bad = bad.count();
    html! {
        p.banner.bad[bad > 0] {
            @if bad == 0 {
                "✓ " (all) " of " (all) " rows as they must be"
            } @else {
                "! " (bad) " of " (all) " rows are not as they must be"
            }
            @if !report.complete { "; the run ended early, and rows are missing" }
        }
    }
}
