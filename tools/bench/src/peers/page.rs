//! The page of the peers: the charts of `lockkeeper compare --html`, for what the table has.

use lockkeeper_compare::html::{bar, page};
use maud::{Markup, html};

use super::{OURS, RUNS, Store, WORKS, shown_rate, shown_wait};
use crate::many::Run;

/// A column with a bar for each peer.
struct Measure {
    name: &'static str,
    of: fn(&Run) -> f64,
    text: fn(&Run) -> String,
}

const MEASURES: [Measure; 2] = [
    Measure {
        name: "grants per second (more is better)",
        of: |run| run.grants_per_second,
        text: shown_rate,
    },
    Measure {
        name: "longest wait (less is better)",
        of: |run| run.longest_wait.as_secs_f64(),
        text: shown_wait,
    },
];

/// Returns the page.
pub(super) fn of(stores: &[Store]) -> String {
    let title = "lockkeeper-bench peers";
    let content = html! {
        header {
            p.name { (title) }
            h1 { "The same work, with other ways to lock" }
            p.lede {
                "Locks and releases alone: nothing else is done but what a heading says. Each figure is "
                "the median of " (RUNS) " runs, in which the ways to lock on a store alternate."
            }
        }
        main {
            @for (number, work) in WORKS.iter().enumerate() {
                section {
                    h2 { (work.what) }
                    div.stores { @for store in stores { (table(store, number)) } }
                }
            }
        }
        footer {
            p {
                "Made by " code { (title) " --html" } ". The numbers are of one machine and one run."
            }
        }
    };
    page(title, &content).into_string()
}

/// Returns the table of a store for the work with this number.
fn table(store: &Store, work: usize) -> Markup {
    let peers = store.peers.iter();
    let rows: Vec<_> = peers
        .filter_map(|peer| Some((peer.name, peer.runs.get(work)?)))
        .collect();
    html! {
        table.rows {
            caption { (store.name) }
            thead {
                tr {
                    th scope="col" { "locked with" }
                    @for measure in MEASURES { th scope="col" { (measure.name) } }
                }
            }
            tbody {
                @for (name, run) in &rows {
                    tr.ours[*name == OURS] {
                        th scope="row" { (name) }
                        @for Measure { name, of, text } in MEASURES {
                            @let most = rows.iter().map(|(_, run)| of(run)).fold(0.0, f64::max);
                            td data-label=(name) { (bar(Some(of(run)), most, &text(run), name)) }
                        }
                    }
                }
            }
        }
    }
}
