//! The cases of etcd alone.

mod cluster;
mod late;
mod loss;
mod opening;
mod owed;
mod relay;
mod revisions;

use libtest_mimic::Trial;
use lockkeeper_testkit::{EtcdKind, suite};

type Case = suite::Case<EtcdKind>;

pub(crate) fn trials() -> Vec<Trial> {
    let cases = [loss::CASES, opening::CASES, revisions::CASES];
    let mut trials = suite::trials(cases.into_iter().flatten().copied());
    // The relay decides these, or an election.
    let once = [late::CASES, owed::CASES, cluster::CASES];
    let once = once.into_iter().flatten();
    trials.extend(once.map(|case| suite::trial(EtcdKind::Etcd3_4, *case)));
    trials
}
