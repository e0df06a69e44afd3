//! The cases of Redis alone.

mod batch;
mod clock;
mod cluster;
mod cluster_hang;
mod fail_over;
mod late;
mod loss;
mod modes;
mod modes_waiting;
mod network;
mod opening;
mod operations;
#[cfg(feature = "quorum")]
mod quorum;
mod refusal;
mod resources;
mod sentinel;
mod sentinel_opening;
mod server;
mod store;
mod supplied;
mod topology;

use std::process::ExitCode;

use lockkeeper_testkit::{RedisKind, RedisServer, suite};

use crate::faults::run;

type Case = suite::Case<RedisKind>;

pub(crate) fn main() -> ExitCode {
    if let Some(exit_code) = opening::child() {
        return exit_code;
    }
    let cases = [
        server::CASES,
        topology::CASES,
        resources::CASES,
        refusal::CASES,
        network::CASES,
        batch::CASES,
        late::CASES,
        loss::CASES,
        modes::CASES,
        modes_waiting::CASES,
        opening::CASES,
        sentinel::CASES,
        sentinel_opening::CASES,
        supplied::CASES,
        #[cfg(feature = "quorum")]
        quorum::CASES,
        cluster::CASES,
        cluster_hang::CASES,
    ];
    run::<RedisServer>(cases.into_iter().flatten().copied())
}
