//! The cases of MySQL and MariaDB alone.

mod batches;
mod clients;
mod network;
mod server;
mod sessions;
mod sharing;
mod store;

use std::process::ExitCode;

use lockkeeper_testkit::{MySqlKind, suite};

use crate::faults::run;
use crate::session_server;

type Case = suite::Case<MySqlKind>;

pub(crate) fn main() -> ExitCode {
    if let Some(url) = clients::url_of_child() {
        return clients::run_child(&url);
    }
    let cases = [
        server::CASES,
        sessions::CASES,
        clients::CASES,
        sharing::CASES,
        network::CASES,
        batches::CASES,
    ];
    let own = cases.into_iter().flatten().copied();
    run::<store::Server>(
        session_server::cases::<store::Server>()
            .into_iter()
            .chain(own),
    )
}
