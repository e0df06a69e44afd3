//! The cases of PostgreSQL alone.

mod sessions;
mod store;

use std::process::ExitCode;

use lockkeeper_testkit::{PostgresKind, suite};

use crate::faults::run;
use crate::session_server;

type Case = suite::Case<PostgresKind>;

pub(crate) fn main() -> ExitCode {
    let cases = session_server::cases::<store::Server>().into_iter();
    run::<store::Server>(cases.chain(sessions::CASES.iter().copied()))
}
