//! Transactions under a lock, on real servers and on a SQLite file. `scripts/examples diesel` runs those of Diesel.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

mod application;
mod cases;
mod hostile;
mod mysql;
mod postgres;
mod sqlite;
mod table;
mod transaction_lock;

use libtest_mimic::Trial;
use lockkeeper_testkit::suite;

/// Makes a trial of each case on each kind of server. The cases are those of all databases, for which `on_server`
/// starts a server and calls a case, and the kind's `own`.
fn on_each_kind<A: application::Application, K: suite::ServerKind>(
    on_server: fn(K, fn(&str, &mut A)),
    own: &[suite::Case<K>],
) -> Vec<Trial> {
    let trial = |kind: K, (name, case): cases::Case<A>| {
        let name = format!("{kind}::{name}");
        suite::named_trial(name, move || kind.ignored(), move || on_server(kind, case))
    };
    let kinds = K::all().iter();
    kinds
        .flat_map(|&kind| cases::all::<(), A>().map(|case| trial(kind, case)))
        .chain(suite::trials(own.iter().copied()))
        .collect()
}

fn main() -> std::process::ExitCode {
    let mut trials = mysql::trials();
    trials.extend(postgres::trials());
    trials.extend(suite::trials(transaction_lock::CASES.iter().copied()));
    trials.extend(suite::trials(hostile::CASES.iter().copied()));
    trials.extend(table::trials());
    trials.extend(sqlite::trials());
    libtest_mimic::run(&suite::arguments(), trials).exit_code()
}
