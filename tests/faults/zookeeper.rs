//! The cases of ZooKeeper alone.

mod ensemble;
mod opening;
mod sessions;

use libtest_mimic::Trial;
use lockkeeper_testkit::{ZooKeeperKind, suite};

type Case = suite::Case<ZooKeeperKind>;

pub(crate) fn trials() -> Vec<Trial> {
    let cases = [ensemble::CASES, opening::CASES, sessions::CASES];
    suite::trials(cases.into_iter().flatten().copied())
}
