//! Cases of this backend alone, on real servers: shared sessions, the cost of a lock, administration,
//! commit proofs, and errors on opening.

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
#[path = "../../../remote/tests/sessions/checks.rs"]
mod checks;
#[cfg(unix)]
mod names;
#[cfg(unix)]
mod opening;
#[cfg(unix)]
mod pairs;
#[cfg(unix)]
mod proof;
#[cfg(unix)]
mod reuse;
#[cfg(unix)]
mod sessions;
#[cfg(unix)]
mod store;
#[cfg(unix)]
mod supplied;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    use lockkeeper_testkit::suite;

    let cases = [
        sessions::CASES,
        pairs::CASES,
        opening::CASES,
        admin::CASES,
        names::CASES,
        proof::CASES,
        reuse::CASES,
        batches::CASES,
        supplied::CASES,
    ];
    libtest_mimic::run(
        &suite::arguments(),
        suite::trials(cases.into_iter().flatten().copied()),
    )
    .exit_code()
}

#[cfg(not(unix))]
fn main() {}
