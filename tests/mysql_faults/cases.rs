//! The cases of MySQL and MariaDB alone.

mod batches;
mod clients;
mod loss;
mod network;
mod opening;
mod server;
mod sessions;
mod sharing;
mod store;

use std::process::ExitCode;

use lockkeeper_testkit::{MySqlKind, suite};

use crate::faults::run;

type Case = suite::Case<MySqlKind>;

pub(crate) fn main() -> ExitCode {
    if let Some(url) = clients::url_of_child() {
        return clients::run_child(&url);
    }
    let cases = [
        server::CASES,
        sessions::CASES,
        loss::CASES,
        clients::CASES,
        sharing::CASES,
        network::CASES,
        opening::CASES,
        batches::CASES,
    ];
    run::<store::Server>(cases.into_iter().flatten().copied())
}
