//! The cases of PostgreSQL alone.

mod loss;
mod network;
mod opening;
mod sessions;
mod store;

use std::process::ExitCode;

use lockkeeper_testkit::{PostgresKind, suite};

use crate::faults::run;

type Case = suite::Case<PostgresKind>;

pub(crate) fn main() -> ExitCode {
    let cases = [sessions::CASES, loss::CASES, network::CASES, opening::CASES];
    run::<store::Server>(cases.into_iter().flatten().copied())
}
