//! Cases of this backend alone, on real servers: errors on opening, names, administration, commit proofs, and connections of
//! the application. `backends/sessions/tests` has what PostgreSQL shares.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

mod admin;
#[allow(dead_code, reason = "the other suites use the rest")]
#[path = "../../../sessions/tests/server/checks.rs"]
mod checks;
mod names;
mod opening;
mod proof;
mod statements;
mod store;
mod supplied;
mod table;
#[path = "../../../register/tests/table/cases.rs"]
mod table_cases;

fn main() -> std::process::ExitCode {
    use lockkeeper_testkit::suite;

    let cases = [
        opening::CASES,
        admin::CASES,
        names::CASES,
        proof::CASES,
        statements::CASES,
        supplied::CASES,
        table::CASES,
    ];
    libtest_mimic::run(
        &suite::arguments(),
        suite::trials(cases.into_iter().flatten().copied()),
    )
    .exit_code()
}
