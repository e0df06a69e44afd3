//! The cases of Redis alone.

mod batch;
#[path = "../../backends/local/tests/local/batched.rs"]
mod batched;
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
mod sent_release;
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

/// The cases in which a server's errors, commands and scripts decide: they run on each kind of server.
const ON_EACH_KIND: &[&[Case]] = &[
    server::CASES,
    topology::CASES,
    refusal::CASES,
    batch::CASES,
    loss::CASES,
    modes::CASES,
    modes_waiting::CASES,
    opening::CASES,
];

/// The cases in which the network, this program or several servers decide: they run on one kind of server.
const ON_ONE_KIND: &[&[Case]] = &[
    opening::BY_OTHERS,
    resources::CASES,
    sent_release::CASES,
    network::CASES,
    late::CASES,
    supplied::CASES,
    sentinel::CASES,
    sentinel_opening::CASES,
    #[cfg(feature = "quorum")]
    quorum::CASES,
    cluster::CASES,
    cluster_hang::CASES,
];

/// Those of the latter that show once on each other kind what its sentinels and clusters say.
const ALSO_ON_OTHERS: &[&str] = &[
    "sentinel_primary_killed",
    "sentinel_users",
    "sentinel_doctor",
    "cluster_primary_killed",
    "cluster_fail_over_contended",
    "cluster_slot_moves_under_a_lock",
    "cluster_slot_moves_under_waiters",
    "cluster_names_on_all_nodes",
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = suite::trials(ON_EACH_KIND.iter().copied().flatten().copied());
    for case in ON_ONE_KIND.iter().copied().flatten() {
        trials.push(suite::trial(RedisKind::Redis7, *case));
        if ALSO_ON_OTHERS.contains(&case.0) {
            let others = RedisKind::ALL.iter().filter(|it| **it != RedisKind::Redis7);
            trials.extend(others.map(|kind| suite::trial(*kind, *case)));
        }
    }
    trials.extend(cluster::on_redis_6());
    trials.extend(clock::trials());
    trials
}
