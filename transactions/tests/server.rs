//! Transactions under a lock, on real servers and on a SQLite file. `scripts/examples diesel` runs those of Diesel.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
#[path = "server/application.rs"]
mod application;
#[cfg(unix)]
#[path = "server/cases.rs"]
mod cases;
#[cfg(unix)]
#[path = "server/hostile.rs"]
mod hostile;
#[cfg(unix)]
#[path = "server/mysql.rs"]
mod mysql;
#[cfg(unix)]
#[path = "server/postgres.rs"]
mod postgres;
#[cfg(unix)]
#[path = "server/sqlite.rs"]
mod sqlite;
#[cfg(unix)]
#[path = "server/transaction_lock.rs"]
mod transaction_lock;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    use lockkeeper_testkit::suite;

    let mut trials = suite::trials(mysql::cases());
    trials.extend(suite::trials(postgres::cases()));
    trials.extend(suite::trials(transaction_lock::CASES));
    trials.extend(suite::trials(hostile::CASES));
    trials.extend(sqlite::trials());
    libtest_mimic::run(&suite::arguments(), trials).exit_code()
}

#[cfg(not(unix))]
fn main() {}
