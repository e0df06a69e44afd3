//! Transactions under a lock, on real servers and on a SQLite file. `scripts/examples diesel` runs those of Diesel.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
mod application;
#[cfg(unix)]
mod cases;
#[cfg(unix)]
mod hostile;
#[cfg(unix)]
mod mysql;
#[cfg(unix)]
mod postgres;
#[cfg(unix)]
mod sqlite;
#[cfg(unix)]
mod transaction_lock;

/// Makes a trial of each case on each kind of server. `on_server` starts one, and calls a case.
#[cfg(unix)]
fn on_each_kind<A: application::Application, K: lockkeeper_testkit::suite::ServerKind>(
    on_server: fn(K, fn(&str, &mut A)),
) -> Vec<libtest_mimic::Trial> {
    use libtest_mimic::{Completion, Trial};

    let trial = |kind: K, (name, case): cases::Case<A>| {
        Trial::ignorable_test(format!("{kind}::{name}"), move || match kind.ignored() {
            Some(why) => Ok(Completion::ignored_with(why)),
            None => {
                on_server(kind, case);
                Ok(Completion::Completed)
            }
        })
    };
    let kinds = K::all().iter();
    kinds
        .flat_map(|&kind| cases::all::<(), A>().map(|case| trial(kind, case)))
        .collect()
}

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    use lockkeeper_testkit::suite;

    let mut trials = mysql::trials();
    trials.extend(postgres::trials());
    trials.extend(suite::trials(transaction_lock::CASES.iter().copied()));
    trials.extend(suite::trials(hostile::CASES.iter().copied()));
    trials.extend(sqlite::trials());
    libtest_mimic::run(&suite::arguments(), trials).exit_code()
}

#[cfg(not(unix))]
fn main() {}
