//! What stores with sessions have in common, on real servers: what locks cost, names that share a session, batches, pools
//! that are short of connections, and what the application supplies.
//!
//! A trial is called `KIND::CASE`, such as `mysql-9::ttls_stay_apart`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

mod batch;
mod batches;
mod checks;
mod opening;
mod pairs;
mod replies;
mod reuse;
mod sharing;
mod store;
mod supplied;

fn main() -> std::process::ExitCode {
    use lockkeeper_testkit::suite;

    let cases = [
        sharing::CASES,
        pairs::CASES,
        batches::CASES,
        replies::CASES,
        reuse::CASES,
        opening::CASES,
        supplied::CASES,
    ];
    let cases = cases.into_iter().flatten().copied();
    let on_each = |case| store::kinds().map(move |kind| suite::trial(kind, case));
    let trials = cases.flat_map(on_each).collect();
    libtest_mimic::run(&suite::arguments(), trials).exit_code()
}
