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
    let cases = [
        late::CASES,
        loss::CASES,
        opening::CASES,
        owed::CASES,
        revisions::CASES,
    ];
    let mut trials = suite::trials(cases.into_iter().flatten().copied());
    // Elections take most of the time of the suite, and are the same on all kinds.
    let elections = cluster::CASES.iter();
    trials.extend(elections.map(|case| suite::trial(EtcdKind::Etcd3_4, *case)));
    trials
}
