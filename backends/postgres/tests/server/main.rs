//! Cases of this backend alone, on real servers: errors on opening, a crash, poolers, a standby, administration, locks of both
//! modes and commit proofs. `backends/sessions/tests` has what MySQL shares.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

mod admin;
mod batches;
#[path = "../../../sessions/tests/server/checks.rs"]
mod checks;
mod crashes;
mod hostile;
mod opening;
mod pooler;
mod proof;
mod sent;
mod standby;
mod store;
mod supplied;
mod table;
#[path = "../../../register/tests/table/cases.rs"]
mod table_cases;

fn main() -> std::process::ExitCode {
    use lockkeeper_testkit::suite;

    if let Some(exit_code) = pooler::child() {
        return exit_code;
    }
    let cases = [
        opening::CASES,
        crashes::CASES,
        admin::CASES,
        proof::CASES,
        batches::CASES,
        sent::CASES,
        supplied::CASES,
        table::CASES,
    ];
    let mut trials = suite::trials(cases.into_iter().flatten().copied());
    trials.extend(pooler::trials());
    trials.extend(standby::trials());
    trials.extend(hostile::trials());
    libtest_mimic::run(&suite::arguments(), trials).exit_code()
}
