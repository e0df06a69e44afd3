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
#[path = "server/admin.rs"]
mod admin;
#[cfg(unix)]
#[path = "server/batches.rs"]
mod batches;
#[cfg(unix)]
#[path = "server/names.rs"]
mod names;
#[cfg(unix)]
#[path = "server/opening.rs"]
mod opening;
#[cfg(unix)]
#[path = "server/pairs.rs"]
mod pairs;
#[cfg(unix)]
#[path = "server/proof.rs"]
mod proof;
#[cfg(unix)]
#[path = "server/reuse.rs"]
mod reuse;
#[cfg(unix)]
#[path = "server/sessions.rs"]
mod sessions;
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
