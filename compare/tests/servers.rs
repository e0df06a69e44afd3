//! Comparisons on real servers, one kind of server after the other.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
#[path = "servers/etcd.rs"]
mod etcd;
#[cfg(unix)]
#[path = "servers/mysql.rs"]
mod mysql;
#[cfg(unix)]
#[path = "servers/postgres.rs"]
mod postgres;
#[cfg(unix)]
#[path = "servers/redis.rs"]
mod redis;
#[cfg(unix)]
#[path = "servers/rig.rs"]
mod rig;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    use lockkeeper_testkit::suite;

    if std::env::args().nth(1).as_deref() == Some(rig::HOLDER) {
        return rig::hold();
    }
    // Not `suite::arguments`: that many cases of a hundred threads at a time would only slow each other.
    let arguments = libtest_mimic::Arguments::from_args();
    let mut trials = suite::trials(redis::CASES.iter().copied());
    trials.extend(suite::trials(mysql::CASES.iter().copied()));
    trials.extend(suite::trials(postgres::CASES.iter().copied()));
    trials.extend(suite::trials(etcd::CASES.iter().copied()));
    libtest_mimic::run(&arguments, trials).exit_code()
}

#[cfg(not(unix))]
fn main() {}
