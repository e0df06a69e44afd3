//! The cases, each on every server.

mod late;
mod network;
mod opening;
mod refusal;
mod resources;
mod rig;
mod server;
mod topology;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lockkeeper_testkit::RedisKind;

use crate::rig::threads_end;

type Case = (&'static str, fn(RedisKind));

const CASES: [&[Case]; 7] = [
    server::CASES,
    refusal::CASES,
    network::CASES,
    late::CASES,
    resources::CASES,
    opening::CASES,
    topology::CASES,
];

pub(crate) fn main() -> ExitCode {
    if let Some(done) = opening::child() {
        return done;
    }
    let mut arguments = Arguments::from_args();
    // They wait more than they work.
    arguments.test_threads.get_or_insert(12);
    let trials = RedisKind::ALL.into_iter().flat_map(|kind| {
        CASES.into_iter().flatten().map(move |&(name, case)| {
            Trial::ignorable_test(format!("{kind}::{name}"), move || match kind.ignored() {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => {
                    case(kind);
                    Ok::<_, Failed>(Completion::Completed)
                }
            })
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // Now that nothing else runs, no thread of a keeper may.
    if !conclusion.has_failed() {
        threads_end();
    }
    conclusion.exit_code()
}
