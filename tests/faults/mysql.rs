//! The cases of MySQL and MariaDB alone.

mod network;
mod server;
mod sessions;

use libtest_mimic::Trial;
use lockkeeper_testkit::{MySqlKind, suite};

type Case = suite::Case<MySqlKind>;

pub(crate) fn trials() -> Vec<Trial> {
    let cases = [server::CASES, sessions::CASES, network::CASES];
    suite::trials(cases.into_iter().flatten().copied())
}
