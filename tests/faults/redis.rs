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

use libtest_mimic::Trial;
use lockkeeper_testkit::{RedisKind, suite};

pub(crate) use opening::child;

type Case = suite::Case<RedisKind>;

pub(crate) fn trials() -> Vec<Trial> {
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
    let mut trials = suite::trials(cases.into_iter().flatten().copied());
    trials.extend(cluster::on_redis_6());
    trials.extend(clock::trials());
    trials
}
