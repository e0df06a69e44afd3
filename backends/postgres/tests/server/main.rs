//! Cases of this backend alone, on real servers: errors on opening, a crash, poolers, a standby, administration, locks of both
//! modes and commit proofs. `backends/sessions/tests` has what MySQL shares.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
mod admin;
#[cfg(unix)]
mod batches;
#[cfg(unix)]
#[path = "../../../sessions/tests/server/checks.rs"]
mod checks;
#[cfg(unix)]
mod crashes;
#[cfg(unix)]
mod hostile;
#[cfg(unix)]
mod opening;
#[cfg(unix)]
mod pooler;
#[cfg(unix)]
mod proof;
#[cfg(unix)]
mod sent;
#[cfg(unix)]
mod standby;
#[cfg(unix)]
mod store;
#[cfg(unix)]
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
        sent::CASES,
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
