//! The budgets of `lockkeeper`. Each row is a ratio to a floor that is measured alternately with it, in the
//! same run.
//!
//! `cargo run --release -p lockkeeper-bench` runs all rows; with words it runs the groups that have
//! one of them in their name. `peers` runs other ways to lock beside this library instead, and
//! `peers --html FILE` writes a page with charts as well. A row is never a test: a busy machine makes it
//! worse.

mod contended;
mod free;
mod held;
mod keepers;
mod loss;
mod many;
mod memory;
mod modes;
mod once;
mod pairs;
mod passes;
mod peers;
mod pinning;
mod process;
mod quorum;
mod raw;
mod row;
mod row_lock;
mod scale;
mod store;
mod table;
mod threads;
mod trace;
mod waiting;
mod wakes;

use std::error::Error;
use std::process::ExitCode;

use crate::row::Rows;
use crate::store::Kind::{
    self, Consul, Etcd, MariaDb, Memory, MySql, Postgres, Redis, Sqlite, ZooKeeper,
};
use crate::store::Missing;

/// Some rows with the stores that they run on. The name of a group is that of its rows and that of a store.
type Group = (&'static str, &'static [Kind], fn(Kind) -> Rows);

const ALL: &[Kind] = &[
    Memory, Sqlite, Redis, MariaDb, MySql, Postgres, Etcd, Consul, ZooKeeper,
];
const SHARED: &[Kind] = &[
    Sqlite, Redis, MariaDb, MySql, Postgres, Etcd, Consul, ZooKeeper,
];
const SERVERS: &[Kind] = &[Redis, MariaDb, MySql, Postgres, Etcd, Consul, ZooKeeper];

const GROUPS: [Group; 17] = [
    ("free in-process", &[Memory], free::in_process),
    ("free", SHARED, free::rows),
    ("free quorum of", &[Redis], quorum::rows),
    ("many", SHARED, many::rows),
    ("many cluster of", &[Redis], many::cluster),
    ("passes", ALL, passes::rows),
    ("modes", ALL, modes::rows),
    ("contended threads", ALL, contended::threads),
    ("contended processes", SHARED, contended::processes),
    ("pairs", &[MariaDb, MySql, Postgres], pairs::rows),
    ("table", &[MariaDb, MySql, Postgres], table::rows),
    ("row lock", &[MariaDb, MySql, Postgres], row_lock::rows),
    ("waiting", ALL, waiting::rows),
    ("scale held", &[Redis], held::rows),
    ("scale keepers", &[Redis], keepers::rows),
    ("scale", ALL, scale::rows),
    ("loss", SERVERS, loss::rows),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.split_first() {
        Some((word, rest)) if word == process::CHILD => process::child(rest),
        Some((word, rest)) if word == peers::PEERS => peers::run(rest),
        Some((word, rest)) if word == trace::TRACE => trace::run(rest, ALL),
        _ => run(&words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the groups that have one of these words in their name, or all.
fn run(words: &[String]) -> Result<(), Box<dyn Error>> {
    println!(
        "{:<50} {:>12} {:>12} {:>9} {:>9}",
        "", "measured", "floor", "", "budget"
    );
    let groups = GROUPS.iter().flat_map(|(rows, stores, measure)| {
        let of = move |store: &Kind| (format!("{rows} {}", store.word()), *store, measure);
        stores.iter().map(of)
    });
    let mut over = 0;
    for (name, store, measure) in groups {
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        match measure(store) {
            Ok(rows) => over += rows.iter().filter(|row| !row.print()).count(),
            Err(error) if error.is::<Missing>() => {
                println!("{name:<50} not measured: {error}");
            }
            Err(error) => return Err(format!("{name}: {error}").into()),
        }
    }
    println!("{over} over budget");
    Ok(())
}
