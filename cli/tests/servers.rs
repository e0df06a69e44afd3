//! `lockkeeper compare` on real servers, as its users see it.

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
#[path = "servers/together.rs"]
mod together;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    let trials = [redis::trials(), mysql::trials(), together::trials()];
    let args = libtest_mimic::Arguments::from_args();
    libtest_mimic::run(&args, trials.into_iter().flatten().collect()).exit_code()
}

#[cfg(not(unix))]
fn main() {}
