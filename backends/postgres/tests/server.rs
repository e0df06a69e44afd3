//! Cases of this backend alone, on real servers: errors on opening, crashes, poolers, a standby, administration, sessions
//! and commit proofs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
#[path = "server/admin.rs"]
mod admin;
#[cfg(unix)]
#[path = "server/batches.rs"]
mod batches;
#[cfg(unix)]
#[path = "server/crashes.rs"]
mod crashes;
#[cfg(unix)]
#[path = "server/hostile.rs"]
mod hostile;
#[cfg(unix)]
#[path = "server/opening.rs"]
mod opening;
#[cfg(unix)]
#[path = "server/pooler.rs"]
mod pooler;
#[cfg(unix)]
#[path = "server/proof.rs"]
mod proof;
#[cfg(unix)]
#[path = "server/standby.rs"]
mod standby;
#[cfg(unix)]
#[path = "server/store.rs"]
mod store;
#[cfg(unix)]
#[path = "server/supplied.rs"]
mod supplied;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    use lockkeeper_testkit::suite;

    let cases = [
        opening::CASES,
        crashes::CASES,
        admin::CASES,
        proof::CASES,
        batches::CASES,
        supplied::CASES,
    ];
    let mut trials = suite::trials(cases.into_iter().flatten().copied());
    trials.extend(pooler::trials());
    trials.extend(standby::trials());
    trials.extend(hostile::trials());
    libtest_mimic::run(&suite::arguments(), trials).exit_code()
}

#[cfg(not(unix))]
fn main() {}
