//! Comparisons on real servers, one kind of server after the other.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
#[path = "servers/mysql.rs"]
mod mysql;
#[cfg(unix)]
#[path = "servers/redis.rs"]
mod redis;
#[cfg(unix)]
#[path = "servers/rig.rs"]
mod rig;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    if std::env::args().nth(1).as_deref() == Some(rig::HOLDER) {
        return rig::hold();
    }
    let args = libtest_mimic::Arguments::from_args();
    let trials = [redis::trials(), mysql::trials()];
    libtest_mimic::run(&args, trials.into_iter().flatten().collect()).exit_code()
}

#[cfg(not(unix))]
fn main() {}
