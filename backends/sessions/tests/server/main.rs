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

    let on_each_kind = [
        sharing::CASES,
        batches::CASES,
        reuse::CASES,
        opening::CASES,
        supplied::CASES,
    ];
    // The pool or the proxy decides these.
    let once_a_product = [pairs::CASES, replies::CASES];
    let trials = |kind, cases: &[&[store::Case]]| {
        let cases = cases.iter().copied().flatten();
        Vec::from_iter(cases.map(|case| suite::trial(kind, *case)))
    };
    let mut all = Vec::new();
    for kind in store::kinds() {
        all.extend(trials(kind, &on_each_kind));
    }
    for kind in store::products() {
        all.extend(trials(kind, &once_a_product));
    }
    libtest_mimic::run(&suite::arguments(), all).exit_code()
}
