//! The cases of MySQL and MariaDB alone.

mod clients;
mod network;
mod server;
mod sessions;
mod store;

use std::process::ExitCode;

use libtest_mimic::Trial;
use lockkeeper_testkit::{MySqlKind, suite};

type Case = suite::Case<MySqlKind>;

/// Runs this program as a client of a case, if it was started as one.
pub(crate) fn child() -> Option<ExitCode> {
    Some(clients::run_child(&clients::url_of_child()?))
}

pub(crate) fn trials() -> Vec<Trial> {
    let cases = [
        server::CASES,
        sessions::CASES,
        clients::CASES,
        network::CASES,
    ];
    suite::trials(cases.into_iter().flatten().copied())
}
